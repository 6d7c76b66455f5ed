//! Lent buffers that cannot be given back: what the lender learns.

use super::*;

/// Only a hang takes as long.
const LIMIT: Duration = Duration::from_secs(10);

#[apply(case)]
fn the_lender_is_told_whichever_call_fails(env: &Environment) -> Result<()> {
    let control = env.control()?;
    for code in [1, 2, 719].map(CUresult) {
        for nth in 1_usize.. {
            let mut is_past = false;
            lend(env, |there, received, end| {
                control.reset();
                control.fail_call(nth as u64, code);
                let (given, calls) = control.record(|| there.give_back(received));
                control.clear_faults();
                let call = calls.get(nth - 1);
                is_past = call.is_none();
                // A stream that gives no answer is taken for one that is not captured, and still busy.
                let silent = [
                    "cuStreamIsCapturing",
                    "cuStreamQuery",
                    "cuThreadExchangeStreamCaptureMode",
                ];
                let may_pass = call.is_none_or(|call| silent.contains(&call.as_str()));
                let outcome = match given {
                    Ok(()) => Ok(()),
                    // The buffer is dropped, if it came back.
                    Err(failed) => Err(Error::from(failed)),
                };
                let end = end.recv_timeout(LIMIT);
                let end = end.with_context(|| format!("call {nth}, {code}: it waits"))?;
                match (outcome, end) {
                    (Ok(()), Ok(())) if may_pass => Ok(()),
                    (Err(error), Err(end)) => {
                        ensure!(error.code() == Some(code), "call {nth}: {error}");
                        ensure!(end.kind() == ErrorKind::PeerFailed, "call {nth}: {end}");
                        ensure!(end.to_string().contains(&error.to_string()), "{end}");
                        Ok(())
                    }
                    // Nothing was done, and the end of the buffer returned it.
                    (Err(error), Ok(())) if error.kind() == ErrorKind::Capturing => Ok(()),
                    other => bail!("call {nth}, {code}: {other:?}"),
                }
            })?;
            if is_past {
                ensure!(nth > 3, "only {nth} calls");
                break;
            }
        }
    }
    Ok(())
}

#[apply(case)]
fn a_failed_return_can_be_tried_again(env: &Environment) -> Result<()> {
    lend(env, |there, received, end| {
        let control = env.control()?;
        control.fail("cuStreamSynchronize", 1, CUresult(1));
        let failed = there.give_back(received).err();
        let received = failed.and_then(|failed| failed.object);
        let received = received.context("the buffer did not come back")?;
        ensure!(
            end.try_recv().is_err(),
            "the lender has it, and so has this end"
        );
        ensure!(received.to_vec()? == [1; 100]);
        there.give_back(received)?;
        Ok(end.recv_timeout(LIMIT)??)
    })
}

#[apply(case)]
fn a_buffer_that_stays_mapped_is_no_reason_to_wait(env: &Environment) -> Result<()> {
    lend(env, |there, received, end| {
        let control = env.control()?;
        for nth in 1..=2 {
            // The free is tried again.
            control.fail_without_effect("cuMemFreeAsync", nth, CUresult(1));
        }
        let failed = there.give_back(received).err().context("it did not fail")?;
        ensure!(failed.error.function() == Some("cuMemFreeAsync"));
        let end = end
            .recv_timeout(LIMIT)?
            .err()
            .context("nothing went wrong")?;
        ensure!(end.kind() == ErrorKind::PeerFailed);
        ensure!(end.to_string().contains("cuMemFreeAsync"), "{end}");
        Ok(())
    })
}

/// A capture that was the reason may have ended when it is looked for.
#[apply(case)]
fn a_buffer_whose_free_was_refused_once_goes_back(env: &Environment) -> Result<()> {
    lend(env, |there, received, end| {
        env.control()?
            .fail_without_effect("cuMemFreeAsync", 1, CUresult(1));
        there.give_back(received)?;
        Ok(end.recv_timeout(LIMIT)??)
    })
}

/// The buffer is dropped while its stream is captured, and then its context is lost: each call of `function` says so. The
/// lender learns of it, and this end counts so many failures.
fn lose_context(
    env: &Environment,
    mut received: Received,
    end: &Receiver<Result<(), Error>>,
    (function, is_used_elsewhere, failures): (&str, bool, u64),
) -> Result<()> {
    let (other, control) = (env.stream()?, env.control()?);
    let stream = received.stream().clone();
    let counts = drop_counts();
    if is_used_elsewhere {
        received.on(&other).map(std::mem::forget)?;
    }
    stream.capture(CaptureMode::Relaxed, |_| {
        drop(received);
        for nth in 1..=100 {
            control.fail(function, nth, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        Ok(())
    })?;
    let polled = (0..8).try_for_each(|_| other.synchronize());
    control.clear_faults();
    polled?;
    let end = end.recv_timeout(LIMIT).context("the lender waits")?;
    let end = end.err().context("it is given back")?;
    ensure!(end.kind() == ErrorKind::PeerFailed, "{end}");
    ensure!(end.to_string().contains(function), "{end}");
    let now = drop_counts();
    ensure!(
        now.failures == counts.failures + failures && now.waiting == counts.waiting,
        "{now:?}, before {counts:?}"
    );
    Ok(())
}

#[apply(case)]
fn a_buffer_of_a_lost_context_is_given_up(env: &Environment) -> Result<()> {
    lend(env, |_there, received, end| {
        lose_context(env, received, end, ("cuMemFreeAsync", false, 1))
    })
}

/// As above, where the free cannot come after another stream that used the buffer, so it is not tried.
#[apply(case)]
fn a_buffer_in_use_of_a_lost_context_is_given_up(env: &Environment) -> Result<()> {
    lend(env, |_there, received, end| {
        lose_context(env, received, end, ("cuEventRecord", true, 2))
    })
}

/// This end may still use it, and will not try again.
#[apply(case)]
fn a_buffer_that_is_lost_is_no_reason_to_wait(env: &Environment) -> Result<()> {
    lend(env, |there, mut received, end| {
        let (other, control) = (env.stream()?, env.control()?);
        received.on(&other).map(std::mem::forget)?;
        // Its stream cannot be made to wait for the other one, neither now nor at the end.
        control.fail("cuEventRecord", 1, CUresult::CUDA_ERROR_UNKNOWN);
        let failed = there.give_back(received).err().context("it did not fail")?;
        let received = failed.object.context("the buffer did not come back")?;
        ensure!(end.try_recv().is_err(), "it may be given back yet");
        control.fail("cuEventRecord", 1, CUresult::CUDA_ERROR_UNKNOWN);
        drop(received);
        let end = end.recv_timeout(LIMIT).context("the lender waits")?;
        let end = end.err().context("nothing went wrong")?;
        ensure!(end.kind() == ErrorKind::PeerFailed, "{end}");
        Ok(())
    })
}

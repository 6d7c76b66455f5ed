//! Calls of NCCL that go on in the background, or on another thread, when somebody stops waiting for them.

use std::sync::mpsc;

use cuda_mem::Resource;

use super::*;

#[apply(case)]
fn an_abort_ends_a_call_that_waits_on_another_thread(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    let ranks = two.nccl.communicators(&two.contexts).join()?;
    let mut buffers = Vec::new();
    for context in &two.contexts {
        let pool = context.device().default_pool()?;
        buffers.push(pool.alloc_zeroed::<f32>(&context.stream()?, 10)?);
    }
    // Each in turn, so that one of them is not the one that is waited for first.
    let (held, aborted) = (&ranks, &ranks[1]);
    for rank in held {
        ensure!(two.control.hold(rank.as_raw(), true));
    }
    std::thread::scope(|scope| {
        let group = scope.spawn(|| {
            let mut group = two.nccl.group();
            for (rank, buffer) in ranks.iter().zip(&mut buffers) {
                group.all_reduce_in_place(rank, buffer, ReduceOp::Sum)?;
            }
            group.run()
        });
        std::thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        aborted.abort()?;
        ensure!(start.elapsed() < Duration::from_secs(20));
        let ended = group.join().map_err(|_| anyhow!("it panicked"))?;
        let error = ended.err().context("it was aborted")?;
        let kinds = [ErrorKind::Aborted, ErrorKind::PeerGone];
        ensure!(kinds.contains(&error.kind()), "{error}");
        ensure!(ranks[0].as_raw().is_null(), "the other rank may go on");
        Ok(ranks[0].abort()?)
    })?;
    is_as_before(&two, "an abort of a waiting call")
}

/// NCCL's own thread would put the operation into the stream later, where the memory may be another's.
#[apply(case)]
fn an_operation_that_does_not_start_in_time_never_does(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    for is_group in [false, true] {
        let ranks = two.nccl.communicators(&two.contexts);
        let ranks = ranks.timeout(Duration::from_millis(200)).join()?;
        let mut buffers = Vec::new();
        for context in &two.contexts {
            let pool = context.device().default_pool()?;
            buffers.push(pool.alloc_zeroed::<f32>(&context.stream()?, 10)?);
        }
        ensure!(two.control.hold(ranks[0].as_raw(), true));
        let started = if is_group {
            let mut group = two.nccl.group();
            for (rank, buffer) in ranks.iter().zip(&mut buffers) {
                group.all_reduce_in_place(rank, buffer, ReduceOp::Sum)?;
            }
            group.run()
        } else {
            ranks[0].all_reduce_in_place(&mut buffers[0], ReduceOp::Sum)
        };
        let error = started.err().context("it was held up")?;
        ensure!(error.kind() == ErrorKind::TimedOut, "{error}");
        let used = if is_group { &ranks[..] } else { &ranks[..1] };
        for rank in used {
            ensure!(rank.as_raw().is_null(), "{rank} was not aborted");
        }
        let refused = ranks[0].check().err().context("it is of no use")?;
        ensure!(refused.kind() == ErrorKind::Aborted, "{refused}");
        for rank in &ranks {
            rank.abort()?;
        }
    }
    is_as_before(&two, "an operation that did not start in time")
}

#[apply(case)]
fn a_window_that_failed_in_the_background_aborts(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    let both = Barrier::new(2);
    in_threads(&two, |rank, stream| {
        both.wait();
        if rank.rank() == 1 {
            std::thread::sleep(Duration::from_millis(100));
            ensure!(two.control.kill(rank.as_raw()));
            return Ok(rank.abort()?);
        }
        let memory = RegisteredResource::builder(&rank).windows(true).build()?;
        let refused = Arena::over(memory).alloc::<u8>(&stream, 100).err();
        let error = refused.context("the other rank is gone")?;
        ensure!(error.kind() == ErrorKind::PeerGone, "{error}");
        // The registration had begun, and nothing of NCCL works on the memory any more.
        ensure!(rank.as_raw().is_null(), "it was not aborted");
        Ok(rank.abort()?)
    })?;
    is_as_before(&two, "a window without the other rank")
}

/// Frees registered memory while the deregistration of its window goes on in the background.
fn free_while_held(two: &Two) -> Result<Communicator> {
    let ranks = two.nccl.communicators(&two.contexts[..1]);
    let ranks = ranks.timeout(Duration::from_millis(200)).join()?;
    let rank = ranks.into_iter().next().context("one rank")?;
    let stream = two.contexts[0].stream()?;
    let memory = RegisteredResource::builder(&rank).windows(true).build()?;
    let buffer = Resource::new(memory).alloc::<u8>(&stream, 100)?;
    ensure!(two.control.hold(rank.as_raw(), true));
    let before = drop_counts().failures;
    drop(buffer);
    ensure!(
        drop_counts().failures > before,
        "the drop reports no failure"
    );
    Ok(rank)
}

#[apply(case)]
fn a_window_whose_end_does_not_come_in_time_aborts(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    let rank = free_while_held(&two)?;
    ensure!(rank.as_raw().is_null(), "it was not aborted");
    drop(rank);
    is_as_before(&two, "a deregistration that did not end")
}

/// Memory that NCCL may still use is never unmapped.
#[apply(case)]
fn memory_of_a_window_that_neither_ends_nor_aborts_is_leaked(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    two.control
        .fail("ncclCommAbort", 1, ncclResult_t::ncclInternalError);
    let rank = free_while_held(&two)?;
    let faults = two.control.faults();
    ensure!(faults.is_empty(), "{faults:?}");
    ensure!(two.control.live().windows == 1, "{:?}", two.control.live());
    drop(rank);
    Ok(())
}

/// NCCL itself waits in a call of one thread; another one has its own limit, whether its stream is done or not.
#[apply(case)]
fn a_wait_ends_in_time_while_a_blocking_call_lasts(_: &Environment) -> Result<()> {
    const LIMIT: Duration = Duration::from_millis(300);
    let two = machine(&[])?;
    let id = two.nccl.unique_id()?;
    let (tell, told) = mpsc::channel();
    let join = |number: usize| {
        let builder = two.nccl.communicator(&two.contexts[number], 2, number);
        builder.blocking(true).timeout(LIMIT).join(&id)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(move || -> Result<()> {
            let rank = join(1)?;
            // Over the limit, so that a wait for the call comes to an end.
            let _ = told.recv_timeout(20 * LIMIT);
            Ok(rank.abort()?)
        });
        let rank = join(0)?;
        while_a_call_blocks(&two, &rank, LIMIT, || Ok(tell.send(())?))?;
        rank.abort()?;
        other.join().map_err(|_| anyhow!("rank 1 panicked"))?
    })?;
    is_as_before(&two, "a call that blocked")
}

fn while_a_call_blocks(
    two: &Two,
    rank: &Communicator,
    limit: Duration,
    end: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let (held_up, idle) = (two.contexts[0].stream()?, two.contexts[0].stream()?);
    let pool = two.contexts[0].device().default_pool()?;
    let mut numbers = pool.alloc_zeroed::<f32>(&held_up, 10)?;
    rank.all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let memory = RegisteredResource::builder(rank).windows(true).build()?;
            Resource::new(memory).alloc::<u8>(&two.contexts[0].stream()?, 100)
        });
        std::thread::sleep(limit);
        for stream in [&idle, &held_up] {
            let start = Instant::now();
            let waited = rank.synchronize(stream).err();
            ensure!(start.elapsed() < 8 * limit, "{:?}", start.elapsed());
            let error = waited.context("it waited for nothing")?;
            ensure!(error.kind() == ErrorKind::TimedOut, "{error}");
        }
        end()?;
        let call = caller.join().map_err(|_| anyhow!("it panicked"))?;
        ensure!(call.is_err(), "the other rank never came");
        rank.abort()?;
        held_up.synchronize()?;
        Ok(())
    })
}

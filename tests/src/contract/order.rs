//! Order: streams, events, and buffers lent from one stream to another.
//!
//! A held stream cannot get past its host function, so "does this wait for that" has an answer that
//! does not depend on luck: while it is held, what waits for it is not done.

use anyhow::{Result, ensure};
use cuda_mem::ErrorKind;

use crate::environment::Environment;
use crate::hold::hold;

#[apply(case)]
fn a_held_stream_is_not_done(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let stream = env.stream()?;
    ensure!(stream.is_done()?, "nothing is in a new stream");
    let held = hold(&stream)?;
    ensure!(!stream.is_done()?);
    drop(held);
    stream.synchronize()?;
    ensure!(stream.is_done()?);
    Ok(())
}

#[apply(case)]
fn an_event_marks_a_point_in_a_stream(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (stream, event) = (context.stream()?, context.event()?);
    ensure!(event.is_done()?, "never recorded counts as done");
    event.record(&stream)?;
    event.synchronize()?;
    let held = hold(&stream)?;
    ensure!(event.is_done()?, "the mark lies before the held point");
    event.record(&stream)?;
    ensure!(!event.is_done()?, "the mark has moved");
    drop(held);
    event.synchronize()?;
    ensure!(event.is_done()?);
    Ok(())
}

#[apply(case)]
fn timing_events_tell_milliseconds(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let stream = context.stream()?;
    let (start, end) = (context.timing_event()?, context.timing_event()?);
    start.record(&stream)?;
    start.synchronize()?;
    let held = hold(&stream)?;
    end.record(&stream)?;
    let Err(error) = end.elapsed_ms_since(&start) else {
        anyhow::bail!("a pending event told the time");
    };
    ensure!(error.kind() == ErrorKind::NotReady, "{error}");
    std::thread::sleep(std::time::Duration::from_millis(20));
    drop(held);
    end.synchronize()?;
    let elapsed = end.elapsed_ms_since(&start)?;
    ensure!(
        elapsed >= 15.0,
        "{elapsed} ms, and the stream was held for 20"
    );
    let plain = context.event()?;
    let refused = plain.elapsed_ms_since(&start).map_err(|error| error.kind());
    ensure!(refused == Err(ErrorKind::InvalidValue));
    Ok(())
}

#[apply(case)]
fn a_stream_waits_for_another(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (first, second, third) = (context.stream()?, context.stream()?, context.stream()?);
    let held = hold(&first)?;
    second.wait_for(&first)?;
    third.wait_for(&second)?;
    ensure!(!second.is_done()? && !third.is_done()?);
    drop(held);
    third.synchronize()?;
    ensure!(first.is_done()?);
    Ok(())
}

#[apply(case)]
fn waiting_for_oneself_is_nothing(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    stream.wait_for(&stream)?;
    stream.wait_for(&stream.clone())?;
    ensure!(stream.is_done()?);
    Ok(())
}

#[apply(case)]
fn a_lent_buffer_waits_for_its_own_stream(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (home, other) = (context.stream()?, context.stream()?);
    let mut buffer = env.pool()?.alloc::<u8>(&home, 1000)?;
    let held = hold(&home)?;
    let mut lent = buffer.on(&other)?;
    ensure!(lent.len() == 1000 && !lent.is_empty() && *lent.stream() == other);
    lent.fill(3)?;
    ensure!(
        !other.is_done()?,
        "the other stream ran ahead of the buffer's own"
    );
    drop(held);
    drop(lent);
    ensure!(buffer.to_vec()? == [3; 1000]);
    Ok(())
}

#[apply(case)]
fn the_own_stream_waits_for_the_borrower(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (home, other) = (context.stream()?, context.stream()?);
    let mut buffer = env.pool()?.alloc_zeroed::<u8>(&home, 1000)?;
    home.synchronize()?;
    let mut lent = buffer.on(&other)?;
    let held = hold(&other)?;
    lent.fill(3)?;
    ensure!(home.is_done()?, "while it is lent, the own stream is free");
    drop(lent);
    ensure!(!home.is_done()?, "the own stream ran ahead of the borrower");
    drop(held);
    ensure!(buffer.to_vec()? == [3; 1000]);
    Ok(())
}

#[apply(case)]
fn a_leaked_loan_is_remembered(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (home, other) = (context.stream()?, context.stream()?);
    let mut buffer = env.pool()?.alloc_zeroed::<u8>(&home, 1000)?;
    home.synchronize()?;
    let mut lent = buffer.on(&other)?;
    let held = hold(&other)?;
    lent.fill(3)?;
    std::mem::forget(lent);
    ensure!(home.is_done()?, "nothing has waited yet");
    buffer.fill_bytes(4)?;
    ensure!(
        !home.is_done()?,
        "the next use did not wait for the borrower"
    );
    drop(held);
    ensure!(buffer.to_vec()? == [4; 1000]);
    Ok(())
}

#[apply(case)]
fn a_leaked_loan_is_remembered_by_the_free(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (home, other) = (context.stream()?, context.stream()?);
    let mut buffer = env.pool()?.alloc_zeroed::<u8>(&home, 1000)?;
    home.synchronize()?;
    let lent = buffer.on(&other)?;
    let held = hold(&other)?;
    std::mem::forget(lent);
    drop(buffer);
    ensure!(!home.is_done()?, "the free did not wait for the borrower");
    drop(held);
    home.synchronize()?;
    Ok(())
}

#[apply(case)]
fn lending_to_the_own_stream_adds_no_wait(env: &Environment) -> Result<()> {
    let home = env.stream()?;
    let mut buffer = env.pool()?.alloc::<u16>(&home, 10)?;
    let mut lent = buffer.on(&home)?;
    lent.copy_from(&[9; 10])?;
    let mut back = [0; 10];
    lent.copy_to(&mut back)?;
    drop(lent);
    ensure!(back == [9; 10] && buffer.to_vec()? == [9; 10]);
    Ok(())
}

#[apply(case)]
fn a_copy_between_buffers_orders_both_streams(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (from, to) = (context.stream()?, context.stream()?);
    let pool = env.pool()?;
    let mut source = pool.alloc_from(&from, &[1u8; 4096])?;
    let mut target = pool.alloc_zeroed::<u8>(&to, 4096)?;
    to.synchronize()?;
    let held = hold(&from)?;
    source.fill(2)?;
    target.copy_from_device(&source)?;
    ensure!(!to.is_done()?, "the copy ran ahead of the source's stream");
    drop(held);
    ensure!(target.to_vec()? == [2; 4096]);

    let held = hold(&to)?;
    target.copy_from_device(&source)?;
    source.fill(9)?;
    ensure!(
        !from.is_done()?,
        "the source was changed before the copy had read it"
    );
    drop(held);
    ensure!(target.to_vec()? == [2; 4096] && source.to_vec()? == [9; 4096]);
    Ok(())
}

#[apply(case)]
fn several_streams_read_at_a_time(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (pool, home) = (env.pool()?, env.stream()?);
    let (first, second) = (env.stream()?, env.stream()?);
    let mut buffer = pool.alloc_from(&home, &[7_u8; 1000])?;
    let held = hold(&first)?;
    {
        let slow = buffer.read_on(&first)?;
        let mut host = [0; 1000];
        buffer.read_on(&second)?.copy_to(&mut host)?;
        ensure!(host == [7; 1000], "readers do not wait for each other");
        ensure!(slow.as_raw() == buffer.as_raw() && slow.len() == 1000);
        ensure!(!first.is_done()?);
    }
    buffer.fill(8)?;
    ensure!(!home.is_done()?, "the writer waits for the slow reader");
    drop(held);
    ensure!(buffer.to_vec()? == [8; 1000]);
    Ok(())
}

#[apply(case)]
fn a_leaked_read_loan_is_remembered(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (pool, home, other) = (env.pool()?, env.stream()?, env.stream()?);
    let buffer = pool.alloc_from(&home, &[7_u8; 1000])?;
    std::mem::forget(buffer.read_on(&other)?);
    let held = hold(&other)?;
    drop(buffer);
    ensure!(!home.is_done()?, "the free waits for the reader");
    drop(held);
    home.synchronize()?;
    Ok(())
}

#[apply(case)]
fn streams_fork_and_join(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (main, a, b) = (env.stream()?, env.stream()?, env.stream()?);
    let held = hold(&main)?;
    main.fork([&a, &b, &main])?;
    ensure!(!a.is_done()? && !b.is_done()?);
    drop(held);
    a.synchronize()?;
    b.synchronize()?;
    main.synchronize()?;
    let held = hold(&b)?;
    main.join([&a, &b, &main])?;
    ensure!(!main.is_done()?);
    drop(held);
    main.synchronize()?;
    main.fork([])?;
    main.join([])?;
    Ok(())
}

//! What goes wrong elsewhere.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Barrier, mpsc};
use std::time::Instant;

use cuda_mem::collective::{ReduceOp, RegisteredResource, UniqueId};
use cuda_mem::{DeviceBuffer, Resource};

use super::*;

const SOON: Duration = Duration::from_millis(500);

#[apply(case_of_two)]
fn a_rank_that_never_joins_is_an_error_in_time(env: &Environment) -> Result<()> {
    let (nccl, [context, _]) = (nccl(env)?, contexts(env)?);
    let joined = nccl.communicator(&context, 2, 0).timeout(SOON);
    let said = refused(joined.join(&nccl.unique_id()?), ErrorKind::TimedOut)?;
    for part in ["ncclCommInitRank", "rank 0 of 2", "one id"] {
        ensure!(said.contains(part), "{part} is not in: {said}");
    }
    // The device is as good as before.
    let alone = nccl.communicators(&[context]).join()?;
    alone[0].check()?;
    Ok(())
}

#[apply(case_of_two)]
fn an_operation_that_never_comes_is_an_error_in_time(env: &Environment) -> Result<()> {
    let (tell, told) = mpsc::channel();
    let told = std::sync::Mutex::new(told);
    in_threads(env, Duration::from_secs(5), |rank| {
        let mut numbers = rank.pool.alloc_from(&rank.stream, &[1.0_f32; 10])?;
        // Both have been connected.
        rank.communicator
            .all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
        rank.communicator.synchronize(&rank.stream)?;
        if rank.number() == 1 {
            // It does something else for a while.
            let told = told.lock().map_err(|_| anyhow!("rank 0 panicked"))?;
            told.recv_timeout(LIMIT)?;
            return Ok(rank.communicator.abort()?);
        }
        rank.communicator
            .all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
        let said = refused(
            rank.communicator.synchronize(&rank.stream),
            ErrorKind::TimedOut,
        )?;
        ensure!(said.contains("rank 0 of 2"), "{said}");
        let again = rank
            .communicator
            .all_reduce_in_place(&mut numbers, ReduceOp::Sum);
        let said = refused(again, ErrorKind::TimedOut)?;
        ensure!(said.contains("abort"), "{said}");
        ensure!(!rank.stream.is_done()?, "the stream waits on");
        rank.communicator.abort()?;
        // The stream is free again, and so is the memory.
        rank.stream.synchronize()?;
        numbers.as_mut_slice().fill(2.0)?;
        ensure!(numbers.to_vec()? == [2.0; 10]);
        tell.send(())?;
        Ok(())
    })?;
    // Both can go on with another communicator.
    in_threads(env, LIMIT, |rank| {
        let mut numbers = rank.pool.alloc_from(&rank.stream, &[1_i32])?;
        rank.communicator
            .all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
        rank.communicator.synchronize(&rank.stream)?;
        ensure!(numbers.to_vec()? == [2]);
        Ok(())
    })?;
    Ok(())
}

#[apply(case_of_two)]
fn a_rank_that_aborts_leaves_an_error_to_the_other(env: &Environment) -> Result<()> {
    let both = Barrier::new(2);
    in_threads(env, Duration::from_secs(5), |rank| {
        let mut numbers = rank.pool.alloc_from(&rank.stream, &[1.0_f32; 10])?;
        rank.communicator
            .all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
        rank.communicator.synchronize(&rank.stream)?;
        // The first operation has succeeded on both.
        both.wait();
        if rank.number() == 1 {
            return Ok(rank.communicator.abort()?);
        }
        let started = rank
            .communicator
            .all_reduce_in_place(&mut numbers, ReduceOp::Sum);
        let ended = started.and_then(|()| rank.communicator.synchronize(&rank.stream));
        let error = ended.err().context("it went on without the other")?;
        // Between GPUs of one host NCCL does not notice.
        let kinds = [ErrorKind::PeerGone, ErrorKind::TimedOut];
        ensure!(kinds.contains(&error.kind()), "{error}");
        rank.communicator.abort()?;
        rank.stream.synchronize()?;
        Ok(())
    })?;
    Ok(())
}

#[apply(case_of_two)]
fn registered_memory_can_be_dropped_while_the_stream_waits_for_nobody(
    env: &Environment,
) -> Result<()> {
    let (tell, told) = mpsc::channel();
    let told = std::sync::Mutex::new(told);
    in_threads(env, Duration::from_secs(5), |rank| {
        let memory = RegisteredResource::builder(&rank.communicator).build()?;
        let memory = Resource::new(memory);
        let mut numbers = memory.alloc_from(&rank.stream, &[1_u32; 10])?;
        rank.communicator
            .all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
        rank.communicator.synchronize(&rank.stream)?;
        if rank.number() == 1 {
            let told = told.lock().map_err(|_| anyhow!("rank 0 panicked"))?;
            told.recv_timeout(LIMIT)?;
            return Ok(rank.communicator.abort()?);
        }
        rank.communicator
            .all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
        drop(numbers);
        ensure!(rank.stream.is_done()?, "the stream still waits");
        refused(rank.communicator.check(), ErrorKind::Aborted)?;
        tell.send(())?;
        Ok(())
    })?;
    Ok(())
}

/// Two handles of a default stream: an operation by one of them holds up a free by the other.
#[apply(case_of_two)]
fn handles_of_one_default_stream_are_one_stream(env: &Environment) -> Result<()> {
    let (tell, told) = mpsc::channel();
    let told = std::sync::Mutex::new(told);
    in_threads(env, short(env), |rank| {
        let context = rank.communicator.context();
        let memory = RegisteredResource::builder(&rank.communicator).build()?;
        let mut numbers = rank.pool.alloc_from(&rank.stream, &[1_u32; 10])?;
        // Both have been connected.
        rank.communicator
            .all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
        rank.communicator.synchronize(&rank.stream)?;
        if rank.number() == 1 {
            let told = told.lock().map_err(|_| anyhow!("rank 0 panicked"))?;
            told.recv_timeout(LIMIT)?;
            return Ok(rank.communicator.abort()?);
        }
        let registered = Resource::new(memory).alloc_zeroed::<u32>(&context.legacy_stream(), 10)?;
        let mut others = rank
            .pool
            .alloc_from(&context.legacy_stream(), &[1_u32; 10])?;
        rank.communicator
            .all_reduce_in_place(&mut others, ReduceOp::Sum)?;
        registered.free()?;
        refused(rank.communicator.check(), ErrorKind::Aborted)?;
        tell.send(())?;
        Ok(())
    })?;
    Ok(())
}

/// Short, but long enough to join.
fn short(env: &Environment) -> Duration {
    match env.backend {
        Backend::Sim => SOON,
        Backend::Gpu => Duration::from_secs(5),
    }
}

/// Two communicators of the same ranks: memory is registered with the first, and the second holds the stream of rank 0 up.
struct HeldUp {
    rank: Rank,
    other: Communicator,
    numbers: DeviceBuffer<f32>,
    registered: DeviceBuffer<f32>,
}

impl HeldUp {
    fn new(rank: Rank, id: &UniqueId) -> Result<Self> {
        let communicator = &rank.communicator;
        let nccl = communicator.nccl();
        let builder = nccl.communicator(communicator.context(), 2, rank.number());
        let other = builder.timeout(LIMIT).join(id)?;
        let mut numbers = rank.pool.alloc_zeroed::<f32>(&rank.stream, 10)?;
        let memory = RegisteredResource::builder(communicator).build()?;
        let registered = Resource::new(memory).alloc_zeroed::<f32>(&rank.stream, 10)?;
        // Both have been connected.
        other.all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
        other.synchronize(&rank.stream)?;
        Ok(Self {
            rank,
            other,
            numbers,
            registered,
        })
    }
}

#[apply(case_of_two)]
fn memory_is_freed_late_without_an_abort_of_others(env: &Environment) -> Result<()> {
    let id = nccl(env)?.unique_id()?;
    in_threads(env, short(env), |rank| {
        let mut it = HeldUp::new(rank, &id)?;
        if it.rank.number() == 1 {
            std::thread::sleep(short(env) / 2);
        }
        it.other
            .all_reduce_in_place(&mut it.numbers, ReduceOp::Sum)?;
        it.registered.free()?;
        it.rank.communicator.check()?;
        it.other.synchronize(&it.rank.stream)?;
        Ok(())
    })?;
    Ok(())
}

#[apply(case_of_two)]
fn memory_of_a_stream_that_others_hold_up_stays_registered(env: &Environment) -> Result<()> {
    let id = nccl(env)?.unique_id()?;
    let (tell, told) = mpsc::channel();
    let told = std::sync::Mutex::new(told);
    in_threads(env, short(env), |rank| {
        let mut it = HeldUp::new(rank, &id)?;
        if it.rank.number() == 1 {
            let told = told.lock().map_err(|_| anyhow!("rank 0 panicked"))?;
            told.recv_timeout(LIMIT)?;
            return Ok(it.other.abort()?);
        }
        it.other
            .all_reduce_in_place(&mut it.numbers, ReduceOp::Sum)?;
        let freed = it.registered.free().err().context("it was freed")?;
        ensure!(freed.error.kind() == ErrorKind::TimedOut, "{}", freed.error);
        let said = freed.error.to_string();
        ensure!(said.contains("stays registered"), "{said}");
        ensure!(freed.error.had_no_effect());
        // A drop leaves it to the stream.
        drop(freed.object.context("it is lost")?);
        it.rank.communicator.check()?;
        let closed = it.rank.communicator.close().err().context("it closed")?;
        ensure!(closed.error.kind() == ErrorKind::InUse, "{}", closed.error);
        it.other.abort()?;
        it.rank.stream.synchronize()?;
        tell.send(())?;
        Ok(closed.object.context("it is lost")?.close()?)
    })?;
    Ok(())
}

#[apply(case_of_two)]
fn a_rank_that_panics_does_not_wait_for_the_others(env: &Environment) -> Result<()> {
    let (tell, told) = mpsc::channel();
    let told = std::sync::Mutex::new(told);
    in_threads(env, LIMIT, |rank| {
        let memory = RegisteredResource::builder(&rank.communicator).build()?;
        let mut numbers = Resource::new(memory).alloc_from(&rank.stream, &[1_u32; 10])?;
        rank.communicator
            .all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
        rank.communicator.synchronize(&rank.stream)?;
        if rank.number() == 1 {
            let told = told.lock().map_err(|_| anyhow!("rank 0 panicked"))?;
            told.recv_timeout(LIMIT)?;
            return Ok(rank.communicator.abort()?);
        }
        rank.communicator
            .all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
        let start = Instant::now();
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            let _dropped = (numbers, rank);
            // Without a message, which would look like a failure of the test.
            resume_unwind(Box::new(()));
        }));
        ensure!(panicked.is_err());
        ensure!(start.elapsed() < LIMIT / 3, "{:?}", start.elapsed());
        tell.send(())?;
        Ok(())
    })?;
    Ok(())
}

//! Operations that are recorded into a graph.

use std::sync::Barrier;
use std::time::Instant;

use cuda_mem::base::drop_counts;
use cuda_mem::collective::{ReduceOp, RegisteredResource};
use cuda_mem::interop::{CaptureMode, Graph, Instantiate};
use cuda_mem::{Arena, DeviceBuffer, MemoryResource as _, Resource};

use super::*;

#[apply(case_of_two)]
fn a_graph_replays_an_operation_on_new_contents(env: &Environment) -> Result<()> {
    in_threads(env, LIMIT, |rank| {
        let (communicator, stream) = (&rank.communicator, &rank.stream);
        let memory = RegisteredResource::builder(communicator).build()?;
        let arena = Arena::over(memory);
        let own = rank.number() as u32 + 1;
        let from = arena.alloc::<u32>(stream, 1000)?;
        let to = arena.alloc_zeroed::<u32>(stream, 1000)?;
        let (graph, (from, to)) = stream.capture(CaptureMode::Relaxed, |capture| {
            let (from, to) = (capture.adopt(from), capture.adopt(to));
            let (source, mut target) = (capture.buffer_mut(&from)?, capture.buffer_mut(&to)?);
            communicator.all_reduce(&source, &mut target, ReduceOp::Sum)?;
            communicator.all_reduce_in_place(&mut target, ReduceOp::Sum)?;
            Ok((from, to))
        })?;
        let mut exec = graph.instantiate(Instantiate::default())?;
        for round in 1..4 {
            exec.buffer_mut(&from)?.fill(round * own)?;
            exec.launch(stream)?;
            communicator.synchronize(stream)?;
            ensure!(
                exec.buffer(&to)?.to_vec()? == [6 * round; 1000],
                "round {round}"
            );
        }
        Ok(())
    })?;
    Ok(())
}

#[apply(case)]
fn a_graph_keeps_its_communicator_and_does_not_outlive_an_abort(env: &Environment) -> Result<()> {
    let context = env.device()?.primary_context()?;
    let communicators = nccl(env)?.communicators(&[context]).join()?;
    let rank = Rank::new(communicators.into_iter().next().context("one rank")?)?;
    let stream = &rank.stream;
    let buffer = rank.pool.alloc_from(stream, &[1.0_f64])?;
    let (graph, _) = stream.capture(CaptureMode::Relaxed, |capture| {
        let buffer = capture.adopt(buffer);
        let mut memory = capture.buffer_mut(&buffer)?;
        refused(capture.buffer_mut(&buffer), ErrorKind::InvalidValue).map_err(told)?;
        rank.communicator
            .all_reduce_in_place(&mut memory, ReduceOp::Sum)?;
        drop(memory);
        capture.buffer_mut(&buffer)?;
        Ok(())
    })?;
    let mut exec = graph.instantiate(Instantiate::default())?;
    exec.launch(stream)?;
    stream.synchronize()?;
    let failed = rank.communicator.close().err().context("it closed")?;
    ensure!(failed.error.kind() == ErrorKind::InUse, "{}", failed.error);
    let communicator = failed.object.context("it is lost")?;
    communicator.abort()?;
    refused(exec.upload(stream), ErrorKind::Aborted)?;
    let said = refused(exec.launch(stream), ErrorKind::Aborted)?;
    ensure!(said.ends_with("was aborted; join a new one"), "{said}");
    Ok(())
}

#[apply(case)]
fn a_graph_within_another_keeps_its_communicator(env: &Environment) -> Result<()> {
    env.need(12, 9)?;
    let context = env.device()?.primary_context()?;
    let mut communicators = nccl(env)?
        .communicators(std::slice::from_ref(&context))
        .join()?;
    let rank = Rank::new(communicators.pop().context("one rank")?)?;
    let (child, ()) = rank.stream.capture(CaptureMode::Relaxed, |capture| {
        let mut memory = capture.alloc::<f32>(100)?;
        memory.as_mut_slice().fill(1.0)?;
        rank.communicator
            .all_reduce_in_place(&mut memory, ReduceOp::Sum)
    })?;
    let mut parent = Graph::new(&context)?;
    parent.add_child(child, &[])?;
    let failed = rank.communicator.close().err().context("it closed")?;
    ensure!(failed.error.kind() == ErrorKind::InUse, "{}", failed.error);
    let communicator = failed.object.context("it is lost")?;
    let mut exec = parent.instantiate(Instantiate::default())?;
    exec.launch(&rank.stream)?;
    rank.stream.synchronize()?;
    communicator.abort()?;
    refused(exec.launch(&rank.stream), ErrorKind::Aborted)?;
    drop(exec);
    Ok(communicator.close()?)
}

fn told(error: anyhow::Error) -> cuda_mem::Error {
    cuda_mem::Error::new(ErrorKind::Other, error.to_string())
}

#[apply(case)]
fn memory_within_and_without_a_capture_does_not_mix(env: &Environment) -> Result<()> {
    let context = env.device()?.primary_context()?;
    let communicators = nccl(env)?.communicators(&[context]).join()?;
    let rank = Rank::new(communicators.into_iter().next().context("one rank")?)?;
    let (stream, pool) = (&rank.stream, Resource::from(rank.pool.clone()));
    ensure!(pool.memory_properties().reaches(env.device()?));
    let (inside, other) = (
        rank.pool.alloc::<u8>(stream, 4)?,
        rank.communicator.context(),
    );
    let other = other.stream()?;
    let outside = rank.pool.alloc::<u8>(&other, 4)?;
    stream.capture(CaptureMode::Relaxed, |capture| {
        let inside = capture.adopt(inside);
        let mut target = capture.buffer_mut(&inside)?;
        let mixed = rank
            .communicator
            .all_reduce(&outside, &mut target, ReduceOp::Sum);
        refused(mixed, ErrorKind::InvalidValue).map_err(told)?;
        Ok(())
    })?;
    Ok(())
}

/// N5. If NCCL never returns, this process is ended.
#[apply(case_of_two_alone)]
fn an_abort_that_waits_for_a_graph_holds_nobody_up(env: &Environment) -> Result<()> {
    // A rank that aborts fails the other one, which must be done by then.
    let done = Barrier::new(2);
    let blocking = |builder: CommunicatorBuilder| builder.blocking(true).timeout(LIMIT);
    in_threads_as(env, blocking, |rank| {
        let buffer = rank.pool.alloc_from(&rank.stream, &[1.0_f32; 100])?;
        let (graph, ()) = rank.stream.capture(CaptureMode::Relaxed, |capture| {
            let buffer = capture.adopt(buffer);
            let mut memory = capture.buffer_mut(&buffer)?;
            rank.communicator
                .all_reduce_in_place(&mut memory, ReduceOp::Sum)
        })?;
        let mut exec = graph.instantiate(Instantiate::default())?;
        exec.launch(&rank.stream)?;
        let synchronized = rank.communicator.synchronize(&rank.stream);
        done.wait();
        synchronized?;
        std::thread::scope(|scope| {
            let aborter = scope.spawn(|| rank.communicator.abort());
            let start = Instant::now();
            while !rank.communicator.as_raw().is_null() {
                ensure!(start.elapsed() < LIMIT, "the abort has not begun");
                std::thread::yield_now();
            }
            refused(rank.communicator.check(), ErrorKind::Aborted)?;
            refused(exec.launch(&rank.stream), ErrorKind::Aborted)?;
            drop(exec);
            let aborted = aborter.join().map_err(|_| anyhow!("it panicked"))?;
            Ok(aborted?)
        })
    })?;
    Ok(())
}

/// N5. If NCCL never returns, this process is ended.
#[apply(case_of_two_alone)]
fn a_graph_may_hold_the_last_of_a_communicator(env: &Environment) -> Result<()> {
    let as_they_are = |builder: CommunicatorBuilder| builder.timeout(LIMIT);
    in_threads_as(env, as_they_are, |rank| {
        let buffer = rank.pool.alloc_from(&rank.stream, &[1.0_f32; 100])?;
        let communicator = rank.communicator;
        let (graph, ()) = rank.stream.capture(CaptureMode::Relaxed, |capture| {
            let buffer = capture.adopt(buffer);
            let mut memory = capture.buffer_mut(&buffer)?;
            communicator.all_reduce_in_place(&mut memory, ReduceOp::Sum)
        })?;
        let mut exec = graph.instantiate(Instantiate::default())?;
        exec.launch(&rank.stream)?;
        communicator.synchronize(&rank.stream)?;
        let failed = drop_counts().failures;
        drop(communicator);
        let start = Instant::now();
        drop(exec);
        ensure!(start.elapsed() < LIMIT, "it waited for its own graph");
        ensure!(drop_counts().failures == failed);
        Ok(())
    })?;
    Ok(())
}

/// A group has a place for each of its streams among what is kept out of captures.
#[apply(case)]
fn a_group_over_many_streams_runs_beside_a_capture(env: &Environment) -> Result<()> {
    let context = env.device()?.primary_context()?;
    let communicators = nccl(env)?
        .communicators(std::slice::from_ref(&context))
        .join()?;
    let rank = Rank::new(communicators.into_iter().next().context("one rank")?)?;
    let make = |number: u32| anyhow::Ok(rank.pool.alloc_from(&context.stream()?, &[number; 4])?);
    let mut buffers = (0..8).map(make).collect::<Result<Vec<_>>>()?;
    let run = |buffers: &mut [DeviceBuffer<u32>]| {
        let mut group = rank.communicator.nccl().group();
        for buffer in buffers {
            group.all_reduce_in_place(&rank.communicator, buffer, ReduceOp::Sum)?;
        }
        group.run()
    };
    // NCCL allocates when it is used first.
    run(&mut buffers)?;
    let captured = rank
        .stream
        .capture(CaptureMode::Relaxed, |_| run(&mut buffers))?;
    drop(captured);
    for (number, buffer) in (0..).zip(&buffers) {
        rank.communicator.synchronize(buffer.stream())?;
        ensure!(buffer.to_vec()? == [number; 4]);
    }
    Ok(())
}

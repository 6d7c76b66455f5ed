//! A graph of one device in a stream of the other.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::interop::{CaptureMode, Graph, GraphExec, Instantiate};
use cuda_mem::{Access, Arena, ErrorKind, Stream};

use super::{Pair, pair, pool};
use crate::environment::Environment;
use crate::hold::hold;

/// The stream does not reach what the graph uses, and the driver is not asked.
fn refused(exec: &mut GraphExec, stream: &Stream) -> Result<()> {
    for answer in [exec.launch(stream), exec.upload(stream)] {
        let error = answer.err().context("it went well")?;
        ensure!(
            error.kind() == ErrorKind::InvalidValue && error.code().is_none(),
            "{error}"
        );
    }
    Ok(())
}

#[apply(case_of_two)]
fn a_graph_runs_in_a_stream_that_reaches_what_it_adopted(env: &Environment) -> Result<()> {
    let Pair {
        devices,
        contexts,
        streams,
    } = pair(env)?;
    let pool = pool(&devices[0])?;
    let target = pool.alloc_zeroed::<u8>(&streams[0], 1000)?;
    let source = pool.alloc_from(&streams[0], &[7_u8; 1000])?;
    let mut graph = Graph::new(&contexts[0])?;
    let (source, target) = (graph.adopt(source), graph.adopt(target));
    let mut memory = graph.alloc::<u8>(1000, &[])?;
    graph.copy_in(&mut memory, &source, &[])?;
    graph.copy_out(&mut memory, &target, &[])?;
    graph.free(memory, &[])?;
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    refused(&mut exec, &streams[1])?;
    ensure!(exec.buffer(&target)?.to_vec()? == [0; 1000]);
    pool.set_access([(devices[1], Access::ReadWrite)])?;
    exec.upload(&streams[1])?;
    let held = hold(&streams[1])?;
    exec.launch(&streams[1])?;
    ensure!(!streams[1].is_done()?);
    drop(held);
    ensure!(exec.buffer(&target)?.to_vec()? == [7; 1000]);
    Ok(())
}

/// Its nodes run in its context, which nothing else may hold.
#[apply(case_of_two_alone)]
fn a_graph_inside_another_keeps_its_context(env: &Environment) -> Result<()> {
    env.need(12, 9)?;
    let devices = env.driver.devices()?;
    let context = devices[0].primary_context()?;
    let mut parent = Graph::new(&context)?;
    {
        let mut child = Graph::new(&devices[1].primary_context()?)?;
        let mut memory = child.alloc::<u8>(1000, &[])?;
        child.fill(&mut memory, 1, &[])?;
        child.free(memory, &[])?;
        parent
            .add_child(child, &[])
            .map_err(|failed| failed.error)?;
    }
    let mut exec = parent.instantiate(Instantiate::Plain)?;
    ensure!(devices[1].has_active_context()?, "the context has ended");
    let stream = context.stream()?;
    exec.launch(&stream)?;
    stream.synchronize()?;
    drop(exec);
    ensure!(!devices[1].has_active_context()?, "the context is kept");
    Ok(())
}

/// A graph inside another is a part of it.
#[apply(case_of_two)]
fn a_stream_has_to_reach_the_memory_of_a_graph_inside(env: &Environment) -> Result<()> {
    env.need(12, 9)?;
    let Pair {
        devices,
        contexts,
        streams,
    } = pair(env)?;
    let mut parent = Graph::new(&contexts[0])?;
    let mut child = Graph::new(&contexts[0])?;
    let mut memory = child.alloc::<u8>(1000, &[])?;
    child.fill(&mut memory, 1, &[])?;
    child.free(memory, &[])?;
    parent
        .add_child(child, &[])
        .map_err(|failed| failed.error)?;
    let mut exec = parent.instantiate(Instantiate::Plain)?;
    if devices[1].can_access_peer(&devices[0])? {
        exec.launch(&streams[1])?;
        streams[1].synchronize()?;
    } else {
        refused(&mut exec, &streams[1])?;
    }
    Ok(())
}

/// What a launch leaves is used in the stream of the launch, and no other device is given access to it.
#[apply(case_of_two)]
fn what_a_graph_leaves_stays_with_its_device(env: &Environment) -> Result<()> {
    let Pair {
        contexts, streams, ..
    } = pair(env)?;
    let mut graph = Graph::new(&contexts[0])?;
    let mut memory = graph.alloc::<u8>(1000, &[])?;
    graph.fill(&mut memory, 5, &[])?;
    let left = memory.persist();
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    refused(&mut exec, &streams[1])?;
    exec.upload(&streams[0])?;
    exec.launch(&streams[0])?;
    ensure!(exec.left(&left)?.to_vec()? == [5; 1000]);
    Ok(())
}

#[apply(case_of_two)]
fn a_graph_runs_in_a_stream_that_reaches_its_capture_pool(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let Pair {
        devices, streams, ..
    } = pair(env)?;
    let below = pool(&devices[0])?;
    let pool = Arena::over(below.clone()).capture_pool()?;
    // In other modes the pool cannot be asked for memory meanwhile.
    let (graph, ()) = streams[0].capture(CaptureMode::Relaxed, |capture| {
        let mut block = capture.alloc_from::<u8>(&pool, 1000)?;
        block.as_mut_slice().fill(1)?;
        Ok(())
    })?;
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    refused(&mut exec, &streams[1])?;
    exec.launch(&streams[0])?;
    below.set_access([(devices[1], Access::ReadWrite)])?;
    exec.launch(&streams[1])?;
    streams[1].synchronize()?;
    Ok(())
}

//! What CUDA's samples of graph memory check, on this API. Kernels are not available here, so copies
//! and fills do the work. They look at what the whole device holds, so they run alone.

use anyhow::{Result, ensure};
use cuda_mem::interop::{CaptureMode, Graph, GraphExec, Instantiate};
use cuda_mem::{DeviceBuffer, Stream};

use crate::environment::Environment;
use crate::hold::hold;

const LEN: usize = 1 << 20;
const LARGE: usize = 40 << 20;

fn expect(result: &DeviceBuffer<u32>, value: u32) -> Result<()> {
    let values = result.to_vec()?;
    ensure!(values.len() == LEN && values.iter().all(|it| *it == value));
    Ok(())
}

/// graphMemoryNodes, recorded: the result is the same as of the work without a graph, each time.
#[apply(case_alone)]
fn a_recorded_graph_does_what_its_stream_does(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream) = (env.pool()?, env.stream()?);
    let mut plain = pool.alloc_zeroed::<u32>(&stream, LEN)?;
    {
        let mut scratch = pool.alloc::<u32>(&stream, LEN)?;
        scratch.fill(11)?;
        plain.copy_from_device(&scratch)?;
    }
    let result = pool.alloc_zeroed::<u32>(&stream, LEN)?;
    let (graph, result) = stream.capture(CaptureMode::Global, |capture| {
        let result = capture.adopt(result);
        let mut scratch = capture.alloc::<u32>(LEN)?;
        scratch.as_mut_slice().fill(11)?;
        scratch.copy_out(&result)?;
        Ok(result)
    })?;
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    for _ in 0..3 {
        exec.launch(&stream)?;
        ensure!(exec.buffer(&result)?.to_vec()? == plain.to_vec()?);
        exec.buffer_mut(&result)?.zero()?;
    }
    Ok(())
}

/// graphMemoryNodes, by hand: branches with memory of their own that meet again.
#[apply(case_alone)]
fn branches_with_memory_meet_again(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream) = (env.pool()?, env.stream()?);
    let mut graph = Graph::new(&env.context()?)?;
    let input = graph.adopt(pool.alloc_from(&stream, &vec![21_u32; LEN])?);
    let output = graph.adopt(pool.alloc_zeroed::<u32>(&stream, LEN)?);
    let mut left = graph.alloc::<u32>(LEN, &[])?;
    let mut right = graph.alloc::<u32>(LEN, &[])?;
    ensure!(
        left.as_raw() != right.as_raw(),
        "they live at the same time"
    );
    graph.copy_in(&mut left, &input, &[])?;
    graph.fill(&mut right, 1, &[])?;
    graph.copy(&mut right, &mut left, &[])?;
    let freed = graph.free(left, &[])?;
    let mut last = graph.alloc::<u32>(LEN, &[freed])?;
    graph.copy(&mut last, &mut right, &[])?;
    graph.free(right, &[])?;
    graph.copy_out(&mut last, &output, &[])?;
    graph.free(last, &[])?;
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    for _ in 0..3 {
        exec.launch(&stream)?;
        expect(exec.buffer(&output)?, 21)?;
        exec.buffer_mut(&output)?.zero()?;
    }
    Ok(())
}

/// graphMemoryNodes, memory that outlives the launch: freed in a stream, or by the next launch.
#[apply(case_alone)]
fn memory_that_outlives_a_launch_is_freed_once(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let stream = env.stream()?;
    for kind in [Instantiate::Plain, Instantiate::AutoFree] {
        let (graph, left) = stream.capture(CaptureMode::Global, |capture| {
            let mut result = capture.alloc::<u32>(LEN)?;
            result.as_mut_slice().fill(31)?;
            Ok(result.persist())
        })?;
        let mut exec = graph.instantiate(kind)?;
        for _ in 0..3 {
            exec.launch(&stream)?;
            ensure!(exec.left(&left)?.to_vec()? == vec![31; LEN]);
            if kind == Instantiate::Plain {
                exec.free_left()?;
            }
        }
    }
    Ok(())
}

/// A graph that allocates so many blocks, one after another or all at a time.
fn blocks(env: &Environment, count: usize, one_by_one: bool) -> Result<GraphExec> {
    let mut graph = Graph::new(&env.context()?)?;
    let mut live = Vec::new();
    let mut after = Vec::new();
    for _ in 0..count {
        let mut block = graph.alloc::<u8>(LARGE, &after)?;
        graph.fill(&mut block, 1, &[])?;
        if one_by_one {
            after = vec![graph.free(block, &[])?];
        } else {
            live.push(block);
        }
    }
    for block in live {
        graph.free(block, &[])?;
    }
    Ok(graph.instantiate(Instantiate::Plain)?)
}

fn reserved(env: &Environment) -> Result<u64> {
    Ok(env.device()?.graph_memory()?.reserved.current)
}

/// Launches, and what is reserved then; nothing is afterwards.
fn footprint(env: &Environment, execs: &mut [GraphExec], stream: &Stream) -> Result<u64> {
    for exec in execs.iter_mut() {
        exec.launch(stream)?;
    }
    stream.synchronize()?;
    let held = reserved(env)?;
    env.device()?.trim_graph_memory()?;
    ensure!(reserved(env)? == 0, "nothing runs and nothing lives");
    Ok(held)
}

/// graphMemoryFootprint: inside a graph, what is freed makes room for what comes after it.
#[apply(case_alone)]
fn blocks_that_follow_each_other_take_the_room_of_one(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let stream = env.stream()?;
    let one = footprint(env, &mut [blocks(env, 1, true)?], &stream)?;
    let after = footprint(env, &mut [blocks(env, 4, true)?], &stream)?;
    let together = footprint(env, &mut [blocks(env, 4, false)?], &stream)?;
    ensure!(one >= LARGE as u64 && after == one, "{one} and {after}");
    ensure!(together >= 4 * LARGE as u64, "{together}");
    Ok(())
}

/// graphMemoryFootprint: graphs of one stream share physical memory.
#[apply(case_alone)]
fn graphs_of_one_stream_take_the_room_of_one(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let stream = env.stream()?;
    let one = footprint(env, &mut [blocks(env, 1, true)?], &stream)?;
    let mut several = Vec::new();
    for _ in 0..4 {
        several.push(blocks(env, 1, true)?);
    }
    let held = footprint(env, &mut several, &stream)?;
    ensure!(held == one, "{held}, and one takes {one}");
    // And again, after a trim.
    ensure!(footprint(env, &mut several, &stream)? == one);
    Ok(())
}

/// graphMemoryFootprint: graphs that may run at the same time do not share.
#[apply(case_alone)]
fn graphs_of_several_streams_take_room_each(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (first, second) = (env.stream()?, env.stream()?);
    let (mut a, mut b) = (blocks(env, 1, true)?, blocks(env, 1, true)?);
    let held = hold(&first)?;
    a.launch(&first)?;
    let one = reserved(env)?;
    b.launch(&second)?;
    let two = reserved(env)?;
    drop(held);
    ensure!(two > one, "{one}, then {two}");
    first.synchronize()?;
    second.synchronize()?;
    Ok(())
}

/// graphMemoryFootprint: memory that is left keeps its room, also through a trim.
#[apply(case_alone)]
fn memory_that_is_left_keeps_its_room(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (device, stream) = (env.device()?, env.stream()?);
    let mut execs = Vec::new();
    for _ in 0..2 {
        let mut graph = Graph::new(&env.context()?)?;
        let mut block = graph.alloc::<u8>(LARGE, &[])?;
        graph.fill(&mut block, 1, &[])?;
        execs.push(graph.instantiate(Instantiate::Plain)?);
    }
    for exec in &mut execs {
        exec.launch(&stream)?;
    }
    stream.synchronize()?;
    device.trim_graph_memory()?;
    let both = reserved(env)?;
    ensure!(both >= 2 * LARGE as u64, "{both}");
    for exec in &mut execs {
        exec.free_left()?;
    }
    stream.synchronize()?;
    device.trim_graph_memory()?;
    ensure!(reserved(env)? == 0);
    Ok(())
}

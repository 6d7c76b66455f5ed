//! Graphs: what runs when, what lives how long, and who may free it.
//!
//! A capture forbids things to the whole process, so these bodies run alone.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::interop::{CaptureMode, Graph, GraphExec, Instantiate, PersistentAllocation};
use cuda_mem::sys::{CUgraph, CUresult};
use cuda_mem::{Error, ErrorKind, Stream};

use super::capture_elsewhere::by_another_thread;
use crate::environment::Environment;
use crate::hold::hold;

pub(super) const MODES: [CaptureMode; 3] = [
    CaptureMode::Global,
    CaptureMode::ThreadLocal,
    CaptureMode::Relaxed,
];

/// A graph that leaves 1,000 elements filled with 7.
fn leaving(stream: &Stream, kind: Instantiate) -> Result<(GraphExec, PersistentAllocation<u32>)> {
    let (graph, left) = stream.capture(CaptureMode::default(), |capture| {
        let mut memory = capture.alloc::<u32>(1000)?;
        memory.as_mut_slice().fill(7)?;
        Ok(memory.persist())
    })?;
    ensure!(graph.left_bytes() == 4000);
    Ok((graph.instantiate(kind)?, left))
}

/// Nothing can be ordered with that thread's stream.
#[apply(case_alone)]
fn memory_left_in_a_threads_own_stream_is_freed_elsewhere(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (context, stream) = (env.context()?, env.stream()?);
    let device = env.device()?;
    let launched = || -> Result<(GraphExec, PersistentAllocation<u32>)> {
        let (mut exec, left) = leaving(&stream, Instantiate::Plain)?;
        by_another_thread(|| Ok(exec.launch(&context.per_thread_stream())?))?;
        Ok((exec, left))
    };
    // Freed here, and launched again.
    let (mut exec, left) = launched()?;
    exec.free_left()?;
    exec.launch(&stream)?;
    ensure!(exec.left(&left)?.to_vec()? == [7; 1000]);
    drop(exec);
    // Freed by the drop.
    drop(launched()?);
    // Freed by its thread, and launched here.
    let (mut exec, left) = launched()?;
    by_another_thread(|| {
        exec.free_left()?;
        Ok(exec.launch(&context.per_thread_stream())?)
    })?;
    exec.free_left()?;
    exec.launch(&stream)?;
    ensure!(exec.left(&left)?.to_vec()? == [7; 1000]);
    drop(exec);
    context.synchronize()?;
    device.trim_graph_memory()?;
    let used = device.graph_memory()?.used.current;
    ensure!(used == 0, "{used} bytes are left");
    ensure!(cuda_mem::base::drop_counts().failures == 0);
    Ok(())
}

#[apply(case_alone)]
fn what_is_captured_runs_when_it_is_launched(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream) = (env.pool()?, env.stream()?);
    for mode in MODES {
        let result = pool.alloc_zeroed::<u32>(&stream, 1000)?;
        let (graph, result) = stream.capture(mode, |capture| {
            let result = capture.adopt(result);
            let mut first = capture.alloc::<u32>(1000)?;
            let mut second = capture.alloc::<u32>(1000)?;
            first.as_mut_slice().fill(3)?;
            second.as_mut_slice().copy_from_device(&first)?;
            drop(first);
            second.copy_out(&result)?;
            second.free()?;
            Ok(result)
        })?;
        ensure!(graph.left_bytes() == 0);
        let mut exec = graph.instantiate(Instantiate::Plain)?;
        ensure!(
            exec.buffer(&result)?.to_vec()? == [0; 1000],
            "it ran already"
        );
        for _ in 0..3 {
            exec.launch(&stream)?;
            ensure!(exec.buffer(&result)?.to_vec()? == [3; 1000]);
            exec.buffer_mut(&result)?.zero()?;
        }
        let result = exec.into_buffer(&result)?;
        ensure!(result.to_vec()? == [0; 1000]);
    }
    Ok(())
}

/// R67.
#[apply(case_alone)]
fn captured_memory_is_not_the_pools(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream) = (env.device()?.default_pool()?, env.stream()?);
    let before = pool.stats()?.used.current;
    let (mut exec, left) = leaving(&stream, Instantiate::Plain)?;
    ensure!(pool.stats()?.used.current == before);
    exec.launch(&stream)?;
    ensure!(exec.left(&left)?.to_vec()? == [7; 1000]);
    ensure!(pool.stats()?.used.current == before);
    Ok(())
}

/// R69.
#[apply(case_alone)]
fn graph_memory_has_one_address_for_all_launches(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let stream = env.stream()?;
    let (mut exec, left) = leaving(&stream, Instantiate::Plain)?;
    ensure!(left.len() == 1000 && !left.is_empty() && left.as_raw() != 0);
    for _ in 0..3 {
        exec.launch(&stream)?;
        let mut there = exec.left(&left)?;
        ensure!(there.to_vec()? == [7; 1000]);
        there.fill(1)?;
        ensure!(there.to_vec()? == [1; 1000]);
        there.copy_from(&[2; 1000])?;
        exec.free_left()?;
    }
    Ok(())
}

/// R71, before the driver says it, and as it says it.
#[apply(case_alone)]
fn what_a_launch_leaves_is_freed_before_the_next(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let stream = env.stream()?;
    let (mut exec, left) = leaving(&stream, Instantiate::Plain)?;
    ensure!(
        exec.left_bytes() == 0 && exec.left(&left).is_err(),
        "not launched"
    );
    exec.launch(&stream)?;
    ensure!(exec.left_bytes() == 4000);
    let Err(error) = exec.launch(&stream) else {
        bail!("launched again");
    };
    ensure!(error.kind() == ErrorKind::StillAllocated, "{error}");
    let launch = env.driver.table().cuGraphLaunch.context("no graphs")?;
    // SAFETY: both handles are live, and the driver refuses the launch.
    let code = unsafe { launch(exec.as_raw(), stream.as_raw()) };
    ensure!(code == CUresult::CUDA_ERROR_INVALID_VALUE, "{code}");
    exec.free_left()?;
    exec.free_left()?;
    ensure!(exec.left_bytes() == 0 && exec.left(&left).is_err(), "freed");
    exec.launch(&stream)?;
    ensure!(exec.left(&left)?.to_vec()? == [7; 1000]);
    Ok(())
}

/// The next launch uses the memory anew, whatever its stream.
#[apply(case_alone)]
fn a_launch_elsewhere_waits_for_the_free_of_what_was_left(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    let (mut exec, left) = leaving(&stream, Instantiate::Plain)?;
    exec.launch(&stream)?;
    stream.synchronize()?;
    let held = hold(&stream)?;
    exec.left(&left)?.fill(1)?;
    exec.free_left()?;
    exec.launch(&other)?;
    ensure!(!other.is_done()?, "the launch ran ahead of the free");
    drop(held);
    ensure!(exec.left(&left)?.to_vec()? == [7; 1000]);
    Ok(())
}

/// R70, R71.
#[apply(case_alone)]
fn an_instance_can_free_what_it_left(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    let (mut exec, left) = leaving(&stream, Instantiate::AutoFree)?;
    for stream in [&stream, &stream, &other, &stream] {
        exec.launch(stream)?;
        let there = exec.left(&left)?;
        ensure!(there.stream() == stream && there.len() == 1000);
        ensure!(there.to_vec()? == [7; 1000]);
    }
    Ok(())
}

/// R70: the driver would keep it for ever.
#[apply(case_alone)]
fn an_instance_that_ends_frees_what_it_left(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (device, stream) = (env.device()?, env.stream()?);
    for kind in [Instantiate::Plain, Instantiate::AutoFree] {
        let (mut exec, _) = leaving(&stream, kind)?;
        exec.launch(&stream)?;
        stream.synchronize()?;
        device.trim_graph_memory()?;
        ensure!(device.graph_memory()?.used.current > 0, "it lives");
        drop(exec);
        stream.synchronize()?;
        device.trim_graph_memory()?;
        let stats = device.graph_memory()?;
        ensure!(
            stats.used.current == 0 && stats.reserved.current == 0,
            "{stats}"
        );
    }
    Ok(())
}

/// R76.
#[apply(case_alone)]
fn graph_memory_is_counted_and_trimmed_apart(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (device, stream) = (env.device()?, env.stream()?);
    let stats = device.graph_memory()?;
    ensure!(
        stats.used.current == 0 && stats.reserved.high == 0,
        "{stats}"
    );
    let (mut exec, _) = leaving(&stream, Instantiate::AutoFree)?;
    ensure!(device.graph_memory()? == stats, "nothing is launched");
    exec.upload(&stream)?;
    let uploaded = device.graph_memory()?;
    ensure!(uploaded.reserved.current >= 4000, "{uploaded}");
    exec.launch(&stream)?;
    ensure!(device.graph_memory()? == uploaded, "it was there already");
    device.default_pool()?.trim_to(0)?;
    exec.free_left()?;
    stream.synchronize()?;
    device.default_pool()?.trim_to(0)?;
    ensure!(device.graph_memory()?.reserved == uploaded.reserved);
    device.trim_graph_memory()?;
    let trimmed = device.graph_memory()?;
    ensure!(trimmed.reserved.current == 0 && trimmed.reserved.high > 0);
    ensure!(
        trimmed.to_string().starts_with("reserved 0 B (high "),
        "{trimmed}"
    );
    device.reset_graph_memory_high_marks()?;
    let reset = device.graph_memory()?;
    ensure!(reset.reserved.high == 0 && reset.used.high == 0, "{reset}");
    exec.launch(&stream)?;
    ensure!(
        device.graph_memory()?.reserved.current > 0,
        "it is taken again"
    );
    Ok(())
}

#[apply(case_alone)]
fn a_launch_is_ordered_with_the_buffers_of_its_graph(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, home, other) = (env.pool()?, env.stream()?, env.stream()?);
    let mut graph = Graph::new(&env.context()?)?;
    let result = graph.adopt(pool.alloc_zeroed::<u8>(&home, 1000)?);
    let mut memory = graph.alloc::<u8>(1000, &[])?;
    graph.fill(&mut memory, 5, &[])?;
    graph.copy_out(&mut memory, &result, &[])?;
    graph.free(memory, &[])?;
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    home.synchronize()?;
    let held = hold(&home)?;
    exec.launch(&other)?;
    ensure!(
        !other.is_done()?,
        "the launch did not wait for the buffer's stream"
    );
    drop(held);
    other.synchronize()?;
    let held = hold(&other)?;
    exec.launch(&other)?;
    ensure!(
        !home.is_done()?,
        "the buffer's stream did not wait for the launch"
    );
    drop(held);
    ensure!(exec.buffer(&result)?.to_vec()? == [5; 1000]);
    Ok(())
}

#[apply(case_alone)]
fn nodes_are_ordered_by_the_memory_they_use(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream) = (env.pool()?, env.stream()?);
    let mut graph = Graph::new(&env.context()?)?;
    let input = graph.adopt(pool.alloc_from(&stream, &[9_u16; 1000])?);
    let output = graph.adopt(pool.alloc_zeroed::<u16>(&stream, 1000)?);
    let mut first = graph.alloc::<u16>(1000, &[])?;
    let mut second = graph.alloc::<u16>(1000, &[])?;
    graph.fill(&mut second, 1, &[])?;
    graph.copy_in(&mut first, &input, &[])?;
    graph.copy(&mut second, &mut first, &[])?;
    let freed = graph.free(first, &[])?;
    graph.copy_out(&mut second, &output, &[freed])?;
    graph.free(second, &[])?;
    // Nothing at all is memory too.
    let mut nothing = graph.alloc::<u32>(0, &[])?;
    ensure!(nothing.is_empty() && nothing.as_raw() == 0);
    graph.fill(&mut nothing, 1, &[])?;
    graph.free(nothing, &[])?;
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    exec.launch(&stream)?;
    ensure!(exec.buffer(&output)?.to_vec()? == [9; 1000]);
    Ok(())
}

/// R75.
#[apply(case_alone)]
fn an_address_is_used_again_where_the_order_allows(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let mut graph = Graph::new(&env.context()?)?;
    let first = graph.alloc::<u8>(1 << 20, &[])?;
    let address = first.as_raw();
    let freed = graph.free(first, &[])?;
    let unordered = graph.alloc::<u8>(1 << 20, &[])?;
    ensure!(unordered.as_raw() != address, "it may run at the same time");
    let ordered = graph.alloc::<u8>(1 << 20, &[freed])?;
    ensure!(ordered.as_raw() == address);
    Ok(())
}

#[apply(case_alone)]
fn memory_of_another_graph_is_refused(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (context, stream) = (env.context()?, env.stream()?);
    let (mut one, mut two) = (Graph::new(&context)?, Graph::new(&context)?);
    let mut memory = one.alloc::<u8>(100, &[])?;
    let node = one.fill(&mut memory, 1, &[])?;
    let adopted = one.adopt(env.pool()?.alloc::<u8>(&stream, 100)?);
    let invalid = |result: Result<(), Error>| {
        matches!(
            result.map_err(|error| error.kind()),
            Err(ErrorKind::InvalidValue)
        )
    };
    ensure!(invalid(two.fill(&mut memory, 1, &[]).map(drop)));
    ensure!(invalid(two.alloc::<u8>(1, &[node]).map(drop)));
    let mut own = two.alloc::<u8>(100, &[])?;
    ensure!(invalid(two.copy_out(&mut own, &adopted, &[]).map(drop)));
    ensure!(invalid(two.copy(&mut own, &mut memory, &[]).map(drop)));
    let mut short = one.alloc::<u8>(99, &[])?;
    ensure!(invalid(one.copy(&mut short, &mut memory, &[]).map(drop)));
    ensure!(invalid(one.copy_in(&mut short, &adopted, &[]).map(drop)));
    ensure!(invalid(one.alloc::<u64>(usize::MAX, &[]).map(drop)));
    let left = own.persist();
    let mut exec = one.instantiate(Instantiate::Plain)?;
    exec.launch(&stream)?;
    ensure!(invalid(exec.left(&left).map(drop)));
    Ok(())
}

/// R73, where the types cannot say it: the driver.
#[apply(case_alone)]
fn a_graph_with_memory_is_not_copied(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let mut graph = Graph::new(&env.context()?)?;
    let memory = graph.alloc::<u8>(100, &[])?;
    graph.free(memory, &[])?;
    let clone = env.driver.table().cuGraphClone.context("no graphs")?;
    let mut copy: CUgraph = std::ptr::null_mut();
    // SAFETY: the graph is live, and `copy` is valid for a write.
    let code = unsafe { clone(&raw mut copy, graph.as_raw()) };
    ensure!(code == CUresult::CUDA_ERROR_NOT_SUPPORTED, "{code}");
    Ok(())
}

/// R79.
#[apply(case_alone)]
fn a_graph_goes_into_another(env: &Environment) -> Result<()> {
    env.need(12, 9)?;
    let (context, stream) = (env.context()?, env.stream()?);
    let mut parent = Graph::new(&context)?;
    let mut child = Graph::new(&context)?;
    let mut memory = child.alloc::<u8>(1000, &[])?;
    child.fill(&mut memory, 1, &[])?;
    child.free(memory, &[])?;
    let node = parent.add_child(child, &[])?;
    let mut after = parent.alloc::<u8>(1000, &[node])?;
    parent.fill(&mut after, 2, &[])?;
    let after = after.persist();
    let mut leaving = Graph::new(&context)?;
    let _left = leaving.alloc::<u8>(1, &[])?;
    let Err(failed) = parent.add_child(leaving, &[]) else {
        bail!("nobody could free what it leaves");
    };
    ensure!(failed.error.kind() == ErrorKind::InvalidValue && failed.object.is_some());
    let mut exec = parent.instantiate(Instantiate::AutoFree)?;
    for _ in 0..2 {
        exec.launch(&stream)?;
        ensure!(exec.left(&after)?.to_vec()? == [2; 1000]);
    }
    Ok(())
}

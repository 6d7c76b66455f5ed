//! Every driver call of captures and graphs fails once, in turn, with several codes. Each time the
//! caller gets a typed error, or the destructor reports; nothing is left over, nothing panics.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::interop::{CaptureMode, Graph, Instantiate};
use cuda_mem::sys::CUresult;
use cuda_mem::{Arena, Driver, Error, ErrorKind, Stream};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::foreign::{RELAXED, begin, end_well};
use cuda_mem_tests::hold::hold;
use cuda_mem_tests::sweep::meaning::{
    CAPTURES, LEFT_BY_A_GRAPH, ORDERED_LATER, STUB, ordered_later_after,
};
use cuda_mem_tests::sweep::{self, Scenario};

/// Everything of graphs, in one go.
fn graphs(driver: Driver) -> Result<(), Error> {
    let device = driver.devices()?.swap_remove(0);
    let context = device.primary_context()?;
    let (stream, other) = (context.stream()?, context.stream()?);
    let pool = device.default_pool()?;
    captured(&stream, &other, pool.alloc_zeroed::<u8>(&stream, 100)?)?;
    let mut graph = Graph::new(&context)?;
    let input = graph.adopt(pool.alloc_from(&stream, &[1_u16; 100])?);
    let output = graph.adopt(pool.alloc_zeroed::<u16>(&other, 100)?);
    let mut first = graph.alloc::<u16>(100, &[])?;
    let mut second = graph.alloc::<u16>(100, &[])?;
    graph.fill(&mut second, 2, &[])?;
    graph.copy_in(&mut first, &input, &[])?;
    graph.copy(&mut second, &mut first, &[])?;
    graph.copy_out(&mut second, &output, &[])?;
    graph.free(first, &[])?;
    let nothing = graph.alloc::<u8>(0, &[])?;
    graph.free(nothing, &[])?;
    let left = second.persist();
    let mut child = Graph::new(&context)?;
    let memory = child.alloc::<u8>(10, &[])?;
    child.free(memory, &[])?;
    graph.add_child(child, &[])?;
    let mut exec = graph.instantiate(Instantiate::AutoFree)?;
    exec.upload(&stream)?;
    exec.launch(&stream)?;
    exec.launch(&other)?;
    assert_eq!(exec.left(&left)?.to_vec()?, [1; 100]);
    assert_eq!(exec.buffer(&output)?.to_vec()?, [1; 100]);
    let output = exec.into_buffer(&output)?;
    drop(output);
    device.graph_memory()?;
    device.reset_graph_memory_high_marks()?;
    device.trim_graph_memory()
}

/// A capture, and what ends while it runs.
fn captured(
    stream: &Stream,
    other: &Stream,
    held: cuda_mem::DeviceBuffer<u8>,
) -> Result<(), Error> {
    let pool = stream.device().default_pool()?;
    let elsewhere = pool.alloc::<u8>(other, 100)?;
    let (graph, left) = stream.capture(CaptureMode::Global, |capture| {
        drop(elsewhere);
        drop(held);
        let mut memory = capture.alloc::<u32>(100)?;
        let mut copy = capture.alloc::<u32>(100)?;
        memory.as_mut_slice().fill(3)?;
        copy.as_mut_slice().copy_from_device(&memory)?;
        memory.free()?;
        Ok(copy.persist())
    })?;
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    exec.launch(stream)?;
    assert_eq!(exec.left(&left)?.to_vec()?, [3; 100]);
    // Dropped, so that a free that fails is reported and not tried again.
    drop(exec);
    Ok(())
}

/// On a GPU it would take all that is free for a moment, from other tests and other processes. What a
/// GPU answers is in the probe (R111).
#[apply(case)]
fn a_graph_that_the_device_cannot_hold_fails_at_its_launch(env: &Environment) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    let bytes = usize::try_from(context.memory_info()?.total)? + (1 << 30);
    let mut graph = Graph::new(&context)?;
    let memory = graph.alloc::<u8>(bytes, &[])?;
    graph.free(memory, &[])?;
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    for result in [exec.upload(&stream), exec.launch(&stream)] {
        let kind = result.map_err(|error| error.kind());
        ensure!(kind == Err(ErrorKind::OutOfMemory), "{kind:?}");
    }
    stream.synchronize()?;
    ensure!(env.device()?.graph_memory()?.used.current == 0);
    Ok(())
}

const SCENARIO: Scenario = Scenario {
    run: graphs,
    at_least: 120,
    answers: &[
        STUB,
        CAPTURES,
        ORDERED_LATER,
        // Graphs are launched after these calls.
        ordered_later_after(140),
    ],
    leftovers: &[LEFT_BY_A_GRAPH],
};

#[apply(case)]
fn every_call_of_a_graph_fails_once(env: &Environment) -> Result<()> {
    // After the first launch of a process other calls are made (R179).
    graphs(env.driver)?;
    sweep::in_parts(env, SCENARIO)
}

#[apply(case)]
fn a_sample_of_pairs_of_calls_fails(env: &Environment) -> Result<()> {
    graphs(env.driver)?;
    sweep::every_pair_fails(env, SCENARIO)
}

/// The codes that the driver has for captures are typed.
#[apply(case)]
fn what_a_capture_forbids_is_a_kind_of_error(env: &Environment) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    for code in 900..=908 {
        control.reset();
        control.fail_without_effect("cuStreamBeginCapture_v2", 1, CUresult(code));
        let Err(error) = stream.capture(CaptureMode::Relaxed, |_| Ok(())) else {
            bail!("{code} was lost");
        };
        ensure!(error.kind() == ErrorKind::Capturing, "{error}");
        ensure!(error.code() == Some(CUresult(code)));
    }
    Ok(())
}

#[apply(case)]
fn what_could_not_be_freed_is_still_left(env: &Environment) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    control.reset();
    let (graph, left) = stream.capture(CaptureMode::Relaxed, |capture| {
        let first = capture.alloc::<u8>(100)?.persist();
        Ok((first, capture.alloc::<u8>(50)?.persist()))
    })?;
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    exec.launch(&stream)?;
    for nth in 2..=3 {
        // The free is tried again.
        control.fail_without_effect("cuMemFreeAsync", nth, CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    ensure!(exec.free_left().is_err());
    ensure!(exec.left_bytes() == 100, "one of the two is freed");
    ensure!(exec.left(&left.0).is_ok() && exec.left(&left.1).is_err());
    let refused = exec.launch(&stream).map_err(|error| error.kind());
    ensure!(refused == Err(ErrorKind::StillAllocated));
    exec.free_left()?;
    exec.launch(&stream)?;
    drop(exec);
    ensure!(control.live().graph_allocations == 0);
    Ok(())
}

/// A capture that was the reason may have ended when it is looked for.
#[apply(case)]
fn what_is_left_is_freed_although_it_was_refused_once(env: &Environment) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    let refuse_one = || {
        control.reset();
        control.fail_without_effect("cuMemFreeAsync", 1, CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    let (graph, left) = stream.capture(CaptureMode::Relaxed, |capture| {
        Ok(capture.alloc::<u8>(100)?.persist())
    })?;
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    exec.launch(&stream)?;
    refuse_one();
    exec.free_left()?;
    ensure!(exec.left(&left).is_err(), "it was freed");
    exec.launch(&stream)?;
    let before = drop_counts();
    refuse_one();
    drop(exec);
    ensure!(drop_counts() == before, "{:?}", drop_counts());
    ensure!(control.live().graph_allocations == 0);
    Ok(())
}

#[apply(case)]
fn an_instance_that_could_not_be_made_gives_the_graph_back(env: &Environment) -> Result<()> {
    let control = env.control()?;
    control.reset();
    let graph = Graph::new(&env.context()?)?;
    let name = "cuGraphInstantiateWithFlags";
    control.fail(name, 1, CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    let Err(failed) = graph.instantiate(Instantiate::Plain) else {
        bail!("the failure was lost");
    };
    ensure!(failed.error.kind() == ErrorKind::OutOfMemory);
    let graph = failed.object.context("the graph was not given back")?;
    drop(graph.instantiate(Instantiate::Plain)?);
    ensure!(control.live().graphs == 0 && control.live().graph_execs == 0);
    Ok(())
}

#[apply(case)]
fn an_end_that_fails_leaves_the_stream_usable(env: &Environment) -> Result<()> {
    let (pool, stream, control) = (env.pool()?, env.stream()?, env.control()?);
    control.reset();
    let buffer = pool.alloc::<u8>(&stream, 1000)?;
    control.fail("cuStreamEndCapture", 1, CUresult::CUDA_ERROR_UNKNOWN);
    let failed = stream.capture(CaptureMode::Global, |_| {
        drop(buffer);
        Ok(())
    });
    ensure!(failed.is_err());
    stream.synchronize()?;
    ensure!(pool.stats()?.used.current == 0);
    Ok(())
}

/// Else it would be freed while the launch may use it.
#[apply(case)]
fn a_buffer_remembers_a_launch_that_its_stream_could_not_wait_for(env: &Environment) -> Result<()> {
    let (pool, home, other) = (env.pool()?, env.stream()?, env.stream()?);
    let control = env.control()?;
    control.reset();
    let mut graph = Graph::new(&env.context()?)?;
    graph.adopt(pool.alloc_zeroed::<u8>(&home, 1000)?);
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    home.synchronize()?;
    let held = hold(&other)?;
    // The second recording is that of the way back.
    control.fail("cuEventRecord", 2, CUresult::CUDA_ERROR_UNKNOWN);
    exec.launch(&other)?;
    ensure!(home.is_done()?, "nothing waits yet");
    drop(exec);
    ensure!(!home.is_done()?, "the free did not wait for the launch");
    drop(held);
    home.synchronize()?;
    ensure!(control.reports().is_empty(), "{:?}", control.reports());
    Ok(())
}

/// Else the next graph of the pool would use the memory beside it.
#[apply(case)]
fn a_capture_pool_remembers_a_launch_that_its_stream_could_not_wait_for(
    env: &Environment,
) -> Result<()> {
    const WAIT: &str = "cuStreamWaitEvent";
    let control = env.control()?;
    let (home, one, other) = (env.stream()?, env.stream()?, env.stream()?);
    let pool = Arena::builder(&env.device()?).build()?.capture_pool()?;
    let graph = || -> Result<_> {
        let (graph, ()) = home.capture(CaptureMode::ThreadLocal, |capture| {
            let mut block = capture.alloc_from::<u8>(&pool, 1000)?;
            block.as_mut_slice().fill(1)?;
            Ok(())
        })?;
        Ok(graph.instantiate(Instantiate::Plain)?)
    };
    let (mut first, mut second) = (graph()?, graph()?);
    // What a launch does otherwise.
    first.launch(&one)?;
    control.reset();
    second.launch(&other)?;
    let waits = control.calls(WAIT);
    one.synchronize()?;
    other.synchronize()?;
    let held = hold(&one)?;
    // The second recording is that of the way back.
    control.fail("cuEventRecord", 2, CUresult::CUDA_ERROR_UNKNOWN);
    first.launch(&one)?;
    let before = control.calls(WAIT);
    second.launch(&other)?;
    let more = control.calls(WAIT) - before;
    let is_done = other.is_done()?;
    drop(held);
    ensure!(more == waits + 1, "{more} waits, and {waits} before");
    ensure!(!is_done, "the second launch did not wait for the first");
    other.synchronize()?;
    ensure!(control.reports().is_empty(), "{:?}", control.reports());
    Ok(())
}

/// It has no list of its uses, so the host waits for a copy that its stream could not be ordered after. During a capture of
/// other code it does not: that would be lost.
#[apply(case)]
fn a_copy_of_left_memory_that_cannot_be_ordered_spoils_no_capture(env: &Environment) -> Result<()> {
    let (stream, other, control) = (env.stream()?, env.stream()?, env.control()?);
    let (graph, left) = stream.capture(CaptureMode::Relaxed, |capture| {
        let mut memory = capture.alloc::<u32>(100)?;
        memory.as_mut_slice().fill(3)?;
        Ok(memory.persist())
    })?;
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    exec.launch(&stream)?;
    let pool = env.pool()?;
    let mut target = pool.alloc::<u32>(&other, 100)?;
    begin(&stream, RELAXED)?;
    // The copy draws the other stream into the capture. The second recording is that of the way back.
    control.fail("cuEventRecord", 2, CUresult::CUDA_ERROR_UNKNOWN);
    let Err(error) = target.copy_from_device(&exec.left(&left)?) else {
        bail!("the failure was lost");
    };
    ensure!(error.function() == Some("cuEventRecord"), "{error}");
    // A stream that was drawn in has to come back before the end.
    stream.wait_for(&other)?;
    end_well(&stream)?;
    exec.free_left()?;
    drop(exec);
    stream.synchronize()?;
    Ok(env.device()?.trim_graph_memory()?)
}

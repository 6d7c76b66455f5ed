//! What ends while another library captures a stream: nothing is known of the capture before the driver is asked. It must end
//! as if nothing had happened beside it, and afterwards everything is released.
//!
//! A capture forbids things to the whole process, so these bodies run alone.

use std::mem::forget;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::interop::{CaptureMode, Channel, ImportedPool, Instantiate};
use cuda_mem::memory::StatisticsAdaptor;
use cuda_mem::{DeviceBuffer, ErrorKind, MemoryPool, ReleaseThreshold, Resource, Stream};

use crate::environment::Environment;
use crate::foreign::{RELAXED, begin, end_into_exec, end_well};

/// Global, the thread's, relaxed.
const MODES: [u32; 3] = [0, 1, RELAXED];

/// Only to end a test that fails.
const LIMIT: Duration = Duration::from_secs(10);

/// Does this while another library captures the stream in each mode.
fn in_each_mode<T>(
    captured: &Stream,
    before: impl Fn() -> Result<T>,
    during: impl Fn(T) -> Result<()>,
    after: impl Fn() -> Result<()>,
) -> Result<()> {
    for mode in MODES {
        let given = before().with_context(|| format!("before, mode {mode}"))?;
        begin(captured, mode)?;
        during(given).with_context(|| format!("during, mode {mode}"))?;
        end_well(captured).with_context(|| format!("mode {mode}"))?;
        after().with_context(|| format!("after, mode {mode}"))?;
        ensure!(
            drop_counts().failures == 0,
            "mode {mode}: {:?}",
            drop_counts()
        );
    }
    Ok(())
}

/// Waits in a stream until everything that had to wait is released.
fn release_all(stream: &Stream) -> Result<()> {
    let begin = Instant::now();
    while drop_counts().waiting > 0 {
        // It looks at what waits, but not each time.
        stream.synchronize()?;
        ensure!(begin.elapsed() < LIMIT, "{:?}", drop_counts());
    }
    Ok(())
}

#[apply(case_alone)]
fn a_use_on_a_captured_stream_ends_later(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, home, other) = (env.pool()?, env.stream()?, env.stream()?);
    for captured in [&home, &other] {
        let free = if *captured == home { &other } else { &home };
        for is_leaked in [false, true] {
            for mode in MODES {
                let what = format!("mode {mode}, {captured} is captured, leaked: {is_leaked}");
                let mut buffer = pool.alloc_from(&home, &[1_u32; 100])?;
                let mut slice = buffer.on(&other)?;
                slice.fill(2)?;
                begin(captured, mode)?;
                if is_leaked {
                    forget(slice);
                } else {
                    drop(slice);
                }
                drop(buffer);
                if mode == RELAXED {
                    // What is not captured goes on; it is no part of the graph.
                    let mut there = pool.alloc_zeroed::<u32>(free, 10)?;
                    there.as_mut_slice().fill(5)?;
                    ensure!(there.to_vec()? == [5; 10], "{what}: not done");
                }
                end_well(captured).context(what.clone())?;
                home.synchronize()?;
                other.synchronize()?;
                release_all(&home).context(what.clone())?;
                home.synchronize()?;
                ensure!(pool.stats()?.used.current == 0, "{what}");
                ensure!(drop_counts().failures == 0, "{what}: {:?}", drop_counts());
            }
        }
    }
    Ok(())
}

/// The use draws the other stream into the capture, and its end joins the two again.
#[apply(case_alone)]
fn a_use_within_a_capture_is_part_of_the_graph(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, home, other) = (env.pool()?, env.stream()?, env.stream()?);
    let mut buffer = pool.alloc_zeroed::<u32>(&home, 100)?;
    begin(&home, RELAXED)?;
    buffer.on(&other)?.fill(7)?;
    let exec = end_into_exec(&home, &home)?;
    ensure!(buffer.to_vec()? == [0; 100], "it is not launched yet");
    exec.run()?;
    ensure!(buffer.to_vec()? == [7; 100]);
    Ok(())
}

/// A library used the memory in a stream that is captured when the buffer ends.
#[apply(case_alone)]
fn a_free_after_a_captured_stream_is_put_off(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (home, other) = (env.stream()?, env.stream()?);
    let pooled = env.pool()?;
    let adapted = Resource::new(StatisticsAdaptor::new(env.pool()?));
    for is_adapted in [false, true] {
        let alloc = || -> Result<DeviceBuffer<u8>> {
            Ok(match is_adapted {
                true => adapted.alloc(&home, 100)?,
                false => pooled.alloc(&home, 100)?,
            })
        };
        let free = |buffer: DeviceBuffer<u8>| {
            let failed = buffer.free_after([&other]).err().context("it is freed")?;
            ensure!(
                failed.error.kind() == ErrorKind::Capturing,
                "{}",
                failed.error
            );
            drop(failed.object.context("it did not come back")?);
            ensure!(drop_counts().waiting == 1, "{:?}", drop_counts());
            Ok(())
        };
        in_each_mode(&other, alloc, free, || {
            home.synchronize()?;
            release_all(&home)
        })?;
    }
    Ok(())
}

#[apply(case_alone)]
fn a_graph_instance_ends(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, captured) = (env.stream()?, env.stream()?);
    let instance = || -> Result<_> {
        let (graph, ()) = stream.capture(CaptureMode::Relaxed, |capture| {
            drop(capture.alloc::<u8>(1000)?);
            Ok(())
        })?;
        let exec = graph.instantiate(Instantiate::Plain);
        Ok(exec.map_err(|failed| failed.error)?)
    };
    let end = |exec| {
        drop(exec);
        Ok(())
    };
    in_each_mode(&captured, instance, end, || release_all(&stream))?;
    if let Ok(control) = env.control() {
        ensure!(control.live().graph_execs == 0, "{:?}", control.live());
    }
    Ok(())
}

#[apply(case_alone)]
fn the_stream_is_not_captured_twice(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let captured = env.stream()?;
    let capture = |()| {
        let again = captured.capture(CaptureMode::Relaxed, |_| Ok(()));
        let error = again.err().context("it was captured twice")?;
        ensure!(error.kind() == ErrorKind::Capturing, "{error}");
        Ok(())
    };
    in_each_mode(&captured, || Ok(()), capture, || Ok(()))
}

#[apply(case_alone)]
fn a_raised_threshold_falls_again(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, captured) = (env.pool()?, env.stream()?);
    let threshold = pool.release_threshold()?;
    let raise = || Ok(pool.raise_release_threshold(ReleaseThreshold::Never)?);
    let fall = |raised| {
        drop(raised);
        Ok(())
    };
    in_each_mode(&captured, raise, fall, || {
        ensure!(pool.release_threshold()? == threshold);
        Ok(())
    })
}

#[apply(case_alone)]
fn pools_that_were_kept_for_reuse_are_destroyed(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let captured = env.stream()?;
    let end_pool = || {
        drop(env.pool()?);
        Ok(())
    };
    let destroy = |()| {
        // SAFETY: this is the only thread.
        let destroyed = unsafe { MemoryPool::destroy_spares() }?;
        ensure!(destroyed == 1, "{destroyed} pools");
        Ok(())
    };
    in_each_mode(&captured, end_pool, destroy, || Ok(()))
}

/// A host buffer in flight, with a use on another stream that has not ended.
#[apply(case_alone)]
fn host_memory_in_flight_ends(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (context, home, other) = (env.context()?, env.stream()?, env.stream()?);
    for captured in [&home, &other] {
        let lend = || -> Result<_> {
            let mut lent = context.pinned::<u32>(100)?.lend(&home)?;
            let mut slice = lent.as_mut_slice()?.on(&other)?;
            slice.fill(2)?;
            forget(slice);
            Ok(lent)
        };
        let end = |lent| {
            drop(lent);
            Ok(())
        };
        in_each_mode(captured, lend, end, || {
            home.synchronize()?;
            other.synchronize()?;
            release_all(&home)
        })?;
    }
    if let Ok(control) = env.control() {
        ensure!(control.live().host_allocations == 0, "{:?}", control.live());
    }
    Ok(())
}

/// The capture is of a stream that has nothing to do with what ends.
#[apply(case_alone)]
fn imports_end(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream, captured) = (env.shareable_pool()?, env.stream()?, env.stream()?);
    let buffer = pool.alloc_from(&stream, &[1_u32; 100])?;
    stream.synchronize()?;
    let import = || -> Result<_> {
        let imported = ImportedPool::from_fd(&env.device()?, pool.export_fd()?)?;
        // SAFETY: one stream orders everything; the buffer lives longer.
        let view = unsafe { imported.import::<u32>(&stream, &buffer.export()?) }?;
        Ok((imported, view))
    };
    let end = |(imported, view)| {
        drop(view);
        drop(imported);
        Ok(())
    };
    in_each_mode(&captured, import, end, || release_all(&stream))
}

/// The lender is notified after the capture.
#[apply(case_alone)]
fn a_received_buffer_ends(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream, captured) = (env.shareable_pool()?, env.stream()?, env.stream()?);
    let (here, there) = Channel::pair()?;
    here.send_pool(&pool)?;
    let imported = there.receive_pool(&env.device()?)?;
    for mode in MODES {
        let mut buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
        let lent = here.lend(&mut buffer)?;
        // SAFETY: one stream orders everything, and the buffer lives longer.
        let view = unsafe { there.receive_buffer::<u8>(&imported, &stream) }?;
        begin(&captured, mode)?;
        drop(view);
        end_well(&captured).with_context(|| format!("mode {mode}"))?;
        release_all(&stream)?;
        lent.wait().with_context(|| format!("mode {mode}"))?;
        ensure!(
            drop_counts().failures == 0,
            "mode {mode}: {:?}",
            drop_counts()
        );
    }
    Ok(())
}

/// The last view of an import ends in the order of all others, of which one was in a stream that is captured now.
#[apply(case_alone)]
fn the_last_view_ends(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream, captured) = (env.shareable_pool()?, env.stream()?, env.stream()?);
    let buffer = pool.alloc_from(&stream, &[1_u32; 100])?;
    stream.synchronize()?;
    let imported = ImportedPool::from_fd(&env.device()?, pool.export_fd()?)?;
    // SAFETY: nothing writes, and the buffer lives longer.
    let view = |stream| unsafe { imported.import::<u32>(stream, &buffer.export()?) };
    let views = || -> Result<_> {
        let (first, last) = (view(&captured)?, view(&stream)?);
        drop(first);
        Ok(last)
    };
    let end = |last| {
        drop(last);
        Ok(())
    };
    in_each_mode(&captured, views, end, || {
        captured.synchronize()?;
        release_all(&stream)
    })
}

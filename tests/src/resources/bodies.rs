//! What must work.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::driver::MemoryKind;
use cuda_mem::interop::CaptureMode;
use cuda_mem::memory::{DeviceVec, StatisticsAdaptor};
use cuda_mem::{DeviceBuffer, Error, ErrorKind, MemoryResource as _, Resource, Stream};

use super::subjects::missing;
use super::{Subject, subjects};
use crate::environment::Environment;
use crate::hold::hold;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const GIB: usize = 1 << 30;

/// Runs `body` with each subject, and says which one it fails for.
pub(super) fn for_each(
    env: &Environment,
    mut body: impl FnMut(&Subject, Resource) -> Result<()>,
) -> Result<()> {
    // Made once: alone in a process, each subject would make and end it.
    let _context = env.context()?;
    for subject in subjects(env)? {
        let run = subject
            .make(env)
            .and_then(|resource| body(&subject, resource));
        run.with_context(|| subject.name.clone())?;
    }
    match missing(env)? {
        Some(skip) => Err(skip.into()),
        None => Ok(()),
    }
}

#[apply(case)]
fn sizes_from_nothing_to_a_gibibyte_are_served(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for_each(env, |subject, resource| {
        for bytes in [0, 4, KIB, MIB, GIB] {
            let mut buffer = resource.alloc::<u8>(&stream, bytes)?;
            ensure!(buffer.size_bytes() == bytes);
            ensure!((buffer.as_raw() == 0) == (bytes == 0), "{bytes} bytes");
            ensure!(buffer.as_raw() % subject.alignment == 0, "{bytes} bytes");
            if (1..=MIB).contains(&bytes) {
                buffer.fill(0x5a)?;
                ensure!(buffer.to_vec()? == vec![0x5a; bytes]);
            }
            buffer.free()?;
        }
        Ok(())
    })
}

#[apply(case)]
fn memory_is_as_it_is_described(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    for_each(env, |_, resource| {
        let properties = resource.memory_properties();
        ensure!(properties.reaches(device));
        ensure!(properties.host == (properties.kind != MemoryKind::Device));
        ensure!(properties.device == resource.device());
        let buffer = resource.alloc::<u8>(&stream, 1000)?;
        ensure!(buffer.device() == properties.device);
        let info = env.driver.pointer_info(buffer.as_raw())?;
        let info = info.context("the driver does not know the memory")?;
        ensure!(info.kind == properties.kind, "{info:?}");
        if properties.host {
            host_and_device_see_the_same(&resource, &stream)?;
        }
        Ok(())
    })
}

/// One address for both.
fn host_and_device_see_the_same(resource: &Resource, stream: &Stream) -> Result<()> {
    let mut buffer = resource.alloc::<u32>(stream, 1000)?;
    buffer.fill(7)?;
    stream.synchronize()?;
    let address: *mut u32 =
        std::ptr::with_exposed_provenance_mut(usize::try_from(buffer.as_raw())?);
    // SAFETY: the properties say that the host reaches it, and the stream has done all it had to.
    let host = unsafe { std::slice::from_raw_parts_mut(address, 1000) };
    ensure!(host.iter().all(|value| *value == 7));
    host.fill(8);
    ensure!(buffer.to_vec()? == [8; 1000]);
    Ok(())
}

/// The same numbers in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// First all allocations, then all frees.
#[apply(case)]
fn random_sizes_come_and_go(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for_each(env, |_, resource| {
        let mut draw = Draw(1);
        let mut live = Vec::new();
        for _ in 0..50 {
            live.push(resource.alloc::<u8>(&stream, draw.below(5 * MIB) + 1)?);
        }
        let mut spans: Vec<(u64, u64)> = live
            .iter()
            .map(|buffer| (buffer.as_raw(), buffer.size_bytes() as u64))
            .collect();
        spans.sort_unstable();
        let apart = |pair: &[(u64, u64)]| pair[0].0 + pair[0].1 <= pair[1].0;
        ensure!(spans.windows(2).all(apart), "live buffers overlap");
        while !live.is_empty() {
            live.swap_remove(draw.below(live.len())).free()?;
        }
        Ok(())
    })
}

/// Allocations and frees in any order; what is live keeps its bytes.
#[apply(case)]
fn mixed_random_sizes_keep_their_contents(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for_each(env, |_, resource| {
        let mut draw = Draw(2);
        let mut live: Vec<(DeviceBuffer<u32>, u32)> = Vec::new();
        for round in 0..100_u32 {
            if live.is_empty() || draw.below(100) < 60 {
                let mut buffer = resource.alloc::<u32>(&stream, draw.below(16 * KIB) + 1)?;
                buffer.fill(round)?;
                live.push((buffer, round));
            } else {
                let (buffer, value) = live.swap_remove(draw.below(live.len()));
                let expected = vec![value; buffer.len()];
                ensure!(buffer.to_vec()? == expected, "the buffer of round {value}");
            }
        }
        for (buffer, value) in live {
            ensure!(buffer.to_vec()? == vec![value; buffer.len()]);
        }
        Ok(())
    })
}

/// One thread allocates and fills on its stream, another reads and frees on its own.
#[apply(case)]
fn a_producer_hands_over_to_a_consumer(env: &Environment) -> Result<()> {
    let (ours, theirs) = (env.stream()?, env.stream()?);
    for_each(env, |_, resource| {
        let (send, receive) = channel::<DeviceBuffer<u32>>();
        thread::scope(|scope| {
            let consumer = scope.spawn(|| -> Result<()> {
                for (round, buffer) in (0_u32..).zip(receive) {
                    let buffer = buffer.move_to(&theirs)?;
                    ensure!(buffer.to_vec()? == [round; 1000]);
                }
                Ok(())
            });
            let produced = (0..20).try_for_each(|round| {
                let mut buffer = resource.alloc::<u32>(&ours, 1000)?;
                buffer.fill(round)?;
                send.send(buffer).ok().context("the consumer has gone")
            });
            drop(send);
            let consumed = consumer
                .join()
                .map_err(|_| anyhow::anyhow!("it panicked"))?;
            produced.and(consumed)
        })
    })
}

#[apply(case)]
fn many_threads_share_a_resource(env: &Environment) -> Result<()> {
    for_each(env, |_, resource| {
        thread::scope(|scope| {
            let work = |value: u8| {
                let resource = &resource;
                move || -> Result<()> {
                    let stream = env.stream()?;
                    for round in 1..=10 {
                        let mut buffer = resource.alloc::<u8>(&stream, round * 1000)?;
                        buffer.fill(value)?;
                        ensure!(buffer.to_vec()? == vec![value; round * 1000]);
                    }
                    Ok(())
                }
            };
            let threads: Vec<_> = (0..4).map(|value| scope.spawn(work(value))).collect();
            threads.into_iter().try_for_each(|thread| {
                let done = thread.join();
                done.unwrap_or_else(|_| bail!("a thread panicked"))
            })
        })
    })
}

#[apply(case)]
fn a_stream_may_go_before_its_buffer(env: &Environment) -> Result<()> {
    for_each(env, |_, resource| {
        let stream = env.stream()?;
        let buffer = resource.alloc_from(&stream, &[1_u8, 2, 3])?;
        drop(stream);
        ensure!(buffer.to_vec()? == [1, 2, 3]);
        buffer.free()?;
        Ok(())
    })
}

/// Its last handle of this test; the driver's context lives as long as the buffer in any case.
#[apply(case)]
fn a_context_may_go_before_its_buffer(env: &Environment) -> Result<()> {
    for_each(env, |_, resource| {
        let context = env.context()?;
        let stream = context.stream()?;
        let buffer = resource.alloc_from(&stream, &[1_u8, 2, 3])?;
        drop((stream, context, resource));
        ensure!(buffer.to_vec()? == [1, 2, 3]);
        buffer.free()?;
        Ok(())
    })
}

/// Alone, because elsewhere other tests keep the context. Each round's context ends with its last buffer.
#[apply(case_alone)]
fn a_resource_outlives_its_contexts(env: &Environment) -> Result<()> {
    let device = env.device()?;
    for subject in subjects(env)? {
        // Stacks have nothing to do with contexts.
        if subject.name.contains(" over ") {
            continue;
        }
        let resource = subject.make(env)?;
        for round in 0..3_u8 {
            ensure!(!device.has_active_context()?, "{}", subject.name);
            let buffer = resource.alloc_from(&env.stream()?, &[round; 100])?;
            ensure!(device.has_active_context()?);
            ensure!(buffer.to_vec()? == [round; 100], "{}", subject.name);
            drop(buffer);
            // What an arena keeps of an upstream may need the context.
            resource.trim_to(0)?;
        }
    }
    Ok(())
}

#[apply(case)]
fn a_buffer_may_end_on_a_foreign_thread(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let own = env.context()?.per_thread_stream();
    for_each(env, |_, resource| {
        for stream in [&stream, &own] {
            let mut buffer = resource.alloc::<u8>(stream, 100_000)?;
            buffer.fill(1)?;
            let ended = thread::spawn(move || buffer.free().map_err(|failed| failed.error)).join();
            ended.map_err(|_| anyhow::anyhow!("it panicked"))??;
            let dropped = resource.alloc::<u8>(stream, 100)?;
            let ended = thread::spawn(move || drop(dropped)).join();
            ended.map_err(|_| anyhow::anyhow!("it panicked"))?;
        }
        Ok(())
    })
}

#[apply(case)]
fn a_buffer_goes_over_to_another_stream(env: &Environment) -> Result<()> {
    let (stream, other) = (env.stream()?, env.stream()?);
    for_each(env, |_, resource| {
        let mut buffer = resource.alloc_zeroed::<u32>(&stream, 1000)?;
        buffer.on(&other)?.fill(3)?;
        ensure!(buffer.to_vec()? == [3; 1000]);
        buffer.set_stream(&other)?;
        ensure!(*buffer.stream() == other);
        ensure!(buffer.to_vec()? == [3; 1000]);
        buffer.free_on(&stream)?;
        let mut buffer = resource.alloc_zeroed::<u32>(&stream, 1000)?;
        buffer.on(&other)?.fill(4)?;
        ensure!(buffer.to_vec()? == [4; 1000]);
        buffer.free_after([&other, &stream])?;
        let mut vec = DeviceVec::from_slice_in(&resource, &stream, &[1_u64, 2])?;
        vec.extend_from_slice(&[3])?;
        vec.set_stream(&other)?;
        vec.resize_zeroed(5)?;
        ensure!(vec.to_vec()? == [1, 2, 3, 0, 0]);
        Ok(())
    })
}

#[apply(case)]
fn a_buffer_keeps_its_resource(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for_each(env, |_, resource| {
        let counted = Arc::new(StatisticsAdaptor::new(resource));
        let buffer = Resource::from(counted.clone()).alloc_from(&stream, &[1_u8, 2, 3])?;
        ensure!(Arc::strong_count(&counted) == 2);
        ensure!(counted.statistics().bytes.current == 3);
        ensure!(buffer.to_vec()? == [1, 2, 3]);
        drop(buffer);
        ensure!(Arc::strong_count(&counted) == 1);
        ensure!(counted.statistics().bytes.current == 0);
        Ok(())
    })
}

/// Alone, because some frees block every call of the process while they wait (R96).
#[apply(case_alone)]
fn a_free_waits_for_the_work_before_it(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for_each(env, |_, resource| {
        // Of the device: a copy inside the host's memory would wait itself.
        let device = env.device()?.default_resource()?;
        let mut last = device.alloc_zeroed::<u32>(&stream, 100_000)?;
        let mut buffer = resource.alloc::<u32>(&stream, 100_000)?;
        stream.synchronize()?;
        let held = hold(&stream)?;
        buffer.fill(7)?;
        last.copy_from_device(&buffer)?;
        let freeing = thread::spawn(move || buffer.free().map_err(|failed| failed.error));
        // Time for a free that does not wait to do its harm.
        thread::sleep(std::time::Duration::from_millis(2));
        drop(held);
        freeing
            .join()
            .map_err(|_| anyhow::anyhow!("it panicked"))??;
        ensure!(last.to_vec()? == vec![7; 100_000]);
        Ok(())
    })
}

/// Alone, because a capture forbids things to the whole process.
#[apply(case_alone)]
fn captures_of_other_streams_are_not_disturbed(env: &Environment) -> Result<()> {
    for_each(env, |_, resource| {
        let (stream, captured) = (env.stream()?, env.stream()?);
        for mode in [
            CaptureMode::Global,
            CaptureMode::ThreadLocal,
            CaptureMode::Relaxed,
        ] {
            let counted = Arc::new(StatisticsAdaptor::new(resource.clone()));
            let buffer = Resource::from(counted.clone()).alloc_zeroed::<u8>(&stream, 1000)?;
            stream.synchronize()?;
            // Ends with an error if anything made it worthless.
            captured.capture(mode, |_| buffer.free().map_err(Error::from))?;
            ensure!(counted.statistics().bytes.current == 0, "{mode:?}");
        }
        Ok(())
    })
}

/// Alone, because a capture forbids things to the whole process.
#[apply(case_alone)]
fn a_buffer_is_given_back_after_the_capture_of_its_stream(env: &Environment) -> Result<()> {
    for_each(env, |_, resource| {
        let stream = env.stream()?;
        let counted = Arc::new(StatisticsAdaptor::new(resource));
        let resource = Resource::from(counted.clone());
        let buffer = resource.alloc_zeroed::<u8>(&stream, 1000)?;
        stream.synchronize()?;
        stream.capture(CaptureMode::Relaxed, |_| {
            let refused = resource.alloc::<u8>(&stream, 10).is_err();
            drop(buffer);
            let waiting = counted.statistics().bytes.current;
            if refused && waiting == 1000 {
                Ok(())
            } else {
                let text = format!("refused: {refused}, waiting: {waiting}");
                Err(Error::new(ErrorKind::Other, text))
            }
        })?;
        stream.synchronize()?;
        ensure!(counted.statistics().bytes.current == 0);
        Ok(())
    })
}

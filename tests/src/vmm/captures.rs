//! Mapped memory while somebody captures a stream.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Result, anyhow, bail, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::driver::Location;
use cuda_mem::interop::CaptureMode;
use cuda_mem::ledger::{Ledger, LedgerKind, LedgerLevel};
use cuda_mem::mapped::{GrowableBuffer, MappedMemory};
use cuda_mem::{Device, DeviceBuffer, Error, ErrorKind, Stream};

use crate::environment::Environment;

const MODES: [CaptureMode; 3] = [
    CaptureMode::Global,
    CaptureMode::ThreadLocal,
    CaptureMode::Relaxed,
];

fn sevens(device: &Device, stream: &Stream) -> Result<GrowableBuffer<u32>> {
    let memory = MappedMemory::builder(device).reserve(64 << 20).build(1)?;
    let mut buffer = memory.into_buffer::<u32>(stream, 100)?;
    buffer.as_mut_slice().fill(7)?;
    Ok(buffer)
}

/// What is mapped in this process now, as far as this library did it.
fn mappings() -> i64 {
    let report = Ledger::report();
    report.of(LedgerKind::Mapping).map(|one| one.count).sum()
}

fn is_capturing<T>(result: Result<T, Error>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::Capturing)
}

#[apply(case_alone)]
fn buffers_of_other_streams_spoil_no_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (device, stream, other) = (env.device()?, env.stream()?, env.stream()?);
    for mode in MODES {
        let make = || sevens(&device, &other);
        let (dropped, mut changed, ended) = (make()?, make()?, make()?);
        let room = changed.capacity();
        changed.resize_zeroed(room + 1)?;
        changed.resize_uninit(100)?;
        let (_, memory) = stream.capture(mode, |_| {
            drop(dropped);
            changed.shrink_to_fit()?;
            changed.move_memory_to(Location::Device(device))?;
            ended.into_memory().map_err(|failed| failed.error)
        })?;
        ensure!(changed.capacity() == room);
        ensure!(changed.to_vec()? == [7; 100]);
        let left = memory.into_buffer::<u32>(&other, 100)?;
        ensure!(left.to_vec()? == [7; 100]);
    }
    Ok(())
}

#[apply(case_alone)]
fn a_buffer_of_the_captured_stream_ends_afterwards(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (device, stream) = (env.device()?, env.stream()?);
    let level = Ledger::enable(LedgerLevel::Bytes);
    for mode in MODES {
        let (before, failures) = (mappings(), drop_counts().failures);
        let (dropped, mut kept) = (sevens(&device, &stream)?, sevens(&device, &stream)?);
        let (_, kept) = stream.capture(mode, |_| {
            drop(dropped);
            assert_eq!(mappings(), before + 2, "it waits");
            assert!(is_capturing(kept.shrink_to_fit()));
            let to = Location::Device(device);
            assert!(is_capturing(kept.move_memory_to(to)));
            match kept.into_memory() {
                Err(failed) if failed.error.kind() == ErrorKind::Capturing => Ok(failed.object),
                _ => panic!("nobody can wait for the stream"),
            }
        })?;
        stream.synchronize()?;
        ensure!(mappings() == before + 1, "{mode:?}: it is still there");
        let Some(kept) = kept else {
            bail!("it did not come back");
        };
        ensure!(kept.to_vec()? == [7; 100]);
        drop(kept);
        ensure!(mappings() == before && drop_counts().failures == failures);
    }
    Ledger::enable(level);
    Ok(())
}

/// Says when it is dropped.
struct Owner(std::sync::mpsc::Sender<()>);

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

#[apply(case_alone)]
fn an_owner_of_lent_memory_is_told_afterwards(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (device, stream) = (env.device()?, env.stream()?);
    for mode in MODES {
        let buffer = sevens(&device, &stream)?;
        let (told, tell) = std::sync::mpsc::channel();
        // SAFETY: the memory is that of `buffer`, which lives longer.
        let lent =
            unsafe { DeviceBuffer::<u32>::borrow_raw(&stream, buffer.as_raw(), 100, Owner(told)) };
        stream.capture(mode, |_| {
            drop(lent);
            assert!(tell.try_recv().is_err(), "the stream may still use it");
            Ok(())
        })?;
        stream.synchronize()?;
        ensure!(tell.try_recv().is_ok(), "nobody told the owner");
    }
    Ok(())
}

#[apply(case_alone)]
fn memory_is_not_moved_by_a_stream_that_cannot_be_waited_for(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (device, stream) = (env.device()?, env.stream()?);
    let to = Location::Device(device);
    let mut memory = sevens(&device, &stream)?.into_memory()?;
    for mode in MODES {
        stream.capture(mode, |_| {
            assert!(is_capturing(memory.move_to(to, &stream)));
            Ok(())
        })?;
    }
    let context = env.context()?;
    let elsewhere = std::thread::spawn(move || context.per_thread_stream());
    let elsewhere = elsewhere.join().expect("it does not panic");
    let error = memory.move_to(to, &elsewhere).expect_err("it is refused");
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    ensure!(memory.is_mapped() && memory.migrations().moves == 0);
    memory.move_to(to, &env.context()?.per_thread_stream())?;
    memory.move_to(to, &env.context()?.legacy_stream())?;
    let buffer = memory.into_buffer::<u32>(&stream, 100)?;
    ensure!(buffer.to_vec()? == [7; 100]);
    Ok(())
}

/// A capture of a thread's own stream waits for what is under way in the legacy one, and that comes to its end.
#[apply(case_alone)]
fn moves_in_the_legacy_stream_lose_nothing_beside_captures(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (device, context) = (env.device()?, env.context()?);
    let mut buffer = sevens(&device, &context.legacy_stream())?;
    let is_over = AtomicBool::new(false);
    let capture = || -> Result<u32> {
        let own = context.per_thread_stream();
        let mut count = 0;
        while !is_over.load(Ordering::Relaxed) {
            own.capture(CaptureMode::Relaxed, |_| Ok(()))?;
            count += 1;
            thread::yield_now();
        }
        Ok(count)
    };
    let mut moves = || -> Result<()> {
        let mut count = 0;
        while count < 100 {
            match buffer.move_memory_to(Location::Device(device)) {
                Err(error) if error.kind() == ErrorKind::Capturing => thread::yield_now(),
                moved => count += moved.map(|()| 1)?,
            }
            ensure!(buffer.len() == 100, "lost after {count}");
        }
        Ok(())
    };
    let (captures, moves) = thread::scope(|scope| {
        let captures = scope.spawn(capture);
        let moves = moves();
        is_over.store(true, Ordering::Relaxed);
        (captures.join().map_err(|_| anyhow!("panicked")), moves)
    });
    moves?;
    ensure!(captures?? > 0);
    ensure!(buffer.to_vec()? == [7; 100]);
    Ok(())
}

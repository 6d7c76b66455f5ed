//! What has ended is not listed, however it ended.

use std::thread;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::interop::{CaptureMode, Graph};
use cuda_mem::ledger::{Ledger, LedgerKind, LedgerLevel};
use cuda_mem::memory::{DeviceVec, StatisticsAdaptor};
use cuda_mem::sys::CUresult;
use cuda_mem::{Arena, DeviceBuffer, ErrorKind, MemoryPool, Resource};

use super::{begin, sum};
use crate::environment::Environment;

const LEVELS: [LedgerLevel; 2] = [LedgerLevel::Bytes, LedgerLevel::Origins];

/// A million where it is quick: with optimisation, in which `.ci/run` runs it too.
const PAIRS: usize = if cfg!(debug_assertions) {
    100_000
} else {
    1_000_000
};

#[apply(case)]
fn pairs_leave_nothing(env: &Environment) -> Result<()> {
    let (stream, pool) = (env.stream()?, env.pool()?);
    for level in LEVELS {
        begin(level);
        for nth in 0..PAIRS {
            drop(pool.alloc::<u8>(&stream, 1 + nth % 5000)?);
        }
        Ledger::report().require_empty()?;
    }
    Ok(())
}

#[apply(case)]
fn threads_leave_nothing(env: &Environment) -> Result<()> {
    const THREADS: usize = 8;
    let pool = env.pool()?;
    let resource = Resource::from(env.pool()?);
    for level in LEVELS {
        let streams = (0..THREADS).map(|_| env.stream());
        let streams = streams.collect::<Result<Vec<_>>>()?;
        begin(level);
        let work = |nth: usize| -> Result<_> {
            let stream = &streams[nth];
            let mut kept = Vec::new();
            for round in 0..500 {
                let small = pool.alloc::<u8>(stream, 1 + round)?;
                drop(resource.alloc::<u8>(stream, 100)?);
                if round % 100 == 0 {
                    kept.push(small);
                }
            }
            Ok(kept)
        };
        let kept = thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = (0..THREADS)
                .map(|nth| scope.spawn(move || work(nth)))
                .collect();
            let ends = threads.into_iter().map(|thread| thread.join());
            ends.map(|end| end.expect("no thread panics"))
                .collect::<Result<Vec<_>>>()
        })?;
        // 1 + 101 + 201 + 301 + 401 bytes each.
        let (count, bytes) = (THREADS as i64 * 5, THREADS as i64 * 1005);
        let found = sum(LedgerKind::Buffer);
        ensure!(found == (count, bytes), "{level}: {found:?}");
        let report = Ledger::report();
        ensure!(report.groups.len() == 1, "one line made them all: {report}");
        // Freed by another thread than the one that made them.
        thread::scope(|scope| scope.spawn(|| drop(kept)).join()).expect("no panic");
        Ledger::report().require_empty()?;
    }
    Ok(())
}

#[apply(case)]
fn every_end_is_noted(env: &Environment) -> Result<()> {
    let (device, pool) = (env.device()?, env.pool()?);
    let resource = Resource::from(pool.clone());
    for level in LEVELS {
        begin(level);
        let context = device.primary_context()?;
        let (stream, other) = (context.stream()?, context.stream()?);
        let make = || pool.alloc_from(&stream, &[7_u8; 100]);
        make()?.free()?;
        make()?.free_on(&other)?;
        make()?.free_sync()?;
        drop(make()?.move_to(&other)?);
        resource.alloc::<u8>(&stream, 100)?.free()?;
        drop(resource.alloc::<u8>(&stream, 0)?);
        drop(stream.alloc::<u8>(100)?);
        let arena = Arena::builder(&device).build()?;
        ensure!(sum(LedgerKind::Arena).0 == 1);
        drop(arena);
        let mut vec = DeviceVec::from_slice_in(&resource, &stream, &[1_u8; 10])?;
        vec.extend_from_slice(&[2; 1000])?;
        vec.shrink_to_fit()?;
        drop(vec.into_buffer());
        drop(DeviceVec::<u8>::with_capacity_in(&resource, &stream, 100)?);
        {
            let mut lent = make()?;
            lent.on(&other)?.fill(1)?;
        }
        let closed = MemoryPool::builder(&device).build()?;
        let clone = closed.clone();
        let failed = closed.close().expect_err("there is another handle");
        drop(clone);
        let closed = failed.object.context("it was not touched")?;
        ensure!(sum(LedgerKind::Pool).0 == 1);
        if env.need(11, 3).is_ok() {
            let buffer = closed.alloc::<u8>(&stream, 1)?;
            let failed = closed.close().expect_err("there is a buffer");
            ensure!(failed.error.kind() == ErrorKind::InUse, "{}", failed.error);
            let closed = failed.object.context("it was not touched")?;
            ensure!(sum(LedgerKind::Pool).0 == 1);
            drop(buffer);
            stream.synchronize()?;
            closed.close()?;
        } else {
            closed.close()?;
        }
        if env.need(11, 4).is_ok() {
            let mut graph = Graph::new(&context)?;
            graph.adopt(make()?);
            drop(graph.instantiate(cuda_mem::interop::Instantiate::Plain)?);
        }
        if env.need(12, 9).is_ok() {
            let mut parent = Graph::new(&context)?;
            parent.add_child(Graph::new(&context)?, &[])?;
            ensure!(sum(LedgerKind::Graph).0 == 1, "the child is the parent's");
        }
        drop((stream, other, context));
        Ledger::report().require_empty()?;
    }
    Ok(())
}

#[apply(case_of_sim)]
fn a_buffer_that_cannot_be_freed_stays_listed(env: &Environment) -> Result<()> {
    let control = env.control()?;
    let (stream, pool) = (env.stream()?, env.pool()?);
    let resource = Resource::from(env.pool()?);
    let adapted = Resource::new(StatisticsAdaptor::new(env.pool()?));
    for level in LEVELS {
        for way in 0..3 {
            begin(level);
            let buffer = match way {
                0 => pool.alloc::<u8>(&stream, 100)?,
                1 => resource.alloc::<u8>(&stream, 100)?,
                _ => adapted.alloc::<u8>(&stream, 100)?,
            };
            let line = Ledger::report().groups[0].origin;
            control.reset();
            for nth in 1..=2 {
                // The free is tried again.
                control.fail_without_effect(
                    "cuMemFreeAsync",
                    nth,
                    CUresult::CUDA_ERROR_INVALID_VALUE,
                );
            }
            let freed = match way {
                2 => buffer.free_after([&stream]),
                _ => buffer.free(),
            };
            let failed = freed.expect_err("the simulator was told to");
            ensure!(failed.object.is_some(), "it did not come back");
            let report = Ledger::report();
            ensure!((report.count(), report.bytes()) == (1, 100), "{report}");
            ensure!(report.groups[0].origin == line, "{report}");
            drop(failed);
            Ledger::report().require_empty()?;
        }
    }
    Ok(())
}

#[apply(case_of_sim)]
fn a_pool_that_cannot_be_closed_stays_listed_on_its_device(env: &Environment) -> Result<()> {
    let control = env.control()?;
    for level in LEVELS {
        // The question whether it is in use, and the end itself.
        for function in ["cuMemPoolTrimTo", "cuMemPoolDestroy"] {
            begin(level);
            let pool = env.shareable_pool()?;
            control.reset();
            control.fail_without_effect(function, 1, CUresult::CUDA_ERROR_INVALID_VALUE);
            let failed = pool.close().expect_err("the simulator was told to");
            ensure!(
                failed.error.function() == Some(function),
                "{}",
                failed.error
            );
            let report = Ledger::report();
            ensure!(report.count() == 1, "{report}");
            if level == LedgerLevel::Origins {
                ensure!(report.groups[0].device == Some(env.device()?), "{report}");
            }
            drop(failed);
            Ledger::report().require_empty()?;
        }
    }
    Ok(())
}

#[apply(case_alone)]
fn memory_that_waits_for_a_capture_stays_listed(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, other, pool) = (env.stream()?, env.stream()?, env.pool()?);
    for level in LEVELS {
        begin(level);
        let buffer = pool.alloc::<u8>(&stream, 100)?;
        let mut during = (0, 0);
        let (graph, ()) = stream.capture(CaptureMode::Relaxed, |_| {
            drop(buffer);
            // Looks at what waits, in vain.
            other.synchronize()?;
            during = sum(LedgerKind::Buffer);
            Ok(())
        })?;
        drop(graph);
        ensure!(during == (1, 100), "{during:?}");
        stream.synchronize()?;
        Ledger::report().require_empty()?;
    }
    Ok(())
}

#[apply(case)]
fn what_goes_out_of_hand_leaves_the_ledger(env: &Environment) -> Result<()> {
    let (stream, pool) = (env.stream()?, env.pool()?);
    for level in LEVELS {
        begin(level);
        let address = pool.alloc::<u8>(&stream, 100)?.into_raw()?;
        Ledger::report().require_empty()?;
        // SAFETY: the address and the number come from a buffer of this stream.
        let buffer = unsafe { DeviceBuffer::<u8>::from_raw(&stream, address, 100) };
        ensure!(sum(LedgerKind::Buffer) == (1, 100));
        drop(buffer);
        Ledger::report().require_empty()?;
    }
    Ok(())
}

#[apply(case)]
fn views_are_not_listed(env: &Environment) -> Result<()> {
    let (stream, pool) = (env.stream()?, env.pool()?);
    for level in LEVELS {
        begin(level);
        let theirs = pool.alloc::<u8>(&stream, 100)?;
        // SAFETY: the memory is that of `theirs`, which lives longer and frees in the same stream.
        let view = unsafe { DeviceBuffer::<u8>::borrow_raw(&stream, theirs.as_raw(), 100, ()) };
        ensure!(sum(LedgerKind::Buffer) == (1, 100));
        drop(view);
        ensure!(sum(LedgerKind::Buffer) == (1, 100));
        drop(theirs);
        Ledger::report().require_empty()?;
    }
    Ok(())
}

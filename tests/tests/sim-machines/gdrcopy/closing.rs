//! Nothing stays pinned or mapped, whatever happens.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::base::drop_counts;
use cuda_mem::cpu_mapping::{CpuMappingKind, CpuMappingOptions, Gdr};
use cuda_mem::sys::CUresult;
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::window::memory;

use super::child::live;

const DIRECT: [CpuMappingKind; 2] = [CpuMappingKind::DmaBuf, CpuMappingKind::Gdrcopy];

/// More than shares memory with others.
const OWN: usize = (1 << 20) + 1;

/// Many windows from eight threads at a time: each has its own memory, and all use one library.
pub(crate) fn child_threads_open_windows(env: &Environment) -> Result<()> {
    let start = Barrier::new(8);
    let worker = |number: u32| -> Result<()> {
        let stream = env.stream()?;
        let mut buffers = Vec::new();
        for _ in 0..3 {
            buffers.push(memory::<u32>(
                &stream,
                CpuMappingKind::Gdrcopy,
                OWN / 4 + 1,
            )?);
        }
        start.wait();
        for round in 0..40 {
            let kind = DIRECT[(round + number as usize) % 2];
            let options = CpuMappingOptions::new().only([kind]).range(17..5000);
            let opened = buffers.iter_mut().map(|buffer| options.open(buffer));
            let mut windows = opened.collect::<cuda_mem::Result<Vec<_>>>()?;
            for (place, window) in windows.iter_mut().enumerate() {
                window.store(place, number)?;
                window.write(100, &[round as u32; 200])?;
                window.flush()?;
                ensure!(window.load(place)? == number && window.load(299)? == round as u32);
                ensure!(!window.is_revoked()?);
                ensure!(window.gdr_info()?.is_some() == (kind == CpuMappingKind::Gdrcopy));
            }
            for window in windows {
                window.close()?;
            }
            Gdr::load()?.is_persistent()?;
        }
        ensure!(buffers[2].to_vec()?[19] == number);
        Ok(())
    };
    thread::scope(|scope| {
        let threads = (0..8).map(|number| scope.spawn(move || worker(number)));
        let threads: Vec<_> = threads.collect();
        threads.into_iter().try_for_each(|thread| {
            thread
                .join()
                .map_err(|_| anyhow::anyhow!("a thread panicked"))?
        })
    })
}

/// Memory that goes takes no window of other memory along.
pub(crate) fn invalidation_two_mappings(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for kind in DIRECT {
        let mut first = memory::<u8>(&stream, kind, OWN)?;
        let mut second = memory::<u8>(&stream, kind, OWN)?;
        let only = || CpuMappingOptions::new().only([kind]);
        let mut window = only().open(&mut second)?;
        let mut other = only().open(&mut first)?;
        other.store(0, 11)?;
        window.store(0, 12)?;
        other.close()?;
        drop(first);
        ensure!(window.load(0)? == 12 && !window.is_revoked()?, "{kind}");
        window.close()?;
        ensure!(second.to_vec()?[0] == 12, "{kind}");
    }
    Ok(())
}

/// What is pinned when a process forks is unpinned once, by that process. In the fork nothing hangs, and nothing is
/// asked of library or driver.
pub(crate) fn leakage_pin_pages_fork(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for kind in DIRECT {
        let mut buffers = [
            memory::<u32>(&stream, kind, OWN)?,
            memory::<u32>(&stream, kind, OWN)?,
        ];
        let [one, two] = buffers.each_mut();
        let only = || CpuMappingOptions::new().only([kind]);
        let (mut window, closed) = (only().open(one)?, only().open(two)?);
        window.store(0, 1)?;
        let pinned = live()?;
        ensure!(pinned == [2 * u64::from(kind == CpuMappingKind::Gdrcopy); 2]);
        let calls = env.control()?.calls_total();
        // SAFETY: this program has one thread here.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let forked = |kind: Option<ErrorKind>| kind == Some(ErrorKind::Forked);
            let mut fine = forked(Gdr::load().err().map(|error| error.kind()));
            if kind == CpuMappingKind::Gdrcopy {
                fine &= forked(window.gdr_info().err().map(|error| error.kind()));
                fine &= forked(window.is_revoked().err().map(|error| error.kind()));
            }
            fine &= forked(closed.close().err().map(|error| error.kind()));
            drop(window);
            fine &= drop_counts().failures == 0 && live().is_ok_and(|live| live == pinned);
            fine &= env
                .control()
                .is_ok_and(|control| control.calls_total() == calls);
            // SAFETY: ends the child without the parent's handlers.
            unsafe { libc::_exit(if fine { 0 } else { 1 }) };
        }
        let mut status = 0;
        // SAFETY: `status` is valid for a write, and the child is this process's.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        ensure!(
            waited == child && status == 0,
            "{kind}: the fork ended with {status}"
        );
        ensure!(live()? == pinned);
        window.store(1, 2)?;
        ensure!(window.load(0)? == 1 && window.load(1)? == 2);
        window.close()?;
        closed.close()?;
        ensure!(live()? == [0, 0] && buffers[0].to_vec()?[..2] == [1, 2]);
    }
    Ok(())
}

/// Another thread is in a call of the library when the process forks: the lock is held for ever there.
pub(crate) fn a_fork_beside_a_call(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut buffer = memory::<u32>(&stream, CpuMappingKind::Gdrcopy, 1000)?;
    let window = CpuMappingOptions::new()
        .only([CpuMappingKind::Gdrcopy])
        .open(&mut buffer)?;
    let gdr = Gdr::load()?;
    let is_over = AtomicBool::new(false);
    let ended = thread::scope(|scope| {
        let asking = || {
            while !is_over.load(Ordering::Relaxed) {
                let _ = gdr.is_persistent();
            }
        };
        let threads = [0; 2].map(|_| scope.spawn(asking));
        let mut ended = Ok(());
        for _ in 0..50 {
            // SAFETY: the child asks for errors, for which the C library keeps its heap usable, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let is_forked = window
                    .is_revoked()
                    .is_err_and(|error| error.kind() == ErrorKind::Forked)
                    && gdr.is_persistent().is_err();
                // SAFETY: ends the child without the parent's handlers.
                unsafe { libc::_exit(if is_forked { 0 } else { 1 }) };
            }
            let mut status = 0;
            // SAFETY: `status` is valid for a write, and the child is this process's.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            if status != 0 {
                ended = Err(anyhow::anyhow!("the fork ended with {status}"));
            }
        }
        is_over.store(true, Ordering::Relaxed);
        drop(threads);
        ended
    });
    window.close()?;
    ended
}

/// Each driver call of opening fails once: the next kind is taken or an error comes, and nothing stays pinned.
pub(crate) fn failures_leave_nothing(env: &Environment) -> Result<()> {
    let (control, stream) = (env.control()?, env.stream()?);
    // What the driver refuses at the end of a window is told; these faults hit the way back to the context
    // or the capture mode of before.
    static OTHERS: AtomicU64 = AtomicU64::new(0);
    cuda_mem::base::on_drop_failure(|failure| {
        let is_way_back = ["current context", "capture mode"].contains(&failure.object);
        OTHERS.fetch_add(u64::from(!is_way_back), Ordering::Relaxed);
        if !is_way_back {
            eprintln!("{}: {}", failure.object, failure.error);
        }
    });
    let mut fallbacks = 0;
    for kind in DIRECT {
        let mut buffer = memory::<u32>(&stream, kind, 1000)?;
        for code in [
            CUresult::CUDA_ERROR_INVALID_VALUE,
            CUresult::CUDA_ERROR_NOT_SUPPORTED,
            CUresult::CUDA_ERROR_OUT_OF_MEMORY,
            CUresult::CUDA_ERROR_UNKNOWN,
        ] {
            for nth in 1.. {
                let before = control.calls_total();
                control.fail_call(nth, code);
                let options = CpuMappingOptions::new().only([kind, CpuMappingKind::Copies]);
                let opened = options.open(&mut buffer);
                control.clear_faults();
                let was_called = control.calls_total() - before >= nth;
                match opened {
                    Ok(mut window) => {
                        fallbacks += u32::from(window.kind() == CpuMappingKind::Copies);
                        window.store(5, 6)?;
                        ensure!(window.load(5)? == 6, "{kind}, call {nth}");
                    }
                    // Keeping out of captures failed.
                    Err(error) if error.kind() == ErrorKind::Capturing => {}
                    Err(error) => {
                        ensure!(error.code() == Some(code), "{kind}, call {nth}: {error}")
                    }
                }
                ensure!(live()? == [0, 0], "{kind}, call {nth}");
                if !was_called {
                    break;
                }
            }
        }
    }
    ensure!(fallbacks > 0);
    // The one that tells copies to wait: what the memory cannot do is no reason, anything else is.
    let mut buffer = memory::<u32>(&stream, CpuMappingKind::Gdrcopy, 1000)?;
    for (code, expected) in [
        (CUresult::CUDA_ERROR_NOT_SUPPORTED, CpuMappingKind::Gdrcopy),
        (CUresult::CUDA_ERROR_UNKNOWN, CpuMappingKind::Copies),
    ] {
        control.fail("cuPointerSetAttribute", 1, code);
        let options = CpuMappingOptions::new().refuse([CpuMappingKind::DmaBuf]);
        let window = options.open(&mut buffer)?;
        ensure!(window.kind() == expected, "{code}: {}", window.choice());
    }
    ensure!(OTHERS.load(Ordering::Relaxed) == 0);
    Ok(())
}

/// Windows that are dropped in any order, in a panic, and after their stream is gone.
pub(crate) fn every_end_gives_back(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut buffers = Vec::new();
    for _ in 0..4 {
        buffers.push(memory::<u32>(&stream, CpuMappingKind::Gdrcopy, 1000)?);
    }
    drop(stream);
    let gdrcopy = || CpuMappingOptions::new().only([CpuMappingKind::Gdrcopy]);
    let mut opened: Vec<_> = buffers
        .iter_mut()
        .map(|buffer| gdrcopy().open(buffer))
        .collect::<cuda_mem::Result<_>>()?;
    ensure!(live()? == [4, 4]);
    drop(opened.swap_remove(1));
    opened.pop().context("three are left")?.close()?;
    ensure!(live()? == [2, 2]);
    let panicked = thread::scope(|scope| {
        let moved = scope.spawn(move || {
            let _windows = opened;
            std::panic::resume_unwind(Box::new(()));
        });
        moved.join().is_err()
    });
    ensure!(panicked && live()? == [0, 0]);
    // Not closed at all: the memory is freed below what is pinned, and nothing else happens.
    std::mem::forget(gdrcopy().open(&mut buffers[0])?);
    ensure!(live()? == [1, 1]);
    buffers.clear();
    ensure!(live()? == [1, 1] && drop_counts().failures == 0);
    Ok(())
}

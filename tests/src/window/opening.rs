//! What a window opens on, and what becomes of it.

use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Result, ensure};
use cuda_mem::cpu_mapping::{CpuMappingKind, CpuMappingOptions, MappingKind};
use cuda_mem::driver::MemoryKind;
use cuda_mem::ledger::Ledger;
use cuda_mem::mapped::ManagedBuffer;
use cuda_mem::{DeviceBuffer, ErrorKind};

use super::{kinds, mapped, memory, memory_of_any_size, open, walking_bit};
use crate::environment::Environment;
use crate::hold::{hold, hold_for};

#[apply(case)]
fn basic(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for kind in kinds(&stream)? {
        let mut buffer = memory::<u32>(&stream, kind, 1000)?;
        buffer.fill(5)?;
        let address = buffer.as_raw();
        let mut window = open(&mut buffer, kind)?;
        ensure!(window.len() == 1000 && window.size_bytes() == 4000 && window.address() == address);
        ensure!(window.mapping().is_some() == kind.is_direct());
        ensure!(window.load(999)? == 5, "{kind}: it saw the fill");
        window.store(7, 77)?;
        window.write(100, &[1, 2, 3])?;
        window.flush()?;
        let mut seen = [0; 4];
        window.read(99, &mut seen)?;
        ensure!(
            seen == [5, 1, 2, 3] && window.load(7)? == 77,
            "{kind}: {seen:?}"
        );
        window.close()?;
        let all = buffer.to_vec()?;
        ensure!(all[7] == 77 && all[99..104] == [5, 1, 2, 3, 5], "{kind}");
    }
    // Memory of every origin has some window.
    let mut pooled = env.pool()?.alloc_zeroed::<u8>(&stream, 5000)?;
    let mut window = CpuMappingOptions::new().open(&mut pooled)?;
    window.write(4000, &[9; 1000])?;
    window.close()?;
    ensure!(pooled.to_vec()?[3999..4001] == [0, 9]);
    let mut mapped = mapped(env, &stream, 5000)?;
    let mut window = CpuMappingOptions::new().open(&mut mapped)?;
    window.write(0, &[8; 5000])?;
    window.close()?;
    ensure!(mapped.to_vec()? == [8; 5000]);
    let mut managed = ManagedBuffer::<u8>::zeroed(&stream, 100)?.into_buffer();
    let mut window = CpuMappingOptions::new().open(&mut managed)?;
    ensure!(
        window.kind() == CpuMappingKind::Copies,
        "{}",
        window.choice()
    );
    window.store(3, 3)?;
    ensure!(window.load(3)? == 3);
    Ok(())
}

#[apply(case)]
fn unaligned_mapping(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for kind in kinds(&stream)? {
        let mut buffer = memory::<u8>(&stream, kind, 300_000)?;
        for start in [0, 1, 4, 511, 4096, 65_535, 65_536, 65_540, 131_073] {
            buffer.zero()?;
            let options = CpuMappingOptions::new()
                .only([kind])
                .range(start..start + 1001);
            let mut window = options.open(&mut buffer)?;
            ensure!(window.len() == 1001);
            let bytes = walking_bit(1001);
            window.write(0, &bytes)?;
            let mut seen = vec![0; 1001];
            window.read(0, &mut seen)?;
            ensure!(seen == bytes, "{kind} from {start} on");
            window.close()?;
            let all = buffer.to_vec()?;
            ensure!(all[start..start + 1001] == bytes, "{kind} from {start} on");
            let others = all[..start].iter().chain(&all[start + 1001..]);
            ensure!(
                others.into_iter().all(|byte| *byte == 0),
                "{kind}: bytes beside it"
            );
        }
    }
    Ok(())
}

#[apply(case)]
fn small_buffers_mapping(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for kind in kinds(&stream)? {
        let mut buffers = Vec::new();
        for _ in 0..32 {
            buffers.push(memory::<u32>(&stream, kind, 1)?);
        }
        // All of them at a time: what is mapped are whole pages, which they may share.
        let windows = buffers.iter_mut().map(|buffer| open(buffer, kind));
        let mut windows = windows.collect::<Result<Vec<_>>>()?;
        for (number, window) in windows.iter_mut().enumerate() {
            window.store(0, number as u32)?;
        }
        for (number, window) in windows.iter().enumerate() {
            ensure!(window.load(0)? == number as u32, "{kind} {number}");
        }
        drop(windows);
        for (number, buffer) in buffers.iter().enumerate() {
            ensure!(buffer.to_vec()? == [number as u32], "{kind} {number}");
        }
    }
    Ok(())
}

#[apply(case)]
fn mix_mappings(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let kinds = kinds(&stream)?;
    let mut buffers = Vec::new();
    for kind in &kinds {
        // Large enough to share no page with another.
        buffers.push(memory::<u8>(&stream, *kind, 2 << 20)?);
    }
    let part = CpuMappingOptions::new().range(0..70_000);
    let both = buffers.iter_mut().zip(&kinds);
    let mut windows = both
        .map(|(buffer, kind)| Ok(part.clone().only([*kind]).open(buffer)?))
        .collect::<Result<Vec<_>>>()?;
    let bytes = walking_bit(70_000);
    // Through each by turns, a piece at a time.
    for piece in bytes.chunks(7001).enumerate() {
        for window in &mut windows {
            window.write(piece.0 * 7001, piece.1)?;
        }
    }
    for window in &windows {
        let mut seen = vec![0; 70_000];
        window.read(0, &mut seen)?;
        ensure!(seen == bytes, "{}", window.kind());
    }
    drop(windows);
    for (buffer, kind) in buffers.iter().zip(&kinds) {
        ensure!(buffer.to_vec()?[..70_000] == bytes, "{kind}");
    }
    Ok(())
}

#[apply(case)]
fn child_thread_opens_a_window(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for kind in kinds(&stream)? {
        let mut buffer = memory::<u64>(&stream, kind, 100)?;
        let child = std::thread::scope(|scope| {
            let child = scope.spawn(|| {
                let mut window = open(&mut buffer, kind)?;
                window.store(1, 11)?;
                anyhow::Ok(window)
            });
            child.join()
        });
        // It was opened there and goes on here.
        let mut window = child.map_err(|_| anyhow::anyhow!("the child panicked"))??;
        ensure!(window.load(1)? == 11);
        window.store(2, 22)?;
        window.close()?;
        ensure!(buffer.to_vec()?[1..3] == [11, 22], "{kind}");
    }
    Ok(())
}

#[apply(case)]
fn a_window_waits_for_the_streams(env: &Environment) -> Result<()> {
    let (stream, other) = (env.stream()?, env.stream()?);
    let mut buffer = memory::<u32>(&stream, CpuMappingKind::HostMapped, 1000)?;
    for value in 1..20 {
        buffer.on(&other)?.fill(value)?;
        // It is lent and back: both streams have work.
        let window = open(&mut buffer, CpuMappingKind::HostMapped)?;
        ensure!(window.load(999)? == value);
    }
    // What it waits for is this.
    let held = hold(&other)?;
    buffer.on(&other)?.fill(50)?;
    let opened = std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            let window = open(&mut buffer, CpuMappingKind::HostMapped)?;
            anyhow::Ok(window.load(0)?)
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        let is_early = opening.is_finished();
        drop(held);
        (is_early, opening.join())
    });
    ensure!(!opened.0, "it waits");
    let seen = opened
        .1
        .map_err(|_| anyhow::anyhow!("the thread panicked"))??;
    ensure!(seen == 50);
    Ok(())
}

#[apply(case)]
fn a_window_is_listed_and_goes(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let scope = Ledger::scope();
    for kind in kinds(&stream)? {
        let mut buffer = memory::<u32>(&stream, kind, 10)?;
        let window = open(&mut buffer, kind)?;
        ensure!(format!("{window:?}").contains("CpuMapping"));
        drop(window);
        // It may be opened again, and again.
        for _ in 0..3 {
            open(&mut buffer, kind)?.close()?;
        }
    }
    drop(scope);
    Ok(())
}

#[apply(case)]
fn what_is_outside_is_refused(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for kind in kinds(&stream)? {
        let mut buffer = memory::<u32>(&stream, kind, 10)?;
        buffer.fill(1)?;
        let backwards = std::ops::Range { start: 5, end: 4 };
        for range in [0..11, 11..11, backwards, 3..usize::MAX] {
            let refused = CpuMappingOptions::new()
                .range(range.clone())
                .open(&mut buffer);
            let error = refused.map(drop).expect_err("no such range");
            ensure!(
                error.kind() == ErrorKind::InvalidValue,
                "{range:?}: {error}"
            );
        }
        let mut window = CpuMappingOptions::new()
            .only([kind])
            .range(2..6)
            .open(&mut buffer)?;
        for error in [
            window.store(4, 0).expect_err("4 elements"),
            window.load(usize::MAX).map(drop).expect_err("4 elements"),
            window.write(3, &[0, 0]).expect_err("4 elements"),
            window.write(usize::MAX, &[0, 0]).expect_err("an overflow"),
            window.read(1, &mut [0; 4]).expect_err("4 elements"),
            window.write_bytes(15, &[0, 0]).expect_err("16 bytes"),
            window.read_bytes(17, &mut []).expect_err("16 bytes"),
        ] {
            ensure!(error.kind() == ErrorKind::InvalidValue, "{kind}: {error}");
            ensure!(error.to_string().contains("window of"), "{error}");
        }
        window.write(4, &[])?;
        window.write_bytes(1, &[9, 9])?;
        window.close()?;
        let word = u32::from_le_bytes([1, 9, 9, 0]);
        ensure!(
            buffer.to_vec()? == [1, 1, word, 1, 1, 1, 1, 1, 1, 1],
            "{kind}"
        );
    }
    Ok(())
}

#[apply(case)]
fn memory_of_any_size_has_pages_of_its_own(env: &Environment) -> Result<()> {
    memory_of_any_size(&env.stream()?)
}

#[apply(case)]
fn no_bytes_are_a_window_too(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut none = CpuMappingOptions::new().alloc::<u32>(&stream, 0)?;
    let mut window = CpuMappingOptions::new().open(&mut none)?;
    ensure!(window.is_empty() && window.mapping().is_none());
    window.write(0, &[])?;
    window.flush()?;
    ensure!(window.load(0).is_err());
    window.close()?;
    let mut some = CpuMappingOptions::new().alloc::<u32>(&stream, 10)?;
    let window = CpuMappingOptions::new().range(10..10).open(&mut some)?;
    ensure!(window.size_bytes() == 0);
    Ok(())
}

#[apply(case)]
fn other_buffers_go_on_beside_it(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for kind in kinds(&stream)? {
        let mut buffer = memory::<u32>(&stream, kind, 100)?;
        let mut target = env.pool()?.alloc_zeroed::<u32>(&stream, 100)?;
        let mut window = open(&mut buffer, kind)?;
        for value in 0..50 {
            window.write(0, &[value; 100])?;
            window.flush()?;
            target.copy_from_device(window.buffer())?;
            ensure!(
                target.to_vec()? == [value; 100],
                "{kind}: what was written comes first"
            );
        }
        let is_cached = window.mapping() == Some(MappingKind::Cached);
        ensure!(kind != CpuMappingKind::HostMapped || is_cached);
        let info = env.driver.pointer_info(window.address())?;
        let is_host = info.is_some_and(|info| info.kind == MemoryKind::Host);
        ensure!(is_host == (kind == CpuMappingKind::HostMapped));
    }
    Ok(())
}

#[apply(case_alone)]
fn windows_for_copies_come_and_go_beside_other_work(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let (stream, other) = (context.stream()?, context.stream()?);
    let mut buffer = memory::<u32>(&stream, CpuMappingKind::Copies, 100)?;
    // The first one makes what they all copy through.
    open(&mut buffer, CpuMappingKind::Copies)?.close()?;
    let held = hold(&other)?;
    let (is_over, over) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        // Whatever is wrong, the stream is let go.
        scope.spawn(move || {
            let _ = over.recv_timeout(Duration::from_secs(10));
            drop(held);
        });
        for value in 1..5 {
            let mut window = open(&mut buffer, CpuMappingKind::Copies)?;
            window.store(3, value)?;
            ensure!(window.load(3)? == value);
            window.close()?;
        }
        let has_waited = other.is_done()?;
        drop(is_over);
        ensure!(!has_waited, "a window waited for work of another stream");
        Ok(())
    })?;
    ensure!(buffer.to_vec()?[3] == 4);
    Ok(())
}

/// What it is borrowed from says nothing of the host, so the kind of the memory decides.
#[apply(case)]
fn borrowed_memory_of_the_host_is_used_in_place(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut owned = memory::<u32>(&stream, CpuMappingKind::HostMapped, 1000)?;
    owned.fill(5)?;
    // SAFETY: the memory is that of `owned`, which lives longer and frees in the same stream.
    let mut view = unsafe { DeviceBuffer::<u32>::borrow_raw(&stream, owned.as_raw(), 1000, ()) };
    let mut window = open(&mut view, CpuMappingKind::HostMapped)?;
    ensure!(window.load(999)? == 5);
    window.store(0, 6)?;
    window.close()?;
    drop(view);
    ensure!(owned.to_vec()?[..2] == [6, 5]);
    Ok(())
}

/// Alone, because others use that stream, too.
#[apply(case_alone)]
fn copies_of_a_window_do_not_wait_for_the_default_stream(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut buffer = memory::<u64>(&stream, CpuMappingKind::Copies, 100)?;
    let mut window = open(&mut buffer, CpuMappingKind::Copies)?;
    let default = stream.context().legacy_stream();
    // Copies that do wait end as well, and are too late.
    let held = hold_for(&default, Duration::from_secs(10))?;
    window.store(1, 11)?;
    ensure!(window.load(1)? == 11);
    ensure!(!default.is_done()?, "they waited");
    drop(held);
    default.synchronize()?;
    Ok(())
}

//! Buffers whose address stays.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bytemuck::{Pod, Zeroable};
use cuda_mem::ErrorKind;
use cuda_mem::driver::Location;
use cuda_mem::ledger::{Ledger, LedgerKind, LedgerLevel};
use cuda_mem::mapped::{MappedMemory, PhysicalMemory};

use crate::environment::Environment;
use crate::hold::hold;

#[apply(case)]
fn mapping_and_unmapping_again_changes_nothing(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let memory = MappedMemory::builder(&env.device()?).build(1)?;
    let mut buffer = memory.into_buffer::<u32>(&stream, 100)?;
    buffer.as_mut_slice().fill(7)?;
    let mut memory = buffer.into_memory()?;
    ensure!(memory.migrations().maps == 1);
    for _ in 0..2 {
        memory.map()?;
        ensure!(memory.is_mapped() && memory.migrations().maps == 1);
    }
    for _ in 0..3 {
        memory.unmap()?;
        ensure!(!memory.is_mapped());
    }
    for _ in 0..2 {
        memory.map()?;
        ensure!(memory.is_mapped() && memory.migrations().maps == 2);
    }
    memory.unmap()?;
    // A buffer maps what is not mapped.
    let buffer = memory.into_buffer::<u32>(&stream, 100)?;
    ensure!(buffer.to_vec()? == [7; 100]);
    Ok(())
}

/// Larger than the granularity of every device.
#[derive(Clone, Copy)]
#[repr(C, align(536870912))]
struct Vast([u8; 1 << 29]);

// SAFETY: bytes without a gap.
unsafe impl Zeroable for Vast {}
// SAFETY: as above.
unsafe impl Pod for Vast {}

#[apply(case)]
fn elements_that_want_another_address_are_refused(env: &Environment) -> Result<()> {
    let (stream, device) = (env.stream()?, env.device()?);
    // Side by side, so that they cannot all be aligned by chance.
    let all = (0..3).map(|_| MappedMemory::builder(&device).build(1));
    let mut refused = 0;
    for memory in all.collect::<Result<Vec<_>, _>>()? {
        let (address, granule) = (memory.address(), memory.granularity());
        ensure!(address.is_multiple_of(granule) && granule < 1 << 29);
        match memory.into_buffer::<Vast>(&stream, 0) {
            Ok(_) => ensure!(address.is_multiple_of(1 << 29)),
            Err(failed) => {
                ensure!(failed.error.kind() == ErrorKind::InvalidValue, "{failed}");
                let memory = failed.object.context("it comes back")?;
                ensure!(!address.is_multiple_of(1 << 29) && memory.is_mapped());
                drop(memory.into_buffer::<u64>(&stream, 1)?);
                refused += 1;
            }
        }
    }
    ensure!(refused > 0);
    Ok(())
}

#[apply(case)]
fn a_buffer_grows_in_place(env: &Environment) -> Result<()> {
    let (stream, other) = (env.stream()?, env.stream()?);
    let builder = MappedMemory::builder(&env.device()?).reserve(64 << 20);
    let memory = builder.build(1)?;
    let (address, step) = (memory.address(), memory.granularity() as usize);
    let mut buffer = memory.into_buffer::<u8>(&stream, 1000)?;
    buffer.as_mut_slice().fill(1)?;
    ensure!(buffer.capacity() == step && buffer.max_len() == 64 << 20);
    for steps in [1, 2, 3, 7] {
        buffer.resize_zeroed(steps * step)?;
        ensure!(buffer.as_raw() == address && buffer.len() == steps * step);
        ensure!(buffer.capacity() == steps * step);
        buffer.as_mut_slice().on(&other)?.fill(steps as u8)?;
        ensure!(buffer.to_vec()?.iter().all(|byte| *byte == steps as u8));
    }
    buffer.resize_uninit(step + 1)?;
    ensure!(
        buffer.capacity() == 7 * step,
        "nothing is given back by itself"
    );
    buffer.shrink_to_fit()?;
    ensure!(buffer.capacity() == 2 * step);
    ensure!(buffer.to_vec()? == vec![7; step + 1]);
    buffer.resize_zeroed(7 * step)?;
    let seen = buffer.to_vec()?;
    ensure!(seen[..=step].iter().all(|byte| *byte == 7));
    ensure!(seen[step + 1..].iter().all(|byte| *byte == 0));
    Ok(())
}

/// Divided memory that was shrunk to one place grows there as any other.
#[apply(case)]
fn divided_memory_grows_again_where_it_is_left(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let memory = MappedMemory::builder(&device)
        .striped_over([&device; 3])
        .build(1)?;
    let room = memory.size_bytes() as usize;
    let mut buffer = memory.into_buffer::<u8>(&stream, 10)?;
    buffer.as_mut_slice().fill(4)?;
    buffer.shrink_to_fit()?;
    let left = buffer.capacity();
    ensure!(left == room / 3, "{left} of {room}");
    ensure!(buffer.device() == Some(device), "{:?}", buffer.device());
    buffer.resize_zeroed(room)?;
    let seen = buffer.to_vec()?;
    ensure!(seen[..10] == [4; 10] && seen[10..].iter().all(|byte| *byte == 0));
    Ok(())
}

#[apply(case)]
fn what_does_not_fit_is_refused_and_loses_nothing(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let memory = MappedMemory::builder(&env.device()?).build(1)?;
    let room = memory.size_bytes() as usize;
    let failed = memory
        .into_buffer::<u8>(&stream, room + 1)
        .expect_err("there is no room");
    ensure!(
        failed.error.kind() == ErrorKind::InvalidValue,
        "{}",
        failed.error
    );
    let memory = failed.object.expect("it comes back");
    let mut buffer = memory.into_buffer::<u8>(&stream, room)?;
    buffer.as_mut_slice().fill(4)?;
    for len in [room + 1, usize::MAX] {
        let error = buffer.resize_zeroed(len).expect_err("nothing is reserved");
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    }
    ensure!(buffer.to_vec()? == vec![4; room]);
    // Nobody has access, who was not named.
    if env.has_node()? {
        let memory = MappedMemory::builder_at(env.driver, Location::HostNuma(0)).build(1)?;
        let failed = memory.into_buffer::<u8>(&stream, 1).expect_err("no access");
        ensure!(
            failed.error.to_string().contains("accessible_from"),
            "{}",
            failed.error
        );
    }
    let none = MappedMemory::builder(&env.device()?)
        .striped_over([])
        .build(1);
    ensure!(none.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    let error = MappedMemory::builder(&env.device()?)
        .build(0)
        .expect_err("nothing");
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    Ok(())
}

#[apply(case)]
fn a_granularity_is_kept_or_refused(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let least = PhysicalMemory::builder(&device).granularity()?.minimum;
    let stream = env.stream()?;
    for times in [1, 3, 8] {
        let step = times * least;
        let builder = MappedMemory::builder(&device).granularity(step);
        let memory = builder.reserve(3 * step).build(1)?;
        ensure!(memory.granularity() == step && memory.size_bytes() == step);
        let mut buffer = memory.into_buffer::<u8>(&stream, 1)?;
        buffer.resize_zeroed(step as usize + 1)?;
        ensure!(buffer.capacity() as u64 == 2 * step);
    }
    for bad in [0, 1, least - 1, least + 1, u64::MAX] {
        let error = MappedMemory::builder(&device).granularity(bad).build(1);
        let error = error.expect_err("it is not offered");
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        ensure!(error.to_string().contains(&least.to_string()), "{error}");
    }
    Ok(())
}

#[apply(case)]
fn an_end_waits_for_the_work(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let _calm = env.shared();
    let level = Ledger::enable(LedgerLevel::Bytes);
    let is_there = || {
        let report = Ledger::report();
        report.of(LedgerKind::Mapping).any(|group| group.count > 0)
    };
    let memory = MappedMemory::builder(&device).build(1)?;
    let mut buffer = memory.into_buffer::<u8>(&stream, 1000)?;
    let held = hold(&stream)?;
    buffer.as_mut_slice().fill(1)?;
    std::thread::scope(|scope| {
        // Unmapped before the stream is let go, the work would find nothing.
        let end = scope.spawn(move || drop(buffer));
        let until = Instant::now() + Duration::from_millis(100);
        while Instant::now() < until {
            ensure!(!end.is_finished() && is_there(), "it did not wait");
            std::thread::yield_now();
        }
        drop(held);
        ensure!(end.join().is_ok(), "the end panicked");
        ensure!(!is_there(), "it is still mapped");
        Ok(())
    })?;
    Ledger::enable(level);
    stream.synchronize()?;
    Ok(())
}

#[apply(case)]
fn buffers_are_exchanged_with_their_memory(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let make = || -> Result<_> {
        let memory = MappedMemory::builder(&env.device()?)
            .reserve(8 << 20)
            .build(1)?;
        Ok(memory.into_buffer::<u8>(&stream, 10)?)
    };
    let (mut first, mut second) = (make()?, make()?);
    first.as_mut_slice().fill(1)?;
    second.as_mut_slice().fill(2)?;
    std::mem::swap(&mut first, &mut second);
    first.resize_zeroed(4 << 20)?;
    ensure!(first.to_vec()?[..11] == [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0]);
    drop(first);
    ensure!(
        second.to_vec()? == [1; 10],
        "the memory of one went with the other"
    );
    Ok(())
}

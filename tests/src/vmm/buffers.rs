//! Buffers whose address stays.

use anyhow::{Result, ensure};
use cuda_mem::{ErrorKind, Location, MappedMemory, PhysicalMemory, Traffic};

use super::{SIZES, pattern, places};
use crate::hold::hold;
use crate::lab::Lab;

pub(super) fn every_size_and_place_keeps_its_bytes(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let device = Location::Device(lab.device()?);
    for place in places(lab)? {
        for size in SIZES {
            let memory = MappedMemory::builder_at(lab.driver, place)
                .accessible_from([device])
                .map(size as u64)?;
            ensure!(memory.size_bytes() >= size as u64);
            ensure!(memory.size_bytes().is_multiple_of(memory.granularity()));
            let address = memory.address();
            let expected = pattern(size);
            let mut buffer = memory.into_buffer::<u8>(&stream, size)?;
            buffer.copy_from(&expected)?;
            ensure!(buffer.to_vec()? == expected, "{size} bytes, {place}");
            let mut memory = buffer.into_memory()?;
            memory.unmap()?;
            memory.map()?;
            ensure!(memory.address() == address);
            for to in places(lab)? {
                memory.move_to(to, &stream)?;
                ensure!(memory.parts().all(|part| part.location() == to));
                ensure!(memory.address() == address);
            }
            let buffer = memory.into_buffer::<u8>(&stream, size)?;
            ensure!(buffer.to_vec()? == expected, "{size} bytes, {place}, moved");
        }
    }
    Ok(())
}

pub(super) fn mapping_and_unmapping_again_changes_nothing(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let memory = MappedMemory::builder(&lab.device()?).map(1)?;
    let mut buffer = memory.into_buffer::<u32>(&stream, 100)?;
    buffer.fill(7)?;
    let mut memory = buffer.into_memory()?;
    ensure!(memory.traffic().maps == 1);
    for _ in 0..2 {
        memory.map()?;
        ensure!(memory.is_mapped() && memory.traffic().maps == 1);
    }
    for _ in 0..3 {
        memory.unmap()?;
        ensure!(!memory.is_mapped());
    }
    for _ in 0..2 {
        memory.map()?;
        ensure!(memory.is_mapped() && memory.traffic().maps == 2);
    }
    memory.unmap()?;
    // A buffer maps what is not mapped.
    let buffer = memory.into_buffer::<u32>(&stream, 100)?;
    ensure!(buffer.to_vec()? == [7; 100]);
    Ok(())
}

pub(super) fn a_buffer_grows_in_place(lab: &Lab) -> Result<()> {
    let (stream, other) = (lab.stream()?, lab.stream()?);
    let builder = MappedMemory::builder(&lab.device()?).reserve(64 << 20);
    let memory = builder.map(1)?;
    let (address, step) = (memory.address(), memory.granularity() as usize);
    let mut buffer = memory.into_buffer::<u8>(&stream, 1000)?;
    buffer.fill(1)?;
    ensure!(buffer.capacity() == step && buffer.max_len() == 64 << 20);
    for steps in [1, 2, 3, 7] {
        buffer.resize_zeroed(steps * step)?;
        ensure!(buffer.as_raw() == address && buffer.len() == steps * step);
        ensure!(buffer.capacity() == steps * step);
        buffer.on(&other)?.fill(steps as u8)?;
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

pub(super) fn a_buffer_is_moved_and_keeps_its_address(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let memory = MappedMemory::builder(&lab.device()?)
        .reserve(16 << 20)
        .map(5 << 20)?;
    let address = memory.address();
    let len = 5 << 20;
    let mut buffer = memory.into_buffer::<u8>(&stream, len)?;
    let expected = pattern(len);
    buffer.copy_from(&expected)?;
    let all = places(lab)?;
    let before: Vec<Traffic> = all
        .iter()
        .map(|place| lab.driver.traffic_to(*place))
        .collect();
    for place in &all {
        buffer.move_memory_to(*place)?;
        ensure!(buffer.as_raw() == address);
        ensure!(buffer.to_vec()? == expected, "{place}");
    }
    buffer.resize_zeroed(len + 1)?;
    ensure!(buffer.to_vec()?[..len] == expected);
    let memory = buffer.into_memory()?;
    let seen = |traffic: Traffic| (traffic.moves, traffic.moved_bytes);
    let size = 6 << 20;
    let moves = all.len() as u64;
    ensure!(seen(memory.traffic()) == (moves, moves * size));
    ensure!(
        memory.traffic().maps == moves + 1,
        "made and moved: {}",
        memory.traffic()
    );
    // Other tests may run beside this one and add to what a place saw.
    for (place, before) in all.iter().zip(before) {
        let times = all.iter().filter(|other| *other == place).count() as u64;
        ensure!(seen(memory.traffic_to(*place)) == (times, times * size));
        let now = lab.driver.traffic_to(*place);
        ensure!(now.moves >= before.moves + times && now.maps >= before.maps + 2 * times);
        ensure!(now.moved_bytes >= before.moved_bytes + times * size);
    }
    Ok(())
}

pub(super) fn what_does_not_fit_is_refused_and_loses_nothing(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let memory = MappedMemory::builder(&lab.device()?).map(1)?;
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
    buffer.fill(4)?;
    for len in [room + 1, usize::MAX] {
        let error = buffer.resize_zeroed(len).expect_err("nothing is reserved");
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    }
    ensure!(buffer.to_vec()? == vec![4; room]);
    // Nobody has access, who was not named.
    if lab.need(12, 2).is_ok() {
        let memory = MappedMemory::builder_at(lab.driver, Location::HostNuma(0)).map(1)?;
        let failed = memory.into_buffer::<u8>(&stream, 1).expect_err("no access");
        ensure!(
            failed.error.to_string().contains("accessible_from"),
            "{}",
            failed.error
        );
    }
    let none = MappedMemory::builder(&lab.device()?)
        .striped_over([])
        .map(1);
    ensure!(none.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    let error = MappedMemory::builder(&lab.device()?)
        .map(0)
        .expect_err("nothing");
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    Ok(())
}

pub(super) fn a_granularity_is_kept_or_refused(lab: &Lab) -> Result<()> {
    let device = lab.device()?;
    let least = PhysicalMemory::builder(&device).granularity()?.minimum;
    let stream = lab.stream()?;
    for times in [1, 3, 8] {
        let step = times * least;
        let builder = MappedMemory::builder(&device).granularity(step);
        let memory = builder.reserve(3 * step).map(1)?;
        ensure!(memory.granularity() == step && memory.size_bytes() == step);
        let mut buffer = memory.into_buffer::<u8>(&stream, 1)?;
        buffer.resize_zeroed(step as usize + 1)?;
        ensure!(buffer.capacity() as u64 == 2 * step);
    }
    for bad in [0, 1, least - 1, least + 1, u64::MAX] {
        let error = MappedMemory::builder(&device).granularity(bad).map(1);
        let error = error.expect_err("it is not offered");
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        ensure!(error.to_string().contains(&least.to_string()), "{error}");
    }
    Ok(())
}

pub(super) fn an_end_waits_for_the_work(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let memory = MappedMemory::builder(&lab.device()?).map(1)?;
    let mut buffer = memory.into_buffer::<u8>(&stream, 1000)?;
    let held = hold(&stream)?;
    buffer.fill(1)?;
    std::thread::scope(|scope| {
        // The drop waits until the stream is let go; unmapped before, the work would find nothing.
        let end = scope.spawn(move || drop(buffer));
        drop(held);
        ensure!(end.join().is_ok(), "the end panicked");
        Ok(())
    })?;
    stream.synchronize()?;
    Ok(())
}

pub(super) fn buffers_that_were_exchanged_do_not_change(lab: &Lab) -> Result<()> {
    let stream = lab.stream()?;
    let make = || -> Result<_> {
        let memory = MappedMemory::builder(&lab.device()?)
            .reserve(8 << 20)
            .map(1)?;
        Ok(memory.into_buffer::<u8>(&stream, 10)?)
    };
    let (mut first, mut second) = (make()?, make()?);
    first.fill(1)?;
    second.fill(2)?;
    std::mem::swap(&mut *first, &mut *second);
    let error = first.resize_zeroed(4 << 20).expect_err("it is not its own");
    ensure!(error.to_string().contains("exchanged"), "{error}");
    ensure!(first.to_vec()? == [2; 10] && second.to_vec()? == [1; 10]);
    drop(first);
    ensure!(
        second.to_vec()? == [1; 10],
        "the memory of one went with the other"
    );
    Ok(())
}

/// Every size on every pair of two devices.
pub(super) fn a_buffer_moves_between_devices(lab: &Lab) -> Result<()> {
    let devices = lab.driver.devices()?;
    for (from, to) in [(0, 1), (1, 0)] {
        let (from, to) = (devices[from], devices[to]);
        let stream = from.primary_context()?.stream()?;
        for size in SIZES {
            let memory = MappedMemory::builder(&from)
                .accessible_from([Location::Device(to)])
                .map(size as u64)?;
            let address = memory.address();
            let expected = pattern(size);
            let mut buffer = memory.into_buffer::<u8>(&stream, size)?;
            buffer.copy_from(&expected)?;
            buffer.move_memory_to(Location::Device(to))?;
            ensure!(buffer.as_raw() == address);
            ensure!(buffer.to_vec()? == expected, "{size} bytes");
            // The other device uses it at the same address.
            let there = to.primary_context()?.stream()?;
            let buffer = buffer.into_memory()?.into_buffer::<u8>(&there, size)?;
            ensure!(buffer.to_vec()? == expected, "{size} bytes, there");
        }
    }
    Ok(())
}

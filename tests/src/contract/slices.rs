//! Parts of buffers: what they are, and what waits for what when they are used on several streams.

use anyhow::{Result, ensure};
use cuda_mem::interop::{CaptureMode, Instantiate};
use cuda_mem::mapped::{ManagedBuffer, MappedMemory};
use cuda_mem::memory::{DeviceMemoryMut, DeviceVec, DirectResource, PinnedResource};
use cuda_mem::{Arena, DeviceBuffer, ErrorKind, Resource};

use crate::environment::Environment;
use crate::hold::hold;

#[apply(case)]
fn a_slice_is_part_of_a_buffer(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let numbers: Vec<u16> = (0..1000).collect();
    let x = env.pool()?.alloc_from(&stream, &numbers)?;
    for (slice, expected) in [
        (x.slice(..)?, &numbers[..]),
        (x.slice(3..10)?, &numbers[3..10]),
        (x.slice(3..=10)?, &numbers[3..=10]),
        (x.slice(990..)?, &numbers[990..]),
        (x.slice(..=0)?, &numbers[..=0]),
        (x.slice(1000..)?, &[]),
        (
            x.as_slice().slice(100..900)?.slice(50..60)?,
            &numbers[150..160],
        ),
    ] {
        ensure!(slice.to_vec()? == expected, "{slice:?}");
        ensure!((slice.len(), slice.is_empty()) == (expected.len(), expected.is_empty()));
        ensure!(slice.size_bytes() == 2 * expected.len() && *slice.stream() == stream);
        ensure!(slice.device() == x.device());
        let first = expected.first().map_or(1000, |first| u64::from(*first));
        ensure!(slice.as_raw() == x.as_raw() + 2 * first, "{slice:?}");
    }
    let (low, high) = x.as_slice().split_at(400)?;
    ensure!(low.to_vec()? == numbers[..400] && high.to_vec()? == numbers[400..]);
    let chunks = x.chunks(300)?.map(|chunk| chunk.to_vec());
    let chunks = chunks.collect::<cuda_mem::Result<Vec<_>>>()?;
    ensure!(chunks.iter().map(Vec::len).eq([300, 300, 300, 100]));
    ensure!(chunks.concat() == numbers);
    Ok(())
}

#[apply(case)]
fn a_slice_to_write_is_part_of_a_buffer(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut x = env.pool()?.alloc_zeroed::<u16>(&stream, 1000)?;
    let (device, address) = (x.device(), x.as_raw());
    for (range, len) in [(0..1000, 1000), (10..13, 3), (7..7, 0)] {
        let first = address + 2 * range.start as u64;
        let slice = x.slice_mut(range)?;
        ensure!((slice.len(), slice.is_empty()) == (len, len == 0));
        ensure!(slice.size_bytes() == 2 * len && slice.as_raw() == first);
        ensure!(*slice.stream() == stream && slice.device() == device);
    }
    Ok(())
}

#[apply(case)]
fn a_slice_can_be_made_to_wait_for_a_leaked_one(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (stream, other) = (env.stream()?, env.stream()?);
    let mut x = env.pool()?.alloc_zeroed::<u8>(&stream, 100)?;
    stream.synchronize()?;
    let held = hold(&other)?;
    std::mem::forget(x.on(&other)?);
    ensure!(stream.is_done()?);
    x.as_slice().wait_for_pending_uses()?;
    ensure!(!stream.is_done()?);
    drop(held);
    Ok(())
}

#[apply(case)]
fn ranges_outside_are_refused(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut x = env.pool()?.alloc_zeroed::<u32>(&stream, 10)?;
    // Ranges that no code would write, but some compute.
    let backwards = std::ops::Range { start: 6, end: 5 };
    for range in [0..11, 11..11, backwards, usize::MAX..usize::MAX] {
        let (read, write) = (
            x.slice(range.clone()).map(drop),
            x.slice_mut(range).map(drop),
        );
        for error in [read, write].map(|slice| slice.expect_err("it is not within")) {
            ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
            ensure!(error.to_string().contains("10 elements"), "{error}");
        }
    }
    for refused in [
        x.slice(..=usize::MAX).map(drop),
        x.as_slice().split_at(11).map(drop),
        x.split_at_mut(11).map(drop),
        x.chunks(0).map(drop),
        x.chunks_mut(0).map(drop),
        x.slice_mut(..3)?.copy_from(&[1; 4]),
        x.slice(..3)?.copy_to(&mut [1; 2]),
    ] {
        let error = refused.expect_err("it does not fit");
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    }
    ensure!(x.to_vec()? == [0; 10]);
    let none = env.pool()?.alloc::<u32>(&stream, 0)?;
    ensure!(none.slice(..)?.to_vec()?.is_empty() && none.chunks(5)?.next().is_none());
    Ok(())
}

/// Writes every part in another way.
fn write(
    memory: &mut impl DeviceMemoryMut<Element = u32>,
    aside: &DeviceBuffer<u32>,
) -> Result<()> {
    let mut all = memory.as_mut_slice();
    all.fill(1)?;
    let (mut low, mut high) = all.split_at_mut(500)?;
    low.slice_mut(100..200)?.zero()?;
    low.slice_mut(200..300)?.fill_bytes(2)?;
    low.slice_mut(300..303)?.copy_from(&[7, 8, 9])?;
    high.slice_mut(..100)?
        .copy_from_device(&low.slice(250..350)?)?;
    high.slice_mut(100..200)?
        .copy_from_device(&aside.slice(5..105)?)?;
    for (chunk, value) in high.slice_mut(300..)?.chunks_mut(90)?.zip(5..) {
        let mut chunk = chunk;
        chunk.fill(value)?;
    }
    Ok(())
}

fn written(aside: &[u32]) -> Vec<u32> {
    let mut all = vec![1; 1000];
    all[100..200].fill(0);
    all[200..300].fill(0x0202_0202);
    all[300..303].copy_from_slice(&[7, 8, 9]);
    all.copy_within(250..350, 500);
    all[600..700].copy_from_slice(&aside[5..105]);
    for (chunk, value) in all[800..].chunks_mut(90).zip(5..) {
        chunk.fill(value);
    }
    all
}

/// Alone, because freeing pinned memory waits for the device (R131).
#[apply(case_alone)]
fn every_memory_has_slices(env: &Environment) -> Result<()> {
    let (device, stream, other) = (env.device()?, env.stream()?, env.stream()?);
    let numbers: Vec<u32> = (1000..2000).collect();
    let expected = written(&numbers);
    let aside = env.pool()?.alloc_from(&other, &numbers)?;
    let check = |name: &str, found: Vec<u32>| {
        ensure!(found == expected, "{name}");
        Ok(())
    };
    let resources = [
        ("a pool", Resource::from(env.pool()?)),
        ("an arena", Arena::builder(&device).build()?.into()),
        ("direct", Resource::new(DirectResource::new(device))),
        ("pinned", Resource::new(PinnedResource::new(env.driver))),
    ];
    for (name, resource) in resources {
        let mut x = resource.alloc::<u32>(&stream, 1000)?;
        write(&mut x, &aside)?;
        check(name, x.to_vec()?)?;
        let mut vec = DeviceVec::uninit_in(&resource, &stream, 1000)?;
        write(&mut vec, &aside)?;
        check(name, vec.to_vec()?)?;
        // Part of larger memory, and on another stream.
        let mut large = resource.alloc::<u32>(&stream, 3000)?;
        write(&mut large.slice_mut(1000..2000)?, &aside)?;
        check(name, large.slice(1000..2000)?.to_vec()?)?;
        write(&mut large.on(&other)?.slice_mut(7..1007)?, &aside)?;
        check(name, large.slice(7..1007)?.to_vec()?)?;
    }
    let mut managed = ManagedBuffer::<u32>::uninit(&stream, 1000)?;
    write(&mut managed, &aside)?;
    // Not everywhere may the host touch it while streams are at work.
    if device.capabilities()?.concurrent_managed_access {
        check("managed", managed.host()?.to_vec())?;
    }
    check("managed, copied", managed.to_vec()?)?;
    let memory = MappedMemory::builder(&device).build(4000)?;
    let mut growable = memory.into_buffer::<u32>(&stream, 1000)?;
    write(&mut growable, &aside)?;
    check("mapped", growable.to_vec()?)?;
    let mut pinned = env.context()?.pinned::<u32>(1000)?.lend(&stream)?;
    write(&mut pinned.as_mut_slice()?, &aside)?;
    check("in flight", pinned.take_back()?.to_vec())
}

#[apply(case)]
fn halves_do_not_wait_for_each_other(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (home, a, b) = (context.stream()?, context.stream()?, context.stream()?);
    let mut x = env.pool()?.alloc_zeroed::<u32>(&home, 1000)?;
    home.synchronize()?;
    let held = hold(&a)?;
    {
        let (low, high) = x.split_at_mut(500)?;
        let (mut low, mut high) = (low.on(&a)?, high.on(&b)?);
        low.fill(1)?;
        high.fill(2)?;
        b.synchronize()?; // does not wait for `a`, which is held
        ensure!(high.to_vec()? == [2; 500]);
        ensure!(home.is_done()?, "nothing has ended yet");
    }
    ensure!(!home.is_done()?, "the own stream waits for both");
    drop(held);
    ensure!(x.to_vec()?[499..501] == [1, 2]);

    // The half that stays on the own stream is free as well.
    let held = hold(&a)?;
    let (low, mut high) = x.split_at_mut(500)?;
    let mut low = low.on(&a)?;
    low.fill(3)?;
    high.fill(4)?;
    home.synchronize()?;
    drop(low);
    high.fill(5)?;
    ensure!(!home.is_done()?);
    drop(held);
    ensure!(x.to_vec()?[499..501] == [3, 5]);
    Ok(())
}

#[apply(case)]
fn a_leaked_part_is_waited_for_where_it_is_used(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (home, other) = (context.stream()?, context.stream()?);
    let mut x = env.pool()?.alloc_zeroed::<u32>(&home, 1000)?;
    home.synchronize()?;
    let held = hold(&other)?;
    let mut part = x.slice_mut(200..300)?.on(&other)?;
    part.fill(1)?;
    std::mem::forget(part);
    x.slice_mut(300..)?.fill(2)?;
    ensure!(
        x.slice(..200)?.to_vec()? == [0; 200],
        "no part of it is in use"
    );
    home.synchronize()?;
    x.slice_mut(299..301)?.fill(3)?;
    ensure!(!home.is_done()?, "one element of it is in use");
    drop(held);
    ensure!(x.to_vec()?[298..302] == [1, 3, 3, 2]);

    // Readers wait for a leaked writer, and not for a leaked reader.
    let held = hold(&other)?;
    std::mem::forget(x.slice(..10)?.read_on(&other)?);
    ensure!(x.slice(..10)?.to_vec()? == [0; 10]);
    x.slice_mut(9..11)?.fill(4)?;
    ensure!(!home.is_done()?, "the writer waits for the reader");
    drop(held);
    home.synchronize()?;
    Ok(())
}

#[apply(case)]
fn a_slice_moves_on_to_a_third_stream(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (home, a, b) = (context.stream()?, context.stream()?, context.stream()?);
    let mut x = env.pool()?.alloc_zeroed::<u32>(&home, 1000)?;
    home.synchronize()?;
    let held = hold(&a)?;
    {
        let mut on_a = x.on(&a)?;
        on_a.fill(1)?;
        {
            let mut on_b = on_a.as_mut_slice().on(&b)?;
            on_b.slice_mut(..500)?.fill(2)?;
            ensure!(!b.is_done()?, "it comes behind the fill of all");
        }
        on_a.slice_mut(250..750)?.fill(3)?;
    }
    ensure!(!home.is_done()?);
    drop(held);
    let found = x.to_vec()?;
    ensure!([found[249], found[250], found[749], found[750]] == [2, 3, 3, 1]);

    // The inner one leaks: the slice around it waits for it at its next use, and so does the buffer.
    let held = hold(&b)?;
    let mut on_a = x.on(&a)?;
    let mut on_b = on_a.as_mut_slice().on(&b)?;
    on_b.fill(4)?;
    std::mem::forget(on_b);
    ensure!(a.is_done()?);
    on_a.slice_mut(..1)?.fill(5)?;
    ensure!(!a.is_done()?, "it wrote while another stream did");
    drop(on_a);
    drop(held);
    ensure!(x.to_vec()?[..2] == [5, 4]);
    Ok(())
}

#[apply(case_alone)]
fn what_cannot_be_recorded_leaves_the_capture_alone(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (pool, stream, other) = (env.pool()?, env.stream()?, env.stream()?);
    let outside = pool.alloc_zeroed::<u32>(&other, 1000)?;
    let mut target = pool.alloc_zeroed::<u32>(&other, 1000)?;
    let mut staging = env.context()?.pinned::<u32>(1000)?.lend(&stream)?;
    let (graph, left) = stream.capture(CaptureMode::default(), |capture| {
        let mut memory = capture.alloc::<u32>(1000)?;
        for refused in [
            memory.as_mut_slice().copy_from(&[1; 1000]),
            memory.as_slice().to_vec().map(drop),
            memory.as_mut_slice().copy_from_device(&outside),
            target.copy_from_device(&memory),
            staging.copy_from(&memory),
            staging.copy_to(&mut memory),
            memory.as_mut_slice().copy_from_device(&staging),
        ] {
            let error = refused.expect_err("it would end the capture");
            assert_eq!(error.kind(), ErrorKind::InvalidValue, "{error}");
        }
        let error = memory
            .as_mut_slice()
            .on(&other)
            .expect_err("it is recorded");
        assert_eq!(error.kind(), ErrorKind::NotSupported, "{error}");
        let mut all = memory.as_mut_slice();
        all.fill(1)?;
        let (mut low, high) = all.split_at_mut(500)?;
        low.slice_mut(..250)?.fill(2)?;
        low.slice_mut(250..)?
            .copy_from_device(&high.slice(..250)?)?;
        Ok(memory.persist())
    })?;
    ensure!(*staging.take_back()? == [0; 1000]);
    let mut exec = graph.instantiate(Instantiate::AutoFree)?;
    exec.launch(&stream)?;
    let mut left = exec.left(&left)?;
    let found = left.to_vec()?;
    ensure!(found[..250] == [2; 250] && found[250..] == [1; 750]);
    left.slice_mut(10..20)?.fill(9)?;
    target.copy_from_device(&left)?;
    ensure!(target.to_vec()?[9..11] == [2, 9]);
    let error = left
        .as_mut_slice()
        .on(&other)
        .expect_err("it is the graph's");
    ensure!(error.kind() == ErrorKind::NotSupported, "{error}");
    Ok(())
}

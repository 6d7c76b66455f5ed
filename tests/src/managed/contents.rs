//! The bytes of managed memory, whoever writes and reads them.

use std::sync::LazyLock;

use anyhow::{Result, ensure};
use cuda_mem::driver::{AllocationType, Location, Support};
use cuda_mem::kernel::{Function, Launch};
use cuda_mem::mapped::{Advice, ManagedBuffer};
use cuda_mem::memory::{DirectResource, ManagedResource, StatisticsAdaptor};
use cuda_mem::{ErrorKind, MemoryPool, ReleaseThreshold, Resource, Stream};

use super::{SIZES, first_other, need_concurrent};
use crate::environment::{Environment, Skip};
use crate::hold::hold;
use crate::modules::PTX;

/// What the host writes: no two neighbours are equal.
fn pattern(len: usize) -> &'static [u8] {
    static ALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let most = SIZES.into_iter().max().unwrap_or(0);
        (0..most).map(|at| (at % 251) as u8).collect()
    });
    &ALL[..len]
}

fn kernel(stream: &Stream, name: &str) -> Result<Function> {
    let module = stream.context().load(&cuda_mem::kernel::Image::ptx(PTX)?)?;
    Ok(module.function(name)?)
}

/// A buffer with the pattern, written by the host.
fn written(stream: &Stream, len: usize) -> Result<ManagedBuffer<u8>> {
    let mut buffer = ManagedBuffer::uninit(stream, len)?;
    buffer.host_mut()?.copy_from_slice(pattern(len));
    Ok(buffer)
}

/// Lets the device copy all whole words, and looks at what the host sees of both.
fn copy_and_check(
    copy: &Function,
    from: &ManagedBuffer<u8>,
    to: &mut ManagedBuffer<u8>,
    what: &str,
) -> Result<()> {
    let (len, stream) = (from.len(), from.stream().clone());
    let words = len / 4;
    to.host_mut()?.fill(0xee);
    let launch = Launch::over(words, 128);
    // SAFETY: both have so many words.
    unsafe { copy.launch(&stream, launch, (&mut *to, from, words as u64)) }?;
    let expected = pattern(len);
    ensure!(from.host()? == expected, "{len} B, {what}: the source");
    let (copied, rest) = to.host()?.split_at(words * 4);
    ensure!(
        copied == &expected[..words * 4],
        "{len} B, {what}: the copy"
    );
    ensure!(
        rest.iter().all(|byte| *byte == 0xee),
        "{len} B, {what}: the rest"
    );
    Ok(())
}

#[apply(case)]
fn host_and_kernels_see_what_the_other_wrote(env: &Environment) -> Result<()> {
    need_concurrent(env)?;
    let stream = env.stream()?;
    let copy = kernel(&stream, "copy")?;
    for len in SIZES {
        let from = written(&stream, len)?;
        let mut to = ManagedBuffer::uninit(&stream, len)?;
        for turn in ["first", "second"] {
            copy_and_check(&copy, &from, &mut to, turn)?;
        }
        ensure!(to.to_vec()?[..len / 4 * 4] == pattern(len)[..len / 4 * 4]);
        to.as_mut_slice().fill(9)?;
        ensure!(to.host()? == vec![9; len], "{len} B");
        to.as_mut_slice().copy_from_device(&from)?;
        ensure!(to.host()? == pattern(len), "{len} B");
        to.as_mut_slice().zero()?;
        to.as_mut_slice().copy_from(pattern(len))?;
        ensure!(to.host()? == pattern(len), "{len} B");
        to.into_buffer().free()?;
    }
    Ok(())
}

#[apply(case)]
fn kernels_read_what_the_host_wrote_in_place(env: &Environment) -> Result<()> {
    need_concurrent(env)?;
    const COUNT: usize = 10_000;
    let stream = env.stream()?;
    let (add, fill) = (kernel(&stream, "add")?, kernel(&stream, "fill")?);
    let mut left = ManagedBuffer::<f32>::zeroed(&stream, COUNT)?;
    let right = ManagedBuffer::from_slice(&stream, &[0.5_f32; COUNT])?;
    let mut sum = ManagedBuffer::<f32>::uninit(&stream, COUNT)?;
    let launch = Launch::over(COUNT, 256);
    for round in 1..4_u8 {
        for (at, number) in left.host_mut()?.iter_mut().enumerate() {
            *number += at as f32;
        }
        // SAFETY: as the kernel says.
        unsafe { add.launch(&stream, launch, (&mut sum, &left, &right, COUNT as u64)) }?;
        let expected = (0..COUNT).map(|at| f32::from(round) * at as f32 + 0.5);
        ensure!(sum.host()?.iter().copied().eq(expected), "round {round}");
    }
    let mut words = ManagedBuffer::<u32>::uninit(&stream, COUNT)?;
    // SAFETY: as the kernel says.
    unsafe { fill.launch(&stream, launch, (&mut words, 3u32, COUNT as u64)) }?;
    words.host_mut()?[0] += 1;
    let words = words.to_vec()?;
    ensure!(words[0] == 4 && words[1..].iter().all(|word| *word == 3));
    Ok(())
}

#[apply(case)]
fn a_prefetch_changes_nothing(env: &Environment) -> Result<()> {
    need_concurrent(env)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    let copy = kernel(&stream, "copy")?;
    let device = Location::Device(env.device()?);
    for len in SIZES {
        let from = written(&stream, len)?;
        let mut to = ManagedBuffer::uninit(&stream, len)?;
        for place in [device, Location::Host, device] {
            from.prefetch(place)?;
            copy_and_check(&copy, &from, &mut to, &format!("at the {place}"))?;
            to.prefetch_on(&other, place)?;
            from.range(len / 2..)?.prefetch(Location::Host)?;
            copy_and_check(&copy, &from, &mut to, &format!("in part at the {place}"))?;
        }
    }
    Ok(())
}

#[apply(case)]
fn advice_changes_nothing(env: &Environment) -> Result<()> {
    need_concurrent(env)?;
    let stream = env.stream()?;
    let copy = kernel(&stream, "copy")?;
    let device = Location::Device(env.device()?);
    for len in SIZES {
        let from = written(&stream, len)?;
        let mut to = ManagedBuffer::uninit(&stream, len)?;
        for advice in [
            Advice::ReadMostly,
            Advice::PreferredLocation(device),
            Advice::PreferredLocation(Location::Host),
            Advice::AccessedBy(device),
            Advice::AccessedBy(Location::Host),
        ] {
            from.advise(advice)?;
            to.advise(advice)?;
            from.prefetch(device)?;
            copy_and_check(&copy, &from, &mut to, &format!("with {advice:?}"))?;
            from.unadvise(advice)?;
            to.unadvise(advice)?;
            copy_and_check(&copy, &from, &mut to, &format!("without {advice:?}"))?;
        }
    }
    Ok(())
}

#[apply(case)]
fn the_host_waits_for_the_stream(env: &Environment) -> Result<()> {
    need_concurrent(env)?;
    let _calm = env.shared();
    let stream = env.stream()?;
    let mut buffer = ManagedBuffer::<u32>::zeroed(&stream, 1000)?;
    stream.synchronize()?;
    let held = hold(&stream)?;
    buffer.as_mut_slice().fill(7)?;
    ensure!(!stream.is_done()?, "the fill is queued");
    std::thread::scope(|scope| {
        scope.spawn(move || drop(held));
        ensure!(buffer.host()? == [7; 1000]);
        Ok(())
    })?;
    let held = hold(&stream)?;
    buffer.as_mut_slice().fill(8)?;
    std::thread::scope(|scope| {
        scope.spawn(move || drop(held));
        ensure!(buffer.host_mut()? == [8; 1000]);
        Ok(())
    })
}

#[apply(case)]
fn the_host_waits_for_a_loan_that_was_leaked(env: &Environment) -> Result<()> {
    need_concurrent(env)?;
    let _calm = env.shared();
    let (stream, other) = (env.stream()?, env.stream()?);
    for is_change in [false, true] {
        let mut buffer = ManagedBuffer::<u32>::zeroed(&stream, 1000)?;
        stream.synchronize()?;
        let held = hold(&other)?;
        let mut lent = buffer.as_mut_slice().on(&other)?;
        lent.fill(7)?;
        std::mem::forget(lent);
        std::thread::scope(|scope| {
            scope.spawn(move || drop(held));
            if is_change {
                ensure!(buffer.host_mut()? == [7; 1000]);
            }
            ensure!(buffer.host()? == [7; 1000]);
            anyhow::Ok(())
        })?;
    }
    Ok(())
}

#[apply(case)]
fn readers_on_another_stream_are_waited_for_before_a_change(env: &Environment) -> Result<()> {
    need_concurrent(env)?;
    let _calm = env.shared();
    let (stream, other) = (env.stream()?, env.stream()?);
    let mut from = ManagedBuffer::<u32>::zeroed(&stream, 1000)?;
    let mut to = env.pool()?.alloc_zeroed::<u32>(&other, 1000)?;
    from.host_mut()?.fill(5);
    other.synchronize()?;
    let held = hold(&other)?;
    to.copy_from_device(&from)?;
    std::thread::scope(|scope| {
        scope.spawn(move || drop(held));
        from.host_mut()?.fill(6);
        anyhow::Ok(())
    })?;
    ensure!(to.to_vec()? == [5; 1000], "it was changed under the copy");
    ensure!(from.to_vec()? == [6; 1000]);
    Ok(())
}

#[apply(case)]
fn other_managed_resources_serve_too(env: &Environment) -> Result<()> {
    need_concurrent(env)?;
    let stream = env.stream()?;
    let mut resources = vec![Resource::new(StatisticsAdaptor::new(ManagedResource::new(
        env.driver,
    )))];
    let pool = MemoryPool::builder_at(env.driver, Location::Anywhere, AllocationType::Managed);
    if pool.support()?.is_yes() {
        resources.push(Resource::new(pool.build()?));
    }
    for resource in resources {
        let mut buffer = ManagedBuffer::<u16>::uninit_in(&resource, &stream, 5000)?;
        buffer.as_mut_slice().fill(3)?;
        buffer.host_mut()?[4999] = 4;
        buffer.prefetch(Location::Device(env.device()?))?;
        let seen = buffer.to_vec()?;
        let wrong = (0..5000).find(|&at| seen[at] != if at == 4999 { 4 } else { 3 });
        ensure!(
            wrong.is_none(),
            "{resource:?}: from {wrong:?} on: {:?}",
            &seen[wrong.unwrap_or(0)..]
        );
        drop(buffer.into_buffer());
    }
    stream.synchronize()?;
    Ok(())
}

/// A managed pool of no place that releases what it can, or keeps all.
fn pool_of_no_place(env: &Environment, threshold: ReleaseThreshold) -> Result<MemoryPool> {
    env.need(13, 0)?;
    need_concurrent(env)?;
    let pool = MemoryPool::builder_at(env.driver, Location::Anywhere, AllocationType::Managed);
    if let Support::No(reason) = pool.support()? {
        return Err(Skip(format!("no managed pools: {reason}")).into());
    }
    Ok(pool.release_threshold(threshold).build()?)
}

/// The memory serves again and again, so the numbers have to be others each time (R190).
#[apply(case)]
fn what_a_device_writes_to_released_memory_is_seen(env: &Environment) -> Result<()> {
    let mut streams = vec![env.stream()?];
    streams.push(streams[0].context().legacy_stream());
    let fill = kernel(&streams[0], "fill")?;
    for threshold in [ReleaseThreshold::Bytes(0), ReleaseThreshold::Never] {
        let pool = pool_of_no_place(env, threshold)?;
        let resource = Resource::new(pool.clone());
        for stream in &streams {
            for len in [128_u32, 2500, 3 << 10, (5 << 20) + 17] {
                for number in 1..4_u32 {
                    let mut neighbour = ManagedBuffer::<u32>::uninit_in(&resource, stream, 25)?;
                    neighbour.as_mut_slice().fill(100 + number)?;
                    let mut buffer =
                        ManagedBuffer::<u32>::uninit_in(&resource, stream, len as usize)?;
                    let launch = Launch::over(len as usize, 128);
                    if number % 2 == 0 {
                        buffer.as_mut_slice().fill(number)?;
                    } else {
                        // SAFETY: as the kernel says.
                        unsafe {
                            fill.launch(stream, launch, (&mut buffer, number, u64::from(len)))
                        }?;
                    }
                    let what = format!("{len} words, time {number}, {threshold:?}, {stream:?}");
                    ensure!(
                        neighbour.host()?.iter().all(|word| *word == 100 + number),
                        "{what}"
                    );
                    let wrong = buffer.host()?.iter().position(|word| *word != number);
                    ensure!(wrong.is_none(), "{what}: the host, from {wrong:?} on");
                    let last = len as usize - 1;
                    buffer.host_mut()?[last] = 50 + number;
                    buffer.prefetch(Location::Device(env.device()?))?;
                    let mut expected = vec![number; len as usize];
                    expected[last] = 50 + number;
                    ensure!(buffer.to_vec()? == expected, "{what}: the device");
                    buffer.into_buffer().free()?;
                    neighbour.into_buffer().free()?;
                    stream.synchronize()?;
                    pool.trim_to(0)?;
                }
            }
        }
    }
    Ok(())
}

/// A block that is discarded instead of prefetched. Little of it is touched.
#[apply(case)]
fn what_a_device_writes_to_a_large_released_block_is_seen(env: &Environment) -> Result<()> {
    const PART: usize = 100_000;
    let pool = pool_of_no_place(env, ReleaseThreshold::Bytes(0))?;
    let (resource, stream) = (Resource::new(pool.clone()), env.stream()?);
    let half = usize::try_from(env.device()?.total_memory()? / 2)?;
    for number in 1..4_u8 {
        let mut neighbour = ManagedBuffer::<u8>::uninit_in(&resource, &stream, 700)?;
        neighbour.as_mut_slice().fill(100 + number)?;
        let mut buffer = ManagedBuffer::<u8>::uninit_in(&resource, &stream, half + 12_345)?;
        let parts = [
            0..PART,
            half / 2..half / 2 + PART,
            half + 12_345 - PART..half + 12_345,
        ];
        for part in &parts {
            buffer
                .as_mut_slice()
                .slice_mut(part.clone())?
                .fill(number)?;
        }
        for part in &parts {
            let seen = &buffer.host()?[part.clone()];
            let wrong = seen.iter().position(|byte| *byte != number);
            ensure!(
                wrong.is_none(),
                "time {number}, {part:?}: from {wrong:?} on"
            );
        }
        ensure!(neighbour.host()?.iter().all(|byte| *byte == 100 + number));
        buffer.into_buffer().free()?;
        neighbour.into_buffer().free()?;
        stream.synchronize()?;
    }
    Ok(())
}

/// The first round leaves released memory on the device; the others begin where the device has room for one block.
#[apply(case_of_full_card)]
fn what_a_full_device_writes_to_released_memory_is_seen(env: &Environment) -> Result<()> {
    const MIB: usize = 1 << 20;
    let pool = pool_of_no_place(env, ReleaseThreshold::Bytes(0))?;
    let (resource, stream) = (Resource::new(pool.clone()), env.stream()?);
    let context = stream.context().clone();
    let free = usize::try_from(context.memory_info()?.free)?;
    // On a large GPU 2 GiB are left, on a small simulated one a quarter.
    let room = (free / 4).min(2048 * MIB);
    let len = room - room / 8;
    let plain = Resource::new(DirectResource::new(env.device()?));
    let mut ballast = Vec::new();
    for number in 1..5_u8 {
        let mut buffer = ManagedBuffer::<u8>::uninit_in(&resource, &stream, len)?;
        buffer.as_mut_slice().fill(number)?;
        let wrong = first_other(buffer.host()?, number);
        ensure!(wrong.is_none(), "time {number}: from {wrong:?} on");
        buffer.prefetch(Location::Device(env.device()?))?;
        buffer.as_mut_slice().fill(100 + number)?;
        buffer.into_buffer().free()?;
        stream.synchronize()?;
        pool.trim_to(0)?;
        if ballast.is_empty() {
            let rest = usize::try_from(context.memory_info()?.free)?.saturating_sub(room);
            ballast.push(plain.alloc::<u8>(&stream, rest)?);
            let full = context.memory_info()?.free;
            println!("{full} of {free} bytes are free, {len} are used in turn");
        }
    }
    Ok(())
}

#[apply(case)]
fn memory_of_pools_takes_no_advice(env: &Environment) -> Result<()> {
    let pool = pool_of_no_place(env, ReleaseThreshold::Bytes(0))?;
    let buffer = ManagedBuffer::<u8>::uninit_in(&Resource::new(pool), &env.stream()?, 8192)?;
    for advice in [
        Advice::ReadMostly,
        Advice::PreferredLocation(Location::Host),
    ] {
        let refused = buffer.advise(advice);
        ensure!(
            refused
                .as_ref()
                .is_err_and(|error| error.kind() == ErrorKind::NotSupported),
            "{advice:?}: {refused:?}"
        );
    }
    Ok(())
}

#[apply(case)]
fn nothing_and_elements_of_no_size_are_fine(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let device = Location::Device(env.device()?);
    let mut none = ManagedBuffer::<u32>::uninit(&stream, 0)?;
    ensure!(none.is_empty() && none.as_raw() == 0);
    ensure!(none.host()?.is_empty() && none.host_mut()?.is_empty());
    none.prefetch(device)?;
    none.advise(Advice::ReadMostly)?;
    ensure!(none.info()? == cuda_mem::mapped::RangeInfo::default());
    ensure!(none.migrations() == cuda_mem::mapped::MigrationStats::default());
    let units = ManagedBuffer::<()>::uninit(&stream, 77)?;
    ensure!(units.host()?.len() == 77);
    units.range(7..=70)?.prefetch(Location::Host)?;
    none.into_buffer().free()?;
    Ok(())
}

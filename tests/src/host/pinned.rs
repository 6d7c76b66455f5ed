//! Pinned memory as a slice.

use anyhow::{Result, ensure};
use cuda_mem::kernel::Launch;
use cuda_mem::mapped::RegisterFlags;
use cuda_mem::memory::{HostFlags, PinnedResource};
use cuda_mem::{Context, ErrorKind, Resource};

use super::{SIZES, pattern};
use crate::environment::Environment;
use crate::modules::kernel;

#[apply(case)]
fn pinned_memory_is_a_slice_of_zeros(env: &Environment) -> Result<()> {
    let context = env.context()?;
    for len in SIZES {
        // What was there before shows if it is not zeroed.
        for seed in [1, 2] {
            let mut memory = context.pinned::<u8>(len)?;
            ensure!(memory.len() == len && memory.size_bytes() == len);
            ensure!(memory.iter().all(|byte| *byte == 0), "{len} bytes");
            let bytes = pattern(len, seed);
            memory.copy_from_slice(&bytes);
            ensure!(*memory == bytes[..], "{len} bytes");
            memory.free()?;
        }
    }
    let words = context.pinned_from(&[1.5f64, -2.0])?;
    ensure!(*words == [1.5, -2.0] && words.size_bytes() == 16);
    Ok(())
}

#[apply(case)]
fn flags_are_kept(env: &Environment) -> Result<()> {
    let context = env.context()?;
    for flags in [
        HostFlags::empty(),
        HostFlags::PORTABLE,
        HostFlags::MAPPED,
        HostFlags::WRITE_COMBINED,
        HostFlags::all(),
    ] {
        let memory = context.pinned_with::<u32>(1000, flags)?;
        ensure!(memory.flags()?.contains(flags), "{flags:?}: {memory:?}");
        let address = memory.device_address(&context)?;
        ensure!(address != 0, "{flags:?}");
        if !flags.contains(HostFlags::WRITE_COMBINED) {
            ensure!(address == memory.as_ptr().addr() as u64, "{flags:?}");
        }
    }
    let plain = context.pinned::<u8>(1)?;
    ensure!(!plain.flags()?.contains(HostFlags::WRITE_COMBINED));
    let error = context
        .pinned_with::<u8>(10, HostFlags::from_bits_retain(1 << 20))
        .expect_err("no driver knows the flag");
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    Ok(())
}

#[apply(case)]
fn more_than_there_is_is_refused(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let error = context.pinned::<u8>(1 << 50).expect_err("a pebibyte");
    ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
    let asked = error.out_of_memory().map(|memory| memory.asked);
    ensure!(asked == Some(1 << 50), "{error}");
    let error = context.pinned::<u64>(usize::MAX / 2).expect_err("overflow");
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    Ok(())
}

#[apply(case_of_sim_alone)]
fn nothing_asked_for_makes_no_call(env: &Environment) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    let control = env.control()?;
    control.reset();
    let memory = context.pinned::<u32>(0)?;
    ensure!(memory.is_empty() && memory.flags()? == HostFlags::PORTABLE);
    ensure!(memory.device_address(&context)? == 0);
    let loan = memory.lend(&stream)?;
    ensure!(loan.is_empty() && loan.as_raw() == 0);
    loan.take_back()?.free()?;
    let mut none: [u32; 0] = [];
    let registered = context.register(&mut none, cuda_mem::mapped::RegisterFlags::default())?;
    ensure!(registered.device_address(&context)? == 0);
    let back = registered.unregister().map_err(cuda_mem::Error::from)?;
    ensure!(back.is_none());
    ensure!(control.calls_total() == 0, "{}", control.calls_total());
    Ok(())
}

#[apply(case)]
fn a_resource_takes_flags(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let plain = PinnedResource::new(env.driver);
    ensure!(plain.flags() == HostFlags::PORTABLE);
    for flags in [HostFlags::empty(), HostFlags::all()] {
        let resource = Resource::new(PinnedResource::with_flags(env.driver, flags));
        let buffer = resource.alloc_from(&stream, &[1u8, 2, 3])?;
        ensure!(buffer.to_vec()? == [1, 2, 3], "{flags:?}");
        buffer.free()?;
    }
    Ok(())
}

#[apply(case)]
fn pinned_memory_may_go_to_other_threads(env: &Environment) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    let mut memory = context.pinned::<u32>(1000)?;
    memory.fill(3);
    let mut buffer = env.pool()?.alloc::<u32>(&stream, 1000)?;
    std::thread::scope(|scope| {
        let there = scope.spawn(|| -> Result<()> {
            let loan = memory.lend(&stream)?;
            loan.copy_to(&mut buffer)?;
            loan.take_back()?.free()?;
            Ok(())
        });
        there.join().expect("no panic")
    })?;
    ensure!(buffer.to_vec()? == [3; 1000]);
    Ok(())
}

/// A kernel of the context's device reads the memory by its address there, and writes to it.
fn use_from(context: &Context, address: u64, words: &[u32]) -> Result<()> {
    ensure!(address != 0);
    let stream = context.stream()?;
    let pool = cuda_mem::MemoryPool::builder(&context.device()).build()?;
    let mut seen = pool.alloc_zeroed::<u32>(&stream, words.len())?;
    let (copy, fill) = (kernel(context, "copy")?, kernel(context, "fill")?);
    let (launch, len) = (Launch::over(words.len(), 256), words.len() as u64);
    // SAFETY: as the kernel says; the caller keeps the memory.
    unsafe { copy.launch(&stream, launch, (&mut seen, address, len)) }?;
    ensure!(seen.to_vec()? == words);
    // SAFETY: as above.
    unsafe { fill.launch(&stream, Launch::over(1, 1), (address, 77u32, 1u64)) }?;
    stream.synchronize()?;
    Ok(())
}

#[apply(case_of_two)]
fn every_device_has_an_address_for_it(env: &Environment) -> Result<()> {
    let contexts = env.driver.devices()?;
    let contexts = contexts.iter().map(cuda_mem::Device::primary_context);
    let contexts = contexts.collect::<Result<Vec<_>, _>>()?;
    let words: Vec<u32> = (0..1000).collect();
    for home in &contexts {
        for flags in [
            HostFlags::empty(),
            HostFlags::default(),
            HostFlags::MAPPED,
            HostFlags::all(),
        ] {
            let mut memory = home.pinned_with::<u32>(1000, flags)?;
            for context in &contexts {
                memory.copy_from_slice(&words);
                use_from(context, memory.device_address(context)?, &words)?;
                ensure!((memory[0], memory[1]) == (77, 1), "{flags:?}: {context:?}");
            }
        }
        let mut own = words.clone();
        let mut memory = home.register(&mut own, RegisterFlags::default())?;
        for context in &contexts {
            memory.copy_from_slice(&words);
            use_from(context, memory.device_address(context)?, &words)?;
            ensure!((memory[0], memory[1]) == (77, 1), "{context:?}");
        }
    }
    Ok(())
}

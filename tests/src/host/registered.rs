//! Registered memory of the program.

use std::ffi::c_void;
use std::mem::forget;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::driver::MemoryKind;
use cuda_mem::kernel::Launch;
use cuda_mem::mapped::RegisterFlags;
use cuda_mem::memory::{HostFlags, PinnedResource};
use cuda_mem::sys::{CUdevice_attribute, CUresult};
use cuda_mem::{ErrorKind, Resource};

use super::{SIZES, pattern};
use crate::environment::Environment;
use crate::modules::load;

/// Larger than any page that memory of the host is likely to have.
const PAGE: usize = 64 << 10;

/// Ends a registration without a word to its guard.
pub(super) fn end(env: &Environment, address: *const u8) -> Result<CUresult> {
    let context = env.context()?;
    let _current = context.bind()?;
    let call = env.driver.table().cuMemHostUnregister;
    let call = call.context("the driver has no cuMemHostUnregister")?;
    // SAFETY: nothing uses the memory.
    Ok(unsafe { call(address.cast_mut().cast::<c_void>()) })
}

#[apply(case)]
fn slices_of_all_sizes_are_copied(env: &Environment) -> Result<()> {
    let (context, stream, pool) = (env.context()?, env.stream()?, env.pool()?);
    for flags in [RegisterFlags::empty(), RegisterFlags::default()] {
        for len in SIZES {
            let bytes = pattern(len, 7);
            let mut memory = bytes.clone();
            let mut registered = context.register(&mut memory, flags)?;
            ensure!(registered.len() == len && registered.flags() == flags);
            let buffer = pool.alloc_from(&stream, &registered)?;
            registered.fill(0);
            ensure!(buffer.to_vec()? == bytes, "{len} bytes, {flags:?}");
            buffer.copy_to(&mut registered)?;
            ensure!(*registered == bytes[..], "{len} bytes, {flags:?}");
            registered.unregister().map_err(cuda_mem::Error::from)?;
            ensure!(memory == bytes, "{len} bytes, {flags:?}");
        }
    }
    Ok(())
}

#[apply(case)]
fn a_slice_is_registered_once_at_a_time(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let flags = RegisterFlags::default();
    let mut memory = vec![1u8; 4 * PAGE];
    let address = memory.as_ptr();
    // Only who leaks a guard can come to this without help.
    forget(context.register(&mut memory, flags)?);
    let parts = [0..4 * PAGE, 0..PAGE, PAGE..2 * PAGE, 3 * PAGE..4 * PAGE];
    for part in parts {
        let error = context
            .register(&mut memory[part.clone()], flags)
            .expect_err("it is registered");
        ensure!(
            error.kind() == ErrorKind::AlreadyRegistered,
            "{part:?}: {error}"
        );
        ensure!(error.had_no_effect());
    }
    ensure!(end(env, address)? == CUresult::CUDA_SUCCESS);
    let registered = context.register(&mut memory, flags)?;
    ensure!(registered.iter().all(|byte| *byte == 1));
    Ok(())
}

#[apply(case)]
fn registrations_end_in_any_order(env: &Environment) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    let flags = RegisterFlags::default();
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut memory = vec![3u8; 8 * PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        let (_, rest) = memory.split_at_mut(start);
        let (first, rest) = rest.split_at_mut(PAGE);
        // One behind the other, and one with a gap.
        let (second, rest) = rest.split_at_mut(2 * PAGE);
        let third = &mut rest[PAGE..2 * PAGE];
        let mut guards = [first, second, third]
            .map(|part| context.register(part, flags).map(Some))
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?;
        for which in order {
            guards[which] = None;
            for guard in guards.iter().flatten() {
                let copy = env.pool()?.alloc_from(&stream, guard)?;
                ensure!(copy.to_vec()? == **guard, "after {which} of {order:?}");
            }
        }
    }
    Ok(())
}

/// 4 would be `CU_MEMHOSTREGISTER_IOMEMORY`, for which memory has to be of another kind than the program's.
#[apply(case)]
fn unknown_flags_are_refused(env: &Environment) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    let mut memory = vec![1u8; PAGE];
    for bits in [4, 64, 4 | 3] {
        let flags = RegisterFlags::from_bits_retain(bits);
        let error = context
            .register(&mut memory, flags)
            .expect_err("the flags are none");
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        ensure!(error.code().is_none(), "the driver was asked: {error}");
        let failed = context
            .register_boxed(vec![1u8; PAGE].into(), flags)
            .expect_err("the flags are none");
        ensure!(failed.object.is_some(), "the box comes back");
    }
    let flags = HostFlags::from_bits_retain(16);
    let pinned = context.pinned_with::<u8>(PAGE, flags).map(drop);
    let resource = Resource::new(PinnedResource::with_flags(env.driver, flags));
    for refused in [pinned, resource.alloc::<u8>(&stream, PAGE).map(drop)] {
        let error = refused.expect_err("the flags are none");
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        ensure!(error.to_string().contains("0x10"), "{error}");
    }
    Ok(())
}

#[apply(case)]
fn a_box_comes_back(env: &Environment) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    let bytes = pattern(3 * PAGE, 1).into_boxed_slice();
    let address = bytes.as_ptr();
    let registered = context.register_boxed(bytes, RegisterFlags::default())?;
    let loan = registered.lend(&stream)?;
    let mut buffer = env.pool()?.alloc::<u8>(&stream, 3 * PAGE)?;
    loan.copy_to(&mut buffer)?;
    let back = loan.take_back()?.unregister()?.context("it was a box")?;
    ensure!(back.as_ptr() == address && *back == pattern(3 * PAGE, 1)[..]);
    ensure!(buffer.to_vec()? == back[..]);
    // Also from a refusal.
    forget(context.register_boxed(back, RegisterFlags::default())?);
    // SAFETY: the guard that had the box was leaked just now.
    let again = unsafe {
        let slice = std::ptr::slice_from_raw_parts_mut(address.cast_mut(), 3 * PAGE);
        Box::from_raw(slice)
    };
    let failed = context
        .register_boxed(again, RegisterFlags::default())
        .expect_err("it is registered");
    ensure!(failed.error.kind() == ErrorKind::AlreadyRegistered);
    ensure!(end(env, address)? == CUresult::CUDA_SUCCESS);
    let back = failed.object.context("the box comes back")?;
    ensure!(*back == pattern(3 * PAGE, 1)[..]);
    Ok(())
}

#[apply(case)]
fn devices_may_be_kept_from_writing(env: &Environment) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED;
    let can = env.device()?.attribute(attribute)?.unwrap_or(0) != 0;
    let flags = RegisterFlags::default() | RegisterFlags::READ_ONLY;
    let memory = pattern(PAGE, 2).into_boxed_slice();
    let registered = match context.register_boxed(memory, flags) {
        Ok(registered) if can => registered,
        Err(failed) if !can => {
            ensure!(failed.error.kind() == ErrorKind::NotSupported, "{failed}");
            ensure!(failed.object.is_some());
            return Ok(());
        }
        other => anyhow::bail!("attribute {can}, and {other:?}"),
    };
    let mut loan = registered.lend(&stream)?;
    let mut buffer = env.pool()?.alloc::<u8>(&stream, PAGE)?;
    loan.copy_to(&mut buffer)?;
    ensure!(buffer.to_vec()? == pattern(PAGE, 2));
    let refused = loan.copy_from(&buffer).map_err(|error| error.kind());
    ensure!(refused == Err(ErrorKind::InvalidValue));
    let fill = load(&context)?.function("fill")?;
    // SAFETY: refused before the driver hears of it.
    let refused = unsafe { fill.launch(&stream, Launch::over(1, 1), (&mut loan, 1u32, 1u64)) };
    let refused = refused.map_err(|error| error.kind());
    ensure!(refused == Err(ErrorKind::InvalidValue));
    ensure!(*loan.take_back()? == pattern(PAGE, 2)[..]);
    Ok(())
}

#[apply(case)]
fn an_end_by_somebody_else_is_noticed(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let mut memory = vec![1u8; PAGE];
    let address = memory.as_ptr();
    ensure!(end(env, address)? == CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    let registered = context.register(&mut memory, RegisterFlags::default())?;
    ensure!(end(env, address)? == CUresult::CUDA_SUCCESS);
    let failed = registered.unregister().expect_err("it is not registered");
    ensure!(failed.error.kind() == ErrorKind::NotRegistered, "{failed}");
    // It would only try again.
    forget(failed.object);
    Ok(())
}

#[apply(case)]
fn the_driver_knows_what_is_registered(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let mut memory = vec![1u8; 4 * PAGE];
    let address = memory.as_ptr().addr() as u64;
    let kind = || Ok::<_, cuda_mem::Error>(env.driver.pointer_info(address)?.map(|info| info.kind));
    let before = kind()?;
    let registered = context.register(&mut memory, RegisterFlags::default())?;
    ensure!(kind()? == Some(MemoryKind::Host));
    ensure!(registered.device_address(&context)? != 0);
    drop(registered);
    ensure!(kind()? == before && before != Some(MemoryKind::Device));
    Ok(())
}

#[apply(case)]
fn kernels_use_borrowed_memory_by_its_address(env: &Environment) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    let copy = load(&context)?.function("copy")?;
    let mut words: Vec<u32> = (0..1000).collect();
    let registered = context.register(&mut words, RegisterFlags::default())?;
    let from = registered.device_address(&context)?;
    let mut buffer = env.pool()?.alloc::<u32>(&stream, 1000)?;
    // SAFETY: as the kernel says; the guard lives until the stream is done.
    unsafe {
        copy.launch(
            &stream,
            Launch::over(1000, 256),
            (&mut buffer, from, 1000u64),
        )
    }?;
    stream.synchronize()?;
    drop(registered);
    ensure!(buffer.to_vec()? == words);
    Ok(())
}

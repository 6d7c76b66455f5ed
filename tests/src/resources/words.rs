//! What errors call the things that they are about.

use std::alloc::Layout;

use anyhow::{Result, ensure};
use cuda_mem::driver::{AllocationType, HandleTypes, Location};
use cuda_mem::kernel::{Image, Launch};
use cuda_mem::mapped::{ManagedBuffer, MappedMemory};
use cuda_mem::memory::{DirectResource, LimitAdaptor, RecoveryAdaptor, RecoveryPolicy};
use cuda_mem::{Access, Error, MemoryPool, MemoryResource, Resource};

use crate::environment::Environment;

/// Parts of what `{:?}` prints of this crate's types.
const DUMPS: [&str; 9] = [
    " { ",
    "Device(",
    "Context(",
    "Stream(",
    "Pool(",
    "Function(",
    "Module(",
    "Image(",
    "Some(",
];

/// Errors of many kinds, each with what it has to name.
fn errors(env: &Environment) -> Result<Vec<(Error, &'static str)>> {
    let (device, stream, pool) = (env.device()?, env.stream()?, env.pool()?);
    let mut errors: Vec<(Option<Error>, &'static str)> = Vec::new();
    let twice = [(device, Access::ReadWrite), (device, Access::ReadWrite)];
    errors.push((pool.set_access(twice).err(), " is named twice"));
    let none = pool.set_access([(device, Access::None)]);
    errors.push((none.err(), "cannot be less than access to read and write"));
    errors.push((
        pool.alloc::<u8>(&stream, 1 << 50).err(),
        " bytes from pool 0x",
    ));
    if env.need(13, 0).is_ok() {
        let host = MemoryPool::builder_at(env.driver, Location::Host, AllocationType::Pinned);
        let host = host
            .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
            .build();
        errors.push((host.err(), "asked for a pool of pinned memory on host"));
    }
    let limited = LimitAdaptor::new(DirectResource::new(device), 1 << 20);
    let recovering = Resource::new(RecoveryAdaptor::new(limited, RecoveryPolicy::new().retry()));
    let most = recovering.alloc::<u8>(&stream, 1 << 20)?;
    let refused = recovering.alloc::<u8>(&stream, 1);
    errors.push((refused.err(), "tried again"));
    drop(most);
    let page = Layout::from_size_align(8, 4096)?;
    let refused = DirectResource::new(device).allocate(page, &stream);
    errors.push((refused.err(), ") aligns to 256 bytes"));
    let buffer = recovering.alloc::<u8>(&stream, 10)?;
    let refused = buffer.into_raw().map(drop);
    errors.push((refused.err().map(Error::from), "the buffer of 10 u8 at 0x"));
    if let Ok(managed) = ManagedBuffer::<u8>::uninit(&stream, 10) {
        errors.push((managed.range(5..11).err(), "elements 5 to 11 are no range"));
    }
    let direct = Resource::new(DirectResource::new(device));
    let refused = ManagedBuffer::<u8>::uninit_in(&direct, &stream, 10);
    errors.push((refused.err(), ") has device memory"));
    let memory = MappedMemory::builder(&device).build(1)?;
    let mapped = memory.into_buffer::<u8>(&stream, 10)?;
    errors.push((mapped.host().err(), "of mapped memory at 0x"));
    let context = env.context()?;
    let image = Image::ptx("hello")?;
    errors.push((context.load(&image).err(), "(PTX of 6 bytes for device "));
    let fill = crate::modules::kernel(&context, "fill")?;
    let large = Launch::over(1, 1 << 20);
    // SAFETY: the driver refuses it.
    let refused = unsafe { fill.launch(&stream, large, (0_u64, 0_u32, 0_u64)) };
    errors.push((refused.err(), "kernel \"fill\" on device "));
    let missing = errors.iter().filter(|(error, _)| error.is_none());
    let missing: Vec<&str> = missing.map(|(_, part)| *part).collect();
    ensure!(missing.is_empty(), "no error: {missing:?}");
    Ok(errors
        .into_iter()
        .filter_map(|(error, part)| Some((error?, part)))
        .collect())
}

#[apply(case)]
fn errors_name_things_in_words(env: &Environment) -> Result<()> {
    for (error, part) in errors(env)? {
        let text = error.to_string();
        ensure!(text.contains(part), "no {part:?} in {text}");
        for dump in DUMPS {
            ensure!(!text.contains(dump), "{dump:?} in {text}");
        }
    }
    Ok(())
}

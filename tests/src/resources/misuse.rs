//! What must be refused, and leave the resource as it was.

use std::alloc::Layout;

use anyhow::{Result, bail, ensure};
use cuda_mem::{ErrorKind, MemoryResource as _, Resource, Stream};

use super::bodies::for_each;
use crate::environment::Environment;

/// It serves as before.
fn serves(resource: &Resource, stream: &Stream) -> Result<()> {
    let buffer = resource.alloc_from(stream, &[1_u8, 2, 3])?;
    ensure!(buffer.to_vec()? == [1, 2, 3]);
    Ok(())
}

#[apply(case)]
fn what_cannot_be_had_is_refused_and_harmless(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let stream = env.stream()?;
    for_each(env, |subject, resource| {
        if !subject.takes_any_size(env) {
            return Ok(());
        }
        let live = resource.alloc_from(&stream, &[7_u8; 1000])?;
        for asked in [1_usize << 50, 1 << 60] {
            let Err(error) = resource.alloc::<u8>(&stream, asked) else {
                bail!("{asked} bytes were allocated");
            };
            ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
            let Some(memory) = error.out_of_memory() else {
                bail!("no numbers: {error}");
            };
            ensure!(memory.asked >= asked as u64, "{error}");
        }
        serves(&resource, &stream)?;
        ensure!(live.to_vec()? == [7; 1000]);
        Ok(())
    })
}

#[apply(case)]
fn the_largest_sizes_do_not_wrap(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let stream = env.stream()?;
    let just_under = [0, 1, 2, 255, 256, 257, 511, 512, 4095, 4096, 4097];
    for_each(env, |subject, resource| {
        if !subject.takes_any_size(env) {
            return Ok(());
        }
        for largest in [usize::MAX, isize::MAX.unsigned_abs()] {
            for less in just_under {
                let Err(error) = resource.alloc::<u8>(&stream, largest - less) else {
                    bail!("{} bytes were allocated", largest - less);
                };
                let known = matches!(
                    error.kind(),
                    ErrorKind::OutOfMemory | ErrorKind::InvalidValue
                );
                ensure!(known, "{error}");
            }
        }
        // The largest layout there is, without a container before it.
        let largest = Layout::from_size_align(isize::MAX.unsigned_abs() & !255, 256)?;
        ensure!(resource.allocate(largest, &stream).is_err());
        for (len, size) in [(usize::MAX / 8 + 1, 8), (usize::MAX, 8)] {
            let Err(error) = resource.alloc::<u64>(&stream, len) else {
                bail!("{len} elements of {size} bytes were allocated");
            };
            ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
            ensure!(error.code().is_none(), "the driver was not asked");
        }
        serves(&resource, &stream)
    })
}

#[apply(case)]
fn memory_of_another_resource_is_not_given_out_of_hand(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for_each(env, |_, resource| {
        let buffer = resource.alloc_from(&stream, &[1_u8, 2, 3])?;
        let Err(failed) = buffer.into_raw() else {
            bail!("memory that belongs to a resource was given out of hand");
        };
        ensure!(failed.error.kind() == ErrorKind::InvalidValue);
        let Some(buffer) = failed.object else {
            bail!("the buffer did not come back");
        };
        ensure!(buffer.to_vec()? == [1, 2, 3]);
        // An alignment that nobody keeps is refused, or kept.
        let layout = Layout::from_size_align(1000, 1 << 21)?;
        match resource.allocate(layout, &stream) {
            Ok(address) => {
                ensure!(address % (1 << 21) == 0);
                // SAFETY: allocated just now as this layout, and nobody has used it.
                unsafe { resource.deallocate(address, layout, &stream) }?;
            }
            Err(error) => ensure!(error.kind() == ErrorKind::InvalidValue, "{error}"),
        }
        serves(&resource, &stream)
    })
}

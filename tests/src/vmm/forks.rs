//! What a forked child inherits.

use anyhow::{Result, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::driver::Location;
use cuda_mem::mapped::{AddressRange, MappedMemory, MigrationStats, PhysicalMemory};

use crate::environment::Environment;
use crate::forks;

/// Alone, because a fork copies only the thread that forks.
#[apply(case_alone)]
fn a_forked_child_leaves_mapped_memory_alone(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let place = Location::Device(device);
    let physical = PhysicalMemory::builder(&device).build(1)?;
    let range = AddressRange::reserve(env.driver, 2 * physical.size_bytes(), 0)?;
    let mapping = range.map(0, &physical)?;
    let mut memory = MappedMemory::builder(&device).build(1)?;
    let other = MappedMemory::builder(&device).reserve(64 << 20).build(1)?;
    let mut buffer = other.into_buffer::<u8>(&stream, 1000)?;
    buffer.as_mut_slice().fill(7)?;
    // SAFETY: the child drops GPU objects, which must do nothing there, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        let refused = |result: cuda_mem::Result<()>| {
            result.is_err_and(|error| error.kind() == ErrorKind::Forked)
        };
        let none = MigrationStats::default();
        let fine = refused(range.map(physical.size_bytes(), &physical).map(drop))
            && refused(mapping.unmap().map_err(|failed| failed.error))
            && refused(memory.unmap())
            && refused(memory.move_to(place, &stream))
            && refused(buffer.resize_zeroed(2 << 20))
            && refused(buffer.shrink_to_fit())
            && refused(buffer.move_memory_to(place))
            && (buffer.capacity(), buffer.max_len()) == (1000, 0)
            && (buffer.migrations(), device.migrations()) == (none, none)
            && !format!("{buffer:?}").is_empty()
            && refused(
                buffer
                    .into_memory()
                    .map(drop)
                    .map_err(|failed| failed.error),
            );
        drop((range, physical, memory));
        let fine = fine && cuda_mem::base::drop_counts().failures == 0;
        forks::end_child(fine);
    }
    forks::ends_well(child)?;
    ensure!(buffer.to_vec()? == [7; 1000]);
    mapping.unmap()?;
    Ok(())
}

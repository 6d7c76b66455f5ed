//! What the host may do with memory of its own that devices use.

use anyhow::{Result, ensure};
use cuda_mem::driver::Location;
use cuda_mem::mapped::MappedMemory;
use cuda_mem::{Access, ErrorKind};

use crate::environment::Environment;

#[apply(case)]
fn the_host_sees_what_it_may(env: &Environment) -> Result<()> {
    env.need_node()?;
    let (stream, node) = (env.stream()?, Location::HostNuma(0));
    let mut memory = MappedMemory::builder_at(env.driver, node)
        .accessible_from([Location::Device(env.device()?)])
        .build(1)?;
    for (access, reads, writes) in [
        (Access::None, false, false),
        (Access::ReadWrite, true, true),
        (Access::None, false, false),
    ] {
        memory.set_access([(Location::Host, access)])?;
        let mut buffer = memory.into_buffer::<u8>(&stream, 100)?;
        buffer.as_mut_slice().fill(7)?;
        ensure!(buffer.host().is_ok() == reads, "{access:?}: reading");
        ensure!(buffer.host_mut().is_ok() == writes, "{access:?}: writing");
        memory = buffer.into_memory()?;
    }
    Ok(())
}

/// Whichever node it was named by: the driver has one access for the host (R159).
#[apply(case)]
fn the_host_is_one_by_every_name(env: &Environment) -> Result<()> {
    env.need_node()?;
    let (stream, node) = (env.stream()?, Location::HostNuma(0));
    for (given, withdrawn) in [(node, Location::Host), (Location::Host, node)] {
        let mut memory = MappedMemory::builder_at(env.driver, node)
            .accessible_from([Location::Device(env.device()?), given])
            .build(1)?;
        for (access, reads, writes) in [(Access::Read, true, false), (Access::None, false, false)] {
            memory.set_access([(withdrawn, access)])?;
            ensure!(memory.access(given) == access && memory.access(withdrawn) == access);
            // With the access that it had.
            memory.unmap()?;
            memory.map()?;
            let mut buffer = memory.into_buffer::<u8>(&stream, 100)?;
            buffer.as_mut_slice().fill(7)?;
            ensure!(
                buffer.host().is_ok() == reads,
                "{given} {access:?}: reading"
            );
            ensure!(
                buffer.host_mut().is_ok() == writes,
                "{given} {access:?}: writing"
            );
            memory = buffer.into_memory()?;
        }
    }
    Ok(())
}

/// It has none while the memory is a device's, and would have it again after a move back.
#[apply(case)]
fn access_of_the_host_is_withdrawn_on_a_device(env: &Environment) -> Result<()> {
    env.need_node()?;
    let (stream, node) = (env.stream()?, Location::HostNuma(0));
    let device = Location::Device(env.device()?);
    let mut memory = MappedMemory::builder_at(env.driver, node)
        .accessible_from([device, node])
        .build(1)?;
    memory.move_to(device, &stream)?;
    let refused = memory.set_access([(node, Access::Read)]);
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::NotSupported));
    memory.set_access([(node, Access::None)])?;
    memory.move_to(node, &stream)?;
    let buffer = memory.into_buffer::<u8>(&stream, 100)?;
    ensure!(buffer.host().is_err(), "the access came back");
    Ok(())
}

/// Named late, but given before the device's: fills cross from one part into the next.
#[apply(case)]
fn access_of_the_host_comes_first_after_mapping_again(env: &Environment) -> Result<()> {
    env.need_node()?;
    let (stream, node) = (env.stream()?, Location::HostNuma(0));
    let mut memory = MappedMemory::builder_at(env.driver, node)
        .accessible_from([Location::Device(env.device()?)])
        .reserve(16 << 20)
        .build(1)?;
    let len = 2 * memory.size_bytes();
    memory.grow_to(len)?;
    memory.unmap()?;
    memory.set_access([(node, Access::ReadWrite)])?;
    memory.map()?;
    ensure!(memory.parts().count() == 2);
    let mut buffer = memory.into_buffer::<u8>(&stream, usize::try_from(len)?)?;
    buffer.as_mut_slice().fill(7)?;
    ensure!(buffer.host()?.iter().all(|byte| *byte == 7));
    Ok(())
}

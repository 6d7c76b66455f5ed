//! What CUDA's samples vectorAddMMAP and memMapIPCDrv show.

use std::os::fd::AsFd as _;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::{
    Access, AddressRange, Device, DeviceBuffer, HandleTypes, Launch, Location, MappedMemory,
    PhysicalMemory,
};

use crate::lab::Lab;
use crate::modules::kernel;
use crate::two::two_processes;

pub(super) fn vectors_lie_on_one_device(lab: &Lab) -> Result<()> {
    vectors_lie_on(lab, &[lab.device()?])
}

pub(super) fn vectors_lie_on_two_devices(lab: &Lab) -> Result<()> {
    let devices = lab.driver.devices()?;
    vectors_lie_on(lab, &devices[..2])?;
    vectors_lie_on(lab, &[devices[1], devices[0]])
}

/// Vectors in equal parts on these devices, added by a kernel of the usual one.
fn vectors_lie_on(lab: &Lab, devices: &[Device]) -> Result<()> {
    const LEN: usize = 3 << 20;
    let own = lab.device()?;
    let stream = lab.stream()?;
    let vector = || -> Result<_> {
        let memory = MappedMemory::builder(&own)
            .striped_over(devices)
            .map((LEN * size_of::<f32>()) as u64)?;
        ensure!(memory.parts().count() == devices.len());
        let places: Vec<_> = memory.parts().map(PhysicalMemory::location).collect();
        ensure!(
            places
                == devices
                    .iter()
                    .copied()
                    .map(Location::Device)
                    .collect::<Vec<_>>()
        );
        Ok(memory.into_buffer::<f32>(&stream, LEN)?)
    };
    let (mut a, mut b, mut sum) = (vector()?, vector()?, vector()?);
    let numbers: Vec<f32> = (0..LEN).map(|at| at as f32).collect();
    a.copy_from(&numbers)?;
    b.fill(0.5)?;
    let add = kernel(&lab.context()?, "add")?;
    let launch = Launch::over(LEN, 256);
    // SAFETY: `add` takes three addresses of so many f32, and their number.
    unsafe { add.launch(&stream, launch, (&mut *sum, &*a, &*b, LEN as u64)) }?;
    let seen = sum.to_vec()?;
    ensure!(seen.iter().zip(&numbers).all(|(sum, at)| *sum == at + 0.5));
    let why = match devices {
        [_] => "reserve more",
        _ => "divided",
    };
    let error = sum.resize_zeroed(LEN * 100).expect_err("it is refused");
    ensure!(error.to_string().contains(why), "{error}");
    Ok(())
}

/// One process makes memory, another one maps it, and each sees what the other writes.
pub(super) fn memory_goes_to_another_process(lab: &Lab) -> Result<()> {
    const LEN: usize = 1000;
    let mapped = |memory: &PhysicalMemory| -> Result<DeviceBuffer<u32>> {
        let stream = lab.stream()?;
        let range = AddressRange::reserve(lab.driver, memory.size_bytes(), 0)?;
        let mapping = range.map(0, memory)?;
        mapping.set_access(Location::Device(lab.device()?), Access::ReadWrite)?;
        let address = mapping.address();
        // SAFETY: the buffer keeps the mapping, and every use below is synchronised before its end.
        Ok(unsafe { DeviceBuffer::borrow_raw(&stream, address, LEN, mapping) })
    };
    two_processes(
        lab,
        "samples::memory_goes_to_another_process",
        |lab, other| {
            let memory = PhysicalMemory::builder(&lab.device()?)
                .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
                .create(3 << 20)?;
            let mut numbers = mapped(&memory)?;
            numbers.fill(7)?;
            numbers.stream().synchronize()?;
            let descriptor = memory.export_fd()?;
            let bytes = memory.size_bytes().to_le_bytes();
            other.channel.send(&bytes, &[descriptor.as_fd()])?;
            drop((descriptor, memory));
            other.wait()?;
            ensure!(numbers.to_vec()? == [8; LEN]);
            Ok(())
        },
        |lab, channel| {
            let message = channel.receive()?;
            let bytes = u64::from_le_bytes(message.bytes.as_slice().try_into()?);
            let descriptor = message.descriptors.first().context("no descriptor came")?;
            let memory = PhysicalMemory::import_fd(lab.driver, descriptor.as_fd(), bytes)?;
            ensure!(memory.location() == Location::Device(lab.device()?));
            ensure!(
                memory.export_fd().is_err(),
                "an import is not exported again"
            );
            let mut numbers = mapped(&memory)?;
            ensure!(numbers.to_vec()? == [7; LEN]);
            numbers.fill(8)?;
            numbers.stream().synchronize()?;
            crate::two::go(channel)
        },
    )
}

//! Every driver call of virtual memory fails once, in turn, with several codes. Each time the caller gets a typed
//! error, or the destructor reports; nothing is left over, nothing panics.

use std::os::fd::AsFd as _;
use std::process::ExitCode;

use anyhow::Result;
use cuda_mem::sys::CUresult;
use cuda_mem::{
    Access, AddressRange, Driver, Error, HandleTypes, Location, MappedMemory, PhysicalMemory,
};
use cuda_mem_tests::lab::Lab;
use cuda_mem_tests::run::{self, Options};
use cuda_mem_tests::sweep::{self, Tour};
use cuda_sim::Live;

/// Everything of virtual memory, in one go.
fn memory(driver: Driver) -> Result<(), Error> {
    let device = driver.devices()?.swap_remove(0);
    let stream = device.primary_context()?.stream()?;
    let here = Location::Device(device);
    let memory = PhysicalMemory::builder(&device)
        .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
        .create(1)?;
    let descriptor = memory.export_fd()?;
    let imported = PhysicalMemory::import_fd(driver, descriptor.as_fd(), memory.size_bytes())?;
    let range = AddressRange::reserve(driver, 2 * memory.size_bytes(), 0)?;
    let first = range.map(0, &memory)?;
    let second = range.map(memory.size_bytes(), &imported)?;
    first.set_access(here, Access::ReadWrite)?;
    second.set_access(here, Access::ReadWrite)?;
    first.access(here)?;
    first.unmap().map_err(|failed| failed.error)?;
    drop((second, range, memory, imported));

    let memory = MappedMemory::builder(&device).reserve(16 << 20).map(1)?;
    let buffer = memory.into_buffer::<u32>(&stream, 10);
    let mut buffer = buffer.map_err(|failed| failed.error)?;
    buffer.fill(7)?;
    buffer.resize_zeroed(1 << 20)?;
    buffer.resize_uninit(5)?;
    buffer.shrink_to_fit()?;
    buffer.move_memory_to(Location::HostNuma(0))?;
    let memory = buffer.into_memory();
    let mut memory = memory.map_err(|failed| failed.error)?;
    memory.unmap()?;
    memory.map()?;
    memory.move_to(here, &stream)?;
    let buffer = memory.into_buffer::<u32>(&stream, 5);
    let buffer = buffer.map_err(|failed| failed.error)?;
    assert_eq!(buffer.to_vec()?, [7; 5]);
    Ok(())
}

/// What a failure means where it is not told.
fn has_a_second_way(index: usize, function: &str, code: CUresult) -> bool {
    match function {
        // Without its version the driver is taken for the oldest, and then this is missing.
        "cuDriverGetVersion" => index == 0,
        "cuStreamIsCapturing" | "cuThreadExchangeStreamCaptureMode" => true,
        // The place of an import is told by its numbers then.
        "cuDeviceGet" => index > 5,
        "cuStreamQuery" => code == CUresult::CUDA_ERROR_NOT_READY,
        _ => false,
    }
}

/// What could not be unmapped stays, with its memory and its addresses.
fn may_leave(_: &str, now: Live, before: Live) -> bool {
    let left = Live {
        physical_allocations: now.physical_allocations,
        physical_bytes: now.physical_bytes,
        reservations: now.reservations,
        mappings: now.mappings,
        primary_retains: now.primary_retains,
        ..before
    };
    now == left
}

mod faults {
    use super::*;

    pub(crate) fn every_call_of_virtual_memory_fails_once(lab: &Lab) -> Result<()> {
        let tour = Tour {
            walk: memory,
            at_least: 60,
            second_way: has_a_second_way,
            may_leave,
        };
        sweep::every_call_fails_once(lab, tour).map(drop)
    }
}

fn main() -> ExitCode {
    let tests = cuda_mem_tests::tests! { faults: every_call_of_virtual_memory_fails_once };
    run::main(
        &tests,
        Options {
            serial: true,
            drops_fail: true,
            sim_only: true,
            ..Options::default()
        },
    )
}

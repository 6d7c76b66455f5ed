//! What can be done where NIXL is not installed: everything but calls of NIXL, which are errors. Runs on a GPU if there is one,
//! and otherwise on the simulated driver.

use std::env;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering;

use anyhow::{Result, bail, ensure};
use cuda_mem::driver::MemoryKind;
use cuda_mem::mapped::MappedMemory;
use cuda_mem::memory::{DirectResource, ManagedResource};
use cuda_mem::{Arena, Device, DeviceBuffer, Driver, Resource, Stream};
use cuda_mem_nixl::{Buffer, Error, Refused};
use nixl_sys::{Agent, AgentConfig, MemType, MemoryRegion, NixlDescriptor};

mod common;

use common::{Test, collective, hold_up, machine};

const TESTS: &[Test] = &[
    (
        "an_agent_is_an_error_without_nixl",
        an_agent_is_an_error_without_nixl,
    ),
    (
        "nixl_sys_itself_ends_the_process",
        nixl_sys_itself_ends_the_process,
    ),
    (
        "a_descriptor_says_where_the_memory_is",
        a_descriptor_says_where_the_memory_is,
    ),
    (
        "a_descriptor_names_the_second_device",
        a_descriptor_names_the_second_device,
    ),
    ("a_part_is_a_descriptor_too", a_part_is_a_descriptor_too),
    ("plain_memory_is_taken", plain_memory_is_taken),
    (
        "an_arena_over_plain_memory_is_taken",
        an_arena_over_plain_memory_is_taken,
    ),
    ("memory_of_a_pool_is_refused", memory_of_a_pool_is_refused),
    (
        "memory_without_gpu_direct_is_refused",
        memory_without_gpu_direct_is_refused,
    ),
    ("several_pieces_are_refused", several_pieces_are_refused),
    (
        "one_piece_of_several_is_taken",
        one_piece_of_several_is_taken,
    ),
    ("managed_memory_is_refused", managed_memory_is_refused),
    ("no_bytes_are_refused", no_bytes_are_refused),
    (
        "without_a_network_card_device_memory_is_enough",
        without_a_network_card_device_memory_is_enough,
    ),
    (
        "a_descriptor_waits_for_the_stream",
        a_descriptor_waits_for_the_stream,
    ),
    (
        "a_writer_waits_for_leaked_readers",
        a_writer_waits_for_leaked_readers,
    ),
    ("the_memory_comes_back", the_memory_comes_back),
];

/// Makes this program call nixl-sys directly.
const CALL_DIRECTLY: &str = "CUDA_MEM_NIXL_CALL_DIRECTLY";

fn main() -> ExitCode {
    if env::var_os(CALL_DIRECTLY).is_some() {
        let _ = Agent::new("direct");
        return ExitCode::SUCCESS;
    }
    if env::var_os("CUDA_SIM_DEVICES").is_none() {
        // SAFETY: no other thread exists yet.
        unsafe { env::set_var("CUDA_SIM_DEVICES", "2") };
    }
    cuda_sim::use_if_no_driver();
    common::run(TESTS)
}

fn refused<T: bytemuck::Pod>(memory: DeviceBuffer<T>) -> Result<Refused<DeviceBuffer<T>>> {
    match Buffer::new(memory) {
        Ok(_) => bail!("it was taken"),
        Err(refused) => Ok(refused),
    }
}

/// With NIXL on the machine there is nothing to see here.
fn an_agent_is_an_error_without_nixl() -> Result<()> {
    if cuda_mem_nixl::is_available() {
        return Ok(());
    }
    let refused = cuda_mem_nixl::agent("lonely");
    ensure!(matches!(refused, Err(Error::NixlMissing)));
    let refused = cuda_mem_nixl::configured_agent("lonely", &AgentConfig::default());
    let Err(error) = refused else {
        bail!("there is an agent without NIXL");
    };
    ensure!(error.to_string().contains("LD_LIBRARY_PATH"), "{error}");
    Ok(())
}

/// Why `agent` is needed.
fn nixl_sys_itself_ends_the_process() -> Result<()> {
    if cuda_mem_nixl::is_available() {
        return Ok(());
    }
    let output = Command::new(env::current_exe()?)
        .env(CALL_DIRECTLY, "1")
        .output()?;
    ensure!(output.status.signal() == Some(SIGABRT), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(said.contains("libnixl_capi.so not found"), "{said}");
    Ok(())
}

/// SIGABRT, on every architecture of Linux that NIXL knows.
const SIGABRT: i32 = 6;

fn a_descriptor_says_where_the_memory_is() -> Result<()> {
    let (_, _context, stream) = machine()?;
    let memory = collective(&stream, 1000)?;
    let address = memory.as_raw();
    let buffer = Buffer::new(memory)?;
    ensure!(buffer.len() == 1000 && !buffer.is_empty() && buffer.registrations() == 0);
    ensure!(*buffer.stream() == stream);
    // SAFETY: nothing is transferred.
    let descriptor = unsafe { buffer.descriptor() }?;
    // SAFETY: only the number is looked at.
    let pointer = unsafe { descriptor.as_ptr() };
    ensure!(pointer.addr() as u64 == address && descriptor.size() == 4000);
    ensure!(descriptor.mem_type() == MemType::Vram && descriptor.device_id() == 0);
    ensure!(format!("{descriptor:?}").contains(&format!("{address:#x}")));
    Ok(())
}

fn a_descriptor_names_the_second_device() -> Result<()> {
    let driver = Driver::load()?;
    if driver.device_count()? < 2 {
        return Ok(());
    }
    let device = driver.device(1)?;
    let context = device.primary_context()?;
    let stream = context.stream()?;
    let mut buffer = Buffer::new(collective(&stream, 10)?)?;
    // SAFETY: nothing is transferred.
    let descriptor = unsafe { buffer.descriptor_mut() }?;
    ensure!(descriptor.device_id() == 1);
    // The memory's device counts, and not the stream's.
    let first = driver.device(0)?.primary_context()?.stream()?;
    let memory = MappedMemory::collective(&device)?
        .build(4000)?
        .into_buffer::<u32>(&first, 1000)?;
    let mut buffer = Buffer::new(memory.into_buffer())?;
    buffer.memory_mut()?.fill(3)?;
    ensure!(buffer.memory()?.to_vec()? == [3; 1000]);
    // SAFETY: nothing is transferred.
    ensure!(unsafe { buffer.descriptor_mut() }?.device_id() == 1);
    ensure!(buffer.into_memory()?.to_vec()? == [3; 1000]);
    Ok(())
}

fn a_part_is_a_descriptor_too() -> Result<()> {
    let (_, _context, stream) = machine()?;
    let memory = collective(&stream, 1000)?;
    let address = memory.as_raw();
    let buffer = Buffer::new(memory)?;
    // SAFETY: nothing is transferred.
    let all = unsafe { buffer.descriptor() }?;
    let part = all.slice(10..30)?.slice(5..)?;
    // SAFETY: only the number is looked at.
    let pointer = unsafe { part.as_ptr() };
    ensure!(pointer.addr() as u64 == address + 60 && part.size() == 60);
    ensure!(matches!(all.slice(7..7), Err(Error::NoBytes)));
    ensure!(matches!(all.slice(900..1001), Err(Error::CudaMem(_))));
    Ok(())
}

fn plain_memory_is_taken() -> Result<()> {
    let (device, _context, stream) = machine()?;
    let resource = Resource::new(DirectResource::new(device));
    let buffer = Buffer::new(resource.alloc::<u8>(&stream, 100)?)?;
    ensure!(buffer.len() == 100);
    Ok(())
}

fn an_arena_over_plain_memory_is_taken() -> Result<()> {
    let (device, _context, stream) = machine()?;
    let arena = Arena::over(DirectResource::new(device));
    let buffer = Buffer::new(arena.alloc::<u8>(&stream, 100)?)?;
    drop(buffer);
    drop(arena);
    Ok(())
}

fn memory_of_a_pool_is_refused() -> Result<()> {
    let (device, _context, stream) = machine()?;
    let memory = device.default_pool()?.alloc_from(&stream, &[1u32, 2])?;
    let refused = refused(memory)?;
    ensure!(matches!(refused.error, Error::PoolMemory));
    let text = refused.to_string();
    ensure!(text.contains("MappedMemory::collective"), "{text}");
    ensure!(refused.object.to_vec()? == [1, 2]);
    Ok(())
}

fn memory_without_gpu_direct_is_refused() -> Result<()> {
    let (device, _context, stream) = machine()?;
    let memory = MappedMemory::builder(&device).build(1000)?;
    let refused = refused(memory.into_buffer::<u8>(&stream, 1000)?.into_buffer())?;
    ensure!(matches!(refused.error, Error::NotGpuDirect));
    let text = refused.to_string();
    ensure!(text.contains("gpu_direct_rdma(true)"), "{text}");
    // The usual arena has such memory.
    let arena = Arena::builder(&device).build()?;
    let part = self::refused(arena.alloc::<u8>(&stream, 1000)?)?;
    ensure!(matches!(part.error, Error::NotGpuDirect));
    Ok(())
}

/// Memory in two pieces of physical memory, of which the first has `first` bytes.
fn grown(device: &Device, stream: &Stream, len: usize) -> Result<(DeviceBuffer<u8>, usize)> {
    let mut memory = MappedMemory::collective(device)?
        .reserve(64 << 20)
        .build(1)?;
    let first = memory.size_bytes() as usize;
    memory.grow_to(first as u64 + 1)?;
    ensure!(memory.parts().count() == 2);
    let buffer = memory.into_buffer(stream, len.max(1))?;
    Ok((buffer.into_buffer(), first))
}

fn several_pieces_are_refused() -> Result<()> {
    let (device, _context, stream) = machine()?;
    let (_, first) = grown(&device, &stream, 1)?;
    let (memory, _) = grown(&device, &stream, first + 1)?;
    let refused = refused(memory)?;
    let Error::SeveralPieces { bytes, first_bytes } = refused.error else {
        bail!("{}", refused.error);
    };
    ensure!((bytes, first_bytes) == (first as u64 + 1, first as u64));
    Ok(())
}

fn one_piece_of_several_is_taken() -> Result<()> {
    let (device, _context, stream) = machine()?;
    let (_, first) = grown(&device, &stream, 1)?;
    let (memory, _) = grown(&device, &stream, first)?;
    ensure!(Buffer::new(memory)?.len() == first);
    Ok(())
}

fn managed_memory_is_refused() -> Result<()> {
    let (device, _context, stream) = machine()?;
    let resource = Resource::new(ManagedResource::new(device.driver()));
    let memory = resource.alloc::<u8>(&stream, 100)?;
    let refused = refused(memory)?;
    let kind = MemoryKind::Managed;
    ensure!(matches!(refused.error, Error::NotDeviceMemory { kind: found } if found == kind));
    let refused = Buffer::without_network_card(refused.object);
    ensure!(refused.is_err());
    Ok(())
}

fn no_bytes_are_refused() -> Result<()> {
    let (device, _context, stream) = machine()?;
    let memory = device.default_pool()?.alloc::<u32>(&stream, 0)?;
    ensure!(matches!(refused(memory)?.error, Error::NoBytes));
    Ok(())
}

fn without_a_network_card_device_memory_is_enough() -> Result<()> {
    let (device, _context, stream) = machine()?;
    let memory = device.default_pool()?.alloc::<u32>(&stream, 100)?;
    let mut buffer = Buffer::without_network_card(memory)?;
    // SAFETY: nothing is transferred.
    ensure!(unsafe { buffer.descriptor_mut() }?.size() == 400);
    buffer.memory_mut()?.fill(7)?;
    ensure!(buffer.memory()?.to_vec()? == [7; 100]);
    Ok(())
}

fn a_descriptor_waits_for_the_stream() -> Result<()> {
    let (_, _context, stream) = machine()?;
    let mut buffer = Buffer::new(collective(&stream, 100)?)?;
    let done = hold_up(&stream)?;
    // SAFETY: nothing is transferred.
    let _ = unsafe { buffer.descriptor_mut() }?;
    ensure!(done.load(Ordering::SeqCst), "it did not wait");
    let done = hold_up(&stream)?;
    // SAFETY: nothing is transferred.
    let _ = unsafe { buffer.descriptor() }?;
    ensure!(done.load(Ordering::SeqCst), "it did not wait");
    let done = hold_up(&stream)?;
    buffer.synchronize()?;
    ensure!(done.load(Ordering::SeqCst), "it did not wait");
    Ok(())
}

fn a_writer_waits_for_leaked_readers() -> Result<()> {
    let (_, context, stream) = machine()?;
    let other = context.stream()?;
    let mut buffer = Buffer::new(collective(&stream, 100)?)?;
    let done = hold_up(&other)?;
    std::mem::forget(buffer.memory()?.read_on(&other)?);
    // SAFETY: nothing is transferred.
    let _ = unsafe { buffer.descriptor_mut() }?;
    ensure!(done.load(Ordering::SeqCst), "it did not wait");
    Ok(())
}

fn the_memory_comes_back() -> Result<()> {
    let (_, _context, stream) = machine()?;
    let mut buffer = Buffer::new(collective(&stream, 3)?)?;
    buffer.memory_mut()?.copy_from(&[1, 2, 3])?;
    buffer.deregister()?; // nothing is registered
    ensure!(buffer.into_memory()?.to_vec()? == [1, 2, 3]);
    Ok(())
}

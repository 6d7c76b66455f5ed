//! Registrations, with a stand-in for NIXL's library that records its calls: what is registered, when, and that it ends
//! before the memory does. Shows nothing about NIXL itself. Runs on a GPU if there is one, and otherwise on the simulated driver.

#[path = "../common/mod.rs"]
mod common;
mod stand_in;

use std::process::ExitCode;
use std::sync::atomic::Ordering;

use anyhow::{Result, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::interop::{FlushOptions, FlushScope};
use cuda_mem_nixl::{Buffer, Error, leaked_bytes};
use nixl_sys::{MemType, MemoryRegion, NixlError, XferDescList};

use common::{Test, collective, hold_up, machine, simulator};
use stand_in::{Told, VRAM, told};

const TESTS: &[Test] = &[
    (
        "a_registration_names_the_memory",
        a_registration_names_the_memory,
    ),
    (
        "a_registration_waits_for_the_stream",
        a_registration_waits_for_the_stream,
    ),
    (
        "a_registration_ends_before_the_memory",
        a_registration_ends_before_the_memory,
    ),
    ("all_agents_are_told", all_agents_are_told),
    (
        "a_refused_registration_leaves_nothing",
        a_refused_registration_leaves_nothing,
    ),
    (
        "memory_that_may_be_registered_is_not_freed",
        memory_that_may_be_registered_is_not_freed,
    ),
    (
        "a_panic_of_nixl_sys_stays_in_the_destructor",
        a_panic_of_nixl_sys_stays_in_the_destructor,
    ),
    (
        "memory_that_may_be_registered_does_not_come_back",
        memory_that_may_be_registered_does_not_come_back,
    ),
    ("the_memory_comes_back", the_memory_comes_back),
    ("the_buffer_keeps_the_agent", the_buffer_keeps_the_agent),
    ("lists_take_descriptors", lists_take_descriptors),
    ("writes_of_others_are_flushed", writes_of_others_are_flushed),
];

fn main() -> ExitCode {
    cuda_sim::use_if_no_driver();
    if let Err(error) = stand_in::load() {
        eprintln!("{error:?}");
        return ExitCode::FAILURE;
    }
    common::run(TESTS)
}

fn a_registration_names_the_memory() -> Result<()> {
    let (_, _context, stream) = machine()?;
    ensure!(cuda_mem_nixl::is_available());
    let agent = cuda_mem_nixl::agent("one")?;
    let memory = collective(&stream, 1000)?;
    let mut expected = Told {
        is_registration: true,
        address: memory.as_raw(),
        bytes: 4000,
        device: 0,
        memory_type: VRAM,
        is_allocated: true,
    };
    let mut buffer = Buffer::new(memory)?;
    buffer.register(&agent, None)?;
    ensure!(told() == [expected] && buffer.registrations() == 1);
    buffer.deregister()?;
    expected.is_registration = false;
    ensure!(told() == [expected] && buffer.registrations() == 0);
    drop(buffer);
    ensure!(told().is_empty());
    drop(agent);
    ensure!(stand_in::alive()? == (0, 0));
    Ok(())
}

fn a_registration_waits_for_the_stream() -> Result<()> {
    let (_, _context, stream) = machine()?;
    let agent = cuda_mem_nixl::agent("one")?;
    let mut buffer = Buffer::new(collective(&stream, 1000)?)?;
    let done = hold_up(&stream)?;
    buffer.register(&agent, None)?;
    ensure!(done.load(Ordering::SeqCst), "it did not wait");
    drop(buffer);
    told();
    Ok(())
}

fn a_registration_ends_before_the_memory() -> Result<()> {
    let (_, _context, stream) = machine()?;
    let agent = cuda_mem_nixl::agent("one")?;
    let memory = collective(&stream, 1000)?;
    let address = memory.as_raw();
    let mut buffer = Buffer::new(memory)?;
    buffer.register(&agent, None)?;
    drop(buffer);
    let told = told();
    ensure!(told.len() == 2 && !told[1].is_registration && told[1].is_allocated);
    let info = stream.device().driver().pointer_info(address)?;
    ensure!(info.is_none(), "the memory is still there");
    Ok(())
}

fn all_agents_are_told() -> Result<()> {
    let (_, _context, stream) = machine()?;
    let agents = [cuda_mem_nixl::agent("one")?, cuda_mem_nixl::agent("two")?];
    let mut buffer = Buffer::new(collective(&stream, 10)?)?;
    for agent in &agents {
        buffer.register(agent, None)?;
    }
    ensure!(buffer.registrations() == 2);
    drop(buffer);
    let ends = told().iter().filter(|told| !told.is_registration).count();
    ensure!(ends == 2);
    Ok(())
}

fn a_refused_registration_leaves_nothing() -> Result<()> {
    let (_, _context, stream) = machine()?;
    let agent = cuda_mem_nixl::agent("one")?;
    let mut buffer = Buffer::new(collective(&stream, 10)?)?;
    stand_in::refuse_registrations(1)?;
    let refused = buffer.register(&agent, None);
    ensure!(matches!(refused, Err(Error::Nixl(NixlError::BackendError))));
    ensure!(buffer.registrations() == 0);
    drop(buffer);
    ensure!(told().is_empty() && stand_in::alive()?.0 == 0);
    Ok(())
}

/// The check of every test would find the leak, so the memory is borrowed here, and its stream is the context's own.
fn memory_that_may_be_registered_is_not_freed() -> Result<()> {
    let (_, context, _) = machine()?;
    let stream = context.legacy_stream();
    let agent = cuda_mem_nixl::agent("one")?;
    let memory = collective(&stream, 10)?;
    let owner = std::sync::Arc::new(());
    // SAFETY: the memory outlives the view, and is used by nothing else.
    let view = unsafe {
        cuda_mem::DeviceBuffer::<u32>::borrow_raw(
            &stream,
            memory.as_raw(),
            10,
            std::sync::Arc::clone(&owner),
        )
    };
    let mut buffer = Buffer::new(view)?;
    buffer.register(&agent, None)?;
    stand_in::refuse_lists(1)?;
    let before = leaked_bytes();
    drop(buffer);
    ensure!(leaked_bytes() - before == 40);
    ensure!(std::sync::Arc::strong_count(&owner) == 2, "it was freed");
    told();
    Ok(())
}

fn a_panic_of_nixl_sys_stays_in_the_destructor() -> Result<()> {
    let (_, context, _) = machine()?;
    let stream = context.legacy_stream();
    let agent = cuda_mem_nixl::agent("one")?;
    let memory = collective(&stream, 10)?;
    // SAFETY: the memory outlives the view, and is used by nothing else.
    let view =
        unsafe { cuda_mem::DeviceBuffer::<u32>::borrow_raw(&stream, memory.as_raw(), 10, ()) };
    let mut buffer = Buffer::new(view)?;
    buffer.register(&agent, None)?;
    stand_in::refuse_options(1)?;
    let before = leaked_bytes();
    drop(buffer);
    ensure!(leaked_bytes() - before == 40);
    told();
    Ok(())
}

fn memory_that_may_be_registered_does_not_come_back() -> Result<()> {
    let (_, context, _) = machine()?;
    let stream = context.legacy_stream();
    let agent = cuda_mem_nixl::agent("one")?;
    let memory = collective(&stream, 10)?;
    // SAFETY: the memory outlives the view, and is used by nothing else.
    let view =
        unsafe { cuda_mem::DeviceBuffer::<u32>::borrow_raw(&stream, memory.as_raw(), 10, ()) };
    let mut buffer = Buffer::new(view)?;
    buffer.register(&agent, None)?;
    stand_in::refuse_lists(1)?;
    ensure!(matches!(buffer.deregister(), Err(Error::MayBeRegistered)));
    let Err(refused) = buffer.into_memory() else {
        anyhow::bail!("the memory came back");
    };
    ensure!(matches!(refused.error, Error::MayBeRegistered));
    drop(refused.object);
    told();
    Ok(())
}

fn the_memory_comes_back() -> Result<()> {
    let (_, _context, stream) = machine()?;
    let agent = cuda_mem_nixl::agent("one")?;
    let mut buffer = Buffer::new(collective(&stream, 3)?)?;
    buffer.memory_mut()?.copy_from(&[1, 2, 3])?;
    buffer.register(&agent, None)?;
    let memory = buffer.into_memory()?;
    let told = told();
    ensure!(told.len() == 2 && !told[1].is_registration);
    ensure!(memory.to_vec()? == [1, 2, 3]);
    Ok(())
}

fn the_buffer_keeps_the_agent() -> Result<()> {
    let (_, _context, stream) = machine()?;
    let agent = cuda_mem_nixl::agent("one")?;
    let mut buffer = Buffer::new(collective(&stream, 3)?)?;
    buffer.register(&agent, None)?;
    drop(agent);
    ensure!(stand_in::alive()? == (0, 1));
    drop(buffer);
    ensure!(stand_in::alive()? == (0, 0));
    told();
    Ok(())
}

fn lists_take_descriptors() -> Result<()> {
    let (_, _context, stream) = machine()?;
    let memory = collective(&stream, 1000)?;
    let address = memory.as_raw() as usize;
    let mut buffer = Buffer::new(memory)?;
    // SAFETY: nothing is transferred.
    let all = unsafe { buffer.descriptor_mut() }?;
    let blocks = [all.slice(..100)?, all.slice(500..600)?];
    let mut list = XferDescList::new(MemType::Vram)?;
    for block in &blocks {
        ensure!(block.size() == 400);
        list.add_storage_desc(block)?;
    }
    ensure!((list.get(0)?.addr, list.get(0)?.len) == (address, 400));
    ensure!((list.get(1)?.addr, list.get(1)?.dev_id) == (address + 2000, 0));
    Ok(())
}

/// The simulated device needs a flush only where it cannot do it: its driver is too old then.
fn writes_of_others_are_flushed() -> Result<()> {
    let (device, _context, stream) = machine()?;
    let Some(simulator) = simulator()? else {
        return Ok(());
    };
    let agent = cuda_mem_nixl::agent("one")?;
    let offers = device.gpu_direct()?;
    let needs = offers.needs_flush(FlushScope::Owner);
    let can = offers.flush.contains(FlushOptions::HOST);
    let flushes = || simulator.calls("cuFlushGPUDirectRDMAWrites");
    let mut buffer = Buffer::new(collective(&stream, 1000)?)?;
    let before = flushes();
    let _ = buffer.memory()?;
    ensure!(flushes() == before, "no card can have written");
    buffer.register(&agent, None)?;
    let flushed = buffer.memory().map(drop);
    match flushed {
        Ok(()) => ensure!(flushes() == before + u64::from(needs)),
        Err(Error::CudaMem(error)) => {
            ensure!(
                needs && !can && error.kind() == ErrorKind::NotSupported,
                "{error}"
            );
        }
        Err(error) => return Err(error.into()),
    }
    // It can be taken back in any case.
    ensure!(buffer.into_memory()?.len() == 1000);
    told();
    Ok(())
}

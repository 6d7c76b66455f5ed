//! Objects that are leaked are found, with the line that made them.

use std::mem::forget;

use anyhow::{Result, bail, ensure};
use cuda_mem::driver::{Location, MemoryKind};
use cuda_mem::interop::{Graph, Instantiate};
use cuda_mem::kernel::Image;
use cuda_mem::ledger::{Ledger, LedgerKind as K, LedgerLevel};
use cuda_mem::mapped::{AddressRange, ManagedBuffer, MappedMemory, PhysicalMemory, RegisterFlags};
use cuda_mem::memory::{
    DeviceScalar, DeviceVec, DirectResource, ManagedResource, PinnedResource, StatisticsAdaptor,
};
use cuda_mem::{Arena, DeviceBuffer, MemoryPool, MemoryResource as _, Resource, Stream};

use super::{begin, find, sum};
use crate::environment::Environment;
use crate::handles;
use crate::modules::PTX;

/// Leaks an object and looks for it.
fn leak<T>(kind: K, bytes: usize, (object, line): (T, u32)) -> Result<()> {
    forget(object);
    find(kind, bytes, file!(), line)
}

#[apply(case_alone)]
fn buffers_of_all_homes_are_found(env: &Environment) -> Result<()> {
    let (device, stream, pool) = (env.device()?, env.stream()?, env.pool()?);
    begin(LedgerLevel::Origins);
    leak(K::Buffer, 400, (pool.alloc::<u32>(&stream, 100)?, line!()))?;
    let made = (pool.alloc_zeroed::<u8>(&stream, 7)?, line!());
    leak(K::Buffer, 7, made)?;
    let made = (pool.alloc_from(&stream, &[1_u16; 3])?, line!());
    leak(K::Buffer, 6, made)?;
    leak(K::Buffer, 50, (stream.alloc::<u8>(50)?, line!()))?;

    let address = pool.alloc::<u8>(&stream, 90)?.into_raw()?;
    // SAFETY: the address comes from a buffer of this stream.
    let take = |stream: &Stream| unsafe { DeviceBuffer::<u8>::from_raw(stream, address, 90) };
    let line = line!() - 1;
    leak(K::Buffer, 90, (take(&stream), line))?;

    let counted = StatisticsAdaptor::new(env.pool()?);
    let resources = [
        Resource::from(pool),
        Resource::new(counted),
        Resource::new(DirectResource::new(device)),
        Resource::new(ManagedResource::new(env.driver)),
        Resource::new(PinnedResource::new(env.driver)),
        Resource::from(Arena::builder(&device).build()?),
        device.default_resource()?,
    ];
    for (nth, resource) in resources.into_iter().enumerate() {
        let kind = match resource.memory_properties().kind {
            MemoryKind::Managed => K::ManagedMemory,
            _ => K::Buffer,
        };
        // Of different sizes: they are of one line, and found by being the only ones.
        begin(LedgerLevel::Origins);
        let bytes = 1000 + nth;
        let made = (resource.alloc::<u8>(&stream, bytes)?, line!());
        leak(kind, bytes, made)?;
        let made = (resource.alloc_zeroed::<u8>(&stream, bytes)?, line!());
        leak(kind, bytes, made)?;
        let made = (resource.alloc_from(&stream, &[1_u8; 8])?, line!());
        leak(kind, 8, made)?;
    }
    Ok(())
}

#[apply(case_alone)]
fn containers_are_found(env: &Environment) -> Result<()> {
    let (stream, resource) = (env.stream()?, Resource::from(env.pool()?));
    begin(LedgerLevel::Origins);
    let made = (DeviceVec::<u32>::zeroed(&stream, 10)?, line!());
    leak(K::Buffer, 40, made)?;
    let made = (DeviceVec::<u8>::with_capacity(&stream, 77)?, line!());
    leak(K::Buffer, 77, made)?;
    let made = (DeviceScalar::new(&stream, 7_u64)?, line!());
    leak(K::Buffer, 8, made)?;
    let made = (DeviceScalar::new_in(&resource, &stream, 7_u8)?, line!());
    leak(K::Buffer, 1, made)?;
    // A vector that has grown holds what the growing line asked for, and no more.
    let mut vec = DeviceVec::from_slice_in(&resource, &stream, &[1_u8; 10])?;
    let grown = (vec.reserve_exact(90)?, line!());
    ensure!(vec.capacity() == 100 && vec.len() == 10);
    find(K::Buffer, 100, file!(), grown.1)?;
    let before = sum(K::Buffer);
    forget(vec);
    ensure!(sum(K::Buffer) == before);
    Ok(())
}

#[apply(case_alone)]
fn pools_and_arenas_are_found(env: &Environment) -> Result<()> {
    let device = env.device()?;
    // The default resource's pool is nobody's to give back.
    begin(LedgerLevel::Origins);
    let resource = device.default_resource()?;
    ensure!(sum(K::Pool) == (0, 0));
    let made = (MemoryPool::builder(&device).build()?, line!());
    leak(K::Pool, 0, made)?;
    leak(K::Arena, 0, (Arena::builder(&device).build()?, line!()))?;
    leak(K::Arena, 0, (Arena::over(resource.clone()), line!()))?;
    Ok(())
}

#[apply(case_alone)]
fn contexts_streams_and_events_are_found(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let context = device.primary_context()?;
    begin(LedgerLevel::Origins);
    // Two retains have one handle.
    leak(K::Context, 0, (device.primary_context()?, line!()))?;
    leak(K::Context, 0, (device.primary_context()?, line!()))?;
    leak(K::Stream, 0, (context.stream()?, line!()))?;
    leak(K::Event, 0, (context.event()?, line!()))?;
    leak(K::Event, 0, (context.timing_event()?, line!()))?;
    leak(K::Event, 0, (context.interprocess_event()?, line!()))?;
    // A clone is no second object, and streams that are there by themselves are none.
    let before = sum(K::Stream);
    let stream = context.stream()?;
    forget((context.legacy_stream(), context.per_thread_stream()));
    forget(stream.clone());
    drop(stream);
    ensure!(sum(K::Stream) == (before.0 + 1, 0));
    Ok(())
}

#[apply(case_alone)]
fn code_is_found(env: &Environment) -> Result<()> {
    let context = env.context()?;
    begin(LedgerLevel::Origins);
    let image = Image::ptx(PTX)?;
    leak(K::Module, 0, (context.load(&image)?, line!()))?;
    // A function keeps its module.
    let module = context.load(&image)?;
    let function = module.function("fill")?;
    drop(module);
    ensure!(sum(K::Module).0 == 2);
    drop(function);
    ensure!(sum(K::Module).0 == 1);
    if env.need(12, 0).is_ok() {
        leak(K::Library, 0, (env.driver.load_library(&image)?, line!()))?;
    }
    Ok(())
}

#[apply(case_alone)]
fn graphs_are_found(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let context = env.context()?;
    begin(LedgerLevel::Origins);
    leak(K::Graph, 0, (Graph::new(&context)?, line!()))?;
    let stream = context.stream()?;
    let mode = cuda_mem::interop::CaptureMode::Relaxed;
    let made = (stream.capture(mode, |_| Ok(()))?, line!());
    leak(K::Graph, 0, made)?;
    // An instance holds its graph, and both are listed.
    let graph = Graph::new(&context)?;
    let made = (graph.instantiate(Instantiate::Plain)?, line!());
    leak(K::GraphExec, 0, made)?;
    ensure!(sum(K::Graph).0 == 3);
    drop(Graph::new(&context)?.instantiate(Instantiate::Plain)?);
    ensure!((sum(K::Graph).0, sum(K::GraphExec).0) == (3, 1));
    Ok(())
}

#[apply(case_alone)]
fn imports_are_found(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let pool = MemoryPool::builder(&device)
        .handle_types(handles::KIND)
        .build()?;
    let handle = handles::of_pool(&pool)?;
    begin(LedgerLevel::Origins);
    let made = (handles::import_pool(&device, &handle)?, line!());
    let imported = made.0.clone();
    leak(K::ImportedPool, 0, made)?;
    // One import, and two handles of it to give back.
    let again = (handles::import_pool(&device, &handle)?, line!());
    leak(K::ImportedPool, 0, again)?;

    let buffer = pool.alloc_from(&stream, &[1_u32; 100])?;
    let shared = buffer.export()?;
    // SAFETY: one stream orders everything; the buffer is not freed.
    let import = || unsafe { imported.import::<u32>(&stream, &shared) };
    let line = line!() - 1;
    leak(K::ImportedBuffer, 400, (import()?, line))?;
    drop(import()?);
    ensure!(sum(K::ImportedBuffer) == (1, 400));
    forget(buffer);
    Ok(())
}

#[apply(case_alone)]
fn memory_without_pools_is_found(env: &Environment) -> Result<()> {
    let (context, device) = (env.context()?, env.device()?);
    begin(LedgerLevel::Origins);
    leak(K::PinnedMemory, 400, (context.pinned::<u32>(100)?, line!()))?;
    let boxed = vec![0_u8; 5000].into_boxed_slice();
    let flags = RegisterFlags::default();
    let (Ok(made), line) = (context.register_boxed(boxed, flags), line!()) else {
        bail!("it is not registered");
    };
    leak(K::RegisteredMemory, 5000, (made, line))?;
    let (memory, line) = (PhysicalMemory::builder(&device).build(1)?, line!());
    let bytes = memory.size_bytes() as usize;
    leak(K::PhysicalMemory, bytes, (memory.clone(), line))?;
    let (range, line) = (AddressRange::reserve(env.driver, 1, 0)?, line!());
    leak(K::AddressRange, 0, (range.clone(), line))?;
    leak(K::Mapping, 0, (range.map(0, &memory)?, line!()))?;
    let report = Ledger::report();
    for kind in [K::PhysicalMemory, K::Mapping] {
        ensure!(report.of(kind).all(|group| group.device == Some(device)));
    }
    // What is made of them by one call is of its line.
    begin(LedgerLevel::Origins);
    let builder = MappedMemory::builder(&device).reserve(64 << 20);
    let (mapped, line) = (builder.build(1)?, line!());
    let stream = env.stream()?;
    let Ok(mut buffer) = mapped.into_buffer::<u8>(&stream, 10) else {
        bail!("no buffer");
    };
    let lines_of = |kind: K| -> Vec<u32> {
        let report = Ledger::report();
        let origins = report.of(kind).filter_map(|group| group.origin);
        origins.map(std::panic::Location::line).collect()
    };
    for kind in [K::PhysicalMemory, K::Mapping, K::AddressRange] {
        ensure!(lines_of(kind) == [line], "{kind}: {:?}", lines_of(kind));
    }
    // Memory counts once, and addresses not at all.
    ensure!(Ledger::report().bytes() == bytes as i64);
    buffer.resize_zeroed(bytes + 1)?;
    let grown = line!() - 1;
    ensure!(lines_of(K::PhysicalMemory).contains(&grown));
    ensure!(lines_of(K::Mapping).contains(&grown));
    // A move puts other memory there, and a buffer maps what is not mapped.
    buffer.move_memory_to(Location::Device(device))?;
    let moved = line!() - 1;
    for kind in [K::PhysicalMemory, K::Mapping] {
        ensure!(lines_of(kind) == [moved], "{kind}: {:?}", lines_of(kind));
    }
    let mut memory = buffer.into_memory()?;
    memory.unmap()?;
    let (buffer, line) = (memory.into_buffer::<u8>(&stream, 10), line!());
    ensure!(lines_of(K::Mapping) == [line], "{:?}", lines_of(K::Mapping));
    drop(buffer);
    ensure!(sum(K::PhysicalMemory) == (0, 0) && sum(K::Mapping) == (0, 0));
    ensure!(sum(K::AddressRange) == (0, 0));
    Ok(())
}

#[apply(case_alone)]
fn managed_memory_is_found(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let resource = Resource::new(ManagedResource::new(env.driver));
    begin(LedgerLevel::Origins);
    let made = (ManagedBuffer::<u32>::uninit(&stream, 100)?, line!());
    leak(K::ManagedMemory, 400, made)?;
    let made = (ManagedBuffer::<u8>::zeroed(&stream, 7)?, line!());
    leak(K::ManagedMemory, 7, made)?;
    let made = (ManagedBuffer::from_slice(&stream, &[1_u16; 3])?, line!());
    leak(K::ManagedMemory, 6, made)?;
    let (made, line) = (
        ManagedBuffer::<u8>::uninit_in(&resource, &stream, 50)?,
        line!() - 1,
    );
    // It stays what it is, until it ends.
    let buffer = made.into_buffer();
    find(K::ManagedMemory, 50, file!(), line)?;
    ensure!(sum(K::Buffer) == (0, 0));
    drop(buffer);
    ensure!(sum(K::ManagedMemory) == (3, 413));
    drop(ManagedBuffer::<u8>::uninit(&stream, 0)?);
    drop(ManagedBuffer::<u8>::uninit(&stream, 10)?);
    ensure!(sum(K::ManagedMemory) == (3, 413) && sum(K::Buffer) == (0, 0));
    Ok(())
}

#[apply(case_alone)]
fn memory_that_is_imported_or_striped_is_found(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let memory = PhysicalMemory::builder(&device)
        .handle_types(handles::KIND)
        .build(1)?;
    let bytes = memory.size_bytes();
    let handle = handles::of_memory(&memory)?;
    begin(LedgerLevel::Origins);
    let imported = handles::import_memory(env.driver, &handle, bytes)?;
    let line = line!() - 1;
    leak(K::PhysicalMemory, usize::try_from(bytes)?, (imported, line))?;

    begin(LedgerLevel::Origins);
    let striped = MappedMemory::builder(&device).striped_over([&device; 3]);
    let (striped, line) = (striped.build(3 * bytes)?, line!());
    let parts = striped.parts().count();
    ensure!(parts == 3);
    forget(striped);
    let report = Ledger::report();
    for (kind, count) in [
        (K::PhysicalMemory, 3),
        (K::Mapping, 3),
        (K::AddressRange, 1),
    ] {
        let groups: Vec<_> = report.of(kind).collect();
        ensure!(
            groups.len() == 1
                && groups[0].count == count
                && groups[0].origin.is_some_and(|origin| origin.line() == line),
            "{kind}: {report}"
        );
    }
    let physical = sum(K::PhysicalMemory);
    ensure!(physical == (3, 3 * i64::try_from(bytes)?), "{physical:?}");
    Ok(())
}

#[apply(case_alone)]
fn registered_memory_of_the_program_is_found(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let flags = RegisterFlags::default();
    begin(LedgerLevel::Origins);
    let mut memory = vec![0_u16; 5000];
    let registered = (context.register(&mut memory, flags)?, line!());
    leak(K::RegisteredMemory, 10_000, registered)?;
    // It goes on being registered, so its address must not be used anew.
    forget(memory);
    let mut memory = vec![0_u16; 5000];
    drop(context.register(&mut memory, flags)?);
    let again = context.register(&mut memory, flags)?;
    again.unregister().map_err(cuda_mem::Error::from)?;
    ensure!(sum(K::RegisteredMemory) == (1, 10_000));
    Ok(())
}

/// But windows, which not every machine has.
#[apply(case_alone)]
fn sums_find_every_kind(env: &Environment) -> Result<()> {
    env.need(12, 0)?;
    let device = env.device()?;
    let handle = {
        let memory = PhysicalMemory::builder(&device)
            .handle_types(handles::KIND)
            .build(1)?;
        handles::of_memory(&memory)?
    };
    begin(LedgerLevel::Bytes);
    let context = device.primary_context()?;
    let stream = context.stream()?;
    let pool = MemoryPool::builder(&device)
        .handle_types(handles::KIND)
        .build()?;
    let arena = Arena::builder(&device).build()?;
    let (first, second) = (
        pool.alloc::<u8>(&stream, 1000)?,
        pool.alloc::<u8>(&stream, 24)?,
    );
    let imported = handles::import_pool(&device, &handles::of_pool(&pool)?)?;
    let shared = first.export()?;
    // SAFETY: one stream orders everything; the buffer is not freed.
    let view = unsafe { imported.import::<u8>(&stream, &shared) }?;
    forget((view, imported, first, second));
    forget(arena.alloc::<u8>(&stream, 1024)?);
    let before = sum(K::Module).0;
    let image = Image::ptx(PTX)?;
    forget((context.event()?, context.load(&image)?, arena));
    ensure!(sum(K::Module).0 == before + 1);
    forget(env.driver.load_library(&image)?);
    forget(Graph::new(&context)?);
    forget(Graph::new(&context)?.instantiate(Instantiate::Plain)?);
    forget(context.pinned::<u32>(100)?);
    let boxed = vec![0_u8; 5000].into_boxed_slice();
    forget(context.register_boxed(boxed, RegisterFlags::default()).ok());
    forget(ManagedBuffer::<u8>::uninit(&stream, 33)?);
    let memory = PhysicalMemory::builder(&device).build(1)?;
    let bytes = memory.size_bytes();
    forget(handles::import_memory(env.driver, &handle, bytes)?);
    let range = AddressRange::reserve(env.driver, bytes, 0)?;
    forget((range.map(0, &memory)?, memory, range));
    forget((pool, stream, context));
    let expected = [
        (K::Buffer, 3, 2048),
        (K::ImportedBuffer, 1, 1000),
        (K::Pool, 1, 0),
        (K::ImportedPool, 1, 0),
        (K::Arena, 1, 0),
        (K::Context, 1, 0),
        (K::Stream, 1, 0),
        (K::Event, 1, 0),
        (K::Module, 1, 0),
        (K::Library, 1, 0),
        (K::Graph, 2, 0),
        (K::GraphExec, 1, 0),
        (K::PhysicalMemory, 2, 2 * i64::try_from(bytes)?),
        (K::PinnedMemory, 1, 400),
        (K::RegisteredMemory, 1, 5000),
        (K::ManagedMemory, 1, 33),
    ];
    for (kind, count, bytes) in expected {
        ensure!(sum(kind) == (count, bytes), "{kind}: {:?}", sum(kind));
    }
    for kind in [K::AddressRange, K::Mapping] {
        ensure!(sum(kind).0 == 1, "{kind}: {:?}", sum(kind));
    }
    ensure!(Ledger::report().groups.len() == expected.len() + 2);
    Ok(())
}

//! Driver models of Windows: what they lack is said, and what does the same work is found. Each machine is one of its own in
//! this process.

use anyhow::{Result, ensure};
use cuda_mem::driver::{AllocationType, HandleTypes, Location, Reason, Support};
use cuda_mem::mapped::{ManagedBuffer, MappedMemory, PhysicalMemory};
use cuda_mem::memory::{DriverModel, Fallback, Strategy};
use cuda_mem::placement::{AccessPattern, PlacementKind, PlacementRequest, Topology};
use cuda_mem::{Arena, Driver, ErrorKind, MemoryPool, Resource};
use cuda_mem_tests::environment::Environment;
use cuda_sim::Machine;

const MODEL: &str = "CUDA_SIM_DRIVER_MODEL";

/// A machine that all tests of it share.
fn machine(model: &str, pools: bool) -> Result<Driver> {
    let machine = Machine::new().memory(1 << 30).set(MODEL, model);
    let machine = if pools {
        machine.set("CUDA_SIM_POOLS", 1)
    } else {
        machine
    };
    let simulator = machine.start()?;
    Ok(Driver::load_simulated(&simulator)?)
}

fn kind<T>(outcome: cuda_mem::Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

/// Resources and arenas serve without pools, and the strategy says why there are none.
fn falls_back(driver: Driver, expected: Option<DriverModel>) -> Result<()> {
    let device = driver.device(0)?;
    let support = MemoryPool::builder(&device).support()?;
    ensure!(support == Support::No(Reason::Device), "{support}");
    ensure!(kind(MemoryPool::builder(&device).build()) == Some(ErrorKind::NotSupported));
    let Strategy::Direct { reason, model } = device.strategy()? else {
        anyhow::bail!("it has pools");
    };
    ensure!(reason == Reason::Device, "{reason}");
    ensure!(
        expected.is_none_or(|expected| model == expected),
        "{model:?}"
    );
    let refused = device.default_resource_with(Fallback::Refuse);
    ensure!(kind(refused) == Some(ErrorKind::NotSupported));
    let stream = device.primary_context()?.stream()?;
    let resources = [
        device.default_resource()?,
        Resource::from(Arena::builder(&device).build()?),
    ];
    for resource in resources {
        let mut buffer = resource.alloc::<u32>(&stream, 1000)?;
        buffer.fill(7)?;
        ensure!(buffer.to_vec()? == [7; 1000]);
    }
    Ok(())
}

/// What neither model has: NUMA nodes, managed memory that host and device use at the same time, and what Linux shares
/// memory through.
fn lacks_what_linux_has(driver: Driver) -> Result<()> {
    let device = driver.device(0)?;
    let stream = device.primary_context()?.stream()?;
    let own = device.capabilities()?;
    ensure!(own.virtual_memory && own.managed_memory && !own.concurrent_managed_access);
    ensure!(!own.host_numa_virtual_memory && !own.host_numa_memory_pools);
    ensure!(!own.posix_fd && !own.fabric && !own.dma_buf);
    ensure!(!own.gpu_direct_rdma && !own.gpu_direct_virtual_memory);
    let of_linux = HandleTypes::POSIX_FILE_DESCRIPTOR | HandleTypes::FABRIC;
    ensure!(!own.pool_handle_types.intersects(of_linux));
    let descriptor = HandleTypes::POSIX_FILE_DESCRIPTOR;
    let exported = PhysicalMemory::builder(&device)
        .handle_types(descriptor)
        .build(1);
    ensure!(exported.is_err(), "it has no descriptors");
    let node = Location::HostNuma(0);
    let memory = PhysicalMemory::builder_at(driver, node).build(1);
    ensure!(kind(memory) == Some(ErrorKind::NotSupported));
    for (place, what) in [
        (node, AllocationType::Pinned),
        (Location::Anywhere, AllocationType::Managed),
    ] {
        let pool = MemoryPool::builder_at(driver, place, what).build();
        ensure!(kind(pool) == Some(ErrorKind::NotSupported), "{place}");
    }
    let managed = ManagedBuffer::<u8>::uninit(&stream, 100)?;
    ensure!(managed.host().is_err(), "the host may not touch it");
    drop(managed);
    let mapped = MappedMemory::builder(&device).build(1)?;
    drop(mapped.into_buffer::<u8>(&stream, 100)?);
    let topology = Topology::gather(&[device])?;
    ensure!(topology.devices[0].host_numa_node.is_none());
    let shared = PlacementRequest::bytes(1 << 20).access(AccessPattern::Shared);
    let placed = shared.place(&topology)?.kind;
    let is_pinned = matches!(placed, PlacementKind::PinnedHost { .. });
    ensure!(is_pinned, "{placed:?}");
    Ok(())
}

#[apply(case)]
fn tcc_has_no_pools(_: &Environment) -> Result<()> {
    let driver = machine("tcc", false)?;
    falls_back(driver, Some(DriverModel::Tcc))?;
    lacks_what_linux_has(driver)?;
    // Whatever else is said of the machine, and that is not said in silence.
    let refused = machine("tcc", true).err().map(|error| error.to_string());
    let text = refused.unwrap_or_default();
    ensure!(text.contains("CUDA_SIM_POOLS=1"), "{text:?}");
    Ok(())
}

#[apply(case)]
fn an_older_driver_for_wddm_has_no_pools(_: &Environment) -> Result<()> {
    let driver = machine("wddm", false)?;
    // What is no TCC, a program for Linux cannot tell from Linux.
    falls_back(driver, cfg!(windows).then_some(DriverModel::Wddm))?;
    lacks_what_linux_has(driver)
}

#[apply(case)]
fn a_newer_driver_for_wddm_has_pools(_: &Environment) -> Result<()> {
    let driver = machine("wddm", true)?;
    let device = driver.device(0)?;
    ensure!(device.strategy()? == Strategy::Pool);
    let pool = MemoryPool::builder(&device).build()?;
    let stream = device.primary_context()?.stream()?;
    ensure!(pool.alloc_from(&stream, &[1_u8, 2, 3])?.to_vec()? == [1, 2, 3]);
    lacks_what_linux_has(driver)
}

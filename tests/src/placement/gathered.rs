//! Gathering, and taking the places that are found.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::driver::{Capability, Reason, Support};
use cuda_mem::memory::PinnedResource;
use cuda_mem::placement::{
    AccessPattern, Lifetime, Placement, PlacementKind, PlacementRequest, Topology,
};
use cuda_mem::{MemoryResource as _, Resource};

use crate::environment::Environment;

fn machine(env: &Environment) -> Result<Topology> {
    Ok(Topology::gather(&env.driver.devices()?)?)
}

/// Where a request for the device under test goes.
fn place(env: &Environment, request: PlacementRequest) -> Result<Placement> {
    let home = env.device()?.ordinal() as usize;
    Ok(request.home(home).place(&machine(env)?)?)
}

#[apply(case)]
fn records_say_what_the_devices_say(env: &Environment) -> Result<()> {
    let devices = env.driver.devices()?;
    let machine = machine(env)?;
    ensure!(machine.devices.len() == devices.len());
    ensure!(machine.host_page.is_power_of_two() && machine.host_page >= 4096);
    for (device, record) in devices.iter().zip(&machine.devices) {
        let can = device.capabilities()?;
        ensure!(record.capabilities == can, "{device:?}: {can:?}");
        for &capability in Capability::ALL {
            // Of the one exception the attribute says nothing before CUDA 12.0.
            let told = device.attribute(capability.attribute())?;
            let expected = match (capability, told) {
                (Capability::LegacyIpc, None) => record.capabilities.unified_addressing,
                (_, told) => told.unwrap_or(0) != 0,
            };
            ensure!(
                record.has(capability) == expected,
                "{device:?}: {capability:?}"
            );
            let support = device.support(capability)?;
            ensure!(
                can.has(capability) == support.is_yes(),
                "{device:?}: {capability:?} and {support}"
            );
            let old = matches!(support, Support::No(Reason::DriverTooOld { .. }));
            let inferred = capability == Capability::LegacyIpc;
            ensure!(
                old == (told.is_none() && !inferred),
                "{capability:?}: {support}"
            );
        }
        ensure!(record.total == device.total_memory()? && record.free.is_none());
        let mapped = [
            (
                record.capabilities.virtual_memory,
                record.granularity,
                record.recommended_granularity,
            ),
            (
                record.capabilities.host_numa_virtual_memory
                    || record.capabilities.host_virtual_memory,
                record.host_granularity,
                record.recommended_host_granularity,
            ),
        ];
        for (is_there, least, recommended) in mapped {
            if is_there {
                ensure!(least.is_power_of_two() && recommended.is_power_of_two());
                ensure!(recommended.is_multiple_of(least), "{least}, {recommended}");
            } else {
                ensure!((least, recommended) == (0, 0), "{least}, {recommended}");
            }
        }
    }
    Ok(())
}

#[apply(case)]
fn edges_are_those_of_the_driver(env: &Environment) -> Result<()> {
    let devices = env.driver.devices()?;
    let machine = machine(env)?;
    for (from, device) in devices.iter().enumerate() {
        ensure!(machine.reaches(from, from) && !machine.devices[from].reaches.contains(&from));
        for (to, other) in devices.iter().enumerate().filter(|(to, _)| *to != from) {
            let reaches = device.can_access_peer(other)?;
            ensure!(machine.reaches(from, to) == reaches, "{from} and {to}");
        }
    }
    // Devices are named by their places in what was gathered, and not by their ordinals.
    if let [.., last] = devices[..] {
        let alone = Topology::gather(&[last])?;
        ensure!(alone.devices.len() == 1 && alone.devices[0].reaches.is_empty());
        let mut others = machine.devices.iter().take(devices.len() - 1);
        let concurrent = others.all(|other| other.capabilities.concurrent_managed_access);
        ensure!(alone.others_concurrent_managed_access == concurrent);
        ensure!(machine.others_concurrent_managed_access, "there are none");
        PlacementRequest::bytes(1).home(0).place(&alone)?;
    }
    Ok(())
}

#[apply(case)]
fn every_pattern_has_a_place(env: &Environment) -> Result<()> {
    for access in [
        AccessPattern::GpuOnly,
        AccessPattern::GpuMostly,
        AccessPattern::CpuWritesGpuReads,
        AccessPattern::GpuWritesCpuReads,
        AccessPattern::Shared,
        AccessPattern::SharedInTurns,
        AccessPattern::Streaming,
    ] {
        for lifetime in [Lifetime::Short, Lifetime::Long] {
            for bytes in [1, 65_535, 65_536, (2 << 20) - 1, 2 << 20, (7 << 20) + 17] {
                let request = PlacementRequest::bytes(bytes).access(access);
                let placement = place(env, request.lifetime(lifetime))?;
                let home = env.device()?.ordinal() as usize;
                ensure!(placement.size >= bytes, "{placement}");
                ensure!(placement.devices().eq([home]), "{placement}");
                let is_gpu = matches!(access, AccessPattern::GpuOnly | AccessPattern::GpuMostly);
                ensure!(placement.is_host_accessible() != is_gpu, "{placement}");
            }
        }
    }
    Ok(())
}

#[apply(case)]
fn a_place_in_a_pool_can_be_taken(env: &Environment) -> Result<()> {
    env.need(11, 2)?;
    let request = PlacementRequest::bytes((5 << 20) + 1).lifetime(Lifetime::Short);
    let placement = place(env, request)?;
    ensure!(placement.kind == PlacementKind::Pool, "{placement}");
    let bytes = usize::try_from(placement.size)?;
    let buffer = env.pool()?.alloc::<u8>(&env.stream()?, bytes)?;
    ensure!(buffer.len() == bytes);
    Ok(())
}

#[apply(case)]
fn a_place_that_is_pinned_can_be_taken(env: &Environment) -> Result<()> {
    let request = PlacementRequest::bytes(100).access(AccessPattern::GpuWritesCpuReads);
    let placement = place(env, request)?;
    let pinned = PlacementKind::PinnedHost {
        write_combining: false,
    };
    ensure!(placement.kind == pinned, "{placement}");
    let resource = Resource::new(PinnedResource::new(env.driver));
    let bytes = usize::try_from(placement.size)?;
    let buffer = resource.alloc::<u8>(&env.stream()?, bytes)?;
    ensure!(buffer.len() == bytes);
    let properties = resource.memory_properties();
    ensure!(
        properties.host == placement.is_host_accessible(),
        "{placement}: {properties:?}"
    );
    ensure!(
        properties.reaches(env.device()?),
        "{placement}: {properties:?}"
    );
    Ok(())
}

#[apply(case_alone)]
fn gathering_makes_no_context(env: &Environment) -> Result<()> {
    let machine = machine(env)?;
    PlacementRequest::bytes(1).place(&machine)?;
    for device in env.driver.devices()? {
        let is_active = device
            .has_active_context()
            .context("asking for the context")?;
        ensure!(!is_active, "{device:?} has a context now");
    }
    Ok(())
}

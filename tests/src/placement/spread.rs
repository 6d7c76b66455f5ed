//! Memory that lies on several devices.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::driver::Location;
use cuda_mem::mapped::PhysicalMemory;
use cuda_mem::placement::{PlacedBuffer, PlacementKind, PlacementRequest, Topology};

use super::kinds::Way;
use crate::environment::Environment;

/// Where the parts of mapped memory lie, in address order.
pub(super) fn places(placed: PlacedBuffer<u8>) -> Result<Vec<Location>> {
    let buffer = placed.into_growable().ok().context("mapped")?;
    let memory = buffer.into_memory()?;
    Ok(memory.parts().map(PhysicalMemory::location).collect())
}

/// What no single device has room for lies on all that are asked for, each of which uses all of it.
#[apply(case_of_two)]
fn memory_is_spread_over_all_devices(env: &Environment) -> Result<()> {
    const LEN: usize = 9 << 20;
    let devices = env.driver.devices()?;
    let mut machine = Topology::gather(&devices)?;
    for device in &mut machine.devices {
        device.free = Some(6 << 20);
    }
    for home in 0..devices.len() {
        let peers: Vec<usize> = (0..devices.len()).filter(|at| *at != home).collect();
        let request = PlacementRequest::bytes(LEN as u64).zeroed();
        let way = Way::new(env, &machine, &request.home(home).peers(peers))?;
        let what = way.placement.to_string();
        ensure!(
            way.placement.kind == PlacementKind::VmmStriped,
            "{what}: striped memory was meant"
        );
        let stripes = way.placement.stripes.clone();
        ensure!(stripes.len() == devices.len(), "{what}: {stripes:?}");
        let mut placed = way.allocate(LEN)?;
        for (at, device) in devices.iter().enumerate() {
            let there = device.primary_context()?.stream()?;
            let number = 10 + at as u8;
            placed.as_mut_slice().on(&there)?.fill(number)?;
            for reader in &devices {
                let stream = reader.primary_context()?.stream()?;
                let mut seen = vec![0; LEN];
                placed.read_on(&stream)?.copy_to(&mut seen)?;
                ensure!(seen == vec![number; LEN], "{what}: {reader:?} reads");
            }
        }
        let places = places(placed)?;
        let expected: Vec<_> = stripes
            .iter()
            .map(|at| Location::Device(devices[*at]))
            .collect();
        ensure!(places == expected, "{what}: {places:?}");
    }
    Ok(())
}

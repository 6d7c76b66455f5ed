//! Memory that is given back, or becomes a buffer of its own type.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::placement::{PlacedBuffer, PlacementKind as K, Topology};
use cuda_mem::{Access, Device, ErrorKind};

use super::allocating::alone;
use super::kinds::{self, Way};
use crate::environment::Environment;

#[apply(case)]
fn every_kind_is_freed(env: &Environment) -> Result<()> {
    let machine = alone(env)?;
    for (request, machine, _) in kinds::all(&machine, 1000) {
        let way = Way::new(env, &machine, &request)?;
        let mut placed = way.allocate(1000)?;
        placed.as_mut_slice().fill(7)?;
        placed.free()?;
        way.stream.synchronize()?;
    }
    Ok(())
}

#[apply(case)]
fn each_kind_becomes_its_own_buffer(env: &Environment) -> Result<()> {
    let machine = alone(env)?;
    for (request, machine, kind) in kinds::all(&machine, 1000) {
        let way = Way::new(env, &machine, &request)?;
        let is_mapped = matches!(kind, K::Vmm | K::HostVmm | K::HostNuma { pool: false, .. });
        let placed = match way.allocate(1000)?.into_managed() {
            Ok(buffer) => {
                ensure!(kind == K::Managed && buffer.host()? == [0; 1000]);
                buffer.free()?;
                continue;
            }
            Err(placed) => placed,
        };
        match placed.into_growable() {
            Ok(buffer) => {
                ensure!(is_mapped && buffer.to_vec()? == [0; 1000], "{kind:?}");
                buffer.free()?;
            }
            Err(placed) => {
                ensure!(!is_mapped && kind != K::Managed, "{kind:?}");
                ensure!(placed.to_vec()? == [0; 1000], "{kind:?}");
            }
        }
    }
    Ok(())
}

#[apply(case)]
fn placements_share_pools(env: &Environment) -> Result<()> {
    let machine = alone(env)?;
    for (request, machine, kind) in kinds::all(&machine, 1000) {
        let way = Way::new(env, &machine, &request)?;
        let pool = |placed: &PlacedBuffer<u8>| placed.pool().map(|pool| pool.as_raw());
        let (one, two) = (way.allocate(1000)?, way.allocate(1000)?);
        let shared = pool(&one);
        ensure!(shared == pool(&two), "{kind:?}");
        let is_of_host_pool = matches!(kind, K::HostPool | K::HostNuma { pool: true, .. });
        ensure!(shared.is_some() == is_of_host_pool, "{kind:?}");
        drop((one, two));
        way.stream.synchronize()?;
        ensure!(pool(&way.allocate(1000)?) == shared, "{kind:?}: it stays");
    }
    Ok(())
}

/// A holder of one buffer tries to take the access to a shared pool from a device that uses it. The next placement
/// still keeps what it promises to that device.
fn ensure_access_stays(way: &Way, user: &Device) -> Result<()> {
    let what = way.placement.to_string();
    let mut held = way.allocate(1000)?;
    let pool = held.pool().context("no pool is shared")?.clone();
    let there = user.primary_context()?.stream()?;
    for access in [Access::None, Access::ReadWrite] {
        let changed = pool.set_access([(*user, access)]);
        let mut next = way.allocate(1000)?;
        ensure!(next.pool() == Some(&pool), "{what}: it is shared");
        for placed in [&mut held, &mut next] {
            placed.as_mut_slice().on(&there)?.fill(3)?;
            ensure!(placed.to_vec()? == [3; 1000], "{what}");
        }
        let error = changed.err().with_context(|| what.clone())?;
        ensure!(
            error.kind() == ErrorKind::NotPermitted && error.code().is_none(),
            "{what}: {error}"
        );
        ensure!(error.to_string().contains("placements"), "{what}: {error}");
    }
    ensure!(pool.access(user)? == Access::ReadWrite, "{what}");
    // What changes nothing is no change.
    pool.set_access([])?;
    Ok(())
}

#[apply(case)]
fn a_holder_does_not_change_the_access_of_a_shared_pool(env: &Environment) -> Result<()> {
    let machine = alone(env)?;
    for (request, machine, kind) in kinds::all(&machine, 1000) {
        if matches!(kind, K::HostPool | K::HostNuma { pool: true, .. }) {
            let way = Way::new(env, &machine, &request)?;
            ensure_access_stays(&way, &env.device()?)?;
        }
    }
    Ok(())
}

#[apply(case_of_two)]
fn a_holder_does_not_take_the_access_of_a_peer(env: &Environment) -> Result<()> {
    let devices = env.driver.devices()?[..2].to_vec();
    let machine = Topology::gather(&devices)?;
    for (request, machine, kind) in kinds::all(&machine, 1000) {
        if matches!(kind, K::Pool | K::HostPool | K::HostNuma { pool: true, .. }) {
            let request = request.peers([1]);
            let way = Way::new(env, &machine, &request)?;
            ensure_access_stays(&way, &devices[1])?;
        }
    }
    Ok(())
}

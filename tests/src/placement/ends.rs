//! Memory that is given back, or becomes a buffer of its own type.

use anyhow::{Result, ensure};
use cuda_mem::{Placed, PlacementKind as K};

use super::allocating::alone;
use super::kinds::{self, Way};
use crate::lab::Lab;

pub(super) fn every_kind_is_freed(lab: &Lab) -> Result<()> {
    let (devices, machine) = alone(lab)?;
    for (request, machine, _) in kinds::all(&machine, 1000) {
        let way = Way::new(lab, &devices, &machine, &request)?;
        let mut placed = way.allocate(1000)?;
        placed.fill(7)?;
        placed.free()?;
        way.stream.synchronize()?;
    }
    Ok(())
}

pub(super) fn each_kind_becomes_its_own_buffer(lab: &Lab) -> Result<()> {
    let (devices, machine) = alone(lab)?;
    for (request, machine, kind) in kinds::all(&machine, 1000) {
        let way = Way::new(lab, &devices, &machine, &request)?;
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

pub(super) fn placements_share_pools(lab: &Lab) -> Result<()> {
    let (devices, machine) = alone(lab)?;
    for (request, machine, kind) in kinds::all(&machine, 1000) {
        let way = Way::new(lab, &devices, &machine, &request)?;
        let pool = |placed: &Placed<u8>| placed.pool().map(|pool| pool.as_raw());
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

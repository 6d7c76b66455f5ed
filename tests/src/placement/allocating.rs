//! What was decided is carried out.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::{
    AccessPattern, ErrorKind, Export, Lifetime, Machine, Placed, PlacementKind, PlacementRequest,
};

use crate::lab::Lab;

const PATTERNS: [AccessPattern; 6] = [
    AccessPattern::GpuOnly,
    AccessPattern::GpuMostly,
    AccessPattern::CpuWritesGpuReads,
    AccessPattern::GpuWritesCpuReads,
    AccessPattern::Shared,
    AccessPattern::Streaming,
];

pub(super) fn every_placement_is_allocated(lab: &Lab) -> Result<()> {
    let device = lab.device()?;
    let (machine, stream) = (Machine::gather(&[device])?, lab.stream()?);
    let mut kinds = Vec::new();
    for access in PATTERNS {
        for lifetime in [Lifetime::Short, Lifetime::Long] {
            for len in [1, 1000, 40 << 10, 3 << 20] {
                let request = PlacementRequest::bytes(len as u64)
                    .access(access)
                    .lifetime(lifetime)
                    .zeroed();
                let placement = request.place(&machine)?;
                let what = placement.to_string();
                let mut placed = placement
                    .allocate::<u8>(&[device], &stream, len)
                    .with_context(|| what.clone())?;
                ensure!(placed.to_vec()? == vec![0; len], "{what}: not zero");
                placed.copy_from(&vec![7; len])?;
                ensure!(placed.to_vec()? == vec![7; len], "{what}");
                if !kinds.contains(&placement.kind) {
                    kinds.push(placement.kind);
                }
            }
        }
    }
    println!("{kinds:?}");
    ensure!(kinds.len() >= 3, "{kinds:?}");
    Ok(())
}

pub(super) fn memory_that_is_to_grow_grows(lab: &Lab) -> Result<()> {
    let device = lab.device()?;
    let (machine, stream) = (Machine::gather(&[device])?, lab.stream()?);
    let placement = PlacementRequest::bytes(1000).growable().place(&machine)?;
    ensure!(placement.kind == PlacementKind::Vmm, "{placement}");
    let Placed::Growable(mut buffer) = placement.allocate::<u8>(&[device], &stream, 1000)? else {
        bail!("{placement}: it cannot grow");
    };
    let address = buffer.as_raw();
    buffer.resize_zeroed(20 << 20)?;
    ensure!(buffer.as_raw() == address && buffer.to_vec()? == vec![0; 20 << 20]);
    Ok(())
}

pub(super) fn what_cannot_be_carried_out_is_told(lab: &Lab) -> Result<()> {
    let device = lab.device()?;
    let (machine, stream) = (Machine::gather(&[device])?, lab.stream()?);
    let placement = PlacementRequest::bytes(1000).place(&machine)?;
    for (devices, len) in [(&[][..], 10), (&[device][..], usize::MAX)] {
        let error = placement.allocate::<u8>(devices, &stream, len);
        ensure!(error.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    }
    let shared = PlacementRequest::bytes(5 << 20).export(Export::PosixFd);
    let placement = shared.lifetime(Lifetime::Long).place(&machine)?;
    let Placed::Growable(buffer) = placement.allocate::<u8>(&[device], &stream, 10)? else {
        bail!("{placement}");
    };
    let memory = buffer.into_memory().map_err(|failed| failed.error)?;
    for part in memory.parts() {
        part.export_fd()?;
    }
    Ok(())
}

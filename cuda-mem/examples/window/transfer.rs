//! The ways to move bytes from the host to device memory and back, behind one interface.

use std::hint::black_box;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::cpu_mapping::{CpuMapping, CpuMappingKind};
use cuda_mem::mapped::{InFlightBuffer, PinnedBuffer};
use cuda_mem::{DeviceBuffer, Stream};

use crate::bench::Bench;
use crate::cold::{self, Region};

/// A way to move bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Through a CPU mapping.
    CpuMapping(CpuMappingKind),
    /// The driver copies ordinary memory.
    Pageable,
    /// The driver copies pinned memory.
    Pinned,
}

impl Way {
    /// All ways available here, mappings first.
    pub(crate) fn all(bench: &Bench) -> Vec<Self> {
        let windows = bench.had().map(Self::CpuMapping);
        windows.chain([Self::Pageable, Self::Pinned]).collect()
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::CpuMapping(kind) => kind.to_string(),
            Self::Pageable => "memcpy pageable".to_owned(),
            Self::Pinned => "memcpy pinned".to_owned(),
        }
    }

    pub(crate) fn is_direct(self) -> bool {
        matches!(self, Self::CpuMapping(kind) if kind.is_direct())
    }
}

/// Explains the ways wherever they are compared.
pub(crate) const METHOD: &str = "one thread of the host. A write through a window is over when the processor holds nothing \
    back: it may be on the bus still. `host-mapped` memory is the host's own, and it is the device that goes over the bus \
    for it. `copies` is the window that copies through pinned memory of its own; memcpy is the driver's copy between memory \
    of the device and a slice of the host, ordinary (pageable) or pinned and lent to the stream, and each is waited for";

/// Transfers all bytes of a buffer.
pub(crate) trait Transfer {
    fn write(&mut self) -> Result<()>;
    fn read(&mut self) -> Result<()>;
    /// Evicts from the caches what the host reads or writes.
    fn chill(&mut self);
}

/// Creates a transfer, checks that it moves the bytes correctly in both directions, and passes it on.
pub(crate) fn with<R>(
    bench: &Bench,
    way: Way,
    bytes: usize,
    work: impl FnOnce(&mut dyn Transfer) -> Result<R>,
) -> Result<R> {
    let done = match way {
        Way::CpuMapping(kind) => through_window(bench, kind, bytes, work),
        Way::Pageable => pageable(bench, bytes, work),
        Way::Pinned => pinned(bench, bytes, work),
    };
    done.with_context(|| format!("{}, {bytes} bytes", way.name()))
}

/// Every byte depends on its position.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at ^ (at >> 8) ^ 0x5a) as u8).collect()
}

/// Checks that `own`, already written, reads back unchanged.
fn comes_back(own: &mut [u8], read: impl FnOnce(&mut [u8]) -> cuda_mem::Result<()>) -> Result<()> {
    let sent = own.to_vec();
    own.fill(0);
    read(own)?;
    ensure!(own == sent, "other bytes came back than were sent");
    Ok(())
}

/// The region of a slice that the caller owns.
fn region(own: &[u8]) -> Region {
    // SAFETY: both are kept together, and the slice does not move.
    unsafe { Region::new(own.as_ptr(), own.len()) }
}

struct ThroughWindow<'a> {
    window: CpuMapping<'a, u8>,
    own: Vec<u8>,
    regions: Vec<Region>,
}

fn through_window<R>(
    bench: &Bench,
    kind: CpuMappingKind,
    bytes: usize,
    work: impl FnOnce(&mut dyn Transfer) -> Result<R>,
) -> Result<R> {
    let mut buffer = bench.memory::<u8>(kind, bytes)?;
    let mut window = bench.window(&mut buffer, bytes, kind)?;
    let mut own = pattern(bytes);
    window.write(0, &own)?;
    window.flush()?;
    comes_back(&mut own, |own| window.read(0, own))?;
    let mut regions = vec![region(&own)];
    if kind == CpuMappingKind::HostMapped && bench.unified {
        let at = std::ptr::with_exposed_provenance(window.address() as usize);
        // SAFETY: this is host memory that the mapping keeps alive, and the device uses the same address.
        regions.push(unsafe { Region::new(at, bytes) });
    }
    work(&mut ThroughWindow {
        window,
        own,
        regions,
    })
}

impl Transfer for ThroughWindow<'_> {
    fn write(&mut self) -> Result<()> {
        Ok(self.window.write(0, black_box(&self.own))?)
    }

    fn read(&mut self) -> Result<()> {
        Ok(self.window.read(0, black_box(&mut self.own))?)
    }

    fn chill(&mut self) {
        cold::evict(&self.regions);
    }
}

struct Pageable {
    buffer: DeviceBuffer<u8>,
    own: Vec<u8>,
}

fn pageable<R>(
    bench: &Bench,
    bytes: usize,
    work: impl FnOnce(&mut dyn Transfer) -> Result<R>,
) -> Result<R> {
    let mut buffer = bench.device_memory(bytes)?;
    let mut own = pattern(bytes);
    buffer.copy_from(&own)?;
    comes_back(&mut own, |own| buffer.copy_to(own))?;
    work(&mut Pageable { buffer, own })
}

impl Transfer for Pageable {
    fn write(&mut self) -> Result<()> {
        Ok(self.buffer.copy_from(&self.own)?)
    }

    fn read(&mut self) -> Result<()> {
        Ok(self.buffer.copy_to(&mut self.own)?)
    }

    fn chill(&mut self) {
        cold::evict(&[region(&self.own)]);
    }
}

struct Pinned {
    buffer: DeviceBuffer<u8>,
    loan: InFlightBuffer<PinnedBuffer<u8>>,
    stream: Stream,
    region: Region,
}

fn pinned<R>(
    bench: &Bench,
    bytes: usize,
    work: impl FnOnce(&mut dyn Transfer) -> Result<R>,
) -> Result<R> {
    let stream = bench.stream.clone();
    let mut buffer = bench.device_memory(bytes)?;
    let mut own = bench.context.pinned::<u8>(bytes)?;
    own.copy_from_slice(&pattern(bytes));
    buffer.copy_from(&own)?;
    comes_back(&mut own, |own| buffer.copy_to(own))?;
    let region = region(&own);
    let loan = own.lend(&stream).map_err(|failed| failed.error)?;
    work(&mut Pinned {
        buffer,
        loan,
        stream,
        region,
    })
}

impl Transfer for Pinned {
    fn write(&mut self) -> Result<()> {
        self.loan.copy_to(&mut self.buffer)?;
        Ok(self.stream.synchronize()?)
    }

    fn read(&mut self) -> Result<()> {
        self.loan.copy_from(&self.buffer)?;
        Ok(self.stream.synchronize()?)
    }

    fn chill(&mut self) {
        cold::evict(&[self.region]);
    }
}

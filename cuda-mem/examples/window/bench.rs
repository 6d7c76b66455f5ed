//! The machine, and the kinds of CPU mapping that it supports.

use anyhow::{Result, ensure};
use bytemuck::Pod;
use cuda_mem::cpu_mapping::{CpuMapping, CpuMappingKind, CpuMappingOptions, MappingKind};
use cuda_mem::{Context, Device, DeviceBuffer, Stream};
use cuda_mem_console::{self as console, Backend};

use crate::Args;
use crate::timing::Plan;

/// A device page, in bytes.
const PAGE: usize = 64 << 10;

/// Everything that the measurements need.
pub(crate) struct Bench {
    pub(crate) backend: Backend,
    pub(crate) device: Device,
    pub(crate) context: Context,
    pub(crate) stream: Stream,
    /// Whether pinned memory has the same address on the host and the devices.
    pub(crate) unified: bool,
    pub(crate) plan: Plan,
    pub(crate) quick: bool,
    /// Of the ping-pong.
    pub(crate) rounds: u32,
    /// The requested kinds, the best first.
    pub(crate) kinds: Vec<Kind>,
    /// The default choice of a program without preferences.
    pub(crate) usual: String,
    /// The same for device memory.
    pub(crate) usual_on_device: String,
}

/// A kind of mapping, and whether it is available here.
pub(crate) struct Kind {
    pub(crate) kind: CpuMappingKind,
    pub(crate) mapping: Option<MappingKind>,
    /// Why it is unavailable.
    pub(crate) missing: Option<String>,
}

impl Bench {
    pub(crate) fn open(args: &Args) -> Result<Self> {
        let backend = console::open()?;
        let device = args.device.of(&backend)?;
        let context = device.primary_context()?;
        let stream = context.stream()?;
        let wanted = |kind: &CpuMappingKind| args.kinds.is_empty() || args.kinds.contains(kind);
        let kinds = CpuMappingKind::ALL.into_iter().filter(wanted);
        let kinds = kinds.map(|kind| Kind::find(&stream, kind));
        let kinds = kinds.collect::<Result<Vec<_>>>()?;
        let missing = kinds
            .iter()
            .filter_map(|kind| Some((kind.kind, kind.missing.as_ref()?)));
        let missing: Vec<String> = missing
            .map(|(kind, why)| format!("{kind}: {why}"))
            .collect();
        ensure!(
            missing.len() < kinds.len(),
            "no CPU mapping of the kinds that are asked for: {}",
            missing.join("; ")
        );
        let any = CpuMappingOptions::new();
        Ok(Self {
            unified: device.capabilities()?.unified_addressing,
            usual: usual(&stream, &any)?,
            usual_on_device: usual(&stream, &any.refuse([CpuMappingKind::HostMapped]))?,
            plan: Plan::new(args.quick, args.count),
            quick: args.quick,
            rounds: args.count.unwrap_or(if args.quick { 20 } else { 5000 }),
            backend,
            device,
            context,
            stream,
            kinds,
        })
    }

    /// The available kinds.
    pub(crate) fn had(&self) -> impl Iterator<Item = CpuMappingKind> + '_ {
        let had = self.kinds.iter().filter(|kind| kind.missing.is_none());
        had.map(|kind| kind.kind)
    }

    /// Memory for a mapping of this kind, with at least `len` elements.
    pub(crate) fn memory<T: Pod>(
        &self,
        kind: CpuMappingKind,
        len: usize,
    ) -> Result<DeviceBuffer<T>> {
        memory(&self.stream, kind, len)
    }

    /// Device memory of exactly `bytes` bytes.
    pub(crate) fn device_memory(&self, bytes: usize) -> Result<DeviceBuffer<u8>> {
        let of_device = CpuMappingOptions::new().refuse([CpuMappingKind::HostMapped]);
        Ok(of_device.alloc(&self.stream, bytes)?)
    }

    /// A mapping of exactly this kind, over the first elements, that never falls back to driver copies, whatever the
    /// size.
    pub(crate) fn window<'a, T: Pod>(
        &self,
        buffer: &'a mut DeviceBuffer<T>,
        len: usize,
        kind: CpuMappingKind,
    ) -> cuda_mem::Result<CpuMapping<'a, T>> {
        let options = CpuMappingOptions::new().only([kind]).range(0..len);
        options
            .write_limit(usize::MAX)
            .read_limit(usize::MAX)
            .open(buffer)
    }
}

impl Kind {
    fn find(stream: &Stream, kind: CpuMappingKind) -> Result<Self> {
        let mut buffer = memory::<u8>(stream, kind, PAGE)?;
        // If it is unavailable, another kind opens and knows why.
        let window = CpuMappingOptions::new().prefer([kind]).open(&mut buffer)?;
        let mut left_out = window.choice().left_out().iter();
        let missing = left_out.find(|(other, _)| *other == kind);
        Ok(Self {
            kind,
            mapping: window.mapping().filter(|_| missing.is_none()),
            missing: missing.map(|(_, reason)| reason.to_string()),
        })
    }
}

/// Whole device pages: gdrcopy pins nothing smaller, and dma-bufs map whole host pages.
fn memory<T: Pod>(stream: &Stream, kind: CpuMappingKind, len: usize) -> Result<DeviceBuffer<T>> {
    let wish = match kind {
        CpuMappingKind::HostMapped => CpuMappingOptions::new().only([kind]),
        // Device memory, even if it cannot be mapped.
        _ => CpuMappingOptions::new().refuse([CpuMappingKind::HostMapped]),
    };
    let whole = len.next_multiple_of(PAGE / size_of::<T>());
    Ok(wish.alloc(stream, whole)?)
}

fn usual(stream: &Stream, options: &CpuMappingOptions) -> Result<String> {
    let mut buffer = options.alloc::<u8>(stream, PAGE)?;
    let window = options.open(&mut buffer)?;
    Ok(window.choice().to_string())
}

//! The machine, and the kinds of windows that it has.

use anyhow::{Result, ensure};
use bytemuck::Pod;
use cuda_mem::cpu_mapping::{CpuMapping, CpuMappingKind, CpuMappingOptions, MappingKind};
use cuda_mem::driver::Support;
use cuda_mem::{Context, Device, DeviceBuffer, Stream};
use cuda_mem_console::{self as console, Backend};

use crate::Args;
use crate::timing::Plan;

/// Of the device, in bytes.
const PAGE: usize = 64 << 10;

/// Everything that measurements need.
pub(crate) struct Bench {
    pub(crate) backend: Backend,
    pub(crate) device: Device,
    pub(crate) context: Context,
    pub(crate) stream: Stream,
    /// The host and the devices have the same addresses for pinned memory.
    pub(crate) unified: bool,
    pub(crate) plan: Plan,
    pub(crate) quick: bool,
    /// Of the ping-pong.
    pub(crate) rounds: u32,
    /// Those that are asked for, the best first.
    pub(crate) kinds: Vec<Kind>,
    /// What a program that asks for nothing in particular gets.
    pub(crate) usual: String,
    /// The same where the memory has to be the device's.
    pub(crate) usual_on_device: String,
}

/// A kind of window, and whether it can be had here.
pub(crate) struct Kind {
    pub(crate) kind: CpuMappingKind,
    pub(crate) mapping: Option<MappingKind>,
    /// Why it cannot be had.
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
            "no window of the kinds that are asked for: {}",
            missing.join("; ")
        );
        let any = CpuMappingOptions::new();
        Ok(Self {
            unified: device.capabilities()?.unified_addressing == Support::Yes,
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

    /// Those that can be had.
    pub(crate) fn had(&self) -> impl Iterator<Item = CpuMappingKind> + '_ {
        let had = self.kinds.iter().filter(|kind| kind.missing.is_none());
        had.map(|kind| kind.kind)
    }

    /// Memory for a window of this kind: so many elements and more.
    pub(crate) fn memory<T: Pod>(
        &self,
        kind: CpuMappingKind,
        len: usize,
    ) -> Result<DeviceBuffer<T>> {
        memory(&self.stream, kind, len)
    }

    /// Memory of the device, of just so many bytes.
    pub(crate) fn device_memory(&self, bytes: usize) -> Result<DeviceBuffer<u8>> {
        let of_device = CpuMappingOptions::new().refuse([CpuMappingKind::HostMapped]);
        Ok(of_device.alloc(&self.stream, bytes)?)
    }

    /// A window of this kind and no other on the first elements, which leaves nothing to the driver, however much it is.
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
        // Another one opens in its place, and knows why.
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

/// Whole pages of the device: gdrcopy pins nothing less, and dma-bufs show whole pages of the host.
fn memory<T: Pod>(stream: &Stream, kind: CpuMappingKind, len: usize) -> Result<DeviceBuffer<T>> {
    let wish = match kind {
        CpuMappingKind::HostMapped => CpuMappingOptions::new().only([kind]),
        // The device's, also where nothing maps it.
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

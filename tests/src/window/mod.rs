//! Windows: loads and stores of the host on memory of a device. The same bodies run over every kind of window that
//! the machine has; at least copies and memory of the host, which work everywhere.

mod data;
#[cfg(unix)]
mod dma_buf;
mod gpu_direct;
mod kernels;
mod opening;
mod refusals;

use anyhow::Result;
use bytemuck::Pod;
use cuda_mem::cpu_mapping::{CpuMapping, CpuMappingKind, CpuMappingOptions};
use cuda_mem::mapped::MappedMemory;
use cuda_mem::{DeviceBuffer, ErrorKind, Stream};

use crate::environment::Environment;

/// Every kind of window that can be had here, with memory that suits it.
fn kinds(stream: &Stream) -> Result<Vec<CpuMappingKind>> {
    let mut kinds = Vec::new();
    for kind in CpuMappingKind::ALL {
        let mut buffer = memory::<u8>(stream, kind, 4096)?;
        match CpuMappingOptions::new().only([kind]).open(&mut buffer) {
            Ok(window) => {
                anyhow::ensure!(window.kind() == kind);
                kinds.push(kind);
            }
            Err(error) => anyhow::ensure!(error.kind() == ErrorKind::NoCpuMapping, "{error}"),
        }
    }
    for kind in [CpuMappingKind::HostMapped, CpuMappingKind::Copies] {
        anyhow::ensure!(kinds.contains(&kind), "{kind} works everywhere");
    }
    Ok(kinds)
}

/// Memory for a window of this kind.
///
/// # Errors
///
/// As [`CpuMappingOptions::alloc`].
pub fn memory<T: Pod>(
    stream: &Stream,
    kind: CpuMappingKind,
    len: usize,
) -> Result<DeviceBuffer<T>> {
    let wish = match kind {
        CpuMappingKind::HostMapped => CpuMappingOptions::new().only([kind]),
        // Memory of the device, also where nothing maps it.
        _ => CpuMappingOptions::new().refuse([CpuMappingKind::HostMapped]),
    };
    Ok(wish.alloc(stream, len)?)
}

/// Memory for a window of every kind that the machine has can be opened so, whatever its size: none of its pages is
/// another block's.
///
/// # Errors
///
/// If a window does not open, or does not hold what was written.
pub fn memory_of_any_size(stream: &Stream) -> Result<()> {
    for kind in kinds(stream)? {
        for len in [1, (2 << 20) - 1, (2 << 20) + 1, (3 << 20) + 1] {
            let mut buffer = memory::<[u8; 3]>(stream, kind, len)?;
            anyhow::ensure!(buffer.len() == len);
            let mut window = open(&mut buffer, kind)?;
            window.write(len - 1, &[[1, 2, 3]])?;
            let mut last = [[0; 3]];
            window.read(len - 1, &mut last)?;
            anyhow::ensure!(last == [[1, 2, 3]], "{kind}, {len}: {last:?}");
            let mut buffer = memory::<u8>(stream, kind, len)?;
            open(&mut buffer, kind)?.write(len - 1, &[1])?;
        }
    }
    Ok(())
}

/// Of exactly this kind.
fn open<T: Pod>(buffer: &mut DeviceBuffer<T>, kind: CpuMappingKind) -> Result<CpuMapping<'_, T>> {
    Ok(CpuMappingOptions::new().only([kind]).open(buffer)?)
}

/// Memory of a device that is mapped and made for others.
fn mapped(
    env: &Environment,
    stream: &Stream,
    bytes: usize,
) -> Result<cuda_mem::mapped::GrowableBuffer<u8>> {
    let device = env.device()?;
    let able = device.gpu_direct()?.rdma_with_mapped_memory;
    let memory = MappedMemory::builder(&device)
        .gpu_direct_rdma(able)
        .build(bytes as u64)?;
    Ok(memory
        .into_buffer(stream, bytes)
        .map_err(|failed| failed.error)?)
}

/// As gdrcopy's: one bit goes through the words.
fn walking_bit(bytes: usize) -> Vec<u8> {
    let words = (0..bytes.div_ceil(4)).map(|at| 1_u32.rotate_left(at as u32));
    let mut all: Vec<u8> = words.flat_map(u32::to_le_bytes).collect();
    all.truncate(bytes);
    all
}

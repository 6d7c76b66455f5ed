//! The devices, which are those of the simulated driver. Their identity is repeated here, because linking that driver
//! would export its functions from this library too. A test compares the two.

use cuda_driver_sys::nvml::{
    NVML_MEMORY_V2, nvmlDevice_t, nvmlMemory_v2_t, nvmlProcessInfo_t, nvmlReturn_t,
};

use crate::configuration::{Configuration, Unit};
use crate::driver;
use crate::export::Answer;

/// The handle of a GPU or instance: never a real address, and never null.
pub(crate) fn handle((gpu, instance): Unit) -> nvmlDevice_t {
    let instance = instance.map_or(0, |instance| instance + 1);
    std::ptr::without_provenance_mut((gpu + 1) << 8 | instance)
}

/// The GPU or instance of a handle.
pub(crate) fn unit(handle: nvmlDevice_t) -> Answer<Unit> {
    let invalid = nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT;
    let gpu = (handle.addr() >> 8).checked_sub(1).ok_or(invalid)?;
    let instance = (handle.addr() & 0xff).checked_sub(1);
    let configuration = Configuration::get();
    let instances = configuration.instances(gpu).unwrap_or(0);
    if gpu >= configuration.devices || instance.is_some_and(|instance| instance >= instances) {
        return Err(invalid);
    }
    if configuration.lost.contains(&gpu) {
        return Err(nvmlReturn_t::NVML_ERROR_GPU_IS_LOST);
    }
    Ok((gpu, instance))
}

/// Every GPU and instance.
pub(crate) fn units() -> impl Iterator<Item = Unit> {
    let configuration = Configuration::get();
    (0..configuration.devices).flat_map(|gpu| {
        let instances = 0..configuration.instances(gpu).unwrap_or(0);
        std::iter::once((gpu, None)).chain(instances.map(move |index| (gpu, Some(index))))
    })
}

pub(crate) fn uuid((gpu, instance): Unit) -> String {
    let mut bytes = *b"\0\0\0\0cuda-sim\0\0\0\0";
    let mixed = (gpu as u32 + 1).wrapping_mul(0x9e37_79b1);
    bytes[..4].copy_from_slice(&mixed.to_be_bytes());
    bytes[12..].copy_from_slice(&(gpu as u32).to_be_bytes());
    if let Some(instance) = instance {
        bytes[4..12].copy_from_slice(b"mig-sim\0");
        bytes[11] = instance as u8;
    }
    let hex = |part: &[u8]| {
        part.iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let groups = [0..4, 4..6, 6..8, 8..10, 10..16].map(|range| hex(&bytes[range]));
    let kind = if instance.is_some() { "MIG" } else { "GPU" };
    format!("{kind}-{}", groups.join("-"))
}

pub(crate) fn pci_bus(gpu: usize) -> u32 {
    0x10 + gpu as u32
}

pub(crate) fn name((gpu, instance): Unit) -> String {
    match instance {
        Some(_) => format!("Simulated GPU {gpu} MIG"),
        None => format!("Simulated GPU {gpu}"),
    }
}

pub(crate) fn memory(unit: Unit) -> nvmlMemory_v2_t {
    let configuration = Configuration::get();
    // Instances have equal shares of the GPU's allocatable memory.
    let parts = match unit {
        (gpu, Some(_)) => configuration.instances(gpu).unwrap_or(1).max(1) as u64,
        _ => 1,
    };
    let (usable, reserved) = (configuration.memory / parts, configuration.reserved / parts);
    let used = configuration.used.iter().filter(|(at, _)| *at == unit);
    let others = used.map(|(_, bytes)| *bytes).sum::<u64>();
    let used = (others + driver::used(unit)).min(usable);
    nvmlMemory_v2_t {
        version: NVML_MEMORY_V2,
        total: usable + reserved,
        reserved,
        free: usable - used,
        used,
    }
}

pub(crate) fn processes(unit: Unit) -> Vec<nvmlProcessInfo_t> {
    let found = Configuration::get()
        .processes
        .iter()
        .filter(|(at, ..)| *at == unit);
    found
        .map(|(_, pid, bytes)| nvmlProcessInfo_t {
            pid: *pid,
            // All ones mean "unknown".
            usedGpuMemory: bytes.unwrap_or(u64::MAX),
            gpuInstanceId: unit.1.map_or(u32::MAX, |instance| instance as u32),
            computeInstanceId: unit.1.map_or(u32::MAX, |_| 0),
        })
        .collect()
}

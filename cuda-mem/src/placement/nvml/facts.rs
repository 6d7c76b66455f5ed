//! What NVML reports about a device. All sizes are in bytes.

use std::fmt;

use cuda_driver_sys::nvml::nvmlComputeMode_t;

use crate::base::error::Bytes;

/// A snapshot of a device's memory. Another process may take free memory at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NvmlMemory {
    /// Total memory in bytes: the sum of the other fields.
    pub total: u64,
    /// Free memory.
    pub free: u64,
    /// Memory used by programs, including contexts. Includes reserved memory where `reserved` is `None`.
    pub used: u64,
    /// Memory that the driver and firmware reserve. `None` if the library lacks `nvmlDeviceGetMemoryInfo_v2` and does
    /// not report it separately.
    pub reserved: Option<u64>,
}

impl fmt::Display for NvmlMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} free of {}", Bytes(self.free), Bytes(self.total))
    }
}

/// The window through which the host and other devices reach a device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Bar1Memory {
    /// The whole window.
    pub total: u64,
    /// The part that is not mapped.
    pub free: u64,
    /// The part that is mapped.
    pub used: u64,
}

/// Whether a GPU is divided into instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigMode {
    /// Whether MIG is on now. CUDA then uses the instances and not the whole GPU.
    pub enabled: bool,
    /// Whether MIG will be on after the next reset.
    pub pending: bool,
}

/// How many processes may have a context on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComputeMode {
    /// Any number of processes.
    Default,
    /// None: retaining a context fails.
    Prohibited,
    /// One process at a time.
    ExclusiveProcess,
    /// The number of a mode that is newer than this crate or no longer in use.
    Other(u32),
}

impl From<nvmlComputeMode_t> for ComputeMode {
    fn from(mode: nvmlComputeMode_t) -> Self {
        match mode {
            nvmlComputeMode_t::NVML_COMPUTEMODE_DEFAULT => Self::Default,
            nvmlComputeMode_t::NVML_COMPUTEMODE_PROHIBITED => Self::Prohibited,
            nvmlComputeMode_t::NVML_COMPUTEMODE_EXCLUSIVE_PROCESS => Self::ExclusiveProcess,
            nvmlComputeMode_t(other) => Self::Other(other),
        }
    }
}

/// A process that has a context on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NvmlProcess {
    /// The process ID on the host, which differs from the ID inside a container.
    pub pid: u32,
    /// Bytes that it uses on the device; `None` where the system does not report them, as on Windows or for processes
    /// outside the container.
    pub used_memory: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_that_nobody_knows_keeps_its_number() {
        assert_eq!(
            ComputeMode::from(nvmlComputeMode_t(2)),
            ComputeMode::Prohibited
        );
        assert_eq!(
            ComputeMode::from(nvmlComputeMode_t(77)),
            ComputeMode::Other(77)
        );
    }

    #[test]
    fn memory_is_shown_in_words() {
        let memory = NvmlMemory {
            total: 80 << 30,
            free: 3 << 29,
            used: 0,
            reserved: None,
        };
        assert_eq!(memory.to_string(), "1.5 GiB free of 80.0 GiB");
    }
}

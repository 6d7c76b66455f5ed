//! What NVML tells of a device. All sizes are in bytes.

use std::fmt;

use cuda_driver_sys::nvml::nvmlComputeMode_t;

use crate::base::error::Bytes;

/// Memory of a device as it was at one moment: the next one, another process may have taken it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NvmlMemory {
    /// All of it, in bytes; the sum of the others.
    pub total: u64,
    /// What nobody has.
    pub free: u64,
    /// What programs have, contexts included. Where `reserved` is `None`, that as well.
    pub used: u64,
    /// What driver and firmware keep for themselves. `None` if the library lacks
    /// `nvmlDeviceGetMemoryInfo_v2` and does not tell it apart.
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
    /// All of it.
    pub total: u64,
    /// What is not mapped.
    pub free: u64,
    /// What is mapped.
    pub used: u64,
}

/// Whether a GPU is divided into instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigMode {
    /// Whether it is now. CUDA then uses its instances and not the whole GPU.
    pub enabled: bool,
    /// Whether it will be after the next reset.
    pub pending: bool,
}

/// Who may have a context on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ComputeMode {
    /// Everybody.
    Default,
    /// Nobody: retaining a context fails.
    Prohibited,
    /// One process at a time.
    ExclusiveProcess,
    /// A mode that is newer than this crate, or no longer in use, by its number.
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
    /// Its number on the host. In a container that is not the number it has inside.
    pub pid: u32,
    /// Bytes that it has there; `None` where the system does not tell, as on Windows or for processes
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

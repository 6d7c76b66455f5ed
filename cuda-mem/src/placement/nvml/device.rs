//! One GPU, or one MIG instance, as NVML sees it.

use std::fmt;

use cuda_driver_sys::nvml::{NVML_DEVICE_MIG_ENABLE, NVML_VALUE_NOT_AVAILABLE_ULL, nvmlDevice_t};

use super::{Bar1Memory, ComputeMode, MigMode, Nvml, NvmlMemory, NvmlProcess};
use crate::base::error::{Error, ErrorKind, Result};
use crate::driver::device::{PciId, Uuid};
use crate::driver::raw;

/// A GPU, or a MIG instance of one. A cheap handle; queries create no context.
///
/// ```
/// # nvidia_ml_sim::use_if_no_nvml();
/// let nvml = cuda_mem::placement::Nvml::load()?;
/// let gpu = nvml.device(0)?;
/// let memory = gpu.memory()?;
/// assert!(memory.free <= memory.total);
/// println!("{}: {memory}", gpu.uuid_text()?);
/// for process in gpu.processes()? {
///     println!("process {} has a context there", process.pid);
/// }
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct NvmlDevice {
    nvml: Nvml,
    raw: nvmlDevice_t,
    /// The GPU of a MIG instance that was found through it.
    parent: Option<nvmlDevice_t>,
}

// SAFETY: the handle is a name that NVML takes from any thread; it is never dereferenced here.
unsafe impl Send for NvmlDevice {}
// SAFETY: as above.
unsafe impl Sync for NvmlDevice {}

impl NvmlDevice {
    pub(super) fn new(nvml: Nvml, raw: nvmlDevice_t, parent: Option<nvmlDevice_t>) -> Self {
        Self { nvml, raw, parent }
    }

    /// NVML's handle.
    #[must_use]
    pub fn as_raw(&self) -> nvmlDevice_t {
        self.raw
    }

    /// The index in PCI bus order, which is **not** the driver's ordinal. For a MIG instance, its index within its GPU.
    ///
    /// # Errors
    ///
    /// Any error that NVML reports. This holds for every function here, since a GPU can be lost at any time.
    #[doc(alias = "nvmlDeviceGetIndex")]
    pub fn index(&self) -> Result<u32> {
        // SAFETY: the handle came from this NVML, which is never shut down; so in every function here.
        unsafe { raw::nvml::index(self.nvml.table(), self.raw) }
    }

    /// The product name, such as `NVIDIA H200`.
    ///
    /// # Errors
    ///
    /// Any error that NVML reports.
    #[doc(alias = "nvmlDeviceGetName")]
    pub fn name(&self) -> Result<String> {
        // SAFETY: as in `index`.
        unsafe { raw::nvml::name(self.nvml.table(), self.raw) }
    }

    /// The identity as NVML writes it: `GPU-…`, or `MIG-…` for an instance. `CUDA_VISIBLE_DEVICES` accepts it
    /// unchanged.
    ///
    /// # Errors
    ///
    /// Any error that NVML reports.
    #[doc(alias = "nvmlDeviceGetUUID")]
    pub fn uuid_text(&self) -> Result<String> {
        // SAFETY: as in `index`.
        unsafe { raw::nvml::uuid(self.nvml.table(), self.raw) }
    }

    /// The identity as the driver has it, for [`Driver::device_by_uuid`](crate::Driver::device_by_uuid).
    ///
    /// # Errors
    ///
    /// [`NotSupported`](ErrorKind::NotSupported) for a MIG instance of a driver before 11.4, which has
    /// no UUID of its own: `MIG-GPU-…/1/0`.
    #[doc(alias = "nvmlDeviceGetUUID")]
    pub fn uuid(&self) -> Result<Uuid> {
        let text = self.uuid_text()?;
        text.parse().map_err(|_| {
            Error::not_supported(format!(
                "{text} has no UUID that CUDA knows; pass the text to CUDA_VISIBLE_DEVICES instead"
            ))
        })
    }

    /// The PCI bus address of the device. For a MIG instance, that of its GPU.
    ///
    /// # Errors
    ///
    /// Any error that NVML reports.
    #[doc(alias = "nvmlDeviceGetPciInfo_v3")]
    pub fn pci_id(&self) -> Result<PciId> {
        let device = self.parent.unwrap_or(self.raw);
        // SAFETY: as in `index`.
        let (domain, bus, device) = unsafe { raw::nvml::pci(self.nvml.table(), device) }?;
        let narrow = |part: u32| {
            u8::try_from(part).map_err(|_| {
                Error::new(
                    ErrorKind::Other,
                    format!("NVML answered {part:#x} in a PCI id"),
                )
            })
        };
        Ok(PciId {
            domain,
            bus: narrow(bus)?,
            device: narrow(device)?,
            function: 0,
        })
    }

    /// The current memory use, in bytes.
    ///
    /// Where the library is too old to report reserved memory, it counts as used, and [`NvmlMemory::reserved`] is
    /// `None`.
    ///
    /// # Errors
    ///
    /// Any error that NVML reports. [`NotSupported`](ErrorKind::NotSupported) on devices that share the host's
    /// memory.
    #[doc(alias("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"))]
    pub fn memory(&self) -> Result<NvmlMemory> {
        // SAFETY: as in `index`.
        match unsafe { raw::nvml::memory(self.nvml.table(), self.raw) } {
            Ok(memory) => Ok(NvmlMemory {
                total: memory.total,
                free: memory.free,
                used: memory.used,
                reserved: Some(memory.reserved),
            }),
            // NotSupported is also how a library says that it does not know this version.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::SymbolMissing | ErrorKind::NotSupported
                ) =>
            {
                // SAFETY: as in `index`.
                let memory = unsafe { raw::nvml::memory_before_v2(self.nvml.table(), self.raw) }?;
                Ok(NvmlMemory {
                    total: memory.total,
                    free: memory.free,
                    used: memory.used,
                    reserved: None,
                })
            }
            Err(error) => Err(error),
        }
    }

    /// The BAR1 window, through which the host and other devices reach the memory.
    ///
    /// # Errors
    ///
    /// Any error that NVML reports. [`NotSupported`](ErrorKind::NotSupported) where there is none.
    #[doc(alias = "nvmlDeviceGetBAR1MemoryInfo")]
    pub fn bar1_memory(&self) -> Result<Bar1Memory> {
        // SAFETY: as in `index`.
        let memory = unsafe { raw::nvml::bar1(self.nvml.table(), self.raw) }?;
        Ok(Bar1Memory {
            total: memory.bar1Total,
            free: memory.bar1Free,
            used: memory.bar1Used,
        })
    }

    /// Whether the GPU is divided by MIG; `None` if it cannot be, or the library is older than MIG.
    ///
    /// # Errors
    ///
    /// Any error that NVML reports.
    #[doc(alias = "nvmlDeviceGetMigMode")]
    pub fn mig_mode(&self) -> Result<Option<MigMode>> {
        // SAFETY: as in `index`.
        let answer = unsafe { raw::nvml::mig_mode(self.nvml.table(), self.raw) };
        Ok(known(answer)?.map(|(current, pending)| MigMode {
            enabled: current == NVML_DEVICE_MIG_ENABLE,
            pending: pending == NVML_DEVICE_MIG_ENABLE,
        }))
    }

    /// The MIG instances of the GPU; none if MIG is off or not supported.
    ///
    /// # Errors
    ///
    /// Any error that NVML reports.
    #[doc(alias(
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex"
    ))]
    pub fn mig_devices(&self) -> Result<Vec<NvmlDevice>> {
        // SAFETY: as in `index`.
        let count = known(unsafe { raw::nvml::max_mig_count(self.nvml.table(), self.raw) })?;
        let mut found = Vec::new();
        for index in 0..count.unwrap_or(0) {
            // SAFETY: as in `index`.
            let raw =
                known(unsafe { raw::nvml::mig_by_index(self.nvml.table(), self.raw, index) })?;
            found.extend(
                raw.flatten()
                    .map(|raw| Self::new(self.nvml, raw, Some(self.raw))),
            );
        }
        Ok(found)
    }

    /// How many processes may have a context on the device.
    ///
    /// # Errors
    ///
    /// Any error that NVML reports.
    #[doc(alias = "nvmlDeviceGetComputeMode")]
    pub fn compute_mode(&self) -> Result<ComputeMode> {
        // SAFETY: as in `index`.
        unsafe { raw::nvml::compute_mode(self.nvml.table(), self.raw) }.map(ComputeMode::from)
    }

    /// The processes that have a CUDA context on the device, in no particular order.
    ///
    /// # Errors
    ///
    /// [`SymbolMissing`](ErrorKind::SymbolMissing) with drivers before 510. Otherwise any error that NVML reports.
    #[doc(alias = "nvmlDeviceGetComputeRunningProcesses_v3")]
    pub fn processes(&self) -> Result<Vec<NvmlProcess>> {
        // SAFETY: as in `index`.
        let found = unsafe { raw::nvml::processes(self.nvml.table(), self.raw) }?;
        Ok(found
            .into_iter()
            .map(|process| NvmlProcess {
                pid: process.pid,
                used_memory: Some(process.usedGpuMemory)
                    .filter(|bytes| *bytes != NVML_VALUE_NOT_AVAILABLE_ULL),
            })
            .collect())
    }
}

/// `None` where the device or the library does not support the query.
fn known<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::NotSupported | ErrorKind::SymbolMissing
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Two handles are equal if they name the same device of the same library.
impl PartialEq for NvmlDevice {
    fn eq(&self, other: &Self) -> bool {
        self.nvml == other.nvml && self.raw == other.raw
    }
}

impl Eq for NvmlDevice {}

/// Writes its UUID.
impl fmt::Display for NvmlDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uuid_text() {
            Ok(uuid) => f.write_str(&uuid),
            Err(_) => f.write_str("a device without a UUID"),
        }
    }
}

impl fmt::Debug for NvmlDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uuid_text() {
            Ok(uuid) => write!(f, "NvmlDevice({uuid})"),
            Err(_) => write!(f, "NvmlDevice({:p})", self.raw),
        }
    }
}

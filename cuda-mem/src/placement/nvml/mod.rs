//! Inspecting GPUs before using them. NVML reports what a GPU is and how much of its memory is free. It creates no
//! context and does not need an initialised driver.

mod choice;
mod cuda;
mod device;
mod facts;

pub use choice::DeviceChoice;
pub use device::NvmlDevice;
pub use facts::{Bar1Memory, ComputeMode, MigMode, NvmlMemory, NvmlProcess};

use std::ffi::CString;
use std::fmt;
use std::path::Path;

use cuda_driver_sys::CudaVersion;
use cuda_driver_sys::nvml::{NvmlLibrary, NvmlTable, nvmlDevice_t};
use once_cell::sync::OnceCell;

use crate::base::error::{Error, Result};
use crate::base::report;
use crate::driver::device::PciId;
use crate::driver::raw;

/// NVML, the library behind `nvidia-smi`, opened and initialised. A cheap handle.
///
/// ```
/// use cuda_mem::Driver;
/// use cuda_mem::placement::{DeviceChoice, Nvml};
///
/// # cuda_sim::use_if_no_driver();
/// # nvidia_ml_sim::use_if_no_nvml();
/// let nvml = Nvml::load()?; // starts no CUDA
/// for gpu in nvml.devices()? {
///     println!("{} {} has {} B free", gpu.pci_id()?, gpu.name()?, gpu.memory()?.free);
/// }
/// let gpu = DeviceChoice::most_free().at_least(1 << 30).pick(&nvml)?;
///
/// let device = Driver::load()?.device_by_uuid(&gpu.uuid()?)?; // only now
/// # let _ = device;
/// # Ok::<(), cuda_mem::Error>(())
/// ```
///
/// NVML counts all GPUs of the machine in the order of the PCI bus: it knows neither
/// `CUDA_VISIBLE_DEVICES` nor the driver's ordinals. Go from one to the other by the UUID, with
/// [`Driver::device_by_uuid`](crate::Driver::device_by_uuid) and [`Device::nvml`](crate::Device::nvml).
///
/// It is initialised once and stays so until the process ends, because shutting it down would invalidate device
/// handles. It holds some host memory and a few descriptors, and nothing on a GPU.
#[derive(Clone, Copy)]
pub struct Nvml(&'static NvmlLibrary);

impl Nvml {
    /// Opens NVML and initialises it. Later calls return the same at once.
    ///
    /// `CUDA_DRIVER_SYS_NVML_LIBRARY` may name another library to open.
    ///
    /// # Errors
    ///
    /// [`NvmlMissing`](crate::ErrorKind::NvmlMissing) lists everything that was tried.
    /// [`DriverMissing`](crate::ErrorKind::DriverMissing) if the kernel module is not loaded.
    /// [`Forked`](crate::ErrorKind::Forked) in a fork of a process that had initialised NVML, or that was opening
    /// it on another thread. The driver can still be initialised there.
    #[doc(alias = "nvmlInit")]
    pub fn load() -> Result<Self> {
        static NVML: OnceCell<Nvml> = OnceCell::new();
        if report::is_nvml_forked() {
            return Err(Error::nvml_forked());
        }
        if let Some(nvml) = NVML.get() {
            return Ok(*nvml);
        }
        // As in `Driver::load`.
        let _watched = report::watch_nvml_forks_for_now();
        NVML.get_or_try_init(|| Self::start(cuda_driver_sys::nvml::load()?))
            .copied()
    }

    /// Opens the library at `path`, and only that, and initialises it.
    ///
    /// Each call opens it anew; keep the handle.
    ///
    /// # Safety
    ///
    /// The file's initialisers run, and it must be NVML, or something that behaves like it.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load).
    #[doc(alias = "nvmlInit")]
    pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<Self> {
        // SAFETY: the caller vouches for the file.
        Self::start(unsafe { cuda_driver_sys::nvml::load_from(path) }?)
    }

    fn start(library: &'static NvmlLibrary) -> Result<Self> {
        // First, so that no fork falls between.
        report::watch_nvml_forks();
        // SAFETY: the table is NVML's, by the contract of every function that leads here.
        unsafe { raw::nvml::init(library.table()) }?;
        Ok(Self(library))
    }

    /// The name or path by which the library was opened.
    #[must_use]
    pub fn library_path(&self) -> &'static Path {
        self.0.path()
    }

    /// The functions of the library, for calls that this crate does not wrap.
    #[must_use]
    pub fn table(&self) -> &'static NvmlTable {
        self.0.table()
    }

    /// The version of the driver, such as `580.95.05`.
    ///
    /// # Errors
    ///
    /// Any error that NVML reports.
    #[doc(alias = "nvmlSystemGetDriverVersion")]
    pub fn driver_version(&self) -> Result<String> {
        // SAFETY: NVML is initialised, as in every function of this type.
        unsafe { raw::nvml::driver_version(self.table()) }
    }

    /// The newest CUDA version that the driver supports, without initialising it.
    ///
    /// # Errors
    ///
    /// Any error that NVML reports.
    #[doc(alias = "nvmlSystemGetCudaDriverVersion_v2")]
    pub fn cuda_version(&self) -> Result<CudaVersion> {
        // SAFETY: as above.
        let version = unsafe { raw::nvml::cuda_version(self.table()) }?;
        Ok(CudaVersion::from_raw(version.unsigned_abs()))
    }

    /// All GPUs of the machine that this process may see, in the order of the PCI bus. A GPU that is
    /// divided by MIG is one; see [`NvmlDevice::mig_devices`].
    ///
    /// # Errors
    ///
    /// Any error that NVML reports. A single GPU that does not answer, such as one that is lost, is an error here;
    /// [`device_count`](Self::device_count) and [`device`](Self::device) reach the others.
    pub fn devices(&self) -> Result<Vec<NvmlDevice>> {
        (0..self.device_count()?)
            .map(|index| self.device(index))
            .collect()
    }

    /// How many GPUs there are.
    ///
    /// # Errors
    ///
    /// Any error that NVML reports.
    #[doc(alias = "nvmlDeviceGetCount_v2")]
    pub fn device_count(&self) -> Result<u32> {
        // SAFETY: as above.
        unsafe { raw::nvml::count(self.table()) }
    }

    /// The GPU with this index in the order of the PCI bus, which is **not** the driver's ordinal.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if there is none.
    #[doc(alias = "nvmlDeviceGetHandleByIndex_v2")]
    pub fn device(&self, index: u32) -> Result<NvmlDevice> {
        // SAFETY: as above.
        let raw = unsafe { raw::nvml::by_index(self.table(), index) }
            .map_err(|error| error.asked(|| format!("the GPU with index {index}")))?;
        Ok(self.wrap(raw))
    }

    /// The GPU or MIG instance with this UUID, in the form that NVML and `nvidia-smi -L` write:
    /// `GPU-…` or `MIG-…`.
    ///
    /// # Errors
    ///
    /// [`InvalidDevice`](crate::ErrorKind::InvalidDevice) if there is none.
    ///
    /// ```
    /// # nvidia_ml_sim::use_if_no_nvml();
    /// let nvml = cuda_mem::placement::Nvml::load()?;
    /// let text = nvml.device(0)?.uuid_text()?;
    /// assert_eq!(nvml.device_by_uuid(&text)?.index()?, 0);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "nvmlDeviceGetHandleByUUID")]
    pub fn device_by_uuid(&self, uuid: &str) -> Result<NvmlDevice> {
        let text = as_c(uuid)?;
        // SAFETY: as above.
        let raw = unsafe { raw::nvml::by_uuid(self.table(), &text) }
            .map_err(|error| error.asked(|| uuid.to_owned()))?;
        Ok(self.wrap(raw))
    }

    /// The GPU at this PCI bus address.
    ///
    /// # Errors
    ///
    /// [`InvalidDevice`](crate::ErrorKind::InvalidDevice) if there is none.
    #[doc(alias = "nvmlDeviceGetHandleByPciBusId_v2")]
    pub fn device_by_pci(&self, id: &PciId) -> Result<NvmlDevice> {
        let text = as_c(&id.to_string())?;
        // SAFETY: as above.
        let raw = unsafe { raw::nvml::by_pci(self.table(), &text) }
            .map_err(|error| error.asked(|| id.to_string()))?;
        Ok(self.wrap(raw))
    }

    fn wrap(self, raw: nvmlDevice_t) -> NvmlDevice {
        NvmlDevice::new(self, raw, None)
    }
}

fn as_c(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::invalid(format!("{text:?} has a zero in it")))
}

/// Two handles are equal if they refer to the same library, opened by the same call.
impl PartialEq for Nvml {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Nvml {}

impl fmt::Debug for Nvml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Nvml").field(&self.0.path()).finish()
    }
}

// NVML may be called from any thread, and its handles belong to the process.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Nvml>();
    shared::<NvmlDevice>();
};

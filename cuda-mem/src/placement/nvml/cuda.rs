//! From a device of the driver to the same one of NVML.

use super::{Nvml, NvmlDevice};
use crate::base::error::{ErrorKind, Result};
use crate::driver::device::Device;

impl Device {
    /// The same device as NVML sees it, regardless of how `CUDA_VISIBLE_DEVICES` changed the ordinals. No context is
    /// created.
    ///
    /// Found by the UUID of the GPU or MIG instance, or else by the PCI bus address. With a driver
    /// before 11.4 and MIG, the result is the whole GPU.
    ///
    /// # Errors
    ///
    /// [`InvalidDevice`](ErrorKind::InvalidDevice) if NVML does not know the device. Otherwise any error that the
    /// driver or NVML reports.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::placement::Nvml;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// # nvidia_ml_sim::use_if_no_nvml();
    /// let nvml = Nvml::load()?;
    /// let device = Driver::load()?.device(0)?;
    /// println!("{}", device.nvml(&nvml)?.memory()?); // before there is a context
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByPciBusId_v2"))]
    pub fn nvml(&self, nvml: &Nvml) -> Result<NvmlDevice> {
        let gpu = self.uuid()?.to_string();
        let instance = gpu.replacen("GPU-", "MIG-", 1);
        for text in [gpu, instance] {
            match nvml.device_by_uuid(&text) {
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::InvalidDevice
                            | ErrorKind::InvalidValue
                            | ErrorKind::SymbolMissing
                    ) => {}
                answer => return answer,
            }
        }
        nvml.device_by_pci(&self.pci_id()?)
    }
}

//! Memory for collective libraries.

use cuda_driver_sys::CUdevice_attribute;

use super::builder::MappedMemoryBuilder;
use super::mapped::MappedMemory;
use super::physical::PhysicalMemory;
use crate::base::error::{ErrorKind, Result};
use crate::driver::device::{Device, HandleTypes};
use crate::driver::location::Location;

impl MappedMemory {
    /// Settings for memory that NCCL, UCX and network cards take as it is: what `ncclMemAlloc` would make.
    ///
    /// It can be exported by descriptor, and by fabric handle where the system allows it; network cards may access it, where the
    /// device supports that; it comes in the recommended granularity; all devices that are peers read and write it; and all of it
    /// is one piece of physical memory, as long as it does not grow. Whether fabric handles are allowed is found out by making a little
    /// memory, because the device's attribute does not say.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if there is no memory for that; otherwise any driver error.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::mapped::MappedMemory;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let memory = MappedMemory::collective(&device)?.build(1 << 20)?;
    /// assert_eq!(memory.parts().count(), 1);
    /// let buffer = memory.into_buffer::<f32>(&stream, 1000)?;
    /// # let _ = buffer;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "ncclMemAlloc")]
    pub fn collective(device: &Device) -> Result<MappedMemoryBuilder> {
        use CUdevice_attribute as A;
        let has = |attribute| -> Result<bool> {
            Ok(device.attribute(attribute)?.is_some_and(|value| value != 0))
        };
        let mut types = HandleTypes::empty();
        types.set(
            HandleTypes::POSIX_FILE_DESCRIPTOR,
            has(A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)?,
        );
        let gpu_direct = has(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)?;
        if has(A::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)? {
            let both = types | HandleTypes::FABRIC;
            let tried = PhysicalMemory::builder(device)
                .handle_types(both)
                .gpu_direct_rdma(gpu_direct)
                .build(1);
            match tried {
                Ok(_) => types = both,
                Err(error)
                    if matches!(
                        error.kind(),
                        ErrorKind::NotPermitted | ErrorKind::NotSupported
                    ) => {}
                Err(error) => return Err(error),
            }
        }
        let mut peers = Vec::new();
        for peer in device.driver().devices()? {
            if peer != *device && peer.can_access_peer(device)? {
                peers.push(Location::Device(peer));
            }
        }
        Ok(MappedMemory::builder(device)
            .handle_types(types)
            .gpu_direct_rdma(gpu_direct)
            .accessible_from(peers))
    }
}

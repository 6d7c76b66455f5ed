//! What the driver knows about an address.

use std::fmt;

use cuda_driver_sys::{CUdeviceptr, CUmemoryPool, CUpointer_attribute};

use crate::base::error::{ErrorKind, Result};
use crate::driver::Driver;
use crate::driver::raw;

/// Where memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryKind {
    /// On a device.
    Device,
    /// On the host, known to the driver: pinned, registered, or of a host pool.
    Host,
    /// It moves between host and devices.
    Managed,
    /// A kind that is newer than this crate, given by the driver's number.
    Other(u32),
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device => f.pad("device"),
            Self::Host => f.pad("host"),
            Self::Managed => f.pad("managed"),
            Self::Other(number) => write!(f, "kind {number} of"),
        }
    }
}

/// What the driver knows about an address. From [`Driver::pointer_info`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PointerInfo {
    /// Where the memory is.
    pub kind: MemoryKind,
    /// The ordinal of the device that it belongs to, or was allocated for.
    pub device: i32,
    /// The start address of the allocation.
    pub start: CUdeviceptr,
    /// The requested size in bytes.
    pub bytes: u64,
    /// The pool that it comes from; `None` if it comes from no pool, or the driver is too old to report it.
    pub pool: Option<CUmemoryPool>,
    /// Whether the older calls for sharing between processes accept it. False for pool memory.
    pub legacy_ipc: bool,
    /// Whether network cards and other devices may read it directly; `None` if the driver is too old to report it.
    pub gpu_direct_rdma: Option<bool>,
}

// SAFETY: the pool's handle is only a number here: whoever gives it to the driver vouches for it.
unsafe impl Send for PointerInfo {}
// SAFETY: as for `Send`.
unsafe impl Sync for PointerInfo {}

impl Driver {
    /// What the driver knows about an address, which may point into the middle of an allocation; `None` if the driver
    /// does not know the memory. Makes eight driver calls; needs and creates no context.
    ///
    /// The address must not point into memory that was freed in stream order.
    ///
    /// # Errors
    ///
    /// Any driver error.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::driver::MemoryKind;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let driver = Driver::load()?;
    /// let device = driver.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let buffer = device.default_pool()?.alloc::<u8>(&stream, 1000)?;
    /// let info = driver.pointer_info(buffer.as_raw() + 10)?.expect("it is known");
    /// assert_eq!((info.kind, info.bytes), (MemoryKind::Device, 1000));
    /// assert_eq!(info.start, buffer.as_raw());
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuPointerGetAttribute")]
    pub fn pointer_info(&self, address: CUdeviceptr) -> Result<Option<PointerInfo>> {
        use CUpointer_attribute as A;
        let narrow = |attribute| {
            // SAFETY: the attributes asked for below are 4 bytes wide.
            unsafe { raw::pointer::narrow(self.table(), attribute, address) }
        };
        let wide = |attribute| {
            // SAFETY: the attributes asked for below are 8 bytes wide.
            unsafe { raw::pointer::wide(self.table(), attribute, address) }
        };
        let Some((kind, device)) = self.place_of(address)? else {
            return Ok(None);
        };
        let pool = known(wide(A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE))?;
        let rdma = known(narrow(A::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE))?;
        Ok(Some(PointerInfo {
            kind,
            device,
            start: wide(A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)?,
            bytes: wide(A::CU_POINTER_ATTRIBUTE_RANGE_SIZE)?,
            pool: pool
                .map(|handle| std::ptr::with_exposed_provenance_mut(handle as usize))
                .filter(|handle: &CUmemoryPool| !handle.is_null()),
            legacy_ipc: known(narrow(A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE))?
                .is_some_and(|able| able != 0),
            gpu_direct_rdma: rdma.map(|able| able != 0),
        }))
    }

    /// Where memory is, and the ordinal of its device; `None` if the driver does not know the memory. Makes three
    /// driver calls.
    pub(crate) fn place_of(&self, address: CUdeviceptr) -> Result<Option<(MemoryKind, i32)>> {
        use CUpointer_attribute as A;
        let narrow = |attribute| {
            // SAFETY: the attributes asked for below are 4 bytes wide.
            unsafe { raw::pointer::narrow(self.table(), attribute, address) }
        };
        // This attribute is as old as the call: here INVALID_VALUE refers to the address.
        let Some(kind) = known(narrow(A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE))? else {
            return Ok(None);
        };
        let managed = narrow(A::CU_POINTER_ATTRIBUTE_IS_MANAGED)? != 0;
        let device = narrow(A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?.cast_signed();
        Ok(Some((kind_of(kind, managed), device)))
    }
}

/// `None` for what the driver does not know.
fn known<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::InvalidValue => Ok(None),
        Err(error) => Err(error),
    }
}

fn kind_of(memory_type: u32, managed: bool) -> MemoryKind {
    match memory_type {
        _ if managed => MemoryKind::Managed,
        1 => MemoryKind::Host,
        2 => MemoryKind::Device,
        other => MemoryKind::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managed_memory_is_told_from_the_device_s() {
        assert_eq!(kind_of(2, false), MemoryKind::Device);
        assert_eq!(kind_of(2, true), MemoryKind::Managed);
        assert_eq!(kind_of(1, false), MemoryKind::Host);
        assert_eq!(kind_of(77, false), MemoryKind::Other(77));
    }
}

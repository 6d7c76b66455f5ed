//! The properties of a pool, as reported by the driver.

use cuda_driver_sys::{CUmemAllocationType, CUmemLocationType, CUmemPool_attribute, CudaVersion};

use super::Pool;
use crate::base::error::Result;
use crate::driver::device::HandleTypes;
use crate::driver::location::{AllocationType, Location};
use crate::driver::raw;

/// The properties that a pool was created with. From [`Pool::properties`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolProperties {
    /// The allocation type of its memory.
    pub allocation_type: AllocationType,
    /// The location of its memory; for a managed pool, its preferred location.
    pub location: Location,
    /// The handle types for sharing it.
    pub handle_types: HandleTypes,
    /// Its maximum size in bytes; 0 if there is no maximum.
    pub max_size: u64,
    /// Whether its memory can be the target of the decompression engine.
    pub hw_decompress: bool,
    /// The part of a device that the memory belongs to; `None` before CUDA 13.4.
    pub locality_domain: Option<i32>,
}

impl Pool {
    /// The properties that this pool was created with, queried from the driver in six or seven calls. Needs CUDA
    /// 13.2.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) on an older driver; otherwise any driver error.
    ///
    /// ```
    /// # use cuda_mem::{Driver, ErrorKind, MemoryPool};
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// let pool = MemoryPool::builder(&device).build()?;
    /// match pool.properties() {
    ///     Ok(properties) => println!("{properties:?}"),
    ///     Err(error) => assert_eq!(error.needs_version().unwrap().to_string(), "13.2"),
    /// }
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemPoolGetAttribute")]
    pub fn properties(&self) -> Result<PoolProperties> {
        use CUmemPool_attribute as A;
        let driver = self.driver();
        driver.require_version("what a pool was made with", CudaVersion::new(13, 2))?;
        let narrow = |attribute: A| {
            // SAFETY: the pool is live, and the attributes asked for below are 4 bytes wide.
            self.beside_captures(|table| unsafe {
                raw::pool::narrow_attribute(table, self.as_raw(), attribute)
            })
            .map_err(|error| error.asked(|| format!("attribute {} of {self}", attribute.0)))
        };
        let kind = narrow(A::CU_MEMPOOL_ATTR_LOCATION_TYPE)?.cast_unsigned();
        let id = narrow(A::CU_MEMPOOL_ATTR_LOCATION_ID)?;
        let allocation_type = narrow(A::CU_MEMPOOL_ATTR_ALLOCATION_TYPE)?.cast_unsigned();
        Ok(PoolProperties {
            allocation_type: AllocationType::from_raw(CUmemAllocationType(allocation_type)),
            location: Location::from_raw(driver, CUmemLocationType(kind), id),
            handle_types: HandleTypes::from_bits_retain(
                narrow(A::CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES)?.cast_unsigned(),
            ),
            max_size: self.wide(A::CU_MEMPOOL_ATTR_MAX_POOL_SIZE)?,
            hw_decompress: narrow(A::CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED)? != 0,
            locality_domain: if driver.version() < CudaVersion::new(13, 4) {
                None
            } else {
                Some(narrow(A::CU_MEMPOOL_ATTR_LOCALITY_DOMAIN_ID)?)
            },
        })
    }
}

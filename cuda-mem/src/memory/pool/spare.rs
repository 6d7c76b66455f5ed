//! Ended pools that are kept for reuse.
//!
//! A driver crashes, hangs or loses waits if a pool is destroyed while another thread waits for a stream in which
//! memory of that pool was freed, however long ago (R178, measured). This crate cannot know of all waits in a
//! process. So an ended pool is not destroyed: it holds no memory, and is kept for the next pool with the same
//! properties.

use cuda_driver_sys::CUmemoryPool;

use super::{MemoryPool, PoolBuilder, sharing};
use crate::base::error::Result;
use crate::base::lock::Lock;
use crate::driver::Driver;
use crate::driver::location::{AllocationType, Location};

/// The properties of a pool that cannot change after its creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    driver: Driver,
    location: Location,
    allocation_type: AllocationType,
    max_size: Option<u64>,
    hw_decompress: bool,
}

impl PoolBuilder {
    /// `None` if the pool can be shared with other processes; such a pool is never kept.
    pub(super) fn kind(&self) -> Option<Kind> {
        self.handle_types.is_empty().then_some(Kind {
            driver: self.driver,
            location: self.location,
            allocation_type: self.allocation_type,
            max_size: self.max_size,
            hw_decompress: self.hw_decompress,
        })
    }
}

struct Spare {
    kind: Kind,
    pool: CUmemoryPool,
}

// SAFETY: pools belong to no thread.
unsafe impl Send for Spare {}

static SPARES: Lock<Vec<Spare>> = Lock::new(Vec::new());

/// Keeps a pool that is idle, as far as the driver can tell, has no handles, and to which no device has been
/// granted access.
pub(super) fn keep(kind: Kind, pool: CUmemoryPool) -> Result<()> {
    SPARES.lock()?.push(Spare { kind, pool });
    Ok(())
}

/// A pool of this kind, with the settings and high marks left by its last owner.
pub(super) fn take(kind: Kind) -> Option<CUmemoryPool> {
    let mut spares = SPARES.lock_unless_forked()?;
    let place = spares.iter().rposition(|spare| spare.kind == kind)?;
    Some(spares.swap_remove(place).pool)
}

impl MemoryPool {
    /// Destroys the ended pools that are kept for reuse. Returns how many there were.
    ///
    /// A pool that has ended holds no memory, as far as the driver can tell. It is kept because drivers crash if a pool
    /// is destroyed while another thread waits for a stream that has used it (measured with driver 580). Only programs
    /// that check for leaks need this function.
    ///
    /// # Safety
    ///
    /// While this runs, no other thread may wait for a stream, an event or a context, neither through this crate nor
    /// otherwise; copies that wait, `cuMemFree` and the end of a context count as well. Before CUDA 11.3 all memory of
    /// pools that have ended must be freed, and its streams waited for.
    ///
    /// # Errors
    ///
    /// The first error of the driver; all pools are tried. Those that could not be destroyed are leaked.
    ///
    /// ```
    /// # use cuda_mem::{Driver, MemoryPool};
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// drop(MemoryPool::builder(&device).build()?);
    /// // SAFETY: this is the only thread.
    /// let destroyed = unsafe { MemoryPool::destroy_spares() }?;
    /// assert_eq!(destroyed, 1);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemPoolDestroy")]
    pub unsafe fn destroy_spares() -> Result<usize> {
        let spares = std::mem::take(&mut *SPARES.lock()?);
        let mut all = Ok(spares.len());
        for spare in spares {
            // SAFETY: nobody has a handle, nothing of the pool is outstanding, and nobody waits for a stream.
            let destroyed = unsafe { sharing::destroy(spare.kind.driver, spare.pool) };
            if let Err(error) = destroyed {
                all = all.and(Err(error));
            }
        }
        all
    }
}

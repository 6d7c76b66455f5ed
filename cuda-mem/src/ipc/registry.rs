//! What this process has imported. The driver answers a second import of the same thing with the same
//! handle or address. Of pointers, the first release ends all of them (measured, R57): so uses are
//! counted, and only the last one releases.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use cuda_driver_sys::{CUdeviceptr, CUmemoryPool};

use crate::driver::Driver;
use crate::error::Result;
use crate::join::order;
use crate::later::{self, Outcome, Pending};
use crate::pool;
use crate::raw;
use crate::stream::Stream;

/// The imported pools, by handle.
static POOLS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

struct Entry {
    driver: Driver,
    pool: usize,
    /// None, while it waits for the frees of its pointers.
    users: usize,
    /// The driver counts too (measured): as many ends as imports.
    imports: usize,
    pointers: HashMap<CUdeviceptr, Pointer>,
    /// Where pointers were freed.
    freed_in: Vec<Stream>,
}

#[derive(Default)]
struct Pointer {
    users: usize,
    /// Those of users that are gone: the memory is freed after what they have submitted.
    ended: Vec<Stream>,
}

/// Calls that share something, one at a time with each other and with the end of any pool: together
/// they crashed a driver (R28).
fn alone<T>(work: impl FnOnce(&mut Vec<Entry>) -> Result<T>) -> Result<T> {
    let _ends = pool::no_pool_ends()?;
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    work(&mut pools)
}

/// The entry of a pool that is in use.
fn entry(pools: &mut [Entry], driver: Driver, pool: CUmemoryPool) -> Option<&mut Entry> {
    let mut pools = pools.iter_mut();
    pools.find(|entry| entry.pool == pool.addr() && entry.driver == driver)
}

/// Imports a pool and counts one more user of it.
pub(super) fn import_pool(
    driver: Driver,
    import: impl FnOnce() -> Result<CUmemoryPool>,
) -> Result<CUmemoryPool> {
    alone(|pools| {
        let pool = import()?;
        match entry(pools, driver, pool) {
            Some(entry) => {
                entry.users += 1;
                entry.imports += 1;
            }
            None => pools.push(Entry {
                driver,
                pool: pool.addr(),
                users: 1,
                imports: 1,
                pointers: HashMap::new(),
                freed_in: Vec::new(),
            }),
        }
        Ok(pool)
    })
}

/// One user of a pool less. After the last one it is destroyed, now or when the frees of its pointers
/// are carried out.
pub(super) fn release_pool(driver: Driver, pool: CUmemoryPool) -> Result<()> {
    let is_last = alone(|pools| {
        let Some(entry) = entry(pools, driver, pool) else {
            return Ok(false);
        };
        entry.users -= 1;
        Ok(entry.users == 0)
    })?;
    if !is_last {
        return Ok(());
    }
    let mut remains = Remains { driver, pool };
    match remains.try_release() {
        Outcome::Done => Ok(()),
        Outcome::GivenUp(error) | Outcome::Again(error) => Err(error),
        Outcome::NotYet => {
            later::keep(Box::new(remains));
            Ok(())
        }
    }
}

/// A pool that nobody uses any more. Destroying a pool before its frees are carried out corrupts a
/// driver (R26).
struct Remains {
    driver: Driver,
    pool: CUmemoryPool,
}

// SAFETY: pools belong to no thread.
unsafe impl Send for Remains {}

impl Pending for Remains {
    fn name(&self) -> &'static str {
        "imported pool"
    }

    fn try_release(&mut self) -> Outcome {
        let mut ended = None;
        let outcome = alone(|pools| {
            let is_it =
                |entry: &Entry| entry.pool == self.pool.addr() && entry.driver == self.driver;
            let Some(index) = pools.iter().position(is_it) else {
                return Ok(Outcome::Done);
            };
            let entry = &pools[index];
            // It was imported again, and has a user who will release it.
            if entry.users > 0 {
                return Ok(Outcome::Done);
            }
            // What cannot be asked may be at work.
            let at_work = |stream: &Stream| !stream.is_done().unwrap_or(false);
            if entry.freed_in.iter().any(at_work) {
                return Ok(Outcome::NotYet);
            }
            let entry = pools.swap_remove(index);
            let imports = entry.imports;
            ended = Some(entry);
            for _ in 0..imports {
                // SAFETY: nobody uses the pool any more, its pointers are freed, the driver counts one
                // import less each time, and no other pool ends meanwhile. The exporter's memory is
                // not touched (R59).
                unsafe { raw::pool::destroy(self.driver.table(), self.pool) }?;
            }
            Ok(Outcome::Done)
        });
        // Outside of the locks: the end of a stream looks at what waits.
        drop(ended);
        outcome.unwrap_or_else(Outcome::GivenUp)
    }
}

/// Imports a pointer and counts one more user of it.
pub(super) fn import_pointer(
    driver: Driver,
    pool: CUmemoryPool,
    import: impl FnOnce() -> Result<CUdeviceptr>,
) -> Result<CUdeviceptr> {
    alone(|pools| {
        let address = import()?;
        if let Some(entry) = entry(pools, driver, pool) {
            entry.pointers.entry(address).or_default().users += 1;
        }
        Ok(address)
    })
}

/// One user of a pointer less, who used it in `stream`; the last one frees it, after the others.
pub(super) fn release_pointer(
    driver: Driver,
    pool: CUmemoryPool,
    address: CUdeviceptr,
    stream: &Stream,
) -> Result<()> {
    let ended = alone(|pools| {
        let entry = entry(pools, driver, pool);
        let Some(entry) = entry else {
            return Ok(None);
        };
        let Some(pointer) = entry.pointers.get_mut(&address) else {
            return Ok(None);
        };
        pointer.users -= 1;
        if pointer.users > 0 {
            if !pointer.ended.contains(stream) {
                pointer.ended.push(stream.clone());
            }
            return Ok(None);
        }
        // If this fails the mapping stays, rather than end under somebody's work.
        for other in &pointer.ended {
            order(other.as_ref(), stream.as_ref())?;
        }
        let _current = stream.enter()?;
        // SAFETY: this was the last user, and the stream comes after all of them (R13). A default
        // stream's context is current (R8).
        unsafe { raw::alloc::free(driver.table(), address, stream.as_raw()) }?;
        if !entry.freed_in.contains(stream) {
            entry.freed_in.push(stream.clone());
        }
        Ok(entry.pointers.remove(&address))
    })?;
    // Outside of the lock: what a stream keeps may be another import.
    drop(ended);
    Ok(())
}

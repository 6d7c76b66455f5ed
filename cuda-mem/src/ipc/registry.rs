//! What this process has imported. The driver answers a second import of the same thing with the same
//! handle or address. Of pointers, the first release ends all of them (measured, R57): so uses are
//! counted, and only the last one releases.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use cuda_driver_sys::{CUdeviceptr, CUmemoryPool};

use crate::deferred::{self, Deferred, Outcome};
use crate::driver::Driver;
use crate::error::Result;
use crate::join::order;
use crate::pool;
use crate::stream::Stream;
use crate::{raw, recording};

/// The imported pools, by handle.
static POOLS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

struct Entry {
    driver: Driver,
    pool: usize,
    users: usize,
    /// The driver counts too (measured): as many ends as imports.
    imports: usize,
    /// Where frees were submitted that may not have been carried out.
    frees: Vec<Stream>,
    pointers: HashMap<CUdeviceptr, Pointer>,
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
                frees: Vec::new(),
                pointers: HashMap::new(),
            }),
        }
        Ok(pool)
    })
}

/// One user of a pool less. The last one destroys it, or leaves that for later: as long as a free is
/// not carried out, the end of a pool can corrupt the driver (R26).
pub(super) fn release_pool(driver: Driver, pool: CUmemoryPool) -> Result<()> {
    alone(|pools| {
        if let Some(entry) = entry(pools, driver, pool) {
            entry.users -= 1;
        }
        Ok(())
    })?;
    deferred::release_or_defer(Box::new(Remains {
        driver,
        pool: pool.addr(),
        has_failed: false,
        ended: None,
    }))
}

/// An imported pool that nobody uses, unless it was imported again since.
struct Remains {
    driver: Driver,
    pool: usize,
    /// A stream would not say whether it is done.
    has_failed: bool,
    /// What it was; dropped outside of all locks, for what a stream keeps may be another import.
    ended: Option<Entry>,
}

/// Whether a stream is done, and seen to be.
fn see(stream: &Stream) -> Result<bool> {
    if !stream.is_done()? {
        return Ok(false);
    }
    observe(stream).map(|()| true)
}

/// Sees that a stream is done, which asking it does not (R86): a pool that ends when its frees are only
/// done leaves a descriptor open (R128).
fn observe(stream: &Stream) -> Result<()> {
    let _current = stream.enter()?;
    // Not `Stream::synchronize`, which looks at what waits, and so comes back here.
    // SAFETY: the stream is live. It was done just now, so there is hardly anything to wait for.
    unsafe { raw::stream::synchronize(stream.device().driver().table(), stream.as_raw()) }
}

impl Remains {
    /// Ends the pool if its frees are carried out.
    fn end(&mut self) -> Outcome {
        let Self {
            driver,
            pool,
            has_failed,
            ended,
        } = self;
        let outcome = alone(|pools| {
            let found = pools.iter().position(|entry| {
                entry.pool == *pool && entry.driver == *driver && entry.users == 0
            });
            let Some(index) = found else {
                return Ok(Outcome::Done);
            };
            for stream in &pools[index].frees {
                match see(stream) {
                    Ok(true) => {}
                    Ok(false) => return Ok(Outcome::NotYet),
                    Err(error) if *has_failed => return Ok(Outcome::GivenUp(error)),
                    Err(error) => {
                        *has_failed = true;
                        return Ok(Outcome::Again(error));
                    }
                }
            }
            let entry = ended.insert(pools.swap_remove(index));
            let pool = std::ptr::without_provenance_mut(entry.pool);
            let ends = (0..entry.imports).map(|_| {
                // SAFETY: nobody uses the pool any more, its frees are carried out, the driver counts
                // one import less each time, and no other pool ends meanwhile. The exporter's memory
                // is not touched (R59).
                unsafe { raw::pool::destroy(driver.table(), pool) }
            });
            // A failure of one is no reason to leave out the others.
            let ends: Vec<Result<()>> = ends.collect();
            ends.into_iter().collect::<Result<()>>()?;
            Ok(Outcome::Done)
        });
        outcome.unwrap_or_else(Outcome::GivenUp)
    }
}

impl Deferred for Remains {
    fn name(&self) -> &'static str {
        "imported pool"
    }

    fn try_release(&mut self) -> Outcome {
        // Asking a stream would spoil the capture.
        if recording::any() {
            return Outcome::NotYet;
        }
        self.end()
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

/// How many views there are of what is imported at an address.
pub(super) fn users(address: CUdeviceptr) -> Result<usize> {
    alone(|pools| {
        let pointers = pools
            .iter()
            .filter_map(|entry| entry.pointers.get(&address));
        Ok(pointers.map(|pointer| pointer.users).sum())
    })
}

/// One user of a pointer less, who used it in `stream`; the last one frees it, after the others.
pub(super) fn release_pointer(
    driver: Driver,
    pool: CUmemoryPool,
    address: CUdeviceptr,
    stream: &Stream,
) -> Result<()> {
    // Before anything is counted: a captured stream takes no free of this memory.
    recording::refuse(driver.table(), stream.as_raw())?;
    let ended = alone(|pools| {
        let entry = entry(pools, driver, pool);
        let Some(entry) = entry else {
            return Ok(None);
        };
        let Some(pointer) = entry.pointers.get_mut(&address) else {
            return Ok(None);
        };
        pointer.users -= 1;
        // Also of the last one: if its free fails, whoever comes later waits for it.
        if !pointer.ended.contains(stream) {
            pointer.ended.push(stream.clone());
        }
        if pointer.users > 0 {
            return Ok(None);
        }
        // If this fails the mapping stays, rather than end under somebody's work.
        for other in &pointer.ended {
            order(other.as_ref(), stream.as_ref())?;
        }
        let _outside = recording::outside(driver.table(), stream.as_raw())?;
        let _current = stream.enter()?;
        let free = || {
            // SAFETY: this was the last user, and the stream comes after all of them (R13). A default
            // stream's context is current (R8).
            unsafe { raw::alloc::free(driver.table(), address, stream.as_raw()) }
        };
        if recording::any() {
            recording::harmlessly(driver.table(), free)?;
        } else {
            free()?;
        }
        let pointer = entry.pointers.remove(&address);
        if !entry.frees.contains(stream) {
            entry.frees.push(stream.clone());
        }
        let mut failure = None;
        let done = entry.frees.extract_if(.., |stream| {
            // Asking a stream would spoil a capture.
            if recording::any() || !stream.is_done().unwrap_or(false) {
                return false;
            }
            let seen = observe(stream);
            let is_seen = seen.is_ok();
            failure = failure.take().or(seen.err());
            is_seen
        });
        let done: Vec<Stream> = done.collect();
        Ok(Some((pointer, done, failure)))
    })?;
    let failure = ended.map(|(pointer, done, failure)| {
        // Outside of the lock: what a stream keeps may be another import.
        drop((pointer, done));
        failure
    });
    failure.flatten().map_or(Ok(()), Err)
}

//! What this process has imported. The driver answers a second import of the same thing with the same
//! handle or address. Of pointers, the first release ends all of them (measured, R57): so uses are
//! counted, and only the last one releases.
//!
//! Under the lock the driver is only asked to do what returns at once: import, order streams, submit a free,
//! destroy a pool whose frees are carried out. Streams are waited for without it, because the program may have
//! submitted more work to them, and dropped without it, because what a stream keeps may be another import.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use cuda_driver_sys::{CUdeviceptr, CUmemoryPool};

use crate::base::error::Result;
use crate::driver::Driver;
use crate::driver::raw;
use crate::memory::pool;
use crate::stream::Stream;
use crate::stream::deferred::{self, Deferred, Outcome};
use crate::stream::join::order;
use crate::stream::{recording, waits};

/// The imported pools, by handle.
static POOLS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

struct Entry {
    driver: Driver,
    pool: usize,
    users: usize,
    /// The driver counts too (measured): as many ends as imports.
    imports: usize,
    /// Where frees were submitted that may not have been carried out.
    frees: Vec<Free>,
    pointers: HashMap<CUdeviceptr, Pointer>,
}

/// The last free that was submitted to a stream.
#[derive(Clone)]
struct Free {
    stream: Stream,
    /// No other free has it, so a later one is not taken for this one.
    number: u64,
}

impl Free {
    fn new(stream: &Stream) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            stream: stream.clone(),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn is_in(&self, frees: &[Self]) -> bool {
        frees.iter().any(|free| free.number == self.number)
    }
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
    deferred::release_or_defer(Box::new(UnusedImport {
        driver,
        pool: pool.addr(),
        has_failed: false,
    }))
}

/// An imported pool that nobody uses, unless it was imported again since.
struct UnusedImport {
    driver: Driver,
    pool: usize,
    /// A stream would not say whether it is done.
    has_failed: bool,
}

/// Whether a stream is done, and seen to be.
fn see(stream: &Stream) -> Result<bool> {
    if !stream.is_done()? {
        return Ok(false);
    }
    observe(stream).map(|()| true)
}

/// Waits for a stream that was done just now: sees that it is done, which asking it does not (R86): a pool that ends when its frees are only
/// done leaves a descriptor open (R128).
fn observe(stream: &Stream) -> Result<()> {
    // Not `Stream::synchronize`, which looks at what waits, and so comes back here.
    stream.as_ref().wait()
}

impl UnusedImport {
    /// The index of the pool's entry, if it is still there without users.
    fn find(&self, pools: &[Entry]) -> Option<usize> {
        pools.iter().position(|entry| {
            entry.pool == self.pool && entry.driver == self.driver && entry.users == 0
        })
    }

    /// Ends the pool if its frees are carried out.
    fn end(&mut self) -> Result<Outcome> {
        let frees = alone(|pools| {
            let index = self.find(pools);
            Ok(index.map(|index| pools[index].frees.clone()))
        })?;
        let Some(frees) = frees else {
            return Ok(Outcome::Done);
        };
        for free in &frees {
            match see(&free.stream) {
                Ok(true) => {}
                Ok(false) => return Ok(Outcome::NotYet),
                Err(error) if self.has_failed => return Ok(Outcome::GivenUp(error)),
                Err(error) => {
                    self.has_failed = true;
                    return Ok(Outcome::Again(error));
                }
            }
        }
        // The entry is dropped at the end of this function, outside of the lock.
        let (outcome, entry) = alone(|pools| Ok(self.destroy(pools, &frees)))?;
        outcome.map(|()| match entry {
            Some(_) => Outcome::Done,
            None => Outcome::NotYet,
        })
    }

    /// Destroys the pool if these are all its frees; answers its entry then.
    fn destroy(&self, pools: &mut Vec<Entry>, seen: &[Free]) -> (Result<()>, Option<Entry>) {
        // If it was imported again meanwhile, or another thread has ended it, the next try finds that out.
        let Some(index) = self.find(pools) else {
            return (Ok(()), None);
        };
        if !pools[index].frees.iter().all(|free| free.is_in(seen)) {
            return (Ok(()), None);
        }
        let Ok(Some(_nobody)) = waits::nobody() else {
            return (Ok(()), None);
        };
        let entry = pools.swap_remove(index);
        let pool = std::ptr::without_provenance_mut(entry.pool);
        let ends = (0..entry.imports).map(|_| {
            // SAFETY: the pool has no users and its frees are done (R128). The driver counts one import less per call.
            // No other pool ends (R28) and no thread waits through this crate (R178). The exporter's memory is not
            // touched (R59).
            unsafe { raw::pool::destroy(self.driver.table(), pool) }
        });
        // A failure of one is no reason to leave out the others.
        let ends: Vec<Result<()>> = ends.collect();
        (ends.into_iter().collect(), Some(entry))
    }
}

impl Deferred for UnusedImport {
    fn name(&self) -> &'static str {
        "imported pool"
    }

    fn try_release(&mut self) -> Outcome {
        // Asking a stream would spoil the capture.
        if recording::any() {
            return Outcome::NotYet;
        }
        self.end().unwrap_or_else(Outcome::GivenUp)
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
    stream.as_ref().refuse_recorded()?;
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
        let open = stream.as_ref().submit()?;
        // SAFETY: this was the last user, and the stream comes after all of them (R13). A default
        // stream's context is current (R8).
        open.relaxed_while_capturing(|queue| unsafe { raw::alloc::free(queue, address) })?;
        let pointer = entry.pointers.remove(&address);
        let free = Free::new(stream);
        match entry.frees.iter_mut().find(|free| free.stream == *stream) {
            // The caller has the stream too, so nothing of it ends here.
            Some(before) => before.number = free.number,
            None => entry.frees.push(free),
        }
        Ok(Some((pointer, entry.frees.clone())))
    })?;
    // The pointer is dropped here, outside of the lock.
    let frees = ended.map(|(_, frees)| frees).unwrap_or_default();
    see_frees(driver, pool, frees)
}

/// Forgets those frees of a pool that are carried out, so that their streams may go.
fn see_frees(driver: Driver, pool: CUmemoryPool, mut frees: Vec<Free>) -> Result<()> {
    let mut failure = None;
    frees.retain(|free| {
        // Asking a stream would spoil a capture.
        if recording::any() || !free.stream.is_done().unwrap_or(false) {
            return false;
        }
        let seen = observe(&free.stream);
        let is_seen = seen.is_ok();
        failure = failure.take().or(seen.err());
        is_seen
    });
    if !frees.is_empty() {
        let gone: Vec<Free> = alone(|pools| {
            let entry = entry(pools, driver, pool);
            let gone = entry.map(|entry| entry.frees.extract_if(.., |free| free.is_in(&frees)));
            Ok(gone.into_iter().flatten().collect())
        })?;
        drop(gone);
    }
    failure.map_or(Ok(()), Err)
}

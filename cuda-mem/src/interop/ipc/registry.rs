//! The imports of this process. The driver answers a second import of the same object with the same handle or address.
//! For pointers, the first release ends all of them (measured, R57): so uses are counted, and only the last one
//! releases.
//!
//! Under the lock the driver is only asked for operations that return at once: import, order streams, submit a free,
//! destroy a pool whose frees are complete. Streams are waited for outside the lock, because the program may have
//! submitted more work to them, and dropped outside it, because what a stream keeps may be another import.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use cuda_driver_sys::{CUdeviceptr, CUmemoryPool};

use crate::base::error::{Error, ErrorKind, Result};
use crate::driver::Driver;
use crate::driver::raw;
use crate::memory::pool;
use crate::stream::Stream;
use crate::stream::deferred::{self, Deferred, Outcome};
use crate::stream::join::order_outside_captures;
use crate::stream::{recording, waits};

/// The imported pools, by handle.
static POOLS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

struct Entry {
    driver: Driver,
    pool: usize,
    users: usize,
    /// The driver counts too (measured): as many releases as imports.
    imports: usize,
    /// Streams with submitted frees that may not be complete.
    frees: Vec<LastUse>,
    pointers: HashMap<CUdeviceptr, Pointer>,
}

/// The last use of memory in a stream, or the last free that was submitted to it.
#[derive(Clone)]
struct LastUse {
    stream: Stream,
    /// Unique, so that a later one is not taken for this one.
    number: u64,
}

impl LastUse {
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
    /// The last uses of past users, one of each stream: the memory is freed after their work.
    ended: Vec<LastUse>,
    /// How many of them were left when it was last asked which are done.
    left: usize,
}

/// Runs calls on shared imports one at a time, and never while a pool is destroyed: together they crashed a driver
/// (R28).
fn alone<T>(work: impl FnOnce(&mut Vec<Entry>) -> Result<T>) -> Result<T> {
    // While it is held the hook waits, which may import.
    let _ends = pool::no_pool_ends()?;
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    work(&mut pools)
}

/// The entry of a pool that is in use.
fn entry(pools: &mut [Entry], driver: Driver, pool: CUmemoryPool) -> Option<&mut Entry> {
    let mut pools = pools.iter_mut();
    pools.find(|entry| entry.pool == pool.addr() && entry.driver == driver)
}

fn pointer(
    pools: &mut [Entry],
    driver: Driver,
    pool: CUmemoryPool,
    address: CUdeviceptr,
) -> Option<&mut Pointer> {
    entry(pools, driver, pool)?.pointers.get_mut(&address)
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

/// Removes one user of a pool. The last one destroys it, or defers that: destroying a pool while a free is pending can
/// corrupt the driver (R26).
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
        failure: None,
    }))
}

/// An imported pool without users, unless it was imported again since.
struct UnusedImport {
    driver: Driver,
    pool: usize,
    /// A stream query failed.
    has_failed: bool,
    /// The first failure of a destroy.
    failure: Option<Error>,
}

/// Whether a stream is done, and was observed to be done. A stream that any code captures is not queried, because that
/// would invalidate the capture (R113); it counts as not done.
fn see(stream: &Stream) -> Result<bool> {
    let seen = match stream.as_ref().is_done_unless_captured() {
        Ok(true) => observe(stream).map(|()| true),
        answer => answer,
    };
    match seen {
        Err(error) if error.kind() == ErrorKind::Capturing => Ok(false),
        seen => seen,
    }
}

/// Waits for a stream that was found to be done just now, because the query alone does not count as observing it (R86):
/// a pool that is destroyed when its frees are only done, but not observed, leaves a descriptor open (R128).
fn observe(stream: &Stream) -> Result<()> {
    // Not `Stream::synchronize`, which processes deferred releases, and so would come back here.
    let table = stream.context().driver().table();
    recording::with_relaxed_capture_mode(table, || stream.as_ref().wait())
}

impl UnusedImport {
    /// The index of the pool's entry, if it is still there without users.
    fn find(&self, pools: &[Entry]) -> Option<usize> {
        pools.iter().position(|entry| {
            entry.pool == self.pool && entry.driver == self.driver && entry.users == 0
        })
    }

    /// Destroys the pool if its frees are complete.
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
        // The entry is dropped at the end of this function, outside the lock.
        let (outcome, entry) = alone(|pools| Ok(self.destroy(pools, &frees)))?;
        outcome.map(|()| match entry {
            Some(_) => Outcome::Done,
            None => Outcome::NotYet,
        })
    }

    /// Destroys the pool if these are all its frees; returns its entry then.
    fn destroy(&mut self, pools: &mut Vec<Entry>, seen: &[LastUse]) -> (Result<()>, Option<Entry>) {
        // If it was imported again meanwhile, or destroyed by another thread, the next attempt finds that out.
        let Some(index) = self.find(pools) else {
            return (Ok(()), None);
        };
        if !pools[index].frees.iter().all(|free| free.is_in(seen)) {
            return (Ok(()), None);
        }
        let Ok(Some(_exclusion)) = waits::exclude() else {
            return (Ok(()), None);
        };
        let entry = &mut pools[index];
        let pool = std::ptr::without_provenance_mut(entry.pool);
        let table = self.driver.table();
        while entry.imports > 0 {
            let end = recording::with_relaxed_capture_mode(table, || {
                // SAFETY: the pool has no users and its frees are done (R128). The driver counts one import less per
                // call. No other pool ends (R28) and no thread waits through this crate (R178). The exporter's memory
                // is not touched (R59).
                unsafe { raw::pool::destroy(table, pool) }
            });
            match end {
                Ok(()) => {}
                // The rest is tried again.
                Err(error) if error.kind() == ErrorKind::Capturing => return (Ok(()), None),
                // The others are still tried.
                Err(error) => {
                    self.failure.get_or_insert(error);
                }
            }
            entry.imports -= 1;
        }
        let ended = self.failure.take().map_or(Ok(()), Err);
        (ended, Some(pools.swap_remove(index)))
    }
}

impl Deferred for UnusedImport {
    fn name(&self) -> &'static str {
        "imported pool"
    }

    fn try_release(&mut self) -> Outcome {
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

/// The number of views of the import at an address.
#[cfg(target_os = "linux")]
pub(super) fn users(address: CUdeviceptr) -> Result<usize> {
    alone(|pools| {
        let pointers = pools
            .iter()
            .filter_map(|entry| entry.pointers.get(&address));
        Ok(pointers.map(|pointer| pointer.users).sum())
    })
}

/// Removes one user of a pointer, who used it in `stream`; the last one frees it, after the others. Returns how many are
/// left, as counted when this one was removed: a count that is read later may lack views that had work of their own then.
pub(super) fn release_pointer(
    driver: Driver,
    pool: CUmemoryPool,
    address: CUdeviceptr,
    stream: &Stream,
) -> Result<usize> {
    // Before anything is counted: a captured stream cannot free this memory.
    stream.as_ref().refuse_recorded()?;
    let (users, ended) = alone(|pools| {
        let entry = entry(pools, driver, pool);
        let Some(entry) = entry else {
            return Ok((0, None));
        };
        let Some(pointer) = entry.pointers.get_mut(&address) else {
            return Ok((0, None));
        };
        let is_last = pointer.users == 1;
        let freed = match is_last {
            true => free_after(&pointer.ended, address, stream),
            false => Ok(()),
        };
        // Nothing is counted, so that it can be tried again.
        if let Err(error) = &freed
            && error.kind() == ErrorKind::Capturing
        {
            return freed.map(|()| (0, None));
        }
        pointer.users -= 1;
        // Also for the last one: if its free fails, a later user waits for it.
        note_last(&mut pointer.ended, stream);
        if !is_last {
            return Ok((pointer.users, None));
        }
        freed?;
        let pointer = entry.pointers.remove(&address);
        note_last(&mut entry.frees, stream);
        Ok((0, Some((pointer, entry.frees.clone()))))
    })?;
    if users > 0 {
        // The use is counted, and what is not forgotten now is forgotten later.
        let _ = forget_done(driver, pool, address);
    }
    // The pointer is dropped here, outside the lock.
    let frees = ended.map(|(_, frees)| frees).unwrap_or_default();
    see_frees(driver, pool, frees)?;
    Ok(users)
}

/// From now on, this is the stream's last one.
fn note_last(uses: &mut Vec<LastUse>, stream: &Stream) {
    let now = LastUse::new(stream);
    match uses.iter_mut().find(|last| last.stream == *stream) {
        // The caller has the stream too, so this does not drop its last handle.
        Some(before) => before.number = now.number,
        None => uses.push(now),
    }
}

/// Forgets past users whose work is done: what comes later need not be ordered after it. One long user would otherwise keep
/// the streams of all short ones. They are asked once there are twice as many as were busy the last time.
fn forget_done(driver: Driver, pool: CUmemoryPool, address: CUdeviceptr) -> Result<()> {
    let mut done = alone(|pools| {
        let due = pointer(pools, driver, pool, address)
            .filter(|pointer| pointer.ended.len() > 2 * pointer.left);
        Ok(due.map(|pointer| pointer.ended.clone()).unwrap_or_default())
    })?;
    if done.is_empty() {
        return Ok(());
    }
    done.retain(|last| matches!(last.stream.as_ref().is_done_unless_captured(), Ok(true)));
    let gone = alone(|pools| {
        let Some(pointer) = pointer(pools, driver, pool, address) else {
            return Ok(Vec::new());
        };
        let gone = pointer.ended.extract_if(.., |last| last.is_in(&done));
        let gone: Vec<LastUse> = gone.collect();
        pointer.left = pointer.ended.len();
        Ok(gone)
    })?;
    // Outside the lock: these may be the last handles of their streams.
    drop(gone);
    Ok(())
}

/// Frees an import after the work in these streams. If this fails the mapping stays, rather than being freed while work uses
/// it.
fn free_after(ended: &[LastUse], address: CUdeviceptr, stream: &Stream) -> Result<()> {
    for other in ended {
        order_outside_captures(other.stream.as_ref(), stream.as_ref())?;
    }
    // SAFETY: this is for the last user, and the stream comes after all of them (R13). A default stream's context is
    // current (R8).
    unsafe { pool::free_harmlessly(address, stream.as_ref()) }
}

/// Forgets those frees of a pool that are complete, so that their streams can be dropped.
fn see_frees(driver: Driver, pool: CUmemoryPool, mut frees: Vec<LastUse>) -> Result<()> {
    let mut failure = None;
    frees.retain(|free| {
        match free.stream.as_ref().is_done_unless_captured() {
            Ok(true) => {}
            Ok(false) | Err(_) => return false,
        }
        match observe(&free.stream) {
            Ok(()) => true,
            // A later call sees it.
            Err(error) if error.kind() == ErrorKind::Capturing => false,
            Err(error) => {
                failure.get_or_insert(error);
                false
            }
        }
    });
    if !frees.is_empty() {
        let gone: Vec<LastUse> = alone(|pools| {
            let entry = entry(pools, driver, pool);
            let gone = entry.map(|entry| entry.frees.extract_if(.., |free| free.is_in(&frees)));
            Ok(gone.into_iter().flatten().collect())
        })?;
        drop(gone);
    }
    failure.map_or(Ok(()), Err)
}

//! Frees that a capture forbids. They are made later.

use std::alloc::Layout;
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use cuda_mem::ErrorKind;
use cuda_mem::sys::CUstream;

use super::captures;
use super::memory::Memory;

/// How many allocations there are in a capture for each that tries again to free what was parked.
const TRIES_PARKED_EVERY: u64 = 64;

/// A free that was not possible yet.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) address: u64,
    pub(super) layout: Layout,
    pub(super) stream: usize,
    pub(super) others: Vec<usize>,
}

fn handle(address: usize) -> CUstream {
    std::ptr::with_exposed_provenance_mut(address)
}

impl Memory {
    fn parked(&self) -> MutexGuard<'_, Vec<Parked>> {
        self.parked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn park(&self, free: Parked) {
        self.parked().push(free);
        self.has_parked.store(true, Ordering::Relaxed);
    }

    /// They were parked because of a capture, whose end tries them again. A capture that failed may count as under way for
    /// ever, so they are tried now and then.
    pub(super) fn may_try_parked(&self) -> bool {
        !captures::any()
            || self.left_parked.fetch_add(1, Ordering::Relaxed) % TRIES_PARKED_EVERY
                == TRIES_PARKED_EVERY - 1
    }

    /// Tries again to free what could not be freed in a capture.
    pub(super) fn free_parked(&self) {
        self.has_parked.store(false, Ordering::Relaxed);
        let parked = std::mem::take(&mut *self.parked());
        for free in parked {
            let others: Vec<CUstream> = free.others.iter().map(|raw| handle(*raw)).collect();
            // SAFETY: PyTorch has given the block up, and its streams live as long as the process.
            let freed =
                unsafe { self.free(free.address, free.layout, handle(free.stream), &others) };
            match freed {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Capturing && error.had_no_effect() => {
                    self.park(free);
                }
                Err(error) => super::tell("free", &error),
            }
        }
    }
}

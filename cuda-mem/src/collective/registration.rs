//! Memory that is registered with a communicator.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use cuda_driver_sys::CUdeviceptr;
use cuda_driver_sys::nccl::ncclWindow_t;

use super::communicator::{Communicator, Inner};
use crate::base::error::{Error, Result};
use crate::base::report;
use crate::driver::raw;
use crate::driver::raw::nccl::Transfer;
use crate::ledger::{self, Item, LedgerKind};

/// Where the windows of a communicator are.
#[derive(Debug, Default)]
pub(super) struct Windows(BTreeMap<u64, Window>);

/// Memory that operations of many bytes use at one address, and those of few at another, which is registered as a window.
#[derive(Clone, Copy, Debug)]
struct Window {
    bytes: u64,
    alias: u64,
}

/// A window that NCCL has not written yet. It may write null.
const NOT_YET: ncclWindow_t = NonNull::dangling().as_ptr();

/// The most bytes for which a window pays. On two H200s a window makes an all-reduce of 8 KiB a third faster, and one of 64 KiB
/// slower; at 256 MiB it costs a sixth of the bandwidth.
pub(super) const WINDOW_PAYS: usize = 32 << 10;

impl Windows {
    fn insert(&mut self, (address, bytes): (CUdeviceptr, u64), alias: CUdeviceptr) {
        self.0.insert(address, Window { bytes, alias });
    }

    fn remove(&mut self, address: CUdeviceptr) {
        self.0.remove(&address);
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// The address within a window of these bytes.
    fn alias(&self, address: CUdeviceptr, bytes: usize) -> Option<CUdeviceptr> {
        let (start, window) = self.0.range(..=address).next_back()?;
        let offset = address - start;
        (offset + bytes as u64 <= window.bytes).then_some(window.alias + offset)
    }

    /// Whether an operation on these bytes uses windows.
    pub(super) fn serve(&self, from: (CUdeviceptr, usize), to: (CUdeviceptr, usize)) -> bool {
        from.1.max(to.1) <= WINDOW_PAYS
            && self.alias(from.0, from.1).is_some()
            && self.alias(to.0, to.1).is_some()
    }

    /// The same transfer within windows, if all of it lies in windows and they pay. `bytes` are those at `from` and `to`.
    pub(super) fn translate(&self, transfer: Transfer, bytes: (usize, usize)) -> Transfer {
        let (from, to) = ((transfer.from, bytes.0), (transfer.to, bytes.1));
        if self.0.is_empty() || !self.serve(from, to) {
            return transfer;
        }
        let alias = |at: (CUdeviceptr, usize)| self.alias(at.0, at.1).unwrap_or(at.0);
        Transfer {
            from: alias(from),
            to: alias(to),
            ..transfer
        }
    }
}

/// A range of mapped memory that a communicator knows, until [`end`](Self::end).
#[must_use = "NCCL knows the memory until `end`"]
pub(super) struct Registration {
    communicator: Arc<Inner>,
    address: CUdeviceptr,
    handle: Handle,
}

enum Handle {
    Local(*mut c_void),
    /// Registered at `alias`, on all ranks together.
    Window(ncclWindow_t, CUdeviceptr),
}

// SAFETY: NCCL's handles may be used from any thread; the communicator's lock is held meanwhile.
unsafe impl Send for Registration {}
// SAFETY: nothing is done through a shared reference.
unsafe impl Sync for Registration {}

impl Registration {
    /// # Safety
    ///
    /// The range must stay mapped until [`end`](Self::end) returns true.
    #[track_caller]
    pub(super) unsafe fn local(
        communicator: &Communicator,
        range: (CUdeviceptr, usize),
    ) -> Result<Self> {
        let inner = &communicator.0;
        let state = inner.state()?;
        let _current = inner.context.bind()?;
        // SAFETY: the communicator is live while the lock is held; the rest is the caller's.
        let handle = unsafe { raw::nccl::register(inner.nccl.table(), state.usable()?, range) }
            .map_err(|error| {
                error.asked(|| format!("{} bytes at {:#x}, {inner}", range.1, range.0))
            })?;
        drop(state);
        let registration = Self {
            communicator: Arc::clone(inner),
            address: range.0,
            handle: Handle::Local(handle),
        };
        ledger::insert(registration.item());
        Ok(registration)
    }

    /// All ranks must do this at the same time, with as many bytes.
    ///
    /// # Safety
    ///
    /// As [`local`](Self::local), for the memory at both addresses, which must be the same.
    #[track_caller]
    pub(super) unsafe fn window(
        communicator: &Communicator,
        range: (CUdeviceptr, usize),
        alias: CUdeviceptr,
    ) -> Result<Self> {
        let inner = &communicator.0;
        let mut state = inner.state()?;
        let _current = inner.context.bind()?;
        // On the heap: after a failure NCCL may still write to it, and then it is leaked.
        let place = NonNull::from(Box::leak(Box::new(AtomicPtr::new(NOT_YET))));
        let (table, at) = (inner.nccl.table(), (alias, range.1));
        // SAFETY: the place is leaked so far.
        let into = unsafe { place.as_ref() }.as_ptr();
        // SAFETY: the communicator is live while the lock is held, the place is never freed while NCCL may use it, and the
        // rest is the caller's.
        let register = |raw| unsafe { raw::nccl::register_window(table, raw, at, into) };
        let started = state.usable().and_then(register);
        // In the background NCCL may not even have begun when it says that all is done (N2).
        // SAFETY: as above.
        let is_there = || unsafe { place.as_ref() }.load(Ordering::Acquire) != NOT_YET;
        let is_started = started.is_ok();
        let settled = inner.settle_until(&mut state, "ncclCommWindowRegister", started, is_there);
        if let Err(error) = settled {
            if is_started {
                // In the background NCCL may still be at it, and the memory is about to be unmapped.
                drop(state);
                inner.stop();
            }
            return Err(error);
        }
        // SAFETY: from `leak` above, and NCCL is done with it.
        let window = unsafe { Box::from_raw(place.as_ptr()) }.into_inner();
        state.windows.insert((range.0, range.1 as u64), alias);
        drop(state);
        let registration = Self {
            communicator: Arc::clone(inner),
            address: range.0,
            handle: Handle::Window(window, alias),
        };
        ledger::insert(registration.item());
        Ok(registration)
    }

    fn item(&self) -> Item {
        let at = match self.handle {
            Handle::Local(_) => self.address,
            Handle::Window(_, alias) => alias,
        };
        let number = Arc::as_ptr(&self.communicator).addr() as u64;
        Item::new(LedgerKind::Registration, at ^ number.rotate_left(32))
            .on(self.communicator.context.device())
    }

    /// Ends it. False if NCCL may still use the memory, which must stay mapped for ever then; a failure is reported as one of a destructor.
    #[must_use]
    pub(super) fn end(self) -> bool {
        let mut is_over = false;
        report::release("registration", || self.try_end(&mut is_over));
        is_over
    }

    fn try_end(&self, is_over: &mut bool) -> Result<()> {
        ledger::remove(&self.item());
        let inner = &self.communicator;
        let mut state = inner.state()?;
        if let Handle::Window(..) = self.handle {
            state.windows.remove(self.address);
        }
        // An aborted communicator has ended its registrations.
        let Some(raw) = state.live() else {
            drop(state);
            inner.wait_for_abort()?;
            *is_over = true;
            return Ok(());
        };
        let _current = inner.context.bind()?;
        let table = inner.nccl.table();
        match self.handle {
            Handle::Local(handle) => {
                *is_over = true;
                // SAFETY: from this communicator, which is live while the lock is held.
                unsafe { raw::nccl::deregister(table, raw, handle) }
            }
            Handle::Window(window, _) => {
                // SAFETY: as above.
                let started = unsafe { raw::nccl::deregister_window(table, raw, window) };
                let is_started = started.is_ok();
                let settled = inner.settle(&mut state, "ncclCommWindowDeregister", started);
                if let Err(error) = &settled
                    && is_started
                {
                    // In the background NCCL may still be at it.
                    drop(state);
                    if let Err(aborted) = inner.abort() {
                        let text = "NCCL may still use the memory, which stays allocated for ever";
                        return Err(Error::new(
                            error.kind(),
                            format!("{text}: {error}; then the abort failed: {aborted}"),
                        ));
                    }
                }
                *is_over = true;
                settled
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use cuda_driver_sys::nccl::ncclDataType_t;

    use super::*;

    fn transfer(from: u64, to: u64) -> Transfer {
        Transfer {
            from,
            to,
            count: 1,
            data_type: ncclDataType_t::ncclInt8,
        }
    }

    fn translated(windows: &Windows, from: (u64, usize), to: (u64, usize)) -> (u64, u64) {
        let moved = windows.translate(transfer(from.0, to.0), (from.1, to.1));
        (moved.from, moved.to)
    }

    #[test]
    fn small_transfers_within_windows_use_them_and_others_do_not() {
        let mut windows = Windows::default();
        assert_eq!(
            translated(&windows, (0x1000, 8), (0x1000, 8)),
            (0x1000, 0x1000)
        );
        windows.insert((0x1000, 0x2000), 0x90_1000);
        windows.insert((0x8000, 0x10_0000), 0xa0_0000);
        assert_eq!(
            translated(&windows, (0x1008, 8), (0x8010, 8)),
            (0x90_1008, 0xa0_0010)
        );
        // The last byte of a window, and one more.
        assert_eq!(
            translated(&windows, (0x2ff8, 8), (0x2ff8, 8)),
            (0x90_2ff8, 0x90_2ff8)
        );
        assert_eq!(
            translated(&windows, (0x2ff8, 9), (0x1000, 9)),
            (0x2ff8, 0x1000)
        );
        // Before all windows, and one end outside.
        assert_eq!(translated(&windows, (0x10, 8), (0x1000, 8)), (0x10, 0x1000));
        let most = WINDOW_PAYS;
        assert_eq!(
            translated(&windows, (0x8000, most), (0x8000, most)),
            (0xa0_0000, 0xa0_0000)
        );
        let more = most + 1;
        assert_eq!(
            translated(&windows, (0x8000, more), (0x8000, more)),
            (0x8000, 0x8000)
        );
        windows.remove(0x1000);
        assert_eq!(
            translated(&windows, (0x1000, 8), (0x1000, 8)),
            (0x1000, 0x1000)
        );
    }
}

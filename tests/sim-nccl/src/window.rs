//! Windows: memory that all ranks register together.

use cuda_driver_sys::nccl::{
    NCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_DEFAULT, NCCL_WIN_REQUIRED_ALIGNMENT, ncclResult_t,
    ncclWindow_t,
};

use crate::clique::Sequence;
use crate::communicator::{PendingWindow, Progress};
use crate::export::{Answer, Comm, Out, invalid_argument};
use crate::group::{Job, grouped};
use crate::operation::Signature;
use crate::register::{self, RegistrationKind};
use crate::state::{State, changed, state, wait_until};

/// A call that was checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WindowCall {
    comm: Comm,
    address: u64,
    bytes: usize,
    flags: i32,
    out: Out<ncclWindow_t>,
}

pub(crate) fn register(
    comm: Comm,
    address: u64,
    bytes: usize,
    out: Out<ncclWindow_t>,
    flags: i32,
) -> Answer<ncclResult_t> {
    grouped(|| {
        out.required()?;
        let loaded = state().ready(comm)?.loaded;
        if !address.is_multiple_of(NCCL_WIN_REQUIRED_ALIGNMENT as u64) {
            return invalid_argument(format!(
                "{address:#x} is no multiple of {NCCL_WIN_REQUIRED_ALIGNMENT}"
            ));
        }
        if ![NCCL_WIN_DEFAULT, NCCL_WIN_COLL_SYMMETRIC].contains(&flags) {
            return invalid_argument(format!("flags {flags:#x} are not known"));
        }
        register::check(&loaded, address, bytes)?;
        Ok(Job::Window(WindowCall {
            comm,
            address,
            bytes,
            flags,
            out,
        }))
    })
}

/// Ends a window. At once, unless a test holds the communicator.
pub(crate) fn deregister(comm: Comm, number: u64) -> Answer<ncclResult_t> {
    let mut locked = state();
    let found = locked.live_comm(comm)?;
    if found.is_held && !found.is_blocking {
        found.ending_windows.push(number);
        found.progress = Progress::Unasked;
        return Ok(ncclResult_t::ncclInProgress);
    }
    register::remove(comm, RegistrationKind::Window, number)?;
    Ok(ncclResult_t::ncclSuccess)
}

impl WindowCall {
    /// Comes to the rendezvous. What became of it is told by [`finish`](Self::finish).
    pub(crate) fn start(&self) {
        let mut locked = state();
        let state = &mut *locked;
        let Some(comm) = state.comms.get_mut(&self.comm) else {
            return;
        };
        let Some(clique) = state.cliques.get_mut(&comm.clique) else {
            return;
        };
        let signature = Signature::Window {
            bytes: self.bytes,
            flags: self.flags,
        };
        comm.pending_windows.push(PendingWindow {
            key: clique.arrive(comm.rank, Sequence::Window, signature),
            address: self.address,
            bytes: self.bytes,
            out: self.out,
        });
        comm.progress = Progress::Registering;
        changed();
    }

    /// Waits for the others, unless the communicator does not block.
    pub(crate) fn finish(&self) -> Answer<ncclResult_t> {
        let mut locked = state();
        if !locked.comm(self.comm)?.is_blocking {
            return Ok(ncclResult_t::ncclInProgress);
        }
        let mut found = None;
        let mut locked = wait_until(locked, |state| {
            found = complete(state, self.comm)
                .or_else(|| state.error(self.comm).map(Err))
                .or_else(|| state.live_comm(self.comm).err().map(Err));
            found.is_some()
        });
        locked.comm(self.comm)?.progress = Progress::Done;
        found.unwrap_or(Ok(()))?;
        Ok(ncclResult_t::ncclSuccess)
    }
}

/// Completes the windows of a communicator that all ranks have registered; `None` if some are left.
pub(crate) fn complete(state: &mut State, comm: Comm) -> Option<Answer> {
    let communicator = state.comms.get_mut(&comm)?;
    let rank = communicator.rank;
    let clique = state.cliques.get_mut(&communicator.clique)?;
    let mut result = Ok(());
    communicator.pending_windows.retain(|pending| {
        let Some(agrees) = clique.agrees(pending.key) else {
            return true;
        };
        clique.leave(pending.key, rank, false);
        if agrees {
            let number = register::add(
                comm,
                RegistrationKind::Window,
                pending.address,
                pending.bytes,
            );
            let handle = std::ptr::without_provenance_mut(number as usize);
            // It was checked that the place is not null.
            let _ = pending.out.write(handle);
        } else {
            result = invalid_argument("the ranks register windows of different sizes or flags");
        }
        false
    });
    if communicator.pending_windows.is_empty() || result.is_err() {
        return Some(result);
    }
    None
}

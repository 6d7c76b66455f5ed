//! Communicators: one rank's end of a clique.

use std::ffi::CStr;

use cuda_driver_sys::nccl::{ncclResult_t, ncclWindow_t};

use crate::clique::{Clique, Key};
use crate::export::{Answer, Comm, Failure, Out, fail, invalid_argument, invalid_usage};
use crate::launch::Loaded;
use crate::register::{self, RegistrationKind};
use crate::state::{State, changed, state, wait_until};
use crate::{window, words};

/// One rank's end.
#[derive(Debug)]
pub(crate) struct RankComm {
    pub(crate) clique: u64,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    pub(crate) device: i32,
    pub(crate) loaded: Loaded,
    pub(crate) is_blocking: bool,
    pub(crate) progress: Progress,
    /// Windows that not all ranks have registered.
    pub(crate) pending_windows: Vec<PendingWindow>,
    /// Windows whose end is in progress.
    pub(crate) ending_windows: Vec<u64>,
    /// The error of a rank that could not join, or whose window is wrong.
    pub(crate) failure: Option<Failure>,
    /// Kernels that were submitted or run.
    pub(crate) pending: i64,
    is_killed: bool,
    is_finalized: bool,
    /// A test lets its calls stay in progress.
    pub(crate) is_held: bool,
}

/// What the last call still does, or what the program has not asked about yet.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Progress {
    Done,
    Joining,
    /// A call answered `ncclInProgress`; so does the next question.
    Unasked,
    /// Not all ranks have registered their windows.
    Registering,
    Finalizing,
}

/// A window that not all ranks have registered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PendingWindow {
    pub(crate) key: Key,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) out: Out<ncclWindow_t>,
}

impl RankComm {
    /// A rank that has not joined.
    pub(crate) fn new(
        clique: u64,
        (rank, ranks): (usize, usize),
        device: i32,
        loaded: Loaded,
        is_blocking: bool,
    ) -> Self {
        Self {
            clique,
            rank,
            ranks,
            device,
            loaded,
            is_blocking,
            progress: Progress::Joining,
            pending_windows: Vec::new(),
            ending_windows: Vec::new(),
            failure: None,
            pending: 0,
            is_killed: false,
            is_finalized: false,
            is_held: false,
        }
    }

    fn check_alive(&self) -> Answer {
        if self.is_killed {
            return fail(ncclResult_t::ncclSystemError, "this rank was killed");
        }
        Ok(())
    }
}

impl State {
    /// A communicator by its handle.
    pub(crate) fn comm(&mut self, comm: Comm) -> Answer<&mut RankComm> {
        match self.comms.get_mut(&comm) {
            Some(found) => Ok(found),
            None => {
                let words = format!("there is no communicator {:#x}", comm.0);
                if comm.0 != 0 {
                    words::fault(words.clone());
                }
                invalid_argument(words)
            }
        }
    }

    /// A communicator whose process lives.
    pub(crate) fn live_comm(&mut self, comm: Comm) -> Answer<&mut RankComm> {
        let found = self.comm(comm)?;
        found.check_alive()?;
        Ok(found)
    }

    /// A communicator whose ranks, count and device may be asked for: not one that still joins.
    pub(crate) fn joined_comm(&mut self, comm: Comm) -> Answer<&mut RankComm> {
        let found = self.live_comm(comm)?;
        if matches!(found.progress, Progress::Joining) {
            return invalid_argument("the communicator is not initialised yet");
        }
        Ok(found)
    }

    fn clique_of(&mut self, comm: Comm) -> Option<&mut Clique> {
        let clique = self.comms.get(&comm)?.clique;
        self.cliques.get_mut(&clique)
    }

    /// Why this rank cannot join.
    pub(crate) fn join_error(&mut self, comm: Comm) -> Option<Failure> {
        let own = self.comms.get(&comm)?.failure.clone();
        own.or_else(|| self.error(comm).filter(|_| !self.is_joined(comm)))
    }

    /// Whether all ranks have come.
    pub(crate) fn is_joined(&mut self, comm: Comm) -> bool {
        self.clique_of(comm).is_some_and(|it| it.is_complete())
    }

    /// The error of a communicator, and words.
    pub(crate) fn error(&mut self, comm: Comm) -> Option<Failure> {
        let communicator = self.comms.get(&comm)?;
        if let Some(failure) = &communicator.failure {
            return Some(failure.clone());
        }
        let rank = communicator.rank;
        let member = self.clique_of(comm)?.member(rank)?;
        let code = member.error.filter(|_| member.comm == comm)?;
        let words = member.words.to_string_lossy().into_owned();
        Some(Failure { code, words })
    }

    /// A communicator that takes calls: no error, and nothing in progress.
    pub(crate) fn ready(&mut self, comm: Comm) -> Answer<&mut RankComm> {
        self.live_comm(comm)?;
        if let Some(failure) = self.error(comm) {
            return Err(failure);
        }
        let found = self.comm(comm)?;
        if found.is_finalized {
            return invalid_usage("the communicator is finalized");
        }
        if !matches!(found.progress, Progress::Done) {
            // NCCL itself accepts the call if the work happens to be done.
            let words = "a call before ncclCommGetAsyncError said that the last one is done";
            words::fault(format!("communicator {:#x}: {words}", comm.0));
            return invalid_argument(words);
        }
        Ok(found)
    }

    fn async_error(&mut self, comm: Comm) -> Answer<ncclResult_t> {
        let progress = self.live_comm(comm)?.progress;
        if let Some(failure) = self.error(comm) {
            return Ok(failure.code);
        }
        let is_held = self.comm(comm)?.is_held;
        let (is_done, is_told_later) = match progress {
            Progress::Unasked if is_held => (false, false),
            Progress::Done => (true, false),
            Progress::Unasked => (true, true),
            Progress::Joining => (self.is_joined(comm), false),
            Progress::Finalizing => (self.comm(comm)?.pending == 0, false),
            Progress::Registering => match window::complete(self, comm) {
                None => (false, false),
                Some(Ok(())) => (true, false),
                Some(Err(failure)) => {
                    let code = failure.code;
                    words::set_last(&failure.words);
                    self.comm(comm)?.failure = Some(failure);
                    return Ok(code);
                }
            },
        };
        if is_done {
            let found = self.comm(comm)?;
            found.progress = Progress::Done;
            for window in std::mem::take(&mut found.ending_windows) {
                register::remove(comm, RegistrationKind::Window, window)?;
            }
        }
        Ok(if is_done && !is_told_later {
            ncclResult_t::ncclSuccess
        } else {
            ncclResult_t::ncclInProgress
        })
    }

    /// Frees a communicator. Kernels that were captured cannot run any more.
    pub(crate) fn remove(&mut self, comm: Comm) {
        let Some(communicator) = self.comms.remove(&comm) else {
            return;
        };
        self.plans
            .retain(|_, plan| plan.comm != comm || !plan.is_captured);
        let id = communicator.clique;
        let Some(clique) = self.cliques.get_mut(&id) else {
            return;
        };
        if let Some(member) = clique.member_mut(communicator.rank)
            && member.comm == comm
        {
            member.is_gone = true;
        }
        if clique.is_over() {
            self.cliques.remove(&id);
            self.ids.retain(|_, clique| *clique != id);
        }
    }

    /// Ends this rank for the others: its process died, or it gave up.
    fn end_rank(&mut self, comm: Comm, why: &str) {
        let Some(rank) = self.comms.get(&comm).map(|found| found.rank) else {
            return;
        };
        if let Some(clique) = self.clique_of(comm) {
            let is_own = clique.member(rank).is_some_and(|it| it.comm == comm);
            if is_own {
                clique.end_rank(rank, why);
            }
        }
    }

    fn is_quiet(&self, comm: Comm) -> bool {
        self.comms.get(&comm).is_none_or(|it| it.pending == 0)
    }
}

/// The kernel of a communicator, in its context.
pub(crate) fn loaded(comm: Comm) -> Answer<Loaded> {
    Ok(state().comm(comm)?.loaded)
}

pub(crate) fn async_error(comm: Comm) -> Answer<ncclResult_t> {
    state().async_error(comm)
}

/// Words for the asynchronous error of a communicator.
pub(crate) fn error_words(comm: Comm) -> Option<&'static CStr> {
    let failure = state().error(comm)?;
    Some(words::keep(&failure.words))
}

/// Waits for what was submitted, or says that it goes on.
pub(crate) fn finalize(comm: Comm) -> Answer<ncclResult_t> {
    let mut locked = state();
    let found = locked.ready(comm)?;
    found.is_finalized = true;
    if !found.is_blocking {
        found.progress = Progress::Finalizing;
        return Ok(ncclResult_t::ncclInProgress);
    }
    drop(wait_until(locked, |state| state.is_quiet(comm)));
    Ok(ncclResult_t::ncclSuccess)
}

/// Waits for what was submitted, and frees.
pub(crate) fn destroy(comm: Comm) -> Answer<ncclResult_t> {
    let mut locked = state();
    let found = locked.comm(comm)?;
    let (clique, rank) = (found.clique, found.rank);
    if !found.is_killed && !locked.is_joined(comm) {
        locked.end_rank(comm, "was destroyed before all had come");
    }
    let mut locked = wait_until(locked, |state| {
        state.is_quiet(comm) || state.is_stopped(clique, rank)
    });
    locked.remove(comm);
    drop(locked);
    changed();
    register::note_leaks(comm);
    Ok(ncclResult_t::ncclSuccess)
}

/// Ends what was submitted without waiting, and frees.
pub(crate) fn abort(comm: Comm) -> Answer<ncclResult_t> {
    let mut locked = state();
    locked.comm(comm)?;
    locked.end_rank(comm, "aborted");
    locked.note_aborted_plans(comm);
    locked.remove(comm);
    drop(locked);
    changed();
    register::forget(comm);
    Ok(ncclResult_t::ncclSuccess)
}

/// Lets the calls of a communicator stay in progress, or no longer. False if there is none.
pub(crate) fn hold(comm: Comm, is_held: bool) -> bool {
    let mut locked = state();
    let Some(found) = locked.comms.get_mut(&comm) else {
        return false;
    };
    found.is_held = is_held;
    true
}

/// As if the process of this rank died. False if there is no such communicator.
pub(crate) fn kill(comm: Comm) -> bool {
    let mut locked = state();
    let Some(found) = locked.comms.get_mut(&comm) else {
        return false;
    };
    found.is_killed = true;
    locked.end_rank(comm, "died");
    drop(locked);
    changed();
    true
}

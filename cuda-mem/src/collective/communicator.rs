//! Communicators.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use bytemuck::Pod;
use cuda_driver_sys::nccl::{NcclTable, ncclComm_t, ncclResult_t};

use super::join::Waiting;
use super::library::Nccl;
use super::state::State;
use super::wait::Wait;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::lock::Lock;
use crate::base::origin;
use crate::driver::device::Device;
use crate::driver::raw;
use crate::driver::raw::nccl::Progress;
use crate::ledger::{self, Item, LedgerKind};
use crate::memory::slice::{DeviceMemory, DeviceSlice};
use crate::stream::recording::Dependency;
use crate::stream::{Context, Stream, epoch};

/// One rank's end of a communicator: a number of GPUs, each a rank, that all make the same calls in the same order.
///
/// From [`Nccl::communicator`] or [`Nccl::communicators`]. Operations are started in the order of a stream, and run once all ranks
/// have started theirs and the streams have come there. **What goes wrong elsewhere** is found by [`check`](Self::check) and
/// [`synchronize`](Self::synchronize): a rank that failed, or one that does not come within the
/// [time](super::CommunicatorBuilder::timeout). The communicator then only refuses, and [`abort`](Self::abort) ends what its streams still wait
/// for; a new communicator can be joined afterwards.
///
/// Usable from several threads; calls run one after another. Dropping it ends it as [`close`](Self::close) does; memory that is
/// [registered](super::RegisteredResource) with it keeps it alive, and so does a graph with its operations. Such a graph is not launched
/// any more once the communicator has failed. Dropped while its thread panics, it is [aborted](Self::abort) at once.
pub struct Communicator(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) nccl: Nccl,
    pub(super) context: Context,
    rank: usize,
    ranks: usize,
    pub(super) waiting: Waiting,
    /// How many calls of `abort` have begun and not been given up, counted before they wait for the lock.
    pub(super) aborts: AtomicUsize,
    /// Only tried by callers that have a limit.
    state: Lock<State>,
    /// Held while NCCL aborts; taken after `state`. Why that failed, if it did.
    pub(super) failed_abort: Lock<Option<String>>,
}

impl Communicator {
    /// Takes a communicator that has been joined. `numbers` are the rank and the number of ranks.
    #[track_caller]
    pub(super) fn own(
        nccl: Nccl,
        context: Context,
        numbers: (usize, usize),
        waiting: Waiting,
        raw: ncclComm_t,
    ) -> Self {
        let inner = Inner {
            nccl,
            context,
            rank: numbers.0,
            ranks: numbers.1,
            waiting,
            aborts: AtomicUsize::new(0),
            state: Lock::new(State::new(raw)),
            failed_abort: Lock::default(),
        };
        let _origin = origin::note_if_none();
        ledger::insert(inner.item(raw));
        Self(Arc::new(inner))
    }

    /// Another handle of the same rank, for what must keep it alive.
    pub(super) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
    }

    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn timeout(&self) -> Duration {
        self.0.waiting.timeout
    }

    pub(super) fn abort_if_stuck(&self, stream: &Stream, waited: Duration) -> bool {
        self.0.abort_if_stuck(stream, waited)
    }

    /// Whether an operation from and to these two would use [windows](super::RegisteredResourceBuilder::windows). NCCL expects all
    /// ranks to agree.
    #[must_use]
    pub fn uses_window<T: Pod>(
        &self,
        from: &impl DeviceMemory<Element = T>,
        to: &impl DeviceMemory<Element = T>,
    ) -> bool {
        let part = |slice: DeviceSlice<'_, T>| (slice.as_raw(), slice.size_bytes());
        let (from, to) = (part(from.as_slice()), part(to.as_slice()));
        let state = self.0.state();
        state.is_ok_and(|state| state.windows.serve(from, to))
    }

    /// This rank.
    #[doc(alias = "ncclCommUserRank")]
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// The number of ranks.
    #[doc(alias = "ncclCommCount")]
    #[must_use]
    pub fn rank_count(&self) -> usize {
        self.0.ranks
    }

    /// The context in which this rank works.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// The device of this rank.
    #[doc(alias = "ncclCommCuDevice")]
    #[must_use]
    pub fn device(&self) -> Device {
        self.0.context.device()
    }

    /// The library.
    #[must_use]
    pub fn nccl(&self) -> Nccl {
        self.0.nccl
    }

    /// NCCL's handle, for calls that this crate does not wrap; null after [`abort`](Self::abort). The communicator keeps it.
    #[must_use]
    pub fn as_raw(&self) -> ncclComm_t {
        let state = self.0.state();
        state
            .ok()
            .and_then(|state| state.live())
            .unwrap_or(std::ptr::null_mut())
    }

    /// Whether something has gone wrong with operations that were started. Does not wait for them, but for calls of other threads, as
    /// all calls do: without a limit if the communicator is [blocking](super::CommunicatorBuilder::blocking).
    ///
    /// # Errors
    ///
    /// [`PeerGone`](crate::ErrorKind::PeerGone) if another rank has failed or ended; otherwise any error that NCCL reports. The
    /// communicator refuses from then on.
    #[doc(alias = "ncclCommGetAsyncError")]
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Waits until everything that is in the stream now is done, as [`Stream::synchronize`] does, but no longer than the
    /// [time](super::CommunicatorBuilder::timeout), and not once another rank has failed.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check); [`TimedOut`](crate::ErrorKind::TimedOut) after that time, and the communicator refuses from then on.
    /// The stream goes on waiting in both cases: [`abort`](Self::abort) ends that. Also `TimedOut`, and nothing has changed, if another
    /// thread is in a call that does not return in that time, even if the stream is done.
    /// [`Capturing`](crate::ErrorKind::Capturing) while the stream is captured.
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        let inner = &self.0;
        let wait = Wait::new("the work in the stream", inner.waiting.timeout);
        stream.synchronize_by(|| {
            inner.check_if_free()?;
            wait.pause().or_else(|error| {
                if let Some(mut state) = inner.state_if_free()? {
                    state.fail(&error);
                }
                Err(inner.named(error))
            })
        })?;
        // The stream may be done because of an abort, so an answer is needed.
        while !inner.check_if_free()? {
            wait.pause().map_err(|_| {
                let text = format!(
                    "a call on another thread is not done after {:?}",
                    inner.waiting.timeout
                );
                Error::new(ErrorKind::TimedOut, format!("{inner}: {text}"))
            })?;
        }
        Ok(())
    }
}

impl Inner {
    /// How long an unwinding thread waits for others.
    const UNWINDING: Duration = Duration::from_secs(1);

    pub(super) fn table(&self) -> &'static NcclTable {
        self.nccl.table()
    }

    pub(super) fn item(&self, raw: ncclComm_t) -> Item {
        Item::new(LedgerKind::Communicator, raw).on(self.context.device())
    }

    /// Waits for calls of other threads.
    pub(super) fn state(&self) -> Result<MutexGuard<'_, State>> {
        self.state.lock()
    }

    /// `None` while another thread is in a call.
    fn state_if_free(&self) -> Result<Option<MutexGuard<'_, State>>> {
        self.state.try_lock()
    }

    /// As [`check`](Self::check), without waiting. False if nothing can be said while another thread is in a call.
    fn check_if_free(&self) -> Result<bool> {
        match self.state_if_free()? {
            Some(mut state) => self.check_in(&mut state).map(|()| true),
            None => Ok(false),
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        self.check_in(&mut *self.state()?)
    }

    pub(super) fn check_in(&self, state: &mut State) -> Result<()> {
        let raw = state.usable()?;
        let _current = self.context.bind()?;
        // SAFETY: it is live while the lock is held.
        let code = unsafe { raw::nccl::async_error(self.table(), raw) }?;
        match code {
            ncclResult_t::ncclSuccess | ncclResult_t::ncclInProgress => Ok(()),
            code => {
                let words = raw::nccl::last_words(self.table());
                let error = Error::nccl("ncclCommGetAsyncError", code, words);
                let error = error.asked(|| self.to_string());
                state.fail(&error);
                Err(error)
            }
        }
    }

    /// For a free that waits for a stream: aborts if operations in that stream hold it up longer than the time, or if the
    /// communicator has failed with operations in any stream. Returns whether it did.
    pub(super) fn abort_if_stuck(&self, stream: &Stream, waited: Duration) -> bool {
        let limit = match std::thread::panicking() {
            true => self.waiting.timeout.min(Self::UNWINDING),
            false => self.waiting.timeout,
        };
        let Ok(mut state) = self.state() else {
            return false;
        };
        let holds_up = state.has_operations_in(stream);
        let is_stuck = holds_up && waited >= limit
            || state.has_operations() && self.check_in(&mut state).is_err();
        drop(state);
        is_stuck && self.abort().is_ok()
    }

    /// Waits for what goes on in the background, after a call of this function.
    pub(super) fn settle(
        &self,
        state: &mut State,
        function: &'static str,
        progress: Result<Progress>,
    ) -> Result<()> {
        if let Ok(Progress::Done) = progress {
            return Ok(());
        }
        self.settle_until(state, function, progress, || true)
    }

    /// As [`settle`](Self::settle), and waits until something is there that the call is to make.
    pub(super) fn settle_until(
        &self,
        state: &mut State,
        function: &'static str,
        progress: Result<Progress>,
        is_there: impl Fn() -> bool,
    ) -> Result<()> {
        if let Err(error) = progress {
            return Err(self.refused(state, error));
        }
        let wait = Wait::new(function, self.waiting.timeout);
        loop {
            if let Some(settled) = self.poll(state, &wait, &is_there) {
                return settled;
            }
            wait.rest();
        }
    }

    /// Whether a thread aborts it, or has.
    fn is_aborting(&self) -> bool {
        self.aborts.load(Ordering::SeqCst) > 0
    }

    /// Asks whether the last call is over; `None` if not. An abort on another thread ends the wait.
    pub(super) fn poll(
        &self,
        state: &mut State,
        wait: &Wait,
        is_there: impl Fn() -> bool,
    ) -> Option<Result<()>> {
        let asked = if self.is_aborting() {
            Some(Err(self.aborted()))
        } else {
            // SAFETY: it is live while the lock is held.
            let ask = |raw| unsafe { wait.ask(self.table(), raw, is_there) };
            state.usable().map_or_else(|error| Some(Err(error)), ask)
        };
        asked.map(|asked| {
            asked
                .inspect_err(|error| state.fail(error))
                .map_err(|error| self.named(error))
        })
    }

    /// The error of a call that NCCL refused at once. Only mistakes of the caller leave the communicator as it was.
    pub(super) fn refused(&self, state: &mut State, error: Error) -> Error {
        self.note_refusal(state, &error);
        self.named(error)
    }

    pub(super) fn note_refusal(&self, state: &mut State, error: &Error) {
        if error.kind() != ErrorKind::InvalidValue && error.nccl_code().is_some() {
            state.fail(error);
        }
    }

    fn aborted(&self) -> Error {
        Error::new(ErrorKind::Aborted, "the communicator was aborted")
    }

    /// Says in an error which rank it is of.
    pub(super) fn named(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::TimedOut if error.nccl_code().is_none() => {
                let text = format!("{self}: {error}; abort, then join a new one");
                Error::new(ErrorKind::TimedOut, text)
            }
            _ => error.asked(|| self.to_string()),
        }
    }
}

impl Dependency for Inner {
    fn begin_use(&self) -> Result<()> {
        let mut state = self.state()?;
        state.usable()?;
        if self.is_aborting() {
            return Err(self.aborted());
        }
        state.launches += 1;
        Ok(())
    }

    fn end_use(&self, stream: &Arc<epoch::Progress>) {
        // A fork has no launch of its own.
        if let Ok(mut state) = self.state() {
            state.launches -= 1;
            state.note_launch(stream);
        }
    }
}

impl fmt::Display for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.context.device();
        write!(f, "rank {} of {}, {device}", self.rank, self.ranks)
    }
}

impl fmt::Display for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator({})", self.0)
    }
}

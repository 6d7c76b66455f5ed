//! Communicators.

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use bytemuck::Pod;
use cuda_driver_sys::nccl::{NcclTable, ncclComm_t, ncclResult_t};

use super::library::Nccl;
use super::registration::Windows;
use super::wait::Wait;
use crate::base::error::{Error, ErrorKind, Failed, Result};
use crate::base::lock::Lock;
use crate::base::{origin, report};
use crate::driver::device::Device;
use crate::driver::raw;
use crate::driver::raw::nccl::Progress;
use crate::ledger::{self, Item, LedgerKind};
use crate::memory::slice::{DeviceMemory, DeviceSlice};
use crate::stream::recording::Dependency;
use crate::stream::{Context, Stream};

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
/// any more once the communicator has failed.
pub struct Communicator(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) nccl: Nccl,
    pub(super) context: Context,
    rank: usize,
    ranks: usize,
    timeout: Duration,
    state: Lock<State>,
}

pub(super) struct State {
    /// `None` once it has been aborted or destroyed.
    raw: Option<Raw>,
    /// Why it only refuses.
    failure: Option<(ErrorKind, String)>,
    pub(super) windows: Windows,
}

struct Raw(ncclComm_t);

// SAFETY: a communicator may be used from any thread, by one at a time: `State` is behind a lock.
unsafe impl Send for Raw {}

impl Communicator {
    /// Takes a communicator that has been joined. `numbers` are the rank and the number of ranks.
    #[track_caller]
    pub(super) fn own(
        nccl: Nccl,
        context: Context,
        numbers: (usize, usize),
        timeout: Duration,
        raw: ncclComm_t,
    ) -> Self {
        let inner = Inner {
            nccl,
            context,
            rank: numbers.0,
            ranks: numbers.1,
            timeout,
            state: Lock::new(State {
                raw: Some(Raw(raw)),
                failure: None,
                windows: Windows::default(),
            }),
        };
        let _origin = origin::note_if_none();
        ledger::insert(inner.item(raw));
        Self(Arc::new(inner))
    }

    /// Another handle of the same rank, for what must keep it alive.
    pub(super) fn share(&self) -> Self {
        Self(Arc::clone(&self.0))
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
        let state = self.0.state.lock_unless_forked();
        state.is_some_and(|state| state.windows.serve(from, to))
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
    pub fn ranks(&self) -> usize {
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
        let state = self.0.state.lock_unless_forked();
        state
            .and_then(|state| state.raw.as_ref().map(|raw| raw.0))
            .unwrap_or(std::ptr::null_mut())
    }

    /// Whether something has gone wrong with operations that were started. Does not wait.
    ///
    /// # Errors
    ///
    /// [`PeerGone`](crate::ErrorKind::PeerGone) if another rank has failed or ended; otherwise any error that NCCL reports. The
    /// communicator refuses from then on.
    #[doc(alias = "ncclCommGetAsyncError")]
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Waits until everything in the stream is done, as [`Stream::synchronize`] does, but no longer than the
    /// [time](super::CommunicatorBuilder::timeout), and not once another rank has failed.
    ///
    /// # Errors
    ///
    /// As [`check`](Self::check); [`TimedOut`](crate::ErrorKind::TimedOut) after that time, and the communicator refuses from then on.
    /// The stream goes on waiting in both cases: [`abort`](Self::abort) ends that.
    pub fn synchronize(&self, stream: &Stream) -> Result<()> {
        let mut wait = Wait::new("the work in the stream", self.0.timeout);
        while !stream.is_done()? {
            self.check()?;
            if let Err(error) = wait.pause() {
                let error = self.0.named(error);
                self.0.state()?.fail(&error);
                return Err(error);
            }
        }
        self.check()?;
        // Releases what waited for this.
        stream.synchronize()
    }

    /// Waits for the stream, but aborts what would hold it up for ever: then memory can be freed.
    pub(super) fn release_stream(&self, stream: &Stream) {
        let mut wait = Wait::new("the work in the stream", self.0.timeout);
        // What else is wrong with the stream is an error of the free.
        while let Ok(false) = stream.is_done() {
            if self.check().and_then(|()| wait.pause()).is_err() {
                let _ = self.abort();
                return;
            }
        }
    }

    /// Stops what the ranks' streams still wait for, and ends this rank's part. Every later call fails. Waits for a call of
    /// another thread.
    ///
    /// All ranks of a communicator that has failed should do this. Buffers that were being received have unspecified contents.
    ///
    /// # Errors
    ///
    /// Any error that NCCL reports; the communicator has ended even so.
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(&self) -> Result<()> {
        let mut state = self.0.state()?;
        let text = "the communicator was aborted".to_owned();
        state.failure = Some((ErrorKind::ContextDestroyed, text));
        state.windows.clear();
        self.0.abort_in(&mut state)
    }

    /// Ends the communicator once everything that was started is done.
    ///
    /// # Errors
    ///
    /// [`InUse`](crate::ErrorKind::InUse), with the communicator, while memory is registered with it or a graph uses it; otherwise any error that NCCL
    /// reports, and [`TimedOut`](crate::ErrorKind::TimedOut): it has been aborted then.
    #[doc(alias("ncclCommFinalize", "ncclCommDestroy"))]
    pub fn close(self) -> Result<(), Failed<Self>> {
        match Arc::try_unwrap(self.0) {
            Ok(mut inner) => inner.end().map_err(Failed::lost),
            Err(shared) => {
                let text = "memory is registered with the communicator, or a graph uses it; drop that first";
                let error = Error::new(ErrorKind::InUse, text);
                Err(Failed::new(error, Self(shared)))
            }
        }
    }
}

impl Inner {
    fn table(&self) -> &'static NcclTable {
        self.nccl.table()
    }

    fn item(&self, raw: ncclComm_t) -> Item {
        Item::new(LedgerKind::Communicator, raw).on(self.context.device())
    }

    pub(super) fn state(&self) -> Result<MutexGuard<'_, State>> {
        self.state.lock()
    }

    fn check(&self) -> Result<()> {
        let mut state = self.state()?;
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
        let settled = progress.and_then(|_| {
            let wait = Wait::new(function, self.timeout);
            // SAFETY: it is live while the lock is held.
            let settled = unsafe { wait.until_done(self.table(), state.usable()?, is_there) };
            settled.inspect_err(|error| state.fail(error))
        });
        settled.map_err(|error| {
            if error.kind() != ErrorKind::InvalidValue && error.nccl_code().is_some() {
                state.fail(&error);
            }
            self.named(error)
        })
    }

    /// Says in an error which rank it is of.
    fn named(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::TimedOut if error.nccl_code().is_none() => {
                Error::new(ErrorKind::TimedOut, format!("{self}: {error}"))
            }
            _ => error.asked(|| self.to_string()),
        }
    }

    fn abort_in(&self, state: &mut State) -> Result<()> {
        let Some(raw) = state.raw.take() else {
            return Ok(());
        };
        ledger::remove(&self.item(raw.0));
        let _current = self.context.bind()?;
        // SAFETY: it was live, and nobody has it any more.
        unsafe { raw::nccl::abort(self.table(), raw.0) }
    }

    /// The caller is the last to have it.
    fn end(&mut self) -> Result<()> {
        let mut state = self.state.lock()?;
        let Some(raw) = state.raw.as_ref().map(|raw| raw.0) else {
            return Ok(());
        };
        let ended = match &state.failure {
            Some((kind, text)) => Err(Error::new(*kind, text.clone())),
            None => self.finalize(raw),
        };
        if ended.is_err() {
            let is_known = state.failure.is_some();
            let aborted = self.abort_in(&mut state);
            // A failure that the program has seen is no failure of the end.
            return if is_known { aborted } else { ended };
        }
        state.raw = None;
        ledger::remove(&self.item(raw));
        let _current = self.context.bind()?;
        // SAFETY: it was live, and nobody has it any more.
        unsafe { raw::nccl::destroy(self.table(), raw) }
    }

    fn finalize(&self, raw: ncclComm_t) -> Result<()> {
        let _current = self.context.bind()?;
        // SAFETY: it is live.
        match unsafe { raw::nccl::finalize(self.table(), raw) }? {
            Progress::Done => Ok(()),
            Progress::Pending => {
                let wait = Wait::new("ncclCommFinalize", self.timeout);
                // SAFETY: as above.
                unsafe { wait.until_done(self.table(), raw, || true) }
            }
        }
    }
}

impl State {
    /// The handle, unless the communicator only refuses.
    pub(super) fn usable(&self) -> Result<ncclComm_t> {
        match (&self.raw, &self.failure) {
            (Some(raw), None) => Ok(raw.0),
            (_, Some((kind, text))) => Err(Error::new(
                *kind,
                format!("the communicator has ended: {text}; abort it and join a new one"),
            )),
            (None, None) => Err(Error::new(
                ErrorKind::ContextDestroyed,
                "the communicator has ended",
            )),
        }
    }

    /// The handle, if it is live, whatever has failed.
    pub(super) fn live(&self) -> Option<ncclComm_t> {
        self.raw.as_ref().map(|raw| raw.0)
    }

    fn fail(&mut self, error: &Error) {
        self.failure
            .get_or_insert_with(|| (error.kind(), error.to_string()));
    }
}

impl Dependency for Inner {
    fn require_usable(&self) -> Result<()> {
        self.state()?.usable().map(|_| ())
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        report::release("communicator", || self.end());
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

//! The end of a communicator.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cuda_driver_sys::nccl::ncclComm_t;

use super::communicator::{Communicator, Inner};
use super::wait::Wait;
use crate::base::error::{Error, ErrorKind, Failed, Result};
use crate::base::report;
use crate::driver::raw;
use crate::driver::raw::nccl::Progress;
use crate::ledger;

impl Communicator {
    /// Stops what the ranks' streams still wait for, and ends this rank's part. Every later call fails. Call it from any thread: a call
    /// of another one that waits for other ranks ends with [`Aborted`](crate::ErrorKind::Aborted), unless the communicator is
    /// [blocking](super::CommunicatorBuilder::blocking) and NCCL itself waits.
    ///
    /// A [blocking](super::CommunicatorBuilder::blocking) communicator is ended by NCCL only once all graphs with its operations have been
    /// dropped: this waits for that, and the other threads get errors meanwhile.
    ///
    /// All ranks of a communicator that has failed should do this. Buffers that were being received have unspecified contents.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](crate::ErrorKind::TimedOut), and nothing has happened, if a launch of a graph with its operations does not come
    /// back on another thread within the [time](super::CommunicatorBuilder::timeout). Otherwise any error that NCCL reports; the
    /// communicator has ended even so.
    #[doc(alias = "ncclCommAbort")]
    pub fn abort(&self) -> Result<()> {
        self.0.abort()
    }

    /// Runs `work`, and [aborts](Self::abort) if that returns an error or panics, so that the other ranks learn of it, instead of
    /// waiting for this one as long as their [time](super::CommunicatorBuilder::timeout) lasts.
    ///
    /// ```
    /// # use cuda_mem::Driver;
    /// # use cuda_mem::collective::{Nccl, ReduceOp};
    /// # cuda_sim::use_if_no_driver();
    /// # nccl_sim::use_if_no_nccl();
    /// # let context = Driver::load()?.device(0)?.primary_context()?;
    /// # let stream = context.stream()?;
    /// # let communicators = Nccl::load()?.communicators(&[context]).join()?;
    /// let sum = communicators[0].abort_on_error(|communicator| {
    ///     let pool = communicator.device().default_pool()?;
    ///     let mut numbers = pool.alloc_from(&stream, &[1u32, 2])?; // an error here is one on all ranks
    ///     communicator.all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
    ///     communicator.synchronize(&stream)?;
    ///     numbers.to_vec()
    /// })?;
    /// assert_eq!(sum, [1, 2]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `work`. A failure of the abort is reported as one of a destructor is.
    pub fn abort_on_error<T, E>(
        &self,
        work: impl FnOnce(&Self) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        struct AbortOnDrop<'a>(&'a Inner);
        impl Drop for AbortOnDrop<'_> {
            fn drop(&mut self) {
                report::release("communicator", || self.0.abort());
            }
        }
        let unless_done = AbortOnDrop(&self.0);
        let result = work(self);
        if result.is_ok() {
            std::mem::forget(unless_done);
        }
        result
    }

    /// Ends the communicator once everything that was started is done. While the thread panics, it is aborted instead.
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
    pub(super) fn abort(&self) -> Result<()> {
        self.abort_within(self.waiting.timeout)
    }

    /// Aborts, after a call that was started and is not over: nothing of it uses streams or memory once this returns without a report.
    /// Without a limit, because the memory goes then; also if another thread aborts.
    pub(super) fn stop(&self) {
        report::release("communicator", || self.abort_within(Duration::MAX));
    }

    /// `limit` is for launches of graphs on other threads.
    fn abort_within(&self, limit: Duration) -> Result<()> {
        // A thread that waits with the lock held stops, and no graph is launched any more.
        self.aborts.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state()?;
        let what = "the launch of a graph with its operations on another thread";
        let wait = Wait::new(what, limit);
        while state.launches > 0 {
            drop(state);
            if let Err(error) = wait.pause() {
                self.aborts.fetch_sub(1, Ordering::SeqCst);
                let text = format!("{self} was not aborted: {error}");
                return Err(Error::not_in_time(text));
            }
            state = self.state()?;
        }
        state.refuse_as_aborted();
        let raw = state.take();
        // Without the other lock: this may take until graphs are dropped (N5), by threads that ask the communicator before.
        let mut failed = self.failed_abort.lock()?;
        drop(state);
        if raw.is_none() {
            return require_none(failed.as_deref());
        }
        self.abort_raw(raw)
            .inspect_err(|error| *failed = Some(error.to_string()))
    }

    fn abort_raw(&self, raw: Option<ncclComm_t>) -> Result<()> {
        let Some(raw) = raw else {
            return Ok(());
        };
        ledger::remove(&self.item(raw));
        let _current = self.context.bind()?;
        // SAFETY: it was live when it was taken from the state, so no other call can use it.
        unsafe { raw::nccl::abort(self.table(), raw) }
    }

    /// Returns once no call of [`abort`](Self::abort) is running, whose communicator may still use registered memory. An error if one
    /// failed: it may use that for ever.
    pub(super) fn wait_for_abort(&self) -> Result<()> {
        require_none(self.failed_abort.lock()?.as_deref())
    }

    /// The caller is the last to have it.
    pub(super) fn end(&mut self) -> Result<()> {
        let mut state = self.state()?;
        let Some(raw) = state.live() else {
            return Ok(());
        };
        // The other ranks would wait for what a thread that panics leaves undone. Of a failure the program knows already.
        if std::thread::panicking() || state.has_failed() {
            return self.abort_raw(state.take());
        }
        let finalized = self.finalize(raw);
        let taken = state.take();
        if let Err(error) = finalized {
            // The first failure is the one to return.
            let _ = self.abort_raw(taken);
            return Err(error);
        }
        ledger::remove(&self.item(raw));
        let _current = self.context.bind()?;
        // SAFETY: as in `abort_raw`.
        unsafe { raw::nccl::destroy(self.table(), raw) }
    }

    fn finalize(&self, raw: ncclComm_t) -> Result<()> {
        let _current = self.context.bind()?;
        // SAFETY: it is live.
        match unsafe { raw::nccl::finalize(self.table(), raw) }? {
            Progress::Done => Ok(()),
            Progress::Pending => {
                let wait = Wait::new("ncclCommFinalize", self.waiting.timeout);
                // SAFETY: as above.
                unsafe { wait.until_done(self.table(), raw) }
            }
        }
    }
}

fn require_none(failed: Option<&str>) -> Result<()> {
    let Some(failed) = failed else {
        return Ok(());
    };
    let text = format!(
        "the communicator's abort failed before, and NCCL may still use its memory; it said: {failed}"
    );
    Err(Error::new(ErrorKind::Aborted, text))
}

impl Drop for Inner {
    fn drop(&mut self) {
        report::release("communicator", || self.end());
    }
}

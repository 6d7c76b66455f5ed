//! A limit on the bytes allocated at a time.

mod budget;
mod holders;
mod task;

pub use task::LimitedAlloc;

use super::debug_over;
use std::cell::RefCell;
use std::fmt;
use std::time::Duration;

use std::alloc::Layout;

use cuda_driver_sys::CUdeviceptr;

use super::may_wait::refuse_waiting;
use super::{free_through_self, from_upstream};
use crate::base::error::{Bytes, Error, ErrorKind, Result, took_effect};
use crate::memory::resource::MemoryResource;
use crate::stream::Stream;
use budget::{Budget, Shortage};
use holders::Holders;

/// Limits the bytes allocated at a time, over all threads. A request beyond the limit fails with out of memory
/// without asking upstream, or waits if [`with_wait_timeout`](Self::with_wait_timeout) is set.
///
/// ```
/// use cuda_mem::{Driver, ErrorKind, MemoryPool, Resource};
/// use cuda_mem::memory::LimitAdaptor;
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let pool = MemoryPool::builder(&device).build()?;
/// let resource = Resource::new(LimitAdaptor::new(pool, 1000));
/// let first = resource.alloc::<u8>(&stream, 600)?;
/// let error = resource.alloc::<u8>(&stream, 600).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::OutOfMemory);
/// assert!(error.to_string().starts_with("the limit is 1000 B, of which 600 B are allocated"));
/// drop(first);
/// resource.alloc::<u8>(&stream, 600)?;
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct LimitAdaptor<U> {
    upstream: U,
    budget: Budget,
    wait: Option<Wait>,
}

/// State needed only by a limit that waits.
#[derive(Debug)]
struct Wait {
    timeout: Duration,
    holders: Holders,
}

impl<U: fmt::Debug> fmt::Debug for LimitAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = format!("LimitAdaptor({})", Bytes(self.budget.limit()));
        debug_over(f, &name, &self.upstream)
    }
}

impl<U: MemoryResource> LimitAdaptor<U> {
    /// Limits `upstream` to `limit` bytes at a time, counting requested bytes without upstream's rounding.
    pub fn new(upstream: U, limit: u64) -> Self {
        Self {
            upstream,
            budget: Budget::new(limit),
            wait: None,
        }
    }

    /// Lets `allocate` block while the limit is reached, until other threads have freed enough, for at most
    /// `timeout`. After that it fails with out of memory; the error says how long the request waited and how much
    /// each thread has allocated. Threads are numbered as in
    /// [`LiveAllocation::thread`](crate::memory::LiveAllocation).
    ///
    /// Requests are served in order of arrival, so that a large one is not starved by small ones. A request larger
    /// than the whole limit fails at once, and a request of zero bytes never waits.
    ///
    /// A request that could end up waiting for itself does not wait. It takes bytes ahead of the others if there
    /// are enough, or fails with out of memory at once, and the error says why it did not wait. Such requests are
    /// those of a thread that captures a stream into a graph, those in the order of a stream that any thread
    /// captures, and those from inside a call to this adaptor's own upstream. In a fork nothing waits.
    ///
    /// **Waiting can deadlock** until the timeout: when threads each hold a part and wait for the rest; when a
    /// resource above this one holds a lock in `allocate` that its `deallocate` needs; and with collective
    /// libraries such as NCCL, where other processes wait for work that this thread has not launched yet. So by
    /// default nothing waits.
    ///
    /// ```
    /// use std::time::Duration;
    /// use cuda_mem::{Driver, MemoryPool, Resource};
    /// use cuda_mem::memory::LimitAdaptor;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let context = device.primary_context()?;
    /// let pool = MemoryPool::builder(&device).build()?;
    /// let limited = LimitAdaptor::new(pool, 1000).with_wait_timeout(Duration::from_secs(60));
    /// let resource = Resource::new(limited);
    /// // Only one of them fits at a time.
    /// std::thread::scope(|threads| {
    ///     let work = || {
    ///         let stream = context.stream()?;
    ///         resource.alloc_zeroed::<u8>(&stream, 600)?.to_vec()
    ///     };
    ///     let workers: Vec<_> = (0..4).map(|_| threads.spawn(work)).collect();
    ///     for worker in workers {
    ///         assert_eq!(worker.join().expect("no panic")?, [0; 600]);
    ///     }
    ///     Ok::<(), cuda_mem::Error>(())
    /// })?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[must_use]
    pub fn with_wait_timeout(self, timeout: Duration) -> Self {
        let wait = Wait {
            timeout,
            holders: Holders::default(),
        };
        Self {
            wait: Some(wait),
            ..self
        }
    }

    /// Where the memory comes from.
    pub fn upstream(&self) -> &U {
        &self.upstream
    }

    /// The limit on the bytes allocated at a time.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.budget.limit()
    }

    /// The bytes that are allocated or about to be; never more than the limit.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.budget.allocated()
    }

    /// How long requests wait; `None` if they do not.
    #[must_use]
    pub fn wait_timeout(&self) -> Option<Duration> {
        self.wait.as_ref().map(|wait| wait.timeout)
    }

    /// The number of requests that are waiting now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.budget.waiting()
    }

    /// Takes the bytes of a request, before upstream is asked, so that threads together stay below the limit.
    #[inline]
    fn take(&self, bytes: u64, stream: &Stream) -> Result<Taken<'_>> {
        if let Some(taken) = self.take_granted(bytes) {
            return taken
                .map(|()| Taken(&self.budget, bytes))
                .map_err(|why| self.refusal(bytes, &why, ""));
        }
        let taken = match &self.wait {
            None => self
                .budget
                .try_take(bytes)
                .map_err(|why| self.refusal(bytes, &why, "")),
            Some(_) if bytes == 0 || self.budget.try_take_in_turn(bytes) => Ok(()),
            Some(wait) => self.take_slowly(bytes, wait, stream),
        };
        taken.map(|()| Taken(&self.budget, bytes))
    }

    #[cold]
    fn take_slowly(&self, bytes: u64, wait: &Wait, stream: &Stream) -> Result<()> {
        let refused = if Calling::is_in(self.budget_address()) {
            Err(Error::new(
                ErrorKind::Other,
                "this thread is in a call of the limit's upstream",
            ))
        } else {
            refuse_waiting(stream)
        };
        let (taken, why_not) = match refused {
            Ok(()) => (self.budget.wait(bytes, wait.timeout), String::new()),
            Err(error) if error.kind() == ErrorKind::Forked => return Err(error),
            Err(error) => (
                self.budget.try_take(bytes),
                format!("; it did not wait, because {error}"),
            ),
        };
        taken.map_err(|why| self.refusal(bytes, &why, &why_not))
    }

    #[cold]
    fn refusal(&self, bytes: u64, why: &Shortage, why_not: &str) -> Error {
        let limit = Bytes(self.budget.limit());
        let holders = self.wait.as_ref().map(|wait| wait.holders.describe());
        let holders = holders
            .filter(|holders| !holders.is_empty())
            .map_or(String::new(), |holders| format!(" ({holders})"));
        let text = match why {
            Shortage::TooLarge => {
                let text = format!("the limit is {limit}, less than the request");
                return Error::over_limit(text, bytes);
            }
            Shortage::Forked => return Error::forked(),
            Shortage::Full { allocated } => format!(
                "the limit is {limit}, of which {} are allocated{holders}{why_not}",
                Bytes(*allocated)
            ),
            Shortage::TimedOut { allocated, waited } => format!(
                "the limit is {limit}, of which {} are allocated{holders} after waiting for {waited:.1?}",
                Bytes(*allocated)
            ),
        };
        Error::new(ErrorKind::OutOfMemory, text).with_asked(bytes)
    }

    /// Identifies this limit while calls borrow it.
    fn budget_address(&self) -> usize {
        std::ptr::from_ref(&self.budget).addr()
    }

    /// Notes that this thread calls upstream, if requests wait.
    #[inline]
    fn calling(&self) -> Option<Calling> {
        self.wait
            .is_some()
            .then(|| Calling::enter(self.budget_address()))
    }
}

/// Bytes that count against the limit; dropping it gives them back, also in a panic of upstream.
struct Taken<'a>(&'a Budget, u64);

impl Drop for Taken<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.1 > 0 {
            self.0.give_back(self.1);
        }
    }
}

thread_local! {
    /// The limits whose upstream this thread is calling.
    static CALLS: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// A guard: this thread is calling the upstream of a limit. Not recorded while the thread exits.
struct Calling {
    limit: usize,
}

impl Calling {
    fn enter(limit: usize) -> Self {
        let _ = CALLS.try_with(|calls| calls.borrow_mut().push(limit));
        Self { limit }
    }

    fn is_in(limit: usize) -> bool {
        CALLS
            .try_with(|calls| calls.borrow().contains(&limit))
            .unwrap_or(false)
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        let _ = CALLS.try_with(|calls| {
            let mut calls = calls.borrow_mut();
            if let Some(at) = calls.iter().rposition(|call| *call == self.limit) {
                calls.remove(at);
            }
        });
    }
}

impl<U: MemoryResource> LimitAdaptor<U> {
    /// Never blocks on other requests. Waiting requests get the bytes as soon as upstream has freed them.
    #[inline]
    fn free(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        _stream: &Stream,
        upstream: impl FnOnce(CUdeviceptr, Layout) -> Result<()>,
    ) -> Result<()> {
        if address == 0 {
            return upstream(address, layout);
        }
        // Given back only when upstream has the memory, and if upstream panics.
        let taken = Taken(&self.budget, layout.size() as u64);
        let waits = self.wait.as_ref();
        // Before upstream has it: from then on another thread may get the same address.
        let holding = waits.and_then(|wait| wait.holders.remove(address));
        let calling = self.calling();
        let freed = upstream(address, layout);
        drop(calling);
        if !took_effect(&freed) {
            if let Some(wait) = waits {
                wait.holders.restore(address, holding);
            }
            std::mem::forget(taken);
        }
        freed
    }
}

// SAFETY: all memory comes from upstream and goes back there.
unsafe impl<U: MemoryResource> MemoryResource for LimitAdaptor<U> {
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) with the limit and the allocated bytes; otherwise any error
    /// from upstream.
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let bytes = layout.size() as u64;
        let taken = self.take(bytes, stream)?;
        let calling = self.calling();
        let address = self.upstream.allocate(layout, stream)?;
        drop(calling);
        if let Some(wait) = &self.wait
            && address != 0
        {
            wait.holders.insert(address, bytes);
        }
        std::mem::forget(taken);
        Ok(address)
    }

    free_through_self!();

    from_upstream!();
}

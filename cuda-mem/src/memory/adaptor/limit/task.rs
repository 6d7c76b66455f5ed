//! Waiting for the limit in asynchronous programs.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use bytemuck::Pod;

use super::LimitAdaptor;
use super::budget::{Budget, Request, Shortage};
use crate::base::error::Result;
use crate::memory::buffer::{DeviceBuffer, bytes_of};
use crate::memory::resource::{MemoryResource, Resource};
use crate::stream::Stream;

impl<U: MemoryResource> LimitAdaptor<U> {
    /// A future that allocates `len` elements from `resource` once the limit allows it. It blocks no thread.
    ///
    /// `resource` is a handle to this adaptor, or to a resource that allocates from it on the same thread. Futures and
    /// threads that [wait](Self::with_wait_timeout) are served in order of arrival; without that setting, requests of
    /// threads do not queue, and may overtake. There is no timeout: use that of your executor. Dropping the future
    /// gives up its place; one that is leaked keeps it.
    ///
    /// If the resource asks the limit for more than `len` elements take, or asks twice, the future does not wait for the
    /// rest: it is out of memory if that does not fit. Tasks that each hold a part and wait for the rest wait forever.
    /// Wakers are called where memory is freed, so they must not allocate or wait.
    ///
    /// # Errors
    ///
    /// The future's output is [`OutOfMemory`](crate::ErrorKind::OutOfMemory) for more than the whole limit; otherwise
    /// as [`Resource::alloc`].
    ///
    /// ```
    /// # use std::task::{Context, Waker};
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     loop {
    /// #         let mut context = Context::from_waker(Waker::noop());
    /// #         if let std::task::Poll::Ready(output) = future.as_mut().poll(&mut context) {
    /// #             return output;
    /// #         }
    /// #         std::thread::yield_now();
    /// #     }
    /// # }
    /// use std::sync::Arc;
    /// use cuda_mem::{Driver, MemoryPool, Resource};
    /// use cuda_mem::memory::LimitAdaptor;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let pool = MemoryPool::builder(&device).build()?;
    /// let limit = Arc::new(LimitAdaptor::new(pool, 1000));
    /// let resource = Resource::from(Arc::clone(&limit));
    /// # block_on(async {
    /// let buffer = limit.alloc_when_free::<u8>(&resource, &stream, 600).await?;
    /// // Another task would wait here until `buffer` is dropped.
    /// # drop(buffer);
    /// # Ok::<(), cuda_mem::Error>(())
    /// # })?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[track_caller]
    pub fn alloc_when_free<'a, T: Pod>(
        &'a self,
        resource: &'a Resource,
        stream: &'a Stream,
        len: usize,
    ) -> LimitedAlloc<'a, U, T> {
        LimitedAlloc {
            limit: self,
            resource,
            stream,
            len,
            request: None,
            element: PhantomData,
        }
    }

    /// Takes bytes for a request that a future on this thread makes: the future has taken some already. `None` if no
    /// future makes it. Never waits: the future would wait for itself.
    #[inline]
    pub(super) fn take_granted(&self, bytes: u64) -> Option<Result<(), Shortage>> {
        let limit = self.budget_address();
        let take = |grant: &RefCell<Option<Grant>>| {
            let mut grant = grant.borrow_mut();
            let grant = grant.as_mut().filter(|grant| grant.limit == limit)?;
            let taken = match bytes.checked_sub(grant.bytes) {
                Some(more) => self.budget.try_take(more).map(|()| 0),
                None => Ok(grant.bytes - bytes),
            };
            Some(taken.map(|left| grant.bytes = left))
        };
        GRANT.try_with(take).unwrap_or_default()
    }
}

/// A future that allocates once a limit allows it. From [`LimitAdaptor::alloc_when_free`].
#[must_use = "futures do nothing unless they are polled"]
pub struct LimitedAlloc<'a, U: MemoryResource, T> {
    limit: &'a LimitAdaptor<U>,
    resource: &'a Resource,
    stream: &'a Stream,
    len: usize,
    /// Its place in the queue.
    request: Option<Arc<Request>>,
    element: PhantomData<fn() -> T>,
}

/// Bytes that a future has taken from a limit for the request that this thread makes now, and that the request has not
/// used.
struct Grant {
    limit: usize,
    bytes: u64,
}

/// A grant for the request that this thread makes while this lives. What is left of it is given back, also in a panic.
struct Granting<'a> {
    budget: &'a Budget,
    outer: Option<Grant>,
}

impl<'a> Granting<'a> {
    fn begin(budget: &'a Budget, bytes: u64) -> Self {
        let limit = std::ptr::from_ref(budget).addr();
        let outer = GRANT.replace(Some(Grant { limit, bytes }));
        Self { budget, outer }
    }
}

impl Drop for Granting<'_> {
    fn drop(&mut self) {
        let left = GRANT.replace(self.outer.take());
        if let Some(left) = left.filter(|left| left.bytes > 0) {
            self.budget.give_back(left.bytes);
        }
    }
}

thread_local! {
    static GRANT: RefCell<Option<Grant>> = const { RefCell::new(None) };
}

impl<U: MemoryResource, T: Pod> LimitedAlloc<'_, U, T> {
    fn alloc(&self, bytes: u64) -> Result<DeviceBuffer<T>> {
        let _granting = Granting::begin(&self.limit.budget, bytes);
        self.resource.alloc(self.stream, self.len)
    }
}

impl<U: MemoryResource, T: Pod> Future for LimitedAlloc<'_, U, T> {
    type Output = Result<DeviceBuffer<T>>;

    fn poll(self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let bytes = bytes_of::<T>(this.len)? as u64;
        let polled = this
            .limit
            .budget
            .poll(bytes, &mut this.request, task.waker());
        match polled {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Err(why)) => Poll::Ready(Err(this.limit.refusal(bytes, &why, ""))),
            Poll::Ready(Ok(())) => Poll::Ready(this.alloc(bytes)),
        }
    }
}

impl<U: MemoryResource, T> Drop for LimitedAlloc<'_, U, T> {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            self.limit.budget.leave(&request);
        }
    }
}

impl<U: MemoryResource, T> fmt::Debug for LimitedAlloc<'_, U, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedAlloc")
            .field("limit", &self.limit)
            .field("len", &self.len)
            .field("is_waiting", &self.request.is_some())
            .finish_non_exhaustive()
    }
}

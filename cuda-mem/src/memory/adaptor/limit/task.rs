//! Waiting for the limit in asynchronous programs.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};

use bytemuck::Pod;

use super::budget::Request;
use super::{LimitAdaptor, Taken};
use crate::base::error::Result;
use crate::memory::buffer::{DeviceBuffer, bytes_of};
use crate::memory::resource::{MemoryResource, Resource};
use crate::stream::Stream;

impl<U: MemoryResource> LimitAdaptor<U> {
    /// A future that allocates `len` elements from `resource` once the limit allows it. It blocks no thread.
    ///
    /// `resource` is a handle to this adaptor, or to a resource that allocates from it. Requests are served in order of
    /// arrival, together with those of threads that [wait](Self::with_wait_timeout), and whether or not threads may
    /// wait. There is no timeout: use that of your executor. Dropping the future gives up its place.
    ///
    /// Tasks that each hold a part and wait for the rest wait forever.
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

    /// Whether a future on this thread has taken these bytes for the request already.
    #[inline]
    pub(super) fn take_granted(&self, bytes: u64) -> bool {
        let limit = self.budget_address();
        let take = |grant: &RefCell<Option<Grant>>| {
            grant
                .borrow_mut()
                .take_if(|grant| grant.limit == limit && grant.bytes == bytes)
                .is_some()
        };
        GRANT.try_with(take).unwrap_or(false)
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

/// Bytes that a future has taken from a limit for the request that this thread makes now.
struct Grant {
    limit: usize,
    bytes: u64,
}

thread_local! {
    static GRANT: RefCell<Option<Grant>> = const { RefCell::new(None) };
}

impl<U: MemoryResource, T: Pod> LimitedAlloc<'_, U, T> {
    fn alloc(&self, bytes: u64) -> Result<DeviceBuffer<T>> {
        // Given back if the request does not get to the limit, or not with this size.
        let taken = Taken(&self.limit.budget, bytes);
        let grant = Grant {
            limit: self.limit.budget_address(),
            bytes,
        };
        let before = GRANT.replace(Some(grant));
        let allocated = self.resource.alloc(self.stream, self.len);
        if GRANT.replace(before).is_none() {
            // The request has them.
            std::mem::forget(taken);
        }
        allocated
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

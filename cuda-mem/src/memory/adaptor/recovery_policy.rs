//! What to do when memory runs out, as a value.

mod backoff;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::may_wait::refuse_waiting;
use backoff::Backoff;

use crate::base::error::{Attempt, Error, Remedy, Result};
use crate::memory::pool::Pool;
use crate::memory::resource::MemoryResource;
use crate::stream::Stream;

/// Steps to try, in order, when memory runs out; after each step the request is retried. An empty policy gives up
/// at once, and so does every policy for a request larger than a whole [limit](crate::memory::LimitAdaptor).
///
/// **Waiting can deadlock beside collective libraries** such as NCCL: a stream may contain a collective that
/// completes only when other processes launch theirs, and they may be waiting for this process. So nothing waits
/// unless [`wait_for_stream`](Self::wait_for_stream), [`wait_for_device`](Self::wait_for_device) or
/// [`wait_for_others`](Self::wait_for_others) is among the steps.
///
/// ```
/// use cuda_mem::{Driver, MemoryPool};
/// use cuda_mem::memory::RecoveryPolicy;
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let pool = MemoryPool::builder(&device).build()?;
/// let policy = RecoveryPolicy::new().flush_caches().wait_for_stream().trim_graph_memory();
/// let buffer = policy.recover(&pool, &stream, || pool.alloc::<f32>(&stream, 1000))?;
/// assert_eq!(buffer.len(), 1000);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct RecoveryPolicy {
    steps: Vec<Step>,
}

type Callback = Arc<dyn Fn(&Error) -> bool + Send + Sync>;

#[derive(Clone)]
enum Step {
    Retry,
    FlushCaches,
    WaitForStream,
    WaitForDevice,
    TrimPool(Pool),
    TrimGraphMemory,
    Callback(Callback),
    WaitForOthers(Duration),
}

impl RecoveryPolicy {
    /// No remedy.
    pub fn new() -> Self {
        Self::default()
    }

    fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    /// Retries the request, because another thread may have freed memory.
    pub fn retry(self) -> Self {
        self.step(Step::Retry)
    }

    /// Makes the resource and its upstreams release their unused memory: [`MemoryResource::trim_to`] with 0.
    pub fn flush_caches(self) -> Self {
        self.step(Step::FlushCaches)
    }

    /// Waits, on the host, for the stream of the request. Memory that was freed in it can then be reused by every
    /// stream, whatever the reuse policy. See above for when this can deadlock.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn wait_for_stream(self) -> Self {
        self.step(Step::WaitForStream)
    }

    /// Waits, on the host, for everything in the context of the request's stream. See above for when
    /// this can deadlock.
    #[doc(alias = "cuCtxSynchronize")]
    pub fn wait_for_device(self) -> Self {
        self.step(Step::WaitForDevice)
    }

    /// Makes a pool release its unused memory, so that other resources can use it. The policy keeps the pool alive.
    #[doc(alias = "cuMemPoolTrimTo")]
    pub fn trim_pool(self, pool: &Pool) -> Self {
        self.step(Step::TrimPool(pool.clone()))
    }

    /// Releases the unused graph memory of the stream's device. Needs CUDA 11.4.
    #[doc(alias = "cuDeviceGraphMemTrim")]
    pub fn trim_graph_memory(self) -> Self {
        self.step(Step::TrimGraphMemory)
    }

    /// Calls the program, which may free memory. Returning `false` ends the recovery.
    pub fn callback(self, callback: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        self.step(Step::Callback(Arc::new(callback)))
    }

    /// Gives other threads time to free memory: pauses and retries until the request succeeds or `total` has
    /// passed, but at least once. The pauses grow from 1 ms to 100 ms.
    ///
    /// The thread blocks meanwhile, along with everything it holds: threads that each hold a part and wait for the
    /// rest fail with an error after `total`. With collective libraries, every process may wait for one that waits
    /// here; see above. A thread that captures a stream into a graph, or makes the request in the order of a
    /// captured stream, does not pause: it retries once, and the step is listed as failed.
    ///
    /// A free by another thread does not end the pause early. For a limit that wakes the longest-waiting thread,
    /// see [`LimitAdaptor::with_wait_timeout`](crate::memory::LimitAdaptor::with_wait_timeout).
    ///
    /// ```
    /// use std::time::Duration;
    /// use cuda_mem::{Driver, MemoryPool, Resource};
    /// use cuda_mem::base::Remedy;
    /// use cuda_mem::memory::{RecoveryPolicy, RecoveryAdaptor};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let pool = MemoryPool::builder(&device).build()?;
    /// let policy = RecoveryPolicy::new().flush_caches().wait_for_others(Duration::from_millis(20));
    /// let resource = Resource::new(RecoveryAdaptor::new(pool, policy));
    /// let error = resource.alloc::<u8>(&stream, 1 << 50).unwrap_err();
    /// let tried = &error.out_of_memory().expect("numbers").tried;
    /// assert_eq!(tried[1].remedy, Remedy::WaitForOthers);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn wait_for_others(self, total: Duration) -> Self {
        self.step(Step::WaitForOthers(total))
    }

    /// Whether there is no remedy.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Makes a request, and while it is out of memory, tries the steps in turn. `stream` is the stream of the
    /// request, `resource` the resource it is made to.
    ///
    /// # Errors
    ///
    /// The last error of the request; if that is [`OutOfMemory`](crate::ErrorKind::OutOfMemory), its
    /// [numbers](Error::out_of_memory) say what was tried.
    #[inline]
    pub fn recover<T>(
        &self,
        resource: &dyn MemoryResource,
        stream: &Stream,
        mut request: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        match request() {
            Err(error) if error.is_out_of_memory() && !error.is_over_limit() => {
                self.climb(resource, stream, error, &mut request)
            }
            answer => answer,
        }
    }

    #[cold]
    fn climb<T>(
        &self,
        resource: &dyn MemoryResource,
        stream: &Stream,
        mut error: Error,
        request: &mut dyn FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut tried = Vec::with_capacity(self.steps.len());
        for step in &self.steps {
            let done = step.apply(resource, stream, &error);
            let go_on = *done.as_ref().unwrap_or(&true);
            let failed = done.err().map(|error| error.kind());
            tried.push(Attempt::new(step.remedy(), failed));
            if !go_on {
                break;
            }
            let mut backoff = match step {
                Step::WaitForOthers(total) if failed.is_none() => Some(Backoff::new(*total)),
                _ => None,
            };
            while backoff.as_mut().is_none_or(Backoff::pause) {
                match request() {
                    Err(again) if again.is_out_of_memory() && !again.is_over_limit() => {
                        error = again
                    }
                    answer => return answer,
                }
                if backoff.is_none() {
                    break;
                }
            }
        }
        Err(error.and_memory(|memory| memory.tried.extend(tried)))
    }
}

impl Step {
    fn remedy(&self) -> Remedy {
        match self {
            Self::Retry => Remedy::Retry,
            Self::FlushCaches => Remedy::FlushCaches,
            Self::WaitForStream => Remedy::WaitForStream,
            Self::WaitForDevice => Remedy::WaitForDevice,
            Self::TrimPool(_) => Remedy::TrimPool,
            Self::TrimGraphMemory => Remedy::TrimGraphMemory,
            Self::Callback(_) => Remedy::Callback,
            Self::WaitForOthers(_) => Remedy::WaitForOthers,
        }
    }

    /// Whether to go on.
    fn apply(&self, resource: &dyn MemoryResource, stream: &Stream, error: &Error) -> Result<bool> {
        match self {
            Self::Retry => Ok(()),
            Self::FlushCaches => resource.trim_to(0),
            Self::WaitForStream => stream.synchronize(),
            Self::WaitForDevice => stream.context().synchronize(),
            Self::TrimPool(pool) => pool.trim_to(0),
            Self::TrimGraphMemory => stream.device().trim_graph_memory(),
            Self::Callback(callback) => return Ok(callback(error)),
            // The pauses are between the requests.
            Self::WaitForOthers(_) => refuse_waiting(stream),
        }
        .map(|()| true)
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TrimPool(pool) => f.debug_tuple("TrimPool").field(pool).finish(),
            step => step.remedy().fmt(f),
        }
    }
}

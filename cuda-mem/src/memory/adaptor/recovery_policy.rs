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

/// Remedies for out of memory, tried one after the other; after each the request is made again. An empty
/// policy gives up at once.
///
/// **Waiting can deadlock beside collective libraries** such as NCCL: a stream may hold a collective that
/// ends only when other processes launch theirs, and they may wait for this one. So nothing waits
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

    /// Asks again. Another thread may have freed something.
    pub fn retry(self) -> Self {
        self.step(Step::Retry)
    }

    /// Lets the resource, and those below it, give back what they keep unused:
    /// [`MemoryResource::trim_to`] with 0.
    pub fn flush_caches(self) -> Self {
        self.step(Step::FlushCaches)
    }

    /// Waits, on the host, for the stream of the request. Memory that was freed in it can be used by
    /// every stream then, whatever the reuse policy. See above for when this can deadlock.
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

    /// Lets a pool give back what it keeps unused, so that others can have it. The policy keeps the pool.
    #[doc(alias = "cuMemPoolTrimTo")]
    pub fn trim_pool(self, pool: &Pool) -> Self {
        self.step(Step::TrimPool(pool.clone()))
    }

    /// Lets the stream's device take back what graphs keep unused. Needs CUDA 11.4.
    #[doc(alias = "cuDeviceGraphMemTrim")]
    pub fn trim_graph_memory(self) -> Self {
        self.step(Step::TrimGraphMemory)
    }

    /// Asks the program, which may free something. `false` ends the climb.
    pub fn callback(self, callback: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        self.step(Step::Callback(Arc::new(callback)))
    }

    /// Gives other threads time to free memory: pauses and asks again, until the request is served or `total` has
    /// passed, and at least once. The pauses grow from 1 ms to 100 ms.
    ///
    /// The thread blocks meanwhile, with all that it holds: threads that each hold a part and wait for the rest end
    /// with an error after `total`. Beside collective libraries, every process may wait for one that waits here; see
    /// above. A thread that records a stream into a graph, or asks in the order of a stream that is recorded, does
    /// not pause: it asks once, and the step is listed as failed.
    ///
    /// Other threads are not noticed when they free; a limit of the program's own that wakes the thread that
    /// waits longest is [`LimitAdaptor::with_wait_timeout`](crate::memory::LimitAdaptor::with_wait_timeout).
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

    /// Makes a request, and while that is out of memory, tries the remedies in turn. `stream` is that of the request,
    /// `resource` what it comes from.
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
            Err(error) if error.is_out_of_memory() => {
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
                    Err(again) if again.is_out_of_memory() => error = again,
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

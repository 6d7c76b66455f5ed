//! Adaptors: resources that add something to another one, their upstream.

mod aligned;
mod failure_callback;
mod ladder;
mod limit;
mod logging;
mod prefetch;
mod recovery;
mod statistics;
mod table;
mod thread;
mod tracking;

pub use aligned::AlignedAdaptor;
pub use failure_callback::FailureCallbackAdaptor;
pub use ladder::Ladder;
pub use limit::LimitAdaptor;
pub use logging::LoggingAdaptor;
pub use prefetch::PrefetchAdaptor;
pub use recovery::RecoveryAdaptor;
pub use statistics::{Counter, Statistics, StatisticsAdaptor, StatisticsScope};
pub use tracking::{LiveAllocation, TrackingAdaptor};

use crate::error::{Error, Result};

/// Whether a resource that answered this to `deallocate` has the memory no more.
#[inline]
fn is_gone(freed: &Result<()>) -> bool {
    !freed.as_ref().is_err_and(Error::had_no_effect)
}

/// Memory goes back to upstream, and nothing else happens.
macro_rules! free_upstream {
    () => {
        #[inline]
        unsafe fn deallocate(
            &self,
            address: ::cuda_driver_sys::CUdeviceptr,
            layout: ::std::alloc::Layout,
            stream: &$crate::stream::Stream,
        ) -> $crate::error::Result<()> {
            // SAFETY: the caller keeps the contract of this function, which is upstream's.
            unsafe { self.upstream.deallocate(address, layout, stream) }
        }
    };
}
use free_upstream;

/// What an adaptor leaves to its upstream.
macro_rules! from_upstream {
    () => {
        fn memory_properties(&self) -> $crate::resource::MemoryProperties {
            self.upstream.memory_properties()
        }

        fn pool(&self) -> Option<&$crate::pool::Pool> {
            self.upstream.pool()
        }

        fn trim_to(&self, keep: u64) -> $crate::error::Result<()> {
            self.upstream.trim_to(keep)
        }
    };
}
use from_upstream;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn only_an_answer_without_effect_leaves_the_memory_there() {
        assert!(is_gone(&Ok(())));
        assert!(!is_gone(&Err(Error::new(ErrorKind::InvalidValue, "no"))));
        let fault = cuda_driver_sys::CUresult::CUDA_ERROR_ILLEGAL_ADDRESS;
        assert!(is_gone(&Err(Error::driver("cuMemFree_v2", fault))));
    }
}

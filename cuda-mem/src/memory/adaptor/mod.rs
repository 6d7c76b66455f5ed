//! Adaptors: resources that add something to another one, their upstream.
//!
//! Several adaptors count, and other threads allocate while a request passes through a stack of adaptors. One rule
//! keeps their counts consistent, in whatever order they are stacked:
//!
//! - A limit counts bytes from before upstream hands them out until after upstream has freed them. So it never
//!   counts less than what is allocated below it.
//! - Everything else (statistics, tables of live allocations, logs) counts an allocation from after upstream has
//!   handed it out until just before upstream frees it. So it never counts more than what is allocated below it,
//!   and never finds the address of another allocation.
//! - If upstream refuses to free memory ([`took_effect`](crate::base::error::took_effect) is false), the allocation
//!   still exists, and the counts are restored without counting it as a new allocation.
//! - Memory whose free ends in any other error, or in a panic, is considered lost and counted as freed.
//!
//! Together: statistics ≤ allocated ≤ limit, at every moment.

mod aligned;
mod checked;
mod failure_callback;
mod limit;
mod logging;
mod may_wait;
mod prefetch;
mod recording;
mod recovery;
mod recovery_policy;
mod statistics;
mod tracking;

pub use aligned::AlignedAdaptor;
pub use checked::CheckedAdaptor;
pub use failure_callback::FailureCallbackAdaptor;
pub use limit::{LimitAdaptor, LimitedAlloc};
pub use logging::LoggingAdaptor;
pub use prefetch::PrefetchAdaptor;
pub use recording::RecordingAdaptor;
pub use recovery::RecoveryAdaptor;
pub use recovery_policy::RecoveryPolicy;
pub use statistics::{Counter, Statistics, StatisticsAdaptor, StatisticsScope};
pub use tracking::{LiveAllocation, TrackingAdaptor};

/// Both ways to free memory, through a method `free(address, layout, stream, upstream)` of the adaptor: `upstream` frees
/// what it is given, so that upstream can do its best with memory that several streams used.
macro_rules! free_through_self {
    () => {
        #[inline]
        unsafe fn deallocate(
            &self,
            address: ::cuda_driver_sys::CUdeviceptr,
            layout: ::std::alloc::Layout,
            stream: &$crate::stream::Stream,
        ) -> $crate::base::error::Result<()> {
            self.free(address, layout, stream, |address, layout| {
                // SAFETY: the caller keeps the contract of this function, which is upstream's; the adaptor passes what it
                // got from upstream for this memory.
                unsafe { self.upstream.deallocate(address, layout, stream) }
            })
        }

        unsafe fn deallocate_after(
            &self,
            address: ::cuda_driver_sys::CUdeviceptr,
            layout: ::std::alloc::Layout,
            stream: &$crate::stream::Stream,
            others: &[&$crate::stream::Stream],
        ) -> $crate::base::error::Result<()> {
            self.free(address, layout, stream, |address, layout| {
                // SAFETY: as for `deallocate`.
                unsafe {
                    self.upstream
                        .deallocate_after(address, layout, stream, others)
                }
            })
        }
    };
}
use free_through_self;

/// Frees memory to upstream and does nothing else.
macro_rules! free_upstream {
    () => {
        #[inline]
        unsafe fn deallocate(
            &self,
            address: ::cuda_driver_sys::CUdeviceptr,
            layout: ::std::alloc::Layout,
            stream: &$crate::stream::Stream,
        ) -> $crate::base::error::Result<()> {
            // SAFETY: the caller keeps the contract of this function, which is upstream's.
            unsafe { self.upstream.deallocate(address, layout, stream) }
        }

        unsafe fn deallocate_after(
            &self,
            address: ::cuda_driver_sys::CUdeviceptr,
            layout: ::std::alloc::Layout,
            stream: &$crate::stream::Stream,
            others: &[&$crate::stream::Stream],
        ) -> $crate::base::error::Result<()> {
            // SAFETY: as for `deallocate`.
            unsafe {
                self.upstream
                    .deallocate_after(address, layout, stream, others)
            }
        }
    };
}
use std::fmt;

use free_upstream;

/// The methods that an adaptor forwards to its upstream.
macro_rules! from_upstream {
    () => {
        fn memory_properties(&self) -> $crate::memory::resource::MemoryProperties {
            self.upstream.memory_properties()
        }

        fn waits_to_free(&self) -> bool {
            self.upstream.waits_to_free()
        }

        fn memory_kind(&self) -> $crate::driver::pointer::MemoryKind {
            self.upstream.memory_kind()
        }

        fn pool(&self) -> Option<&$crate::memory::pool::Pool> {
            self.upstream.pool()
        }

        fn trim_to(&self, keep: u64) -> $crate::base::error::Result<()> {
            self.upstream.trim_to(keep)
        }
    };
}
use from_upstream;

/// For adaptors that call no code of the program and never wait for other threads.
macro_rules! calls_program_as_upstream {
    () => {
        fn may_call_program(&self) -> bool {
            self.upstream.may_call_program()
        }
    };
}
use calls_program_as_upstream;

/// A name and its upstream, on one line: errors name resources by their `Debug` output. `{:#?}` prints a structure.
fn debug_over(f: &mut fmt::Formatter<'_>, name: &str, upstream: &dyn fmt::Debug) -> fmt::Result {
    if f.alternate() {
        return f
            .debug_struct(name)
            .field("upstream", upstream)
            .finish_non_exhaustive();
    }
    write!(f, "{name} over {upstream:?}")
}

//! Adaptors: resources that add something to another one.

use std::sync::Arc;

use cuda_mem::memory::{CheckedAdaptor, LimitAdaptor, StatisticsAdaptor};

use crate::resource::{Resource, Source};
use crate::status::{Plain, Status, answer, invalid, write_struct};

/// Bytes and allocations that went through a resource.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Statistics {
    /// Bytes allocated now.
    pub bytes: i64,
    /// The most bytes that were allocated at a time.
    pub bytes_peak: i64,
    /// The sum of all allocations in bytes.
    pub bytes_total: u64,
    /// Allocations now.
    pub allocations: i64,
    /// The most allocations at a time.
    pub allocations_peak: i64,
    /// All allocations so far.
    pub allocations_total: u64,
}

// SAFETY: numbers of one size.
unsafe impl Plain for Statistics {
    const FIRST_SIZE: usize = 48;
}

const _: () = assert!(size_of::<Statistics>() == 48);

/// Creates a resource that allocates at most `limit` bytes of `upstream` at a time. Beyond it a request is
/// CUDAMEM_STATUS_OUT_OF_MEMORY, and upstream is not asked.
///
/// # Safety
///
/// `upstream` is null or not released; `resource` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_limit_create(
    upstream: *mut Resource,
    limit: u64,
    resource: *mut *mut Resource,
) -> Status {
    let make = || {
        // SAFETY: promised by the caller, in the words of the section above.
        let upstream = unsafe { Resource::of(upstream, "upstream") }?
            .resource
            .clone();
        let made = cuda_mem::Resource::new(LimitAdaptor::new(upstream, limit));
        Ok((made, Source::Limit))
    };
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { Resource::create(resource, "resource", make) }
    })
}

/// Creates a resource that counts what is allocated of `upstream` through it.
///
/// # Safety
///
/// As for `cudamem_limit_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_statistics_create(
    upstream: *mut Resource,
    resource: *mut *mut Resource,
) -> Status {
    let make = || {
        // SAFETY: promised by the caller, in the words of the section above.
        let upstream = unsafe { Resource::of(upstream, "upstream") }?
            .resource
            .clone();
        let made = Arc::new(StatisticsAdaptor::new(upstream));
        let source = Source::Statistics(Arc::clone(&made));
        Ok((cuda_mem::Resource::from(made), source))
    };
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { Resource::create(resource, "resource", make) }
    })
}

/// Creates a resource that checks every deallocation: of an address that is not allocated through it, a second one, or
/// one with another size or alignment, is CUDAMEM_STATUS_INVALID_VALUE, explained, and has no effect. With
/// `check_streams` of 1, so is one on another stream than the allocation's. It also takes 0 for the size of a
/// deallocation. Costs some tens of nanoseconds for each call.
///
/// # Safety
///
/// As for `cudamem_limit_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_checked_create(
    upstream: *mut Resource,
    check_streams: u32,
    resource: *mut *mut Resource,
) -> Status {
    let make = || {
        // SAFETY: promised by the caller, in the words of the section above.
        let upstream = unsafe { Resource::of(upstream, "upstream") }?
            .resource
            .clone();
        let made = CheckedAdaptor::new(upstream);
        let made = if check_streams == 0 {
            made
        } else {
            made.with_streams()
        };
        let made = Arc::new(made);
        let source = Source::Checked(Arc::clone(&made));
        Ok((cuda_mem::Resource::from(made), source))
    };
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { Resource::create(resource, "resource", make) }
    })
}

/// The counts of a resource from `cudamem_statistics_create`. `size` is sizeof(cudamem_statistics).
///
/// CUDAMEM_STATUS_INVALID_VALUE for another resource.
///
/// # Safety
///
/// `resource` is null or not released; `statistics` is null or valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_statistics_read(
    resource: *mut Resource,
    statistics: *mut Statistics,
    size: usize,
) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        let Source::Statistics(counting) = &unsafe { Resource::of(resource, "resource") }?.source
        else {
            return Err(invalid("`resource` is not from cudamem_statistics_create"));
        };
        let found = counting.statistics();
        let found = Statistics {
            bytes: found.bytes.current,
            bytes_peak: found.bytes.peak,
            bytes_total: found.bytes.total,
            allocations: found.allocations.current,
            allocations_peak: found.allocations.peak,
            allocations_total: found.allocations.total,
        };
        // SAFETY: the caller's promise.
        unsafe { write_struct(statistics, "statistics", size, &found) }
    })
}

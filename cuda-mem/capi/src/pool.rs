//! Memory pools of the driver.

use std::ffi::c_int;

use cuda_mem::memory::PoolBuilder;
use cuda_mem::{Driver, Error, MemoryPool, MemoryResource, ReusePolicy};

use crate::options::{options, reuse, threshold};
use crate::recorder::Recorder;
use crate::resource::{Resource, Source};
use crate::status::{Plain, Status, answer, invalid, write_struct};
use crate::stream::ordinal;

/// A bit of `reuse`: after waits of the program.
pub const CUDAMEM_REUSE_FOLLOW_EVENT_DEPENDENCIES: u32 = 1;
/// A bit of `reuse`: once the work that used the memory is seen to be done.
pub const CUDAMEM_REUSE_ALLOW_OPPORTUNISTIC: u32 = 2;
/// A bit of `reuse`: by waits that are added.
pub const CUDAMEM_REUSE_ALLOW_INTERNAL_DEPENDENCIES: u32 = 4;

const _: () = {
    assert!(
        CUDAMEM_REUSE_FOLLOW_EVENT_DEPENDENCIES == ReusePolicy::FOLLOW_EVENT_DEPENDENCIES.bits()
    );
    assert!(CUDAMEM_REUSE_ALLOW_OPPORTUNISTIC == ReusePolicy::ALLOW_OPPORTUNISTIC.bits());
    assert!(
        CUDAMEM_REUSE_ALLOW_INTERNAL_DEPENDENCIES
            == ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES.bits()
    );
};

/// Settings of a new pool. `cudamem_pool_options_init` fills in the defaults.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct PoolOptions {
    /// sizeof(cudamem_pool_options).
    pub size: usize,
    /// How many bytes the pool keeps when streams synchronise; UINT64_MAX for everything, the default.
    pub release_threshold: u64,
    /// The maximum size in bytes; 0 for no limit. Needs CUDA 12.2.
    pub max_bytes: u64,
    /// When memory may move between streams: the sum of CUDAMEM_REUSE bits; 0 for the default, which is all of them.
    pub reuse: u32,
    /// 0.
    pub reserved: u32,
    /// Null, or what records the pool; it need not be kept by the caller.
    pub recorder: *const Recorder,
}

// SAFETY: a recorder may be used from any thread.
unsafe impl Send for PoolOptions {}
// SAFETY: as above.
unsafe impl Sync for PoolOptions {}

// SAFETY: numbers, two of which fill a word, and a pointer.
unsafe impl Plain for PoolOptions {
    const FIRST_SIZE: usize = 32;
}

// SAFETY: numbers of one size.
unsafe impl Plain for PoolStats {
    const FIRST_SIZE: usize = 32;
}

const _: () = assert!(size_of::<PoolOptions>() == 40 && size_of::<PoolStats>() == 32);

impl Default for PoolOptions {
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            release_threshold: u64::MAX,
            max_bytes: 0,
            reuse: 0,
            reserved: 0,
            recorder: std::ptr::null(),
        }
    }
}

/// Fills in the defaults. `size` is sizeof(cudamem_pool_options). Null is ignored, and so is a wrong size: creating the pool
/// then refuses the options.
///
/// # Safety
///
/// `options` is null or valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_pool_options_init(options: *mut PoolOptions, size: usize) {
    let defaults = PoolOptions {
        size,
        ..PoolOptions::default()
    };
    // SAFETY: the caller's promise.
    let _ = unsafe { write_struct(options, "options", size, &defaults) };
}

/// What a pool has, in bytes, as the driver counts it.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PoolStats {
    /// Held of the device now, and the most so far.
    pub reserved: u64,
    /// See `reserved`.
    pub reserved_high: u64,
    /// Allocated now, and the most so far.
    pub used: u64,
    /// See `used`.
    pub used_high: u64,
}

/// # Safety
///
/// The recorder of the options is null or not released.
pub(crate) unsafe fn configure(
    builder: PoolBuilder,
    options: &PoolOptions,
) -> Result<MemoryPool, Error> {
    if options.reserved != 0 {
        let text = format!("`reserved` is {}; it has to be 0", options.reserved);
        return Err(invalid(text));
    }
    let mut builder = builder.release_threshold(threshold(options.release_threshold));
    if options.max_bytes > 0 {
        builder = builder.max_size(options.max_bytes);
    }
    if let Some(policy) = reuse(options.reuse)? {
        builder = builder.reuse(policy);
    }
    // SAFETY: promised by the caller, in the words of the section above.
    if let Some(recorder) = unsafe { options.recorder.as_ref() } {
        builder = builder.record(recorder.recorder());
    }
    builder.build()
}

/// Creates a pool of a device's memory. `options` may be null for the defaults.
///
/// CUDAMEM_STATUS_NOT_SUPPORTED if the device has no pools, with the reason.
///
/// # Safety
///
/// `options` is null or begins with its size, and its recorder is not released; `pool` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_pool_create(
    device: c_int,
    options: *const PoolOptions,
    pool: *mut *mut Resource,
) -> Status {
    let make = || {
        // SAFETY: promised by the caller, in the words of the section above.
        let options = unsafe { self::options(options) }?;
        let device = Driver::load()?.device(ordinal(device)?)?;
        // SAFETY: as above.
        let made = unsafe { configure(MemoryPool::builder(&device), &options) }?;
        Ok((made.into(), Source::Pool))
    };
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { Resource::create(pool, "pool", make) }
    })
}

/// The device's default pool, which cudaMallocAsync uses unless told otherwise. Its settings are not changed.
///
/// # Safety
///
/// `pool` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_pool_default(device: c_int, pool: *mut *mut Resource) -> Status {
    let make = || {
        let device = Driver::load()?.device(ordinal(device)?)?;
        let found = device.default_pool()?;
        Ok((found.into(), Source::Pool))
    };
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { Resource::create(pool, "pool", make) }
    })
}

/// Makes a pool the current one of its device: cudaMallocAsync and cuMemAllocAsync of this process take memory from it
/// from now on, in any library. The pool has to live as long as it is the current one.
///
/// CUDAMEM_STATUS_INVALID_VALUE for a resource that is no pool.
///
/// # Safety
///
/// `pool` is null or not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_pool_make_current(pool: *mut Resource) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        let resource = unsafe { Resource::of(pool, "pool") }?;
        let pool = resource.resource.pool();
        let pool = pool.filter(|_| matches!(resource.source, Source::Pool));
        let pool = pool.ok_or_else(|| invalid("`pool` is another resource than a pool"))?;
        let device = resource.resource.device();
        let device = device.ok_or_else(|| invalid("the pool is of no device"))?;
        device.set_current_pool(pool)
    })
}

/// What a pool has now. `size` is sizeof(cudamem_pool_stats).
///
/// CUDAMEM_STATUS_INVALID_VALUE for a resource that takes its memory from no pool.
///
/// # Safety
///
/// `pool` is null or not released; `stats` is null or valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_pool_read_stats(
    pool: *mut Resource,
    stats: *mut PoolStats,
    size: usize,
) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        let resource = unsafe { Resource::of(pool, "pool") }?;
        let pool = resource.resource.pool();
        let pool = pool.ok_or_else(|| invalid("the resource takes its memory from no pool"))?;
        let found = pool.stats()?;
        let found = PoolStats {
            reserved: found.reserved.current,
            reserved_high: found.reserved.high,
            used: found.used.current,
            used_high: found.used.high,
        };
        // SAFETY: the caller's promise.
        unsafe { write_struct(stats, "stats", size, &found) }
    })
}

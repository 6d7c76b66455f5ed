//! Arenas: the sub-allocator.

use std::ffi::c_int;
use std::time::Duration;

use cuda_mem::arena::ArenaBuilder;
use cuda_mem::{Arena, Driver, Error};

use crate::options::{options, reuse, threshold};
use crate::recorder::Recorder;
use crate::resource::{Resource, Source};
use crate::status::{Plain, Status, answer, invalid, write_struct};
use crate::stream::ordinal;

/// Settings of a new arena. `cudamem_arena_options_init` fills in the defaults.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ArenaOptions {
    /// sizeof(cudamem_arena_options).
    pub size: usize,
    /// The most bytes that it may hold; 0 for no limit.
    pub max_bytes: u64,
    /// Bytes that it takes with its first allocation, if the device has them.
    pub initial_bytes: u64,
    /// How many free bytes it keeps; UINT64_MAX for everything, the default.
    pub release_threshold: u64,
    /// The most that it may hold, as a share of the device's memory: more than 0, at most 1; 0 for no limit.
    pub max_share: f64,
    /// How many times the program's peak it may hold before memory moves; at least 1; 0 for 1.05.
    pub slack: f64,
    /// When memory may move between streams: as in cudamem_pool_options.
    pub reuse: u32,
    /// 1: a thread of its own prepares large blocks.
    pub background_thread: u32,
    /// How long a growth beyond the slack may wait for the device, in nanoseconds, so that memory can move instead; 0 for
    /// not at all.
    pub growth_wait: u64,
    /// Null, or what records the arena; it need not be kept by the caller.
    pub recorder: *const Recorder,
}

// SAFETY: a recorder may be used from any thread.
unsafe impl Send for ArenaOptions {}
// SAFETY: as above.
unsafe impl Sync for ArenaOptions {}

impl Default for ArenaOptions {
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            max_bytes: 0,
            initial_bytes: 0,
            release_threshold: u64::MAX,
            max_share: 0.0,
            slack: 0.0,
            reuse: 0,
            background_thread: 0,
            growth_wait: 0,
            recorder: std::ptr::null(),
        }
    }
}

// SAFETY: numbers, of which the two small ones fill a word, and a pointer.
unsafe impl Plain for ArenaOptions {
    const FIRST_SIZE: usize = 56;
}

// SAFETY: numbers of one size.
unsafe impl Plain for ArenaStats {
    const FIRST_SIZE: usize = 64;
}

const _: () = assert!(size_of::<ArenaOptions>() == 72 && size_of::<ArenaStats>() == 64);

/// Fills in the defaults. `size` is sizeof(cudamem_arena_options). Null is ignored, and so is a wrong size: creating the
/// arena then refuses the options.
///
/// # Safety
///
/// `options` is null or valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_arena_options_init(options: *mut ArenaOptions, size: usize) {
    let defaults = ArenaOptions {
        size,
        ..ArenaOptions::default()
    };
    // SAFETY: the caller's promise.
    let _ = unsafe { write_struct(options, "options", size, &defaults) };
}

/// What an arena has, in bytes unless stated otherwise.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ArenaStats {
    /// Held of the device now.
    pub reserved: u64,
    /// The most that was held.
    pub reserved_peak: u64,
    /// Allocated now, each block rounded up to 256.
    pub live: u64,
    /// Blocks that are allocated now.
    pub live_blocks: u64,
    /// How often the arena grew.
    pub grown: u64,
    /// How many pieces of memory it has given back.
    pub released: u64,
    /// Driver calls that it has made.
    pub driver_calls: u64,
    /// Streams that it has or had memory for.
    pub streams: u64,
}

/// # Safety
///
/// The recorder of the options is null or not released.
pub(crate) unsafe fn configure(
    builder: ArenaBuilder,
    options: &ArenaOptions,
) -> Result<Arena, Error> {
    let mut builder = builder
        .release_threshold(threshold(options.release_threshold))
        .initial_bytes(options.initial_bytes)
        .background_thread(options.background_thread != 0);
    if options.max_bytes > 0 {
        builder = builder.max_bytes(options.max_bytes);
    }
    // Wrong values are the builder's to refuse.
    if options.max_share != 0.0 {
        builder = builder.max_share(options.max_share);
    }
    if options.slack != 0.0 {
        builder = builder.slack(options.slack);
    }
    if let Some(policy) = reuse(options.reuse)? {
        builder = builder.reuse(policy);
    }
    // SAFETY: promised by the caller, in the words of the section above.
    if let Some(recorder) = unsafe { options.recorder.as_ref() } {
        builder = builder.record(recorder.recorder());
    }
    builder
        .growth_wait(Duration::from_nanos(options.growth_wait))
        .build()
}

/// Creates an arena of a device's memory: a sub-allocator that answers most requests without a driver call. `options`
/// may be null for the defaults.
///
/// CUDAMEM_STATUS_INVALID_VALUE for options that make no sense, with the reason.
///
/// # Safety
///
/// `options` is null or begins with its size, and its recorder is not released; `arena` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_arena_create(
    device: c_int,
    options: *const ArenaOptions,
    arena: *mut *mut Resource,
) -> Status {
    let make = || {
        // SAFETY: promised by the caller, in the words of the section above.
        let options = unsafe { self::options(options) }?;
        let device = Driver::load()?.device(ordinal(device)?)?;
        // SAFETY: as above.
        let made = unsafe { configure(Arena::builder(&device), &options) }?;
        Ok((made.clone().into(), Source::Arena(made)))
    };
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { Resource::create(arena, "arena", make) }
    })
}

/// Creates an arena that takes its memory from another resource.
///
/// # Safety
///
/// `upstream` is null or not released; the rest as for `cudamem_arena_create`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_arena_create_over(
    upstream: *mut Resource,
    options: *const ArenaOptions,
    arena: *mut *mut Resource,
) -> Status {
    let make = || {
        // SAFETY: promised by the caller, in the words of the section above.
        let (upstream, options) = (unsafe { Resource::of(upstream, "upstream") }?, unsafe {
            self::options(options)
        }?);
        let builder = Arena::builder_over(upstream.resource.clone());
        // SAFETY: as above.
        let made = unsafe { configure(builder, &options) }?;
        Ok((made.clone().into(), Source::Arena(made)))
    };
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { Resource::create(arena, "arena", make) }
    })
}

fn arena_of(resource: &Resource) -> Result<&Arena, Error> {
    match &resource.source {
        Source::Arena(arena) => Ok(arena),
        _ => Err(invalid("`arena` is another resource than an arena")),
    }
}

/// What an arena has now. `size` is sizeof(cudamem_arena_stats). Takes no lock and makes no driver call, so it is no
/// snapshot while other threads are active.
///
/// CUDAMEM_STATUS_INVALID_VALUE for a resource that is no arena.
///
/// # Safety
///
/// `arena` is null or not released; `stats` is null or valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_arena_read_stats(
    arena: *mut Resource,
    stats: *mut ArenaStats,
    size: usize,
) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        let found = arena_of(unsafe { Resource::of(arena, "arena") }?)?.stats();
        let found = ArenaStats {
            reserved: found.reserved,
            reserved_peak: found.reserved_peak,
            live: found.live,
            live_blocks: found.live_blocks,
            grown: found.grown,
            released: found.released,
            driver_calls: found.driver_calls,
            streams: found.streams,
        };
        // SAFETY: the caller's promise.
        unsafe { write_struct(stats, "stats", size, &found) }
    })
}

/// Sets `reserved_peak` to what is held now.
///
/// # Safety
///
/// `arena` is null or not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_arena_reset_peak(arena: *mut Resource) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        arena_of(unsafe { Resource::of(arena, "arena") }?)?.reset_peak();
        Ok(())
    })
}

//! PyTorch's plug-in interface for allocators (`torch.cuda.memory.CUDAPluggableAllocator`).
//!
//! PyTorch calls these functions from any thread, possibly with Python's lock held, also while a stream is captured and
//! while the process ends. A function that fails says why on standard error, because PyTorch ignores what it returns.

mod blocks;
mod captures;
mod config;
mod filter;
mod fractions;
mod memory;
mod parked;
mod queries;
mod relaxed;
mod segments;
mod throw;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io::Write as _;

use cuda_mem::base::is_forked;
use cuda_mem::sys::CUstream_st;
use cuda_mem::{Error, ErrorKind};

use crate::arena::ArenaOptions;
use crate::options::options;
use crate::pool::PoolOptions;
use crate::recorder::path;
use crate::resource::Resource;
use crate::status::{
    Plain, Status, answer, cudamem_last_error_message, invalid, write, write_struct,
};
use crate::stream::refuse_in_fork;
use captures::PoolId;
use config::Source;
use memory::Memory;
pub(crate) use segments::leave_stream;

/// What PyTorch has of a device's memory, in bytes unless stated otherwise.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct TorchStats {
    /// Allocated now.
    pub allocated: u64,
    /// The most that was allocated at a time.
    pub allocated_peak: u64,
    /// The sum of all allocations.
    pub allocated_total: u64,
    /// Allocations now.
    pub allocations: u64,
    /// The most allocations at a time.
    pub allocations_peak: u64,
    /// All allocations so far.
    pub allocations_total: u64,
    /// Held of the device now.
    pub reserved: u64,
    /// The most that was held.
    pub reserved_peak: u64,
    /// Held for captured graphs, a part of `reserved`.
    pub graphs_reserved: u64,
    /// Allocated by captures, not a part of `allocated`.
    pub graphs_allocated: u64,
    /// Requests that were tried again after waiting for the device.
    pub retries: u64,
    /// Requests that failed.
    pub failures: u64,
}

// SAFETY: numbers of one size.
unsafe impl Plain for TorchStats {
    const FIRST_SIZE: usize = 96;
}

const _: () = assert!(size_of::<TorchStats>() == 96);

/// Makes the functions for PyTorch serve memory of an arena for each device, created at the first request. Call it before
/// PyTorch calls any of them. `record` is null, or the path of a file to which requests are logged: compressed if its
/// name ends in .gz; of a device other than 0 with the number in the name. Only errors are reported on standard error, and
/// out of memory only if `reports_out_of_memory` is 1.
///
/// CUDAMEM_STATUS_IN_USE if this was called before, or the function for pools; CUDAMEM_STATUS_INVALID_VALUE if both `record`
/// and a recorder in the options are given.
///
/// # Safety
///
/// `options` is null or begins with its size, and its recorder is not released; `record` is null or a zero-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_torch_use_arena(
    options: *const ArenaOptions,
    record: *const c_char,
    reports_out_of_memory: u32,
) -> Status {
    // SAFETY: promised by the caller, in the words of the section above.
    unsafe { choose(options, Source::Arena, record, reports_out_of_memory) }
}

/// As `cudamem_torch_use_arena`, with a pool of the driver for each device.
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_torch_use_pool(
    options: *const PoolOptions,
    record: *const c_char,
    reports_out_of_memory: u32,
) -> Status {
    // SAFETY: promised by the caller, in the words of the section above.
    unsafe { choose(options, Source::Pool, record, reports_out_of_memory) }
}

/// # Safety
///
/// As for `cudamem_torch_use_arena`.
unsafe fn choose<T: Plain + Default>(
    options: *const T,
    source: impl FnOnce(T) -> Source,
    record: *const c_char,
    reports_out_of_memory: u32,
) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        let options = unsafe { self::options(options) }?;
        // SAFETY: as above.
        let record = (!record.is_null()).then(|| unsafe { path(record, "record") });
        let record = record.transpose()?;
        // SAFETY: as above.
        unsafe { config::configure(source(options), record, reports_out_of_memory != 0) }
    })
}

/// Runs a function that PyTorch does not ask for success.
fn hook(name: &str, body: impl FnOnce() -> Result<(), Error>) -> bool {
    let told = |error: &Error| tell(name, error);
    // In a fork blocks and tables are the parent's.
    let body = || refuse_in_fork().and_then(|()| body()).inspect_err(told);
    let status = answer(body);
    if status == Status::Internal {
        // SAFETY: a zero-terminated string, until this thread's next error.
        let text = unsafe { CStr::from_ptr(cudamem_last_error_message()) };
        let _ = writeln!(std::io::stderr(), "{}", text.to_string_lossy());
    }
    status == Status::Success
}

/// Says on standard error what went wrong, because there is no other way. Not at the end of the process, where much does.
fn tell(name: &str, error: &Error) {
    let is_told = match error.kind() {
        ErrorKind::Deinitialized | ErrorKind::ContextDestroyed | ErrorKind::Forked => true,
        ErrorKind::OutOfMemory => !config::reports_out_of_memory(),
        _ => false,
    };
    if !is_told {
        let _ = writeln!(std::io::stderr(), "cuda-mem: {name}: {error}");
    }
}

/// Allocates for PyTorch. Null for no bytes and on failure. In a capture it asks PyTorch for the pool, which may throw.
///
/// # Safety
///
/// `stream` is a live stream of the device's primary context, or a default stream.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cudamem_torch_alloc(
    bytes: isize,
    device: c_int,
    stream: *mut CUstream_st,
) -> *mut c_void {
    let mut address = 0;
    // Exceptions of C++ must not reach the body of the hook, where panics are caught.
    let capture = match is_forked() {
        true => None,
        false => captures::of(device, stream.cast()),
    };
    hook("allocation", || {
        let bytes =
            usize::try_from(bytes).map_err(|_| invalid(format!("{bytes} bytes were requested")))?;
        // SAFETY: promised by the caller, in the words of the section above.
        address = unsafe { Memory::of(device)?.allocate(bytes, stream.cast(), capture) }?;
        Ok(())
    });
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// As `cudamem_torch_alloc`, for a C++ caller: on failure it throws, once `cudamem_torch_throw_with` has said how.
///
/// # Safety
///
/// As there.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cudamem_torch_alloc_or_throw(
    bytes: isize,
    device: c_int,
    stream: *mut CUstream_st,
) -> *mut c_void {
    // SAFETY: promised by the caller, in the words of the section above.
    let pointer = unsafe { cudamem_torch_alloc(bytes, device, stream) };
    if pointer.is_null() && bytes != 0 {
        throw::throw_last_error();
    }
    pointer
}

/// Names the function with which `cudamem_torch_alloc_or_throw` throws: c10::detail::torchCheckFail of PyTorch, of four
/// arguments (function, file, line, message), which does not return. Null is ignored.
///
/// # Safety
///
/// It is this function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_torch_throw_with(function: *const c_void) {
    // SAFETY: promised by the caller, in the words of the section above.
    unsafe { throw::set(function) };
}

/// Frees for PyTorch, after what is now in `stream` and in the streams recorded for the block.
///
/// # Safety
///
/// `pointer` is null, or from `cudamem_torch_alloc` with the same numbers and not freed yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_torch_free(
    pointer: *mut c_void,
    bytes: isize,
    device: c_int,
    stream: *mut CUstream_st,
) {
    let address = pointer.expose_provenance() as u64;
    if address == 0 {
        return;
    }
    hook("free", || {
        let bytes = usize::try_from(bytes)
            .map_err(|_| invalid(format!("{bytes} bytes are to be freed")))?;
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { Memory::of(device)?.deallocate(address, bytes, stream.cast()) }
    });
}

/// PyTorch's record_stream: the free of this block will also be after what is then in `stream`. Other memory is ignored.
///
/// # Safety
///
/// The stream lives until the block is freed, and if that is in a capture until the capture has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_torch_record_stream(
    pointer: *mut c_void,
    stream: *mut CUstream_st,
) {
    let address = pointer.expose_provenance() as u64;
    if address != 0 {
        hook("record_stream", || {
            // What is not ours is never freed here, and would stay recorded.
            if memory::may_have(address) {
                blocks::record(address, stream.cast());
            }
            Ok(())
        });
    }
}

/// PyTorch's empty_cache: waits for each device that was used, unless a stream is being captured, and gives unused
/// memory back.
#[unsafe(no_mangle)]
pub extern "C" fn cudamem_torch_reset() {
    hook("empty_cache", memory::reset);
}

/// PyTorch's set_per_process_memory_fraction: the most that is held of the device's memory.
#[unsafe(no_mangle)]
pub extern "C" fn cudamem_torch_set_memory_fraction(fraction: f64, device: c_int) {
    hook("memory fraction", || fractions::set(fraction, device));
}

/// The memory around an address that is mapped as one, for PyTorch. Null if it is not known.
///
/// # Safety
///
/// `bytes` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_torch_base(
    pointer: *mut c_void,
    bytes: *mut usize,
) -> *mut c_void {
    let address = pointer.expose_provenance() as u64;
    let mut found = 0..0;
    hook("base allocation", || {
        found = memory::piece_at(address).ok_or_else(|| {
            invalid(format!(
                "{address:#x} is not in memory that can be shared as one piece"
            ))
        })?;
        Ok(())
    });
    if !bytes.is_null() {
        // SAFETY: not null, so valid by the contract of this function.
        unsafe { bytes.write((found.end - found.start) as usize) };
    }
    std::ptr::with_exposed_provenance_mut(found.start as usize)
}

/// From now on what the streams of a capture request comes from a pool for graphs. `filter` is a
/// std::function<bool(cudaStream_t)> of libstdc++, which says whether a stream is of the capture. It is not read on Windows,
/// where all streams of the device count as captured.
///
/// # Safety
///
/// `filter` is such a function, which lives until this function returns, and whose copies may be called until the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_torch_begin_pool(device: c_int, id: PoolId, filter: *mut c_void) {
    hook("beginning of a capture", || {
        // SAFETY: promised by the caller, in the words of the section above.
        let filter = unsafe { filter::Filter::copied_from(filter.cast()) };
        captures::begin(device, id, filter, Memory::of(device))
    });
}

/// Ends what `cudamem_torch_begin_pool` began; the memory stays the pool's.
#[unsafe(no_mangle)]
pub extern "C" fn cudamem_torch_end_pool(device: c_int, id: PoolId) {
    hook("end of a capture", || {
        let ended = captures::end(device, id);
        Memory::of(device)?.free_parked();
        ended
    });
}

/// One of the graphs of a pool is gone. With the last one, and once its blocks are freed, `cudamem_torch_reset` gives the
/// memory back, and so does a request that finds too little.
#[unsafe(no_mangle)]
pub extern "C" fn cudamem_torch_release_pool(device: c_int, id: PoolId) {
    hook("release of a pool", || {
        captures::release(device, id);
        Ok(())
    });
}

/// What PyTorch has of a device. `size` is sizeof(cudamem_torch_stats). All zero before the first request.
///
/// # Safety
///
/// `stats` is null or valid for writes of `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_torch_read_stats(
    device: c_int,
    stats: *mut TorchStats,
    size: usize,
) -> Status {
    answer(|| {
        refuse_in_fork()?;
        let found = match Memory::if_used(device)? {
            Some(memory) => memory.stats()?,
            None => TorchStats::default(),
        };
        // SAFETY: the caller's promise.
        unsafe { write_struct(stats, "stats", size, &found) }
    })
}

/// Sets the peaks to what is there now.
#[unsafe(no_mangle)]
pub extern "C" fn cudamem_torch_reset_peaks(device: c_int) -> Status {
    answer(|| Memory::if_used(device)?.map_or(Ok(()), |memory| memory.reset_peaks()))
}

/// The resource that serves a device, with a reference for the caller.
///
/// # Safety
///
/// `resource` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_torch_resource(
    device: c_int,
    resource: *mut *mut Resource,
) -> Status {
    answer(|| {
        refuse_in_fork()?;
        let make = || Ok(Memory::of(device)?.resource());
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { Resource::create(resource, "resource", make) }
    })
}

/// Writes what is logged so far, and ends the log.
///
/// CUDAMEM_STATUS_OTHER if it could not be written; the text says why.
#[unsafe(no_mangle)]
pub extern "C" fn cudamem_torch_end_record() -> Status {
    answer(memory::end_record)
}

/// Two functions with which a torch.cuda.MemPool takes its segments from `resource`, which then lives as long as the
/// process. There are 16 pairs, one for each resource. They allocate nothing on a stream that is captured.
///
/// CUDAMEM_STATUS_IN_USE if none is left.
///
/// # Safety
///
/// `resource` is null or not released; the others are null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_torch_segments(
    resource: *mut Resource,
    alloc: *mut *mut c_void,
    free: *mut *mut c_void,
) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        let resource = unsafe { Resource::counted(resource, "resource") }?;
        if alloc.is_null() || free.is_null() {
            return Err(invalid(
                "`alloc` and `free` receive the functions; one is null",
            ));
        }
        let found = segments::functions_for(&resource)?;
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { write(alloc, "alloc", found.0 as *mut c_void) }?;
        // SAFETY: as above.
        unsafe { write(free, "free", found.1 as *mut c_void) }
    })
}

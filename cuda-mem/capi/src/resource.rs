//! Resources: where memory comes from.

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cuda_mem::memory::{CheckedAdaptor, StatisticsAdaptor};
use cuda_mem::sys::{CUstream, CUstream_st};
use cuda_mem::{Arena, Error, ErrorKind, MemoryResource, Stream};

use crate::status::{Status, answer, invalid, write};
use crate::stream::with_stream;

/// Where memory comes from: a pool, an arena, or an adaptor over another resource. Counted: every function that returns
/// one gives the caller a reference, to be released. An adaptor keeps what it is over.
#[derive(Debug)]
pub struct Resource {
    pub(crate) resource: cuda_mem::Resource,
    pub(crate) source: Source,
}

/// What a resource is.
#[derive(Debug)]
pub(crate) enum Source {
    Pool,
    Arena(Arena),
    Limit,
    Statistics(Arc<StatisticsAdaptor<cuda_mem::Resource>>),
    Checked(Arc<CheckedAdaptor<cuda_mem::Resource>>),
}

/// What names the resource's own device.
const OWN_DEVICE: c_int = -1;

/// The minimum alignment of every allocation, and what an alignment of 0 means.
const ALIGNMENT: usize = 256;

impl Resource {
    /// Gives the caller a new resource in `out`, which is null if there is an error.
    ///
    /// # Safety
    ///
    /// `out` is null or valid for a write.
    pub(crate) unsafe fn create(
        out: *mut *mut Self,
        name: &str,
        make: impl FnOnce() -> Result<(cuda_mem::Resource, Source), Error>,
    ) -> Result<(), Error> {
        // SAFETY: the promise of this function, also below.
        unsafe { write(out, name, std::ptr::null_mut()) }?;
        let (resource, source) = make()?;
        let resource = Arc::into_raw(Arc::new(Self { resource, source })).cast_mut();
        // SAFETY: as above.
        unsafe { write(out, name, resource) }
    }

    /// The resource of a handle.
    ///
    /// # Safety
    ///
    /// The handle is null, or comes from this library and is not released before the last use of the result.
    pub(crate) unsafe fn of<'a>(handle: *mut Self, name: &str) -> Result<&'a Self, Error> {
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { handle.as_ref() }.ok_or_else(|| invalid(format!("`{name}` is null")))
    }

    /// As [`of`](Self::of), with a reference of its own.
    ///
    /// # Safety
    ///
    /// The handle is null, or comes from this library and is not released.
    pub(crate) unsafe fn counted(handle: *mut Self, name: &str) -> Result<Arc<Self>, Error> {
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { Self::of(handle, name) }?;
        // SAFETY: not null, so from `create` and not released, by the contract of this function.
        unsafe { Arc::increment_strong_count(handle) };
        // SAFETY: the reference that was just added.
        Ok(unsafe { Arc::from_raw(handle) })
    }

    /// The device to use if the caller names none.
    fn device(&self, named: c_int) -> Result<c_int, Error> {
        // Other negative numbers are refused where the device is looked up.
        if named != OWN_DEVICE {
            return Ok(named);
        }
        let own = self
            .resource
            .device()
            .and_then(|device| device.ordinal().try_into().ok());
        own.ok_or_else(|| {
            invalid(format!(
                "`device` is {named}, and the resource has none of its own"
            ))
        })
    }

    /// The layout that memory was allocated with.
    fn layout_of(&self, address: u64, bytes: usize, alignment: usize) -> Result<Layout, Error> {
        if bytes > 0 {
            return layout(bytes, alignment);
        }
        let Source::Checked(checked) = &self.source else {
            return Err(invalid(
                "`bytes` is 0; only a checked resource knows the size of its blocks",
            ));
        };
        match checked.layout_of(address) {
            Some(layout) => Ok(layout),
            // The adaptor explains it.
            None => layout(1, alignment),
        }
    }
}

pub(crate) fn layout(bytes: usize, alignment: usize) -> Result<Layout, Error> {
    let alignment = if alignment == 0 { ALIGNMENT } else { alignment };
    // An alignment that leaves no address is a mistake, whatever the size.
    let most = (isize::MAX as usize).checked_sub(alignment);
    if alignment.is_power_of_two() && most.is_some_and(|most| bytes > most) {
        let text = format!("{bytes} bytes are more than the address space has");
        return Err(Error::new(ErrorKind::OutOfMemory, text));
    }
    Layout::from_size_align(bytes, alignment).map_err(|_| {
        invalid(format!(
            "{bytes} bytes aligned to {alignment} are no layout: an alignment is a power of two, and a size fits the \
             address space"
        ))
    })
}

fn address(pointer: *mut c_void) -> u64 {
    pointer.expose_provenance() as u64
}

/// Adds a reference. Returns the resource; null is ignored.
///
/// # Safety
///
/// `resource` is null, or a resource that is not released yet.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_resource_retain(resource: *mut Resource) -> *mut Resource {
    if !resource.is_null() {
        // SAFETY: from `create`, and not released, by the contract of this function.
        unsafe { Arc::increment_strong_count(resource) };
    }
    resource
}

/// Releases a reference; null is ignored. With the last one, and once no adaptor keeps it, the resource gives its memory
/// back. All memory that was allocated from it must have been deallocated before. Does not wait.
///
/// # Safety
///
/// `resource` is null, or a reference that the caller owns; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_resource_release(resource: *mut Resource) {
    if !resource.is_null() {
        // A destructor does not fail, and a panic must not reach the caller.
        let _ = answer(|| {
            // SAFETY: from `create`, and the caller's own reference, by the contract of this function.
            drop(unsafe { Arc::from_raw(resource) });
            Ok(())
        });
    }
}

/// Allocates memory in the order of a stream: work that is submitted to the stream afterwards may use it, and other
/// streams that wait for it. Contents are unspecified. Zero bytes are null. Does not wait.
///
/// `alignment` is a power of two, or 0 for 256, which every allocation has at least. `device` is the stream's, or -1 for
/// the resource's own. On failure `*pointer` is null.
///
/// CUDAMEM_STATUS_OUT_OF_MEMORY if there is not enough; _INVALID_VALUE for an alignment that the resource does not have
/// (pools and arenas: more than 256), or a stream of a device that does not reach the memory.
///
/// # Safety
///
/// `resource` is null or not released; `stream` is a default stream or a live stream of the device's primary context;
/// `pointer` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_allocate(
    resource: *mut Resource,
    bytes: usize,
    alignment: usize,
    device: c_int,
    stream: *mut CUstream_st,
    pointer: *mut *mut c_void,
) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { write(pointer, "pointer", std::ptr::null_mut()) }?;
        // SAFETY: promised by the caller, in the words of the section above.
        let resource = unsafe { Resource::of(resource, "resource") }?;
        let layout = layout(bytes, alignment)?;
        let device = resource.device(device)?;
        // SAFETY: promised by the caller, in the words of the section above.
        let address = unsafe {
            with_stream(device, stream.cast(), |stream| {
                resource.resource.allocate(layout, stream)
            })
        }?;
        let memory = std::ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: as above.
        unsafe { write(pointer, "pointer", memory) }
    })
}

/// Deallocates memory in the order of a stream: work that is in the stream now may still use it. Null is ignored. Does
/// not wait, unless the resource has no stream-ordered memory.
///
/// Every stream that used the memory must be waited for by `stream`, or be named in `cudamem_deallocate_after`. `bytes`
/// and `alignment` are those of the allocation; a checked resource (`cudamem_checked_create`) takes 0 bytes for those
/// that it knows, and refuses wrong ones.
///
/// CUDAMEM_STATUS_INVALID_VALUE if the memory is not the resource's, as far as it can tell: an arena notices some of
/// these, a checked resource all. The memory is then as it was.
///
/// # Safety
///
/// `resource` is null or not released; `pointer` is null, or memory of this resource that is not deallocated yet,
/// unless the resource is checked; `stream` is a default stream or a live stream of the device's primary context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_deallocate(
    resource: *mut Resource,
    pointer: *mut c_void,
    bytes: usize,
    alignment: usize,
    device: c_int,
    stream: *mut CUstream_st,
) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        let resource = unsafe { Resource::of(resource, "resource") }?;
        let address = address(pointer);
        if address == 0 {
            return Ok(());
        }
        let layout = resource.layout_of(address, bytes, alignment)?;
        let device = resource.device(device)?;
        let free = |stream: &Stream| {
            // SAFETY: promised by the caller, in the words of the section above.
            unsafe { resource.resource.deallocate(address, layout, stream) }
        };
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { with_stream(device, stream.cast(), free) }
    })
}

/// As `cudamem_deallocate`, for memory that other streams used too: it is not handed out again before all work that is
/// now in `stream` and in the `count` streams `others` is done. An arena makes no stream wait for that.
///
/// # Safety
///
/// As there; `others` has `count` streams of the same device, or is null if there are none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_deallocate_after(
    resource: *mut Resource,
    pointer: *mut c_void,
    bytes: usize,
    alignment: usize,
    device: c_int,
    stream: *mut CUstream_st,
    others: *const *mut CUstream_st,
    count: usize,
) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        let resource = unsafe { Resource::of(resource, "resource") }?;
        if others.is_null() && count > 0 {
            return Err(invalid(format!("`others` is null, and `count` is {count}")));
        }
        let address = address(pointer);
        if address == 0 {
            return Ok(());
        }
        let layout = resource.layout_of(address, bytes, alignment)?;
        let device = resource.device(device)?;
        let handles: &[*mut CUstream_st] = if count == 0 {
            &[]
        } else {
            // SAFETY: not null, and of this length, by the contract of this function.
            unsafe { std::slice::from_raw_parts(others, count) }
        };
        let mut used: Vec<Stream> = Vec::with_capacity(count.min(64));
        for handle in handles {
            let raw: CUstream = handle.cast();
            // SAFETY: promised by the caller, in the words of the section above.
            used.push(unsafe { with_stream(device, raw, |stream| Ok(stream.clone())) }?);
        }
        let others: Vec<&Stream> = used.iter().collect();
        let free = |stream: &Stream| {
            // SAFETY: promised by the caller, in the words of the section above.
            unsafe {
                resource
                    .resource
                    .deallocate_after(address, layout, stream, &others)
            }
        };
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { with_stream(device, stream.cast(), free) }
    })
}

/// Gives unused memory back to the device, down to `keep` bytes if possible. Never waits.
///
/// # Safety
///
/// `resource` is null or not released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_trim(resource: *mut Resource, keep: u64) -> Status {
    answer(|| {
        // SAFETY: promised by the caller, in the words of the section above.
        unsafe { Resource::of(resource, "resource") }?
            .resource
            .trim_to(keep)
    })
}

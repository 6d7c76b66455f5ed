//! Functions that serve the segments of a `torch.cuda.MemPool`: one pair for each resource, because PyTorch passes no
//! argument of the user.

use std::alloc::Layout;
use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cuda_mem::sys::{CUstream, CUstream_st};
use cuda_mem::{Error, ErrorKind, MemoryResource as _, Stream};

use super::{hook, queries};
use crate::resource::{Resource, layout};
use crate::status::invalid;
use crate::stream::with_stream;

const COUNT: usize = 16;

static RESOURCES: [OnceLock<Arc<Resource>>; COUNT] = [const { OnceLock::new() }; COUNT];

pub(super) type Alloc = unsafe extern "C" fn(isize, c_int, *mut CUstream_st) -> *mut c_void;
pub(super) type Free = unsafe extern "C" fn(*mut c_void, isize, c_int, *mut CUstream_st);

macro_rules! functions {
    ($($number:literal)*) => {
        [$((alloc::<$number> as Alloc, free::<$number> as Free)),*]
    };
}

static FUNCTIONS: [(Alloc, Free); COUNT] = functions!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);

/// Functions that take memory from a resource and give it back there, the same ones each time.
pub(super) fn functions_for(resource: &Arc<Resource>) -> Result<(Alloc, Free), Error> {
    for (place, functions) in RESOURCES.iter().zip(FUNCTIONS) {
        // Another thread may be faster.
        let known = place.get_or_init(|| Arc::clone(resource));
        if Arc::ptr_eq(known, resource) {
            return Ok(functions);
        }
    }
    let text = format!(
        "{COUNT} resources already serve segments of PyTorch, for as long as the process; use one of them again, such as \
         one arena for several pools"
    );
    Err(Error::new(ErrorKind::InUse, text))
}

fn resource(number: usize) -> Result<&'static cuda_mem::Resource, Error> {
    let resource = RESOURCES.get(number).and_then(OnceLock::get);
    let resource = resource.map(|resource| &resource.resource);
    resource.ok_or_else(|| invalid("no resource serves these segments"))
}

/// A pool of the driver would give memory that is a part of the graph, which PyTorch later hands to other work.
fn refuse_captured(stream: &Stream) -> Result<(), Error> {
    // Default streams are those of the current context.
    let _current = stream.context().bind()?;
    // SAFETY: a live stream, and its context is current.
    if unsafe { queries::is_captured(stream.as_raw()) } != Some(true) {
        return Ok(());
    }
    let text = "the stream is captured, and a segment that is allocated in a graph is a part of it; allocate as much \
                before the capture";
    Err(Error::new(ErrorKind::Capturing, text))
}

/// A segment that PyTorch has given up.
struct Segment {
    resource: usize,
    address: u64,
    layout: Layout,
    stream: Stream,
}

/// Segments whose stream was captured when they were given up. The next call of any of these functions tries them again,
/// and so does the end of the stream.
static PARKED: Mutex<Vec<Segment>> = Mutex::new(Vec::new());

impl Segment {
    fn free(self) -> Result<(), Error> {
        // SAFETY: PyTorch has given it up, and frees a segment in the stream that it was allocated for.
        let freed = resource(self.resource)
            .and_then(|it| unsafe { it.deallocate(self.address, self.layout, &self.stream) });
        match freed {
            Err(error) if error.kind() == ErrorKind::Capturing && error.had_no_effect() => {
                parked().push(self);
                Ok(())
            }
            freed => freed,
        }
    }
}

fn parked() -> MutexGuard<'static, Vec<Segment>> {
    PARKED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Held while parked segments are tried: they are in no list then.
static TRYING: Mutex<()> = Mutex::new(());

fn free_parked() {
    // Another thread is at it.
    if let Ok(_trying) = TRYING.try_lock() {
        free_each();
    }
}

fn free_each() {
    let count = parked().len();
    for _ in 0..count {
        let mut list = parked();
        if list.is_empty() {
            return;
        }
        let segment = list.remove(0);
        drop(list);
        if let Err(error) = segment.free() {
            super::tell("free of a segment", &error);
        }
    }
}

/// For a stream that is about to end. An error if it is still captured, and a segment waits for the end of that.
pub(crate) fn leave_stream(device: c_int, raw: CUstream) -> Result<(), Error> {
    let _trying = TRYING.lock().unwrap_or_else(PoisonError::into_inner);
    free_each();
    let waits = parked().iter().any(|segment| {
        let of = &segment.stream;
        of.as_raw() == raw && c_int::try_from(of.device().ordinal()) == Ok(device)
    });
    if !waits {
        return Ok(());
    }
    let text = "a segment was freed while the stream was captured into a graph, and waits for the end of the capture; detach \
                the stream after that";
    Err(Error::new(ErrorKind::Capturing, text))
}

/// # Safety
///
/// As for `cudamem_torch_alloc`.
unsafe extern "C" fn alloc<const N: usize>(
    bytes: isize,
    device: c_int,
    stream: *mut CUstream_st,
) -> *mut c_void {
    let mut address = 0;
    // PyTorch makes an error of its own of null.
    hook("allocation of a segment", || {
        let bytes = usize::try_from(bytes)
            .map_err(|_| invalid(format!("a segment of {bytes} bytes was requested")))?;
        free_parked();
        let layout = layout(bytes, 0)?;
        let allocate = |stream: &Stream| {
            refuse_captured(stream)?;
            resource(N)?.allocate(layout, stream)
        };
        // SAFETY: promised by the caller, in the words of the section above.
        address = unsafe { with_stream(device, stream.cast(), allocate) }?;
        Ok(())
    });
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// # Safety
///
/// As for `cudamem_torch_free`.
unsafe extern "C" fn free<const N: usize>(
    pointer: *mut c_void,
    bytes: isize,
    device: c_int,
    stream: *mut CUstream_st,
) {
    hook("free of a segment", || {
        let bytes = usize::try_from(bytes)
            .map_err(|_| invalid(format!("a segment of {bytes} bytes is to be freed")))?;
        let layout = layout(bytes, 0)?;
        let address = pointer.expose_provenance() as u64;
        free_parked();
        // SAFETY: promised by the caller, in the words of the section above.
        let stream = unsafe { with_stream(device, stream.cast(), |stream| Ok(stream.clone())) }?;
        let segment = Segment {
            resource: N,
            address,
            layout,
            stream,
        };
        segment.free()
    });
}

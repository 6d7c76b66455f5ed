//! Streams of the program, which C knows by their handles.
//!
//! A handle becomes a [`Stream`] once, and stays one until it is detached, so that a resource recognises the stream.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, PoisonError, RwLock};

use cuda_mem::base::is_forked;
use cuda_mem::sys::{
    CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUresult, CUstream, CUstream_st, CUstreamCaptureStatus,
};
use cuda_mem::{Driver, Error, ErrorKind, Stream};

use crate::status::{Status, answer, invalid};
use crate::torch::leave_stream;

/// A device's ordinal, and a handle.
type Key = (c_int, usize);

/// The streams that have been named so far. A stream is freed only when it is detached.
static STREAMS: LazyLock<RwLock<HashMap<Key, Box<Stream>>>> = LazyLock::new(RwLock::default);

/// Counts detached streams, so that threads forget what they have looked up.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// What a thread looked up last.
#[derive(Clone, Copy)]
struct Found {
    key: Key,
    generation: u64,
    stream: *const Stream,
}

const NOTHING: Found = Found {
    key: (-1, 0),
    generation: u64::MAX,
    stream: std::ptr::null(),
};

/// How many streams a thread remembers.
const PLACES: usize = 16;

thread_local! {
    static FOUND: [Cell<Found>; PLACES] = const { [const { Cell::new(NOTHING) }; PLACES] };
    /// This thread's own default streams, which other threads cannot name.
    static OWN: RefCell<Vec<(c_int, Stream)>> = const { RefCell::new(Vec::new()) };
}

/// Where a key is looked for among those found last.
fn place(key: Key) -> usize {
    // Handles are addresses, whose high bits mix best.
    let spread = (key.1 as u64 ^ (key.0 as u64) << 56).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (spread >> 60) as usize % PLACES
}

/// Calls `body` with the stream of a handle.
///
/// # Safety
///
/// `raw` is a default stream, or a live stream of the device's primary context that is not detached meanwhile.
pub(crate) unsafe fn with_stream<R>(
    device: c_int,
    raw: CUstream,
    body: impl FnOnce(&Stream) -> Result<R, Error>,
) -> Result<R, Error> {
    let key = (device, raw.addr());
    let found = FOUND
        .try_with(|found| found[place(key)].get())
        .unwrap_or(NOTHING);
    if found.key == key && found.generation == GENERATION.load(Ordering::Acquire) {
        // SAFETY: in the table since that generation, and not detached meanwhile by the contract of this function.
        return body(unsafe { &*found.stream });
    }
    if raw == CU_STREAM_PER_THREAD {
        return with_own_stream(device, body);
    }
    // SAFETY: promised by the caller, in the words of the section above.
    let found = unsafe { look_up(key, raw) }?;
    let _ = FOUND.try_with(|all| all[place(key)].set(found));
    // SAFETY: as above.
    body(unsafe { &*found.stream })
}

/// # Safety
///
/// As for [`with_stream`].
#[cold]
unsafe fn look_up(key: Key, raw: CUstream) -> Result<Found, Error> {
    refuse_in_fork()?;
    // Before the table is read: what is detached later is noticed.
    let generation = GENERATION.load(Ordering::Acquire);
    let found = |stream: &Stream| Found {
        key,
        generation,
        stream: std::ptr::from_ref(stream),
    };
    let streams = STREAMS.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(stream) = streams.get(&key) {
        return Ok(found(stream));
    }
    drop(streams);
    let context = Driver::load()?.device(ordinal(key.0)?)?.primary_context()?;
    let stream = if raw.is_null() || raw == CU_STREAM_LEGACY {
        context.legacy_stream()
    } else {
        // SAFETY: the caller's promise; the program detaches the stream before it ends.
        unsafe { Stream::borrow_raw(&context, raw, ()) }
    };
    let stream = Box::new(stream);
    let mut streams = STREAMS.write().unwrap_or_else(PoisonError::into_inner);
    // If another thread was faster, its stream is the one, and this one is dropped after the lock.
    let mut unused = None;
    let known = match streams.entry(key) {
        Entry::Occupied(known) => {
            unused = Some(stream);
            known.into_mut()
        }
        Entry::Vacant(place) => place.insert(stream),
    };
    let found = found(known);
    drop(streams);
    drop(unused);
    Ok(found)
}

/// In a fork the lock might never be free, and the streams are the parent's.
pub(crate) fn refuse_in_fork() -> Result<(), Error> {
    if !is_forked() {
        return Ok(());
    }
    let text = "this process is a fork of the one that uses the GPU; start another program instead";
    Err(Error::new(ErrorKind::Forked, text))
}

/// Whether a handle names a default stream, which every device has.
pub(crate) fn is_default(raw: CUstream) -> bool {
    raw.addr() <= CU_STREAM_PER_THREAD.addr()
}

/// Whether a handle names the legacy default stream.
pub(crate) fn is_legacy(raw: CUstream) -> bool {
    raw.addr() <= CU_STREAM_LEGACY.addr()
}

/// Refuses work in the legacy default stream while any code captures a stream that waits for it: the capture would be lost
/// (R193). This question does not harm it.
pub(crate) fn refuse_beside_captures(legacy: &Stream) -> Result<(), Error> {
    let Some(ask) = Driver::load()?.table().cuStreamIsCapturing else {
        return Ok(());
    };
    let _current = legacy.context().bind()?;
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // SAFETY: a default stream, whose context is current (R8), and a place for the answer.
    let answer = unsafe { ask(legacy.as_raw(), &raw mut status) };
    if answer != CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT {
        return Ok(());
    }
    let text = "a stream that waits for the legacy default stream is captured into a graph, which work in that stream would \
                spoil; do it after the capture";
    Err(Error::new(ErrorKind::Capturing, text))
}

/// The device that a stream was used with; `None` for default streams, which every device has, and if it was not used yet.
pub(crate) fn known_device(raw: CUstream) -> Option<c_int> {
    if is_default(raw) {
        return None;
    }
    let streams = STREAMS.read().unwrap_or_else(PoisonError::into_inner);
    let mut keys = streams.keys();
    keys.find(|key| key.1 == raw.addr()).map(|key| key.0)
}

#[cold]
fn with_own_stream<R>(
    device: c_int,
    body: impl FnOnce(&Stream) -> Result<R, Error>,
) -> Result<R, Error> {
    refuse_in_fork()?;
    let known = OWN.try_with(|own| {
        let own = own.borrow();
        let found = own.iter().find(|(of, _)| *of == device);
        found.map(|(_, stream)| stream.clone())
    });
    if let Ok(Some(stream)) = known {
        return body(&stream);
    }
    let context = Driver::load()?
        .device(ordinal(device)?)?
        .primary_context()?;
    let stream = context.per_thread_stream();
    // At the end of the thread it is made for this call.
    let _ = OWN.try_with(|own| own.borrow_mut().push((device, stream.clone())));
    body(&stream)
}

/// A device's number, which is not negative.
pub(crate) fn ordinal(device: c_int) -> Result<usize, Error> {
    let number = usize::try_from(device);
    number.map_err(|_| invalid(format!("`device` is {device}; devices are numbered from 0")))
}

/// Forgets a stream that is about to be destroyed. Call it before you destroy the stream: another one may get the same
/// handle, and memory that was freed on the old one would be taken for the new one's. Deallocate before what was allocated
/// on the stream if a resource checks streams; other memory may be deallocated on another stream later. Default streams,
/// and streams that this library has not seen, are ignored.
///
/// CUDAMEM_STATUS_INVALID_VALUE for a negative device; CUDAMEM_STATUS_CAPTURING if a segment of PyTorch was freed in a
/// capture of the stream that has not ended: the stream is not forgotten then.
///
/// # Safety
///
/// `device` is the one that the stream was used with; no other thread uses the stream during this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_stream_detach(device: c_int, stream: *mut CUstream_st) -> Status {
    answer(|| {
        refuse_in_fork()?;
        ordinal(device)?;
        let raw: CUstream = stream.cast();
        if is_default(raw) {
            return Ok(());
        }
        leave_stream(device, raw)?;
        let known = {
            let mut streams = STREAMS.write().unwrap_or_else(PoisonError::into_inner);
            let known = streams.remove(&(device, raw.addr()));
            if known.is_some() {
                GENERATION.fetch_add(1, Ordering::Release);
            }
            known
        };
        // Not under the lock: resources give up what they keep for it.
        drop(known);
        Ok(())
    })
}

/// Makes `stream` wait for what is in `earlier` now. Does not wait on the host. Nothing is done for the same stream.
///
/// # Safety
///
/// Both are default streams, or live streams of the device's primary context.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_stream_wait(
    device: c_int,
    stream: *mut CUstream_st,
    earlier: *mut CUstream_st,
) -> Status {
    answer(|| {
        let wait = |stream: &Stream, earlier: &Stream| stream.wait_for(earlier);
        let with_earlier = |stream: &Stream| {
            // SAFETY: promised by the caller, in the words of the section above.
            unsafe { with_stream(device, earlier.cast(), |earlier| wait(stream, earlier)) }
        };
        // SAFETY: as above.
        unsafe { with_stream(device, stream.cast(), with_earlier) }
    })
}

//! Streams of the program, which C knows by their handles.
//!
//! A handle becomes a [`Stream`] once, and stays one until it is detached, so that a resource recognises the stream.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, PoisonError, RwLock};

use cuda_mem::sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUstream, CUstream_st};
use cuda_mem::{Driver, Error, Stream};

use crate::status::{Status, answer, invalid};

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

thread_local! {
    static FOUND: [Cell<Found>; 4] = const { [const { Cell::new(NOTHING) }; 4] };
    /// This thread's own default streams, which other threads cannot name.
    static OWN: RefCell<Vec<(c_int, Stream)>> = const { RefCell::new(Vec::new()) };
}

/// Where a key is looked for among those found last.
fn place(key: Key) -> usize {
    // Handles are addresses of objects that are larger than this.
    (key.1 >> 6) & 3
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
    // SAFETY: the caller's.
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
    // Fails in a fork, where the lock might never be free.
    let context = Driver::load()?.device(ordinal(key.0)?)?.primary_context()?;
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
    let stream = if raw.is_null() || raw == CU_STREAM_LEGACY {
        context.legacy_stream()
    } else {
        // SAFETY: the caller's; the program detaches the stream before it ends.
        unsafe { Stream::borrow_raw(&context, raw, ()) }
    };
    let mut streams = STREAMS.write().unwrap_or_else(PoisonError::into_inner);
    Ok(found(
        streams.entry(key).or_insert_with(|| Box::new(stream)),
    ))
}

#[cold]
fn with_own_stream<R>(
    device: c_int,
    body: impl FnOnce(&Stream) -> Result<R, Error>,
) -> Result<R, Error> {
    let context = Driver::load()?
        .device(ordinal(device)?)?
        .primary_context()?;
    let known = OWN.try_with(|own| {
        let mut own = own.borrow_mut();
        if let Some((_, stream)) = own.iter().find(|(of, _)| *of == device) {
            return stream.clone();
        }
        let stream = context.per_thread_stream();
        own.push((device, stream.clone()));
        stream
    });
    // At the end of the thread it is made for this call.
    body(&known.unwrap_or_else(|_| context.per_thread_stream()))
}

/// A device's number, which is not negative.
pub(crate) fn ordinal(device: c_int) -> Result<usize, Error> {
    let number = usize::try_from(device);
    number.map_err(|_| invalid(format!("`device` is {device}; devices are numbered from 0")))
}

/// Forgets a stream that is about to be destroyed. Call it before, and before another stream can get the same handle:
/// memory that was freed on it would be taken for the new stream's. Default streams, and streams that this library has
/// not seen, are ignored. Does not wait.
///
/// CUDAMEM_STATUS_INVALID_DEVICE or _INVALID_VALUE if there is no such device.
///
/// # Safety
///
/// No other thread uses the stream during this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_stream_detach(device: c_int, stream: *mut CUstream_st) -> Status {
    answer(|| {
        // Fails in a fork, where the lock might never be free.
        Driver::load()?.device(ordinal(device)?)?;
        let raw: CUstream = stream.cast();
        if raw.addr() <= CU_STREAM_PER_THREAD.addr() {
            return Ok(());
        }
        let known = {
            let mut streams = STREAMS.write().unwrap_or_else(PoisonError::into_inner);
            let known = streams.remove(&(device, raw.addr()));
            GENERATION.fetch_add(1, Ordering::Release);
            known
        };
        // Not under the lock: resources give up what they keep for it.
        drop(known);
        Ok(())
    })
}

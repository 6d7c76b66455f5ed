//! Copies and fills of a range of device memory, each in the order of a stream.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};

use bytemuck::Pod;
use cuda_driver_sys::{CUcontext, CUdeviceptr, CUpointer_attribute};

use super::pending_uses::{PendingUse, PendingUses};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::lock::Lock;
use crate::driver::device::Device;
use crate::driver::raw;
use crate::driver::raw::Queue;
use crate::stream::Stream;
use crate::stream::context::Context;
use crate::stream::join::order;
use crate::stream::recording;

/// `len` elements of device memory, and the stream in whose order they are used.
pub(crate) struct Span<'a, T> {
    address: CUdeviceptr,
    len: usize,
    stream: &'a Stream,
    /// The device that the memory belongs to. If there is none, the driver has to find out where the memory is.
    device: Option<Device>,
    /// Where uses on other streams are noted. Without such a list there can be none.
    pending_uses: Option<&'a Lock<PendingUses>>,
    /// The stream has waited for pending uses up to this number, where they are in the way. The last is the span's own
    /// use.
    waited: u64,
    /// Whether the span's creator captures the stream, so that work on the span is meant to be recorded.
    is_recorded: bool,
    element: PhantomData<T>,
}

impl<T> Clone for Span<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Span<'_, T> {}

impl<'a, T: Pod> Span<'a, T> {
    /// # Safety
    ///
    /// `address` must be that of `len` elements of device memory, aligned for `T`, or 0 for none; and memory of
    /// `device`, if there is one. While the span or a copy of it lives they must be valid at the current point of
    /// `stream`, whatever is submitted to it; they may be written through the span only if the caller has exclusive
    /// access.
    pub(crate) unsafe fn new(
        address: CUdeviceptr,
        len: usize,
        stream: &'a Stream,
        device: Option<Device>,
    ) -> Self {
        Self {
            address,
            len,
            stream,
            device,
            pending_uses: None,
            waited: 0,
            is_recorded: false,
            element: PhantomData,
        }
    }

    /// The same range, of memory whose uses on other streams are noted in this list.
    pub(crate) fn noted_in(self, pending_uses: &'a Lock<PendingUses>) -> Self {
        Self {
            pending_uses: Some(pending_uses),
            ..self
        }
    }

    /// The same range, for work that is recorded.
    pub(crate) fn recorded(self) -> Self {
        Self {
            is_recorded: true,
            ..self
        }
    }

    /// The same range in the order of another stream, which waits for this one. The use is noted under this number.
    pub(super) fn in_order_of(self, stream: &'a Stream, number: u64) -> Self {
        Self {
            stream,
            waited: number,
            ..self
        }
    }

    pub(super) fn address(&self) -> CUdeviceptr {
        self.address
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn stream(&self) -> &'a Stream {
        self.stream
    }

    pub(super) fn device(&self) -> Option<Device> {
        self.device
    }

    pub(super) fn waited(&self) -> u64 {
        self.waited
    }

    pub(super) fn pending_uses(&self) -> Option<&'a Lock<PendingUses>> {
        self.pending_uses
    }

    /// Cannot overflow: the memory was allocated with this size.
    pub(super) fn size_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// From the first byte to the end.
    pub(crate) fn addresses(&self) -> Range<CUdeviceptr> {
        self.address..self.address + self.size_bytes() as u64
    }

    /// Part of the range.
    pub(crate) fn part(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        let start = match range.start_bound() {
            Bound::Included(start) => Some(*start),
            Bound::Excluded(before) => before.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last.checked_add(1),
            Bound::Excluded(end) => Some(*end),
            Bound::Unbounded => Some(self.len),
        };
        match (start, end) {
            (Some(start), Some(end)) if start <= end && end <= self.len => Ok(Self {
                // Cannot overflow, and the size of an element is a multiple of its alignment. Without memory there is
                // no address.
                address: self.address + (start * size_of::<T>()) as u64,
                len: end - start,
                ..*self
            }),
            _ => Err(Error::invalid(format!(
                "the range ({:?}, {:?}) is not within {} elements",
                range.start_bound(),
                range.end_bound(),
                self.len
            ))),
        }
    }

    /// Parts of `len` elements, the last one with the rest.
    pub(crate) fn chunks(self, len: usize) -> Result<impl Iterator<Item = Self>> {
        if len == 0 {
            return Err(Error::invalid("chunks of 0 elements never end".to_owned()));
        }
        let starts = (0..self.len).step_by(len);
        Ok(starts.filter_map(move |start| self.part(start..self.len.min(start + len)).ok()))
    }

    pub(crate) fn check_len(&self, other: usize, what: &str) -> Result<()> {
        if self.len == other {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the memory has {} elements, and the {what} {other}; they must be equal",
            self.len
        )))
    }

    /// `Ok` if work in this context can access the memory. One driver call, unless it is the stream's own context.
    pub(crate) fn require_reach_in(&self, other: &Context) -> Result<()> {
        let (ours, theirs) = (self.stream.device(), other.device());
        // Memory without a pool may be accessible in one context only, even if both contexts are on one device.
        if self.stream.context() == other || self.address == 0 && ours.driver() == theirs.driver() {
            return Ok(());
        }
        if ours.driver() == theirs.driver() {
            let _current = other.bind()?;
            let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
            let table = theirs.driver().table();
            // SAFETY: the attribute is 8 bytes wide, and the memory is not freed.
            let answer = unsafe { raw::pointer::wide(table, attribute, self.address) };
            match answer {
                Ok(_) => return Ok(()),
                // The address has no meaning on the device of the current context (measured).
                Err(error) if error.kind() == ErrorKind::InvalidValue => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::invalid(format!(
            "the buffer is used on {ours}, and {theirs} has no access to it; take a stream of the \
             buffer's device, or give access with `Pool::set_access`"
        )))
    }

    /// Makes the stream wait for other streams that may still use the range: for writers, and for readers too if the
    /// range is to be written. Those were leaked, or a wait for them failed: while such a use can submit work, its
    /// borrow excludes this one.
    pub(crate) fn wait_for_pending_uses(&self, writes: bool) -> Result<()> {
        let Some(pending_uses) = self.pending_uses else {
            return Ok(());
        };
        let bytes = self.addresses();
        let is_in_the_way =
            |it: &&PendingUse| it.number > self.waited && it.is_in_the_way(&bytes, writes);
        let next = || Ok::<_, Error>(pending_uses.lock()?.iter().find(is_in_the_way).cloned());
        // The driver is not called under the lock.
        while let Some(pending_use) = next()? {
            order(pending_use.stream.as_ref(), self.stream.as_ref())?;
            pending_uses.lock()?.remove(pending_use.number);
        }
        Ok(())
    }

    /// Runs `call` with the stream's context current, as the driver wants around copies of pool
    /// memory. An empty span needs no call.
    fn submit(&self, call: impl FnOnce(Queue<'_>) -> Result<()>) -> Result<()> {
        if self.size_bytes() == 0 {
            return Ok(());
        }
        let stream = self.stream.as_ref();
        let open = if self.is_recorded {
            stream.submit_recorded()?
        } else {
            stream.submit_bound()?
        };
        call(open.queue()).map_err(|error| {
            error.asked(|| format!("{} bytes at {:#x}", self.size_bytes(), self.address))
        })
    }

    /// Waits until the stream is past a copy from or to a host slice that is only borrowed.
    ///
    /// While a stream is captured, the driver may refuse to wait, unless the thread is in relaxed capture mode. If
    /// the stream cannot be waited for at all, this waits for the whole context: a copy must not outlive the
    /// borrow. If that fails too, the context is lost, and its copies with it.
    fn finish(&self) -> Result<()> {
        let with_relaxed_capture_mode =
            || recording::with_relaxed_capture_mode(self.table(), || self.stream.synchronize());
        let waited = if recording::any() {
            with_relaxed_capture_mode()
        } else {
            match self.stream.synchronize() {
                // Another stream's capture.
                Err(error) if error.kind() == ErrorKind::Capturing => with_relaxed_capture_mode(),
                waited => waited,
            }
        };
        waited.inspect_err(|_| {
            // The first error is the one to report.
            let _ = self.stream.context().synchronize();
        })
    }

    fn table(&self) -> &'static raw::Table {
        self.stream.device().driver().table()
    }

    /// # Safety
    ///
    /// `from` must be readable for the span's bytes until the stream is past the copy, and the stream's
    /// context current.
    unsafe fn send_from(&self, queue: Queue<'_>, from: *const c_void) -> Result<()> {
        if self.device.is_some() {
            // SAFETY: the span is valid at this point of its stream; the rest is the caller's.
            return unsafe { raw::copy::to_device(queue, self.address, from, self.size_bytes()) };
        }
        let from = from.expose_provenance() as CUdeviceptr;
        // SAFETY: as above.
        unsafe { raw::copy::anywhere(queue, self.address, from, self.size_bytes()) }
    }

    /// # Safety
    ///
    /// `to` must be writable for the span's bytes until the stream is past the copy, and the stream's
    /// context current.
    unsafe fn send_to(&self, queue: Queue<'_>, to: *mut c_void) -> Result<()> {
        if self.device.is_some() {
            // SAFETY: the span is valid at this point of its stream; the rest is the caller's.
            return unsafe { raw::copy::to_host(queue, to, self.address, self.size_bytes()) };
        }
        let to = to.expose_provenance() as CUdeviceptr;
        // SAFETY: as above.
        unsafe { raw::copy::anywhere(queue, to, self.address, self.size_bytes()) }
    }

    /// Submits a copy from pinned memory, which has as many elements, and does not wait for it.
    ///
    /// # Safety
    ///
    /// `from` must be readable for the span's bytes until the stream is past the copy.
    pub(crate) unsafe fn submit_from(&self, from: *const c_void) -> Result<()> {
        // SAFETY: the caller's; the context is current while the closure runs.
        self.submit(|queue| unsafe { self.send_from(queue, from) })
    }

    /// Submits a copy into pinned memory, which has as many elements, and does not wait for it.
    ///
    /// # Safety
    ///
    /// `to` must be writable for the span's bytes until the stream is past the copy.
    pub(crate) unsafe fn submit_to(&self, to: *mut c_void) -> Result<()> {
        // SAFETY: the caller's; the context is current while the closure runs.
        self.submit(|queue| unsafe { self.send_to(queue, to) })
    }

    /// A copy of borrowed host memory has to be waited for, which a capture does not allow.
    fn require_not_recorded(&self) -> Result<()> {
        if self.is_recorded {
            let text =
                "a copy of a host slice cannot be recorded; give the graph a buffer, and copy that";
            return Err(Error::invalid(text.to_owned()));
        }
        Ok(())
    }

    /// Returns once the host slice may be changed again.
    pub(crate) fn copy_from(&self, from: &[T]) -> Result<()> {
        self.check_len(from.len(), "slice")?;
        self.require_not_recorded()?;
        self.submit(|queue| {
            // SAFETY: the slice is valid until `finish` below, which returns after the copy.
            let sent = unsafe { self.send_from(queue, from.as_ptr().cast()) };
            // Also after a failure: whatever was submitted reads a slice that we only borrowed.
            // The driver copies pageable memory before it returns, but not memory that happens to
            // be pinned, so only this makes the promise true for every slice.
            let done = self.finish();
            sent.and(done)
        })
    }

    /// Returns once the host slice is filled.
    pub(crate) fn copy_to(&self, to: &mut [T]) -> Result<()> {
        self.check_len(to.len(), "slice")?;
        self.require_not_recorded()?;
        self.submit(|queue| {
            // SAFETY: the slice is valid until `finish` below, and every bit pattern is a value of `T`.
            let sent = unsafe { self.send_to(queue, to.as_mut_ptr().cast()) };
            let done = self.finish();
            sent.and(done)
        })
    }

    /// Copies into a new vector, and returns when it is filled.
    pub(crate) fn to_vec(self) -> Result<Vec<T>> {
        let mut vec = Vec::new();
        vec.try_reserve_exact(self.len)
            .map_err(|_| Error::host_memory(self.size_bytes()))?;
        vec.resize(self.len, T::zeroed());
        self.copy_to(&mut vec)?;
        Ok(vec)
    }

    /// Submits a copy of memory of the same length, in the order of both streams. The target's stream has already
    /// waited for pending uses of the target.
    pub(crate) fn copy_from_device(&self, from: &Span<'_, T>) -> Result<()> {
        self.check_len(from.len, "source")?;
        if self.size_bytes() == 0 {
            return Ok(());
        }
        if self.is_recorded || from.is_recorded {
            if !(self.is_recorded && from.is_recorded && self.stream == from.stream) {
                let text =
                    "memory of a capture is copied from and to memory of the same capture only";
                return Err(Error::invalid(text.to_owned()));
            }
            return self.submit_copy(from, None);
        }
        from.wait_for_pending_uses(false)?;
        order(from.stream.as_ref(), self.stream.as_ref())?;
        let copied = self.submit_copy(from, self.contexts_across_devices(from));
        // The source must not be changed or freed before the copy has read it.
        let ordered = order(self.stream.as_ref(), from.stream.as_ref());
        if ordered.is_err() {
            from.note_reader(self.stream);
        }
        copied.and(ordered)
    }

    /// `stream` reads the range, and the range's own stream could not be made to wait for it.
    fn note_reader(&self, stream: &Stream) {
        let Some(pending_uses) = self.pending_uses else {
            // If this fails too, the context is lost, and its work with it.
            let _ = stream.as_ref().wait_unless_captured();
            return;
        };
        // In a fork nothing was submitted.
        if let Some(mut pending_uses) = pending_uses.lock_unless_forked() {
            pending_uses.push(PendingUse::new(stream, self.addresses(), true));
        }
    }

    /// The contexts of both ranges, unless all memory belongs to the copying device. With these contexts, the copy
    /// uses a call that needs no peer access.
    fn contexts_across_devices(&self, from: &Span<'_, T>) -> Option<(CUcontext, CUcontext)> {
        let (ours, theirs) = (self.device?, from.device?);
        let copies = self.stream.device();
        if ours == copies && theirs == copies {
            return None;
        }
        let context_of = |device| {
            [self.stream, from.stream]
                .into_iter()
                .find(|stream| stream.device() == device)
                .map(|stream| stream.context().as_raw())
        };
        Some((context_of(ours)?, context_of(theirs)?))
    }

    /// Submits a copy of a range of the same length that is valid at this point of this stream. `contexts` are those of
    /// both, if their memory is of two devices: then it works without access from one to the other (R64).
    pub(crate) fn submit_copy(
        &self,
        from: &Span<'_, T>,
        contexts: Option<(CUcontext, CUcontext)>,
    ) -> Result<()> {
        let bytes = self.size_bytes();
        if let Some((ours, theirs)) = contexts {
            let (to, from) = ((self.address, ours), (from.address, theirs));
            // SAFETY: both spans are valid at this point of the stream, whose context is current, and
            // each is memory of its context's device.
            return self
                .submit(|queue| unsafe { raw::copy::between_devices(queue, to, from, bytes) });
        }
        self.submit(|queue| {
            let (to, source) = (self.address, from.address);
            if self.device.is_some() && from.device.is_some() {
                // SAFETY: both spans are valid at this point of the stream, whose context is current;
                // they do not overlap, as one is borrowed mutably.
                unsafe { raw::copy::on_device(queue, to, source, bytes) }
            } else {
                // SAFETY: as above.
                unsafe { raw::copy::anywhere(queue, to, source, bytes) }
            }
        })
    }

    /// Submits a fill with one byte.
    pub(crate) fn fill_bytes(&self, value: u8) -> Result<()> {
        self.submit(|queue| {
            // SAFETY: the span is valid at this point of its stream, whose context is current.
            unsafe { raw::copy::fill_u8(queue, self.address, value, self.size_bytes()) }
        })
    }

    /// Submits a fill with one element of 1, 2 or 4 bytes; other sizes do not compile.
    pub(crate) fn fill(&self, value: T) -> Result<()> {
        let to = self.address;
        match pattern(value) {
            (byte, 1) => self.fill_bytes(byte as u8),
            // SAFETY: as in `fill_bytes`; the span is aligned for `T`.
            (half, 2) => self
                .submit(|queue| unsafe { raw::copy::fill_u16(queue, to, half as u16, self.len) }),
            (word, _) => self.submit(|queue| {
                // SAFETY: as above.
                unsafe { raw::copy::fill_u32(queue, to, word, self.len) }
            }),
        }
    }
}

impl<T> Span<'_, T> {
    pub(super) fn fmt_as(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("address", &format_args!("{:#x}", self.address))
            .field("len", &self.len)
            .field("element", &std::any::type_name::<T>())
            .field("stream", self.stream)
            .finish()
    }
}

/// The pattern of an element of 1, 2 or 4 bytes, and its size; other sizes do not compile.
pub(crate) fn pattern<T: Pod>(value: T) -> (u32, u32) {
    const {
        assert!(
            matches!(size_of::<T>(), 1 | 2 | 4),
            "the driver fills with elements of 1, 2 or 4 bytes"
        );
    }
    match *bytemuck::bytes_of(&value) {
        [a] => (u32::from(a), 1),
        [a, b] => (u32::from(u16::from_ne_bytes([a, b])), 2),
        [a, b, c, d] => (u32::from_ne_bytes([a, b, c, d]), 4),
        // The assertion above leaves nothing else.
        _ => (0, 1),
    }
}

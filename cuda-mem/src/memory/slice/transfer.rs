//! Copies and fills of a range of memory, each in the order of a stream.

use std::ffi::c_void;

use bytemuck::Pod;
use cuda_driver_sys::{CUcontext, CUdeviceptr};

use super::span::Span;
use crate::base::error::{Error, ErrorKind, Result};
use crate::driver::raw;
use crate::driver::raw::Queue;
use crate::stream::join::order;
use crate::stream::{Stream, recording};

impl<T: Pod> Span<'_, T> {
    /// Runs `call` with the stream's context current, as the driver wants around copies of pool
    /// memory. An empty span needs no call.
    fn submit(&self, call: impl FnOnce(Queue<'_>) -> Result<()>) -> Result<()> {
        self.submit_unless_captured(self.is_lent, call)
    }

    /// As [`submit`](Self::submit). If it uses memory that the host has again later, it must be executed now: the driver
    /// would record it into a capture of other code, without an error, and the graph would use the memory at every
    /// launch, when it is the host's, or gone. No capture of this crate begins meanwhile.
    fn submit_unless_captured(
        &self,
        uses_host: bool,
        call: impl FnOnce(Queue<'_>) -> Result<()>,
    ) -> Result<()> {
        if self.size_bytes() == 0 {
            return Ok(());
        }
        let stream = self.stream.as_ref();
        let open = if self.is_recorded {
            stream.submit_recorded()?
        } else {
            stream.submit_bound()?
        };
        if uses_host {
            open.require_uncaptured(
                "other code captures the stream into a graph, which would use memory of the host at every launch; do \
                 this before or after, or on another stream",
            )?;
        }
        call(open.queue()).map_err(|error| {
            error.asked(|| format!("{} bytes at {:#x}", self.size_bytes(), self.address))
        })
    }

    /// Waits until the stream is past a copy from or to a host slice that is only borrowed.
    ///
    /// While another stream is captured, the driver may refuse to wait, unless the thread is in relaxed capture mode. If
    /// the stream cannot be waited for at all, this waits for the whole context: a copy must not outlive the
    /// borrow. If that fails too, the context is lost, and its copies with it.
    fn finish(&self) -> Result<()> {
        let waited = match self.stream.wait() {
            // Another stream's capture, by other code.
            Err(error) if error.kind() == ErrorKind::Capturing => {
                recording::with_relaxed_capture_mode(self.table(), || self.stream.wait())
            }
            waited => waited,
        };
        waited.inspect_err(|error| {
            // The first error is the one to report.
            let _ = wait_for_context_unless_captured(error, self.stream);
        })
    }

    /// Submits a copy from or to a host slice that is only borrowed, and waits for it.
    fn submit_and_wait(&self, send: impl FnOnce(Queue<'_>) -> Result<()>) -> Result<()> {
        self.stream.release_deferred();
        self.submit_unless_captured(true, |queue| {
            let sent = send(queue);
            // Also after a failure: whatever was submitted uses the slice.
            let done = self.finish();
            sent.and(done)
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
        self.require_not_recorded()?;
        // SAFETY: the caller's; the context is current while the closure runs.
        self.submit_unless_captured(true, |queue| unsafe { self.send_from(queue, from) })
    }

    /// Submits a copy into pinned memory, which has as many elements, and does not wait for it.
    ///
    /// # Safety
    ///
    /// `to` must be writable for the span's bytes until the stream is past the copy.
    pub(crate) unsafe fn submit_to(&self, to: *mut c_void) -> Result<()> {
        self.require_not_recorded()?;
        // SAFETY: the caller's; the context is current while the closure runs.
        self.submit_unless_captured(true, |queue| unsafe { self.send_to(queue, to) })
    }

    /// A copy of borrowed host memory has to be waited for, which a capture does not allow; and a graph would copy at
    /// every launch, when the memory is the host's again, or gone.
    fn require_not_recorded(&self) -> Result<()> {
        if self.is_recorded {
            let text =
                "a copy of host memory cannot be recorded; give the graph a buffer, and copy that";
            return Err(Error::invalid(text.to_owned()));
        }
        Ok(())
    }

    /// Returns once the host slice may be changed again.
    pub(crate) fn copy_from(&self, from: &[T]) -> Result<()> {
        self.copy_from_alone(from)?;
        self.after_wait();
        Ok(())
    }

    /// Releases what the wait for a copy has made possible.
    fn after_wait(&self) {
        // Not before: this may run the program's code, and captures of the stream wait for what is submitted to it.
        if self.size_bytes() > 0 {
            self.stream.after_wait();
        }
    }

    /// As [`copy_from`](Self::copy_from), without releasing anything: that may wait for other work.
    pub(crate) fn copy_from_alone(&self, from: &[T]) -> Result<()> {
        self.check_len(from.len(), "slice")?;
        self.require_not_recorded()?;
        // The driver copies pageable memory before it returns, but not memory that happens to
        // be pinned, so only the wait makes the promise true for every slice.
        self.submit_and_wait(|queue| {
            // SAFETY: the slice is valid until the wait is over.
            unsafe { self.send_from(queue, from.as_ptr().cast()) }
        })
    }

    /// Returns once the host slice is filled.
    pub(crate) fn copy_to(&self, to: &mut [T]) -> Result<()> {
        self.copy_to_alone(to)?;
        self.after_wait();
        Ok(())
    }

    /// As [`copy_to`](Self::copy_to), without releasing anything.
    pub(crate) fn copy_to_alone(&self, to: &mut [T]) -> Result<()> {
        self.check_len(to.len(), "slice")?;
        self.require_not_recorded()?;
        self.submit_and_wait(|queue| {
            // SAFETY: the slice is valid until the wait is over, and every bit pattern is a value of `T`.
            unsafe { self.send_to(queue, to.as_mut_ptr().cast()) }
        })
    }

    /// Copies into a new vector, and returns when it is filled.
    pub(crate) fn to_vec(self) -> Result<Vec<T>> {
        // For large vectors these are the system's untouched pages, so the copy is the first write.
        let mut vec = bytemuck::allocation::try_zeroed_vec(self.len)
            .map_err(|()| Error::host_memory(self.size_bytes()))?;
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
            // Memory of a graph, whose owner waits for nothing else. Both fail only if the stream is being captured or
            // the context is lost.
            let _ = stream
                .as_ref()
                .wait_unless_captured()
                .or_else(|error| wait_for_context_unless_captured(&error, stream));
            return;
        };
        // In a fork nothing was submitted.
        if let Some(mut pending_uses) = pending_uses.lock_unless_forked() {
            let number = pending_uses.push(stream, self.addresses(), true);
            pending_uses.end(number);
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
        let (bytes, uses_host) = (self.size_bytes(), self.is_lent || from.is_lent);
        if let Some((ours, theirs)) = contexts {
            let (to, from) = ((self.address, ours), (from.address, theirs));
            // SAFETY: both spans are valid at this point of the stream, whose context is current, and
            // each is memory of its context's device.
            return self.submit_unless_captured(uses_host, |queue| unsafe {
                raw::copy::between_devices(queue, to, from, bytes)
            });
        }
        self.submit_unless_captured(uses_host, |queue| {
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

/// Waits for the context of a stream that could not be waited for. Not if other code captures that stream: the driver
/// would refuse this too, and all captures of the context would be lost (R110).
fn wait_for_context_unless_captured(error: &Error, stream: &Stream) -> Result<()> {
    if error.kind() == ErrorKind::Capturing {
        stream.as_ref().refuse_captured("it is captured")?;
    }
    stream.context().wait_even_if_captured()
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

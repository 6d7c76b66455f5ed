//! Copies and fills of a range of device memory, each in the order of a stream.

use std::ffi::c_void;
use std::marker::PhantomData;

use bytemuck::Pod;
use cuda_driver_sys::{CUcontext, CUdeviceptr};

use crate::base::error::{Error, ErrorKind, Result};
use crate::driver::raw;
use crate::driver::raw::Queue;
use crate::stream::Stream;
use crate::stream::recording;

/// `len` elements of device memory, and the stream in whose order they are used.
pub(crate) struct Span<'a, T> {
    address: CUdeviceptr,
    len: usize,
    stream: &'a Stream,
    /// Whether it is known to be device memory; otherwise the driver has to find out where it is.
    on_device: bool,
    /// Whether the span's creator captures the stream, so that work on the span is meant to be recorded.
    is_recorded: bool,
    element: PhantomData<T>,
}

impl<'a, T: Pod> Span<'a, T> {
    /// # Safety
    ///
    /// `address` must be that of `len` elements of device memory, aligned for `T`, or 0 for none; and memory of a
    /// device if `on_device` says so. While the span lives they must be valid at the current point of `stream`,
    /// whatever is submitted to it; they may be written through the span only if the caller has exclusive access.
    pub(crate) unsafe fn new(
        address: CUdeviceptr,
        len: usize,
        stream: &'a Stream,
        on_device: bool,
    ) -> Self {
        Self {
            address,
            len,
            stream,
            on_device,
            is_recorded: false,
            element: PhantomData,
        }
    }

    /// The same range, for work that is recorded.
    pub(crate) fn recorded(self) -> Self {
        Self {
            is_recorded: true,
            ..self
        }
    }

    /// Cannot overflow: the memory was allocated with this size.
    fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    pub(crate) fn check_len(&self, other: usize, what: &str) -> Result<()> {
        if self.len == other {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the buffer has {} elements, and the {what} {other}; they must be equal",
            self.len
        )))
    }

    /// Runs `call` with the stream's context current, as the driver wants around copies of pool
    /// memory. An empty span needs no call.
    fn submit(&self, call: impl FnOnce(Queue<'_>) -> Result<()>) -> Result<()> {
        if self.bytes() == 0 {
            return Ok(());
        }
        let stream = self.stream.as_ref();
        let open = if self.is_recorded {
            stream.submit_recorded()?
        } else {
            stream.submit_bound()?
        };
        call(open.queue()).map_err(|error| {
            error.asked(|| format!("{} bytes at {:#x}", self.bytes(), self.address))
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
        if self.on_device {
            // SAFETY: the span is valid at this point of its stream; the rest is the caller's.
            return unsafe { raw::copy::to_device(queue, self.address, from, self.bytes()) };
        }
        let from = from.expose_provenance() as CUdeviceptr;
        // SAFETY: as above.
        unsafe { raw::copy::anywhere(queue, self.address, from, self.bytes()) }
    }

    /// # Safety
    ///
    /// `to` must be writable for the span's bytes until the stream is past the copy, and the stream's
    /// context current.
    unsafe fn send_to(&self, queue: Queue<'_>, to: *mut c_void) -> Result<()> {
        if self.on_device {
            // SAFETY: the span is valid at this point of its stream; the rest is the caller's.
            return unsafe { raw::copy::to_host(queue, to, self.address, self.bytes()) };
        }
        let to = to.expose_provenance() as CUdeviceptr;
        // SAFETY: as above.
        unsafe { raw::copy::anywhere(queue, to, self.address, self.bytes()) }
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

    /// Returns once the host slice may be changed again.
    pub(crate) fn copy_from(&self, from: &[T]) -> Result<()> {
        self.check_len(from.len(), "slice")?;
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
        self.submit(|queue| {
            // SAFETY: the slice is valid until `finish` below, and every bit pattern is a value of `T`.
            let sent = unsafe { self.send_to(queue, to.as_mut_ptr().cast()) };
            let done = self.finish();
            sent.and(done)
        })
    }

    /// Copies into a new vector, and returns when it is filled.
    pub(crate) fn to_vec(&self) -> Result<Vec<T>> {
        let mut vec = Vec::new();
        vec.try_reserve_exact(self.len)
            .map_err(|_| Error::host_memory(self.bytes()))?;
        vec.resize(self.len, T::zeroed());
        self.copy_to(&mut vec)?;
        Ok(vec)
    }

    /// Submits a copy from `from`, a span of the same length and stream. `contexts` are those of both,
    /// if their memory is of two devices: then it works without access from one to the other (R64).
    pub(crate) fn copy_from_span(
        &self,
        from: &Span<'_, T>,
        contexts: Option<(CUcontext, CUcontext)>,
    ) -> Result<()> {
        let from_device = from.on_device;
        if let Some((ours, theirs)) = contexts {
            let (to, from) = ((self.address, ours), (from.address, theirs));
            // SAFETY: both spans are valid at this point of the stream, whose context is current, and
            // each is memory of its context's device.
            return self.submit(|queue| unsafe {
                raw::copy::between_devices(queue, to, from, self.bytes())
            });
        }
        self.submit(|queue| {
            let (to, from, bytes) = (self.address, from.address, self.bytes());
            if self.on_device && from_device {
                // SAFETY: both spans are valid at this point of the stream, whose context is current;
                // they are different allocations, as one is borrowed mutably.
                unsafe { raw::copy::on_device(queue, to, from, bytes) }
            } else {
                // SAFETY: as above.
                unsafe { raw::copy::anywhere(queue, to, from, bytes) }
            }
        })
    }

    /// Submits a fill with one byte.
    pub(crate) fn fill_bytes(&self, value: u8) -> Result<()> {
        self.submit(|queue| {
            // SAFETY: the span is valid at this point of its stream, whose context is current.
            unsafe { raw::copy::fill_u8(queue, self.address, value, self.bytes()) }
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

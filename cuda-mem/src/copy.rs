//! Copies and fills of a range of device memory, each in the order of a stream.

use std::ffi::c_void;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use crate::error::{Error, Result};
use crate::raw;
use crate::stream::Stream;

/// `len` elements of device memory, and the stream in whose order they are used.
///
/// Whoever makes one vouches that the memory is valid at this point of the stream until the span
/// is gone, and that the borrow rules of what it was made from hold.
pub(crate) struct Span<'a, T> {
    pub(crate) address: CUdeviceptr,
    pub(crate) len: usize,
    pub(crate) stream: &'a Stream,
    pub(crate) element: std::marker::PhantomData<T>,
}

impl<T: Pod> Span<'_, T> {
    /// Cannot overflow: the memory was allocated with this size.
    fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    fn check_len(&self, other: usize, what: &str) -> Result<()> {
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
    fn submit(&self, call: impl FnOnce() -> Result<()>) -> Result<()> {
        if self.bytes() == 0 {
            return Ok(());
        }
        let _current = self.stream.context().bind()?;
        call()
    }

    fn table(&self) -> &'static raw::Table {
        self.stream.device().driver().table()
    }

    /// Returns when the host's slice may be changed again.
    pub(crate) fn copy_from(&self, from: &[T]) -> Result<()> {
        self.check_len(from.len(), "slice")?;
        let from: *const c_void = from.as_ptr().cast();
        self.submit(|| {
            // SAFETY: the span is valid here, the slice until the synchronise below.
            let sent = unsafe {
                raw::copy::to_device(
                    self.table(),
                    self.address,
                    from,
                    self.bytes(),
                    self.stream.as_raw(),
                )
            };
            // Also after a failure: whatever was submitted reads a slice that we only borrowed.
            // The driver copies pageable memory before it returns, but not memory that happens to
            // be pinned, so only this makes the promise true for every slice.
            let done = self.stream.synchronize();
            sent.and(done)
        })
    }

    /// Returns when the host's slice is filled.
    pub(crate) fn copy_to(&self, to: &mut [T]) -> Result<()> {
        self.check_len(to.len(), "slice")?;
        let to: *mut c_void = to.as_mut_ptr().cast();
        self.submit(|| {
            // SAFETY: the span is valid here, the slice until the synchronise below; every bit
            // pattern is a value of `T`.
            let sent = unsafe {
                raw::copy::to_host(
                    self.table(),
                    to,
                    self.address,
                    self.bytes(),
                    self.stream.as_raw(),
                )
            };
            let done = self.stream.synchronize();
            sent.and(done)
        })
    }

    /// Submits a copy from `from`, which must be valid in this span's stream too.
    pub(crate) fn copy_from_span(&self, from: &Span<'_, T>) -> Result<()> {
        self.check_len(from.len, "source")?;
        self.submit(|| {
            // SAFETY: both spans are valid here; they are different allocations, as one is
            // borrowed mutably.
            unsafe {
                raw::copy::on_device(
                    self.table(),
                    self.address,
                    from.address,
                    self.bytes(),
                    self.stream.as_raw(),
                )
            }
        })
    }

    /// Submits a fill with one byte.
    pub(crate) fn fill_bytes(&self, value: u8) -> Result<()> {
        self.submit(|| {
            // SAFETY: the span is valid here.
            unsafe {
                raw::copy::fill_u8(
                    self.table(),
                    self.address,
                    value,
                    self.bytes(),
                    self.stream.as_raw(),
                )
            }
        })
    }

    /// Submits a fill with one element of 1, 2 or 4 bytes; other sizes do not compile.
    pub(crate) fn fill(&self, value: T) -> Result<()> {
        const {
            assert!(
                matches!(size_of::<T>(), 1 | 2 | 4),
                "the driver fills with elements of 1, 2 or 4 bytes"
            );
        }
        let (table, to, stream) = (self.table(), self.address, self.stream.as_raw());
        match *bytemuck::bytes_of(&value) {
            [byte] => self.fill_bytes(byte),
            // SAFETY: the span is valid here; the driver's blocks are aligned to 256 bytes or more.
            [a, b] => self.submit(|| unsafe {
                raw::copy::fill_u16(table, to, u16::from_ne_bytes([a, b]), self.len, stream)
            }),
            // SAFETY: as above.
            [a, b, c, d] => self.submit(|| unsafe {
                raw::copy::fill_u32(
                    table,
                    to,
                    u32::from_ne_bytes([a, b, c, d]),
                    self.len,
                    stream,
                )
            }),
            // The assertion above leaves nothing else.
            _ => Ok(()),
        }
    }
}

//! A range of memory, and what its use has to wait for.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, Range, RangeBounds};

use bytemuck::Pod;
use cuda_driver_sys::{CUdeviceptr, CUpointer_attribute};

use super::pending_uses::{PendingUse, PendingUses, wait_for_use};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::lock::Lock;
use crate::driver::device::Device;
use crate::driver::location::Location;
use crate::driver::raw;
use crate::memory::pool::Access;
use crate::stream::Stream;
use crate::stream::context::Context;

/// `len` elements of device memory, and the stream in whose order they are used.
pub(crate) struct Span<'a, T> {
    pub(super) address: CUdeviceptr,
    pub(super) len: usize,
    pub(super) stream: &'a Stream,
    /// The device that the memory belongs to. If there is none, the driver has to find out where the memory is.
    pub(super) device: Option<Device>,
    /// Where uses on other streams are noted. Without such a list there can be none.
    pub(super) pending_uses: Option<&'a Lock<PendingUses>>,
    /// The stream has waited for pending uses up to this number, where they are in the way. The last is the span's own
    /// use.
    pub(super) waited: u64,
    /// Whether the span's creator captures the stream, so that work on the span is meant to be recorded.
    pub(super) is_recorded: bool,
    /// Whether it is host memory that the host has again once the stream is past its uses.
    pub(super) is_lent: bool,
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
            is_lent: false,
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

    /// The same range, of memory that the host has lent.
    pub(crate) fn lent(self) -> Self {
        Self {
            is_lent: true,
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

    /// Cannot overflow: the memory was allocated with this size.
    pub(super) fn size_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// The number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The stream in whose order it is used.
    pub(crate) fn stream(&self) -> &'a Stream {
        self.stream
    }

    /// Whether work on it is meant to be recorded.
    pub(crate) fn is_recorded(&self) -> bool {
        self.is_recorded
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

    /// As [`require_reach_in`](Self::require_reach_in), for work that writes. One more driver call.
    pub(crate) fn require_writing_in(&self, other: &Context) -> Result<()> {
        self.require_reach_in(other)?;
        let device = other.device();
        if self.stream.device() == device || self.address == 0 {
            return Ok(());
        }
        let table = device.driver().table();
        let who = Location::Device(device).to_raw();
        // SAFETY: there is memory at the address. Of what was not mapped, the driver tells no access (R141).
        match unsafe { raw::vmm::access(table, self.address, who) } {
            Ok(flags) if Access::from_raw(flags) == Access::Read => Err(Error::invalid(format!(
                "{device} may only read the buffer; give it access to write with `MappedMemory::set_access`, or use \
                 `read_on`"
            ))),
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                ErrorKind::InvalidValue | ErrorKind::NotSupported => Ok(()),
                _ => Err(error),
            },
        }
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
    /// borrow excludes this one. For the own stream of another thread, the host waits for its whole context.
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
            wait_for_use(&pending_use.stream, self.stream)?;
            pending_uses.lock()?.remove(pending_use.number);
        }
        // A reader that is over blocks nothing. It is waited for all the same: otherwise it would stay in the list for as
        // long as the memory is only read. If the wait fails, a later use tries again.
        let can_be_removed =
            |it: &&PendingUse| it.number > self.waited && it.can_be_removed(&bytes);
        let next = || Ok::<_, Error>(pending_uses.lock()?.iter().find(can_be_removed).cloned());
        while let Some(reader) = next()? {
            if wait_for_use(&reader.stream, self.stream).is_err() {
                break;
            }
            pending_uses.lock()?.remove(reader.number);
        }
        Ok(())
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

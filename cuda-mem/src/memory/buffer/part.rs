//! Fills and copies of part of a buffer, for containers.

use bytemuck::Pod;

use super::DeviceBuffer;
use crate::base::error::{Error, Result};
use crate::memory::copy::Span;
use crate::stream::join::order;

impl<T: Pod> DeviceBuffer<T> {
    /// `len` elements from `start` on.
    fn part(&self, start: usize, len: usize) -> Result<Span<'_, T>> {
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(Error::invalid(format!(
                "{len} elements from {start} on are not in a buffer of {}",
                self.len
            )));
        }
        let address = self.address + (start * size_of::<T>()) as u64;
        // SAFETY: as for the whole buffer, of which this is a part.
        Ok(unsafe { Span::new(address, len, &self.stream, self.device.is_some()) })
    }

    /// See [`fill`](Self::fill).
    pub(crate) fn fill_from(&mut self, start: usize, value: T) -> Result<()> {
        self.wait_for_pending_uses()?;
        self.part(start, self.len.saturating_sub(start))?
            .fill(value)
    }

    /// See [`zero`](Self::zero).
    pub(crate) fn zero_from(&mut self, start: usize) -> Result<()> {
        self.wait_for_pending_uses()?;
        self.part(start, self.len.saturating_sub(start))?
            .fill_bytes(0)
    }

    /// See [`copy_from`](Self::copy_from).
    pub(crate) fn copy_part_from(&mut self, start: usize, from: &[T]) -> Result<()> {
        self.wait_for_pending_uses()?;
        self.part(start, from.len())?.copy_from(from)
    }

    /// See [`copy_to`](Self::copy_to).
    pub(crate) fn copy_part_to(&self, start: usize, to: &mut [T]) -> Result<()> {
        self.wait_for_writers()?;
        self.part(start, to.len())?.copy_to(to)
    }

    /// See [`copy_from_buffer`](Self::copy_from_buffer).
    pub(crate) fn copy_part_from_buffer(
        &mut self,
        start: usize,
        from: &DeviceBuffer<T>,
    ) -> Result<()> {
        self.part(start, from.len)?;
        if from.size_bytes() == 0 {
            return Ok(());
        }
        self.wait_for_pending_uses()?;
        from.wait_for_writers()?;
        order(from.stream.as_ref(), self.stream.as_ref())?;
        // SAFETY: our stream waits for the source's, so the source is valid at this point of it; the
        // pending use recorded below keeps it so until the copy has read it.
        let source = unsafe { from.span_in(&self.stream) };
        let copied = self
            .part(start, from.len)?
            .copy_from_span(&source, self.across_devices(from));
        // The source must not be changed or freed before the copy has read it.
        let ordered = order(self.stream.as_ref(), from.stream.as_ref());
        if ordered.is_err() {
            from.note_pending_use(&self.stream, true);
        }
        copied.and(ordered)
    }
}

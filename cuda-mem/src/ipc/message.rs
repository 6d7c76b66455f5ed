//! Messages about memory: one kind each, so that what was not expected is refused.

use std::os::fd::AsFd;

use bytemuck::Pod;

use super::channel::Channel;
use super::handles::{EventHandle, SharedBuffer};
use super::pool::ImportedPool;
use super::wire;
use crate::buffer::DeviceBuffer;
use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::event::Event;
use crate::pool::MemoryPool;
use crate::stream::Stream;

/// What a message is.
const POOL: u8 = 16;
const RETURNED: u8 = 17;

impl Channel {
    /// Sends a pool, for [`receive_pool`](Self::receive_pool) at the other end.
    ///
    /// # Errors
    ///
    /// As [`MemoryPool::export_fd`] and [`send`](Self::send).
    pub fn send_pool(&self, pool: &MemoryPool) -> Result<()> {
        let descriptor = pool.export_fd()?;
        self.send(&wire::seal(POOL, &[]), &[descriptor.as_fd()])
    }

    /// Waits for a pool, and imports it for `device`.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive) and [`ImportedPool::from_fd`];
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if something else comes.
    pub fn receive_pool(&self, device: &Device) -> Result<ImportedPool> {
        let message = self.receive()?;
        match (
            wire::open("a pool", &message.bytes)?,
            &message.descriptors[..],
        ) {
            ((POOL, []), [descriptor]) => ImportedPool::from_fd(device, descriptor),
            _ => Err(unexpected("a pool")),
        }
    }

    /// Sends where a buffer lies, for [`receive_buffer`](Self::receive_buffer) at the other end. Waits
    /// first until the buffer's stream has done what is in it, so that the memory is there and holds
    /// what was written. See [`lend`](Self::lend) for a buffer that may not go before the other end is
    /// done with it.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::export`], [`Stream::synchronize`](crate::Stream::synchronize) and
    /// [`send`](Self::send).
    pub fn send_buffer<T: Pod>(&self, buffer: &DeviceBuffer<T>) -> Result<()> {
        let shared = buffer.export()?;
        buffer.stream().synchronize()?;
        self.send(&shared.to_bytes(), &[])
    }

    /// Waits for a buffer of `pool`, and imports it for use in the order of `stream`.
    ///
    /// # Safety
    ///
    /// As [`ImportedPool::import`]: the process at the other end uses this crate, sends buffers of this
    /// pool with [`send_buffer`](Self::send_buffer) or [`lend`](Self::lend), and keeps them until they
    /// are given back here.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive) and [`ImportedPool::import`];
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if something else comes.
    pub unsafe fn receive_buffer<T: Pod>(
        &self,
        pool: &ImportedPool,
        stream: &Stream,
    ) -> Result<DeviceBuffer<T>> {
        let shared = SharedBuffer::from_bytes(&self.receive()?.bytes)?;
        // SAFETY: the caller vouches for the other process, and the sender has waited for the
        // allocation (R55).
        unsafe { pool.import(stream, &shared) }
    }

    /// Frees an imported buffer, waits until its stream has done so, and tells the other end, which waits
    /// for it in [`Lent`](super::Lent).
    ///
    /// # Errors
    ///
    /// As the driver answers, and as [`send`](Self::send). The other end is told only if nothing here can
    /// use the memory any more.
    pub fn give_back<T: Pod>(&self, buffer: DeviceBuffer<T>) -> Result<()> {
        buffer.free_sync()?;
        self.send(&wire::seal(RETURNED, &[]), &[])
    }

    /// Waits until a buffer was given back.
    pub(super) fn receive_returned(&self) -> Result<()> {
        match wire::open("word of a buffer", &self.receive()?.bytes)? {
            (RETURNED, []) => Ok(()),
            _ => Err(unexpected("word that a buffer is given back")),
        }
    }

    /// Sends an event, for [`receive_event`](Self::receive_event) at the other end.
    ///
    /// # Errors
    ///
    /// As [`Event::export`] and [`send`](Self::send).
    pub fn send_event(&self, event: &Event) -> Result<()> {
        self.send(&event.export()?.to_bytes(), &[])
    }

    /// Waits for an event, and opens it in `context`.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive) and [`Context::import_event`];
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if something else comes.
    pub fn receive_event(&self, context: &Context) -> Result<Event> {
        context.import_event(&EventHandle::from_bytes(&self.receive()?.bytes)?)
    }
}

fn unexpected(what: &str) -> Error {
    Error::invalid(format!("the other process sent something else than {what}"))
}

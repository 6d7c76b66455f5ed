//! Messages about memory: one kind each, so that what was not expected is refused.

use std::os::fd::AsFd;

use bytemuck::Pod;

use super::channel::Channel;
use super::handles::{EventHandle, SharedBuffer};
use super::pool::ImportedPool;
use super::returns::Return;
use super::{registry, wire};
use crate::buffer::DeviceBuffer;
use crate::context::Context;
use crate::device::Device;
use crate::error::{Error, Failed, Result};
use crate::event::Event;
use crate::pool::MemoryPool;
use crate::stream::Stream;

/// What a message is.
const POOL: u8 = 16;
const RETURNED: u8 = 17;
const SENT: u8 = 18;

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
    #[track_caller]
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
        self.send_numbered(buffer, self.next_number())
    }

    /// The number is that by which word of the buffer comes back.
    pub(super) fn send_numbered<T: Pod>(
        &self,
        buffer: &DeviceBuffer<T>,
        number: u64,
    ) -> Result<()> {
        let shared = buffer.export()?;
        buffer.wait_for_writers()?;
        buffer.stream().synchronize()?;
        let body = [&number.to_le_bytes()[..], &shared.to_bytes()].concat();
        self.send(&wire::seal(SENT, &body), &[])
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
    #[track_caller]
    pub unsafe fn receive_buffer<T: Pod>(
        &self,
        pool: &ImportedPool,
        stream: &Stream,
    ) -> Result<DeviceBuffer<T>> {
        let message = self.receive()?;
        let what = "a buffer";
        let (SENT, body) = wire::open(what, &message.bytes)? else {
            return Err(unexpected(what));
        };
        let Some((number, shared)) = body.split_first_chunk::<8>() else {
            return Err(unexpected(what));
        };
        let shared = SharedBuffer::from_bytes(shared)?;
        // SAFETY: the caller vouches for the other process, and the sender has waited for the
        // allocation (R55).
        unsafe { pool.import_as(stream, &shared, Some(u64::from_le_bytes(*number))) }
    }

    /// Frees a buffer that was received here, waits until its stream has done so, and tells the other
    /// end, which waits for it in [`Lent`](super::Lent).
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the buffer did not come through a channel;
    /// [`InUse`](crate::ErrorKind::InUse) while another view of the same memory is alive; else as the
    /// driver answers, and as [`send`](Self::send). The buffer comes back unless it may be freed. The
    /// other end is told only if nothing here can use the memory any more; if it could not be told, only
    /// closing the channel ends its wait.
    pub fn give_back<T: Pod>(
        &self,
        buffer: DeviceBuffer<T>,
    ) -> Result<(), Failed<DeviceBuffer<T>>> {
        let Some(number) = buffer.loan_number() else {
            let text = format!("{} was not received through a channel", buffer.in_words());
            return Err(Failed::new(Error::invalid(text), buffer));
        };
        match registry::users(buffer.as_raw()) {
            Ok(0 | 1) => {}
            Ok(users) => {
                let error = Error::in_use("the other process's memory", users - 1);
                return Err(Failed::new(error, buffer));
            }
            Err(error) => return Err(Failed::new(error, buffer)),
        }
        buffer.free_sync()?;
        self.send(&wire::seal(RETURNED, &number.to_le_bytes()), &[])
            .map_err(Failed::lost)
    }

    /// Waits until the buffer with this number was given back.
    pub(super) fn wait_for_return(&self, number: u64) -> Result<()> {
        self.returns
            .wait(number, || self.receive_return())
            .map(drop)
    }

    /// Waits for the next message, which must be that a buffer is given back.
    fn receive_return(&self) -> Result<Return> {
        let message = self.receive()?;
        let what = "word that a buffer is given back";
        let (RETURNED, body) = wire::open(what, &message.bytes)? else {
            return Err(unexpected(what));
        };
        let number = <[u8; 8]>::try_from(body).map_err(|_| unexpected(what))?;
        let number = u64::from_le_bytes(number);
        Ok(Return { number })
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
    #[track_caller]
    pub fn receive_event(&self, context: &Context) -> Result<Event> {
        context.import_event(&EventHandle::from_bytes(&self.receive()?.bytes)?)
    }
}

fn unexpected(what: &str) -> Error {
    Error::invalid(format!("the other process sent something else than {what}"))
}

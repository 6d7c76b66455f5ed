//! Messages about memory. Each has a kind, so that unexpected messages are refused.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytemuck::Pod;
use rustix::event::PollFlags;

use super::channel::Channel;
use super::handles::{EventHandle, SharedBuffer};
use super::pool::ImportedPool;
use super::reply::{self, FAILED, RETURNED, Received};
use super::returns::Return;
use super::socket::PAUSE;
use super::{registry, socket, wire};
use crate::base::error::{Error, ErrorKind, Failed, Result};
use crate::driver::device::Device;
use crate::memory::buffer::{DeviceBuffer, Loan, ReturnAttempt};
use crate::memory::pool::MemoryPool;
use crate::stream::Stream;
use crate::stream::context::Context;
use crate::stream::event::Event;

/// The kind of a message; those of answers are in `reply`.
const POOL: u8 = 16;
const SENT: u8 = 18;
const LENT: u8 = 20;

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

    /// Waits for a pool, and imports it for `device`. Safe whatever the other process sends: a pool arrives as a
    /// descriptor, which cannot be forged, and the driver refuses descriptors of files, pipes and sockets (measured).
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive) and [`ImportedPool::from_fd`]; [`InvalidValue`](crate::ErrorKind::InvalidValue)
    /// for any other message.
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

    /// Sends the location of a buffer, for [`receive_buffer`](Self::receive_buffer) at the other end. First waits until
    /// the buffer's stream has completed its work, so that the memory exists and holds what was written. See
    /// [`lend`](Self::lend) for a buffer that must not be freed before the other end is done with it.
    ///
    /// If the other end calls [`give_back`](Self::give_back), that sends a message here: [`receive`](Self::receive) returns
    /// it, and loans that are waited for pass over it. A process that does neither has to agree with the other end that it
    /// drops such buffers, which sends nothing: if a few hundred messages are unread, `give_back` waits there until some are
    /// read here or this end is closed.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::export`], [`Stream::synchronize`](crate::Stream::synchronize) and
    /// [`send`](Self::send).
    pub fn send_buffer<T: Pod>(&self, buffer: &DeviceBuffer<T>) -> Result<()> {
        self.send(&numbered(SENT, buffer, next_number())?, &[])
    }

    /// As [`send_buffer`](Self::send_buffer). The other end knows that this one waits for it. While the channel is full,
    /// answers to other loans are read: the other end may read no loans before there is space for its answers.
    pub(super) fn send_lent<T: Pod>(&self, buffer: &DeviceBuffer<T>, number: u64) -> Result<()> {
        let message = numbered(LENT, buffer, number)?;
        while !socket::send_now(self.as_fd(), &message)? {
            self.returns.wait_for_space(number, |reads| {
                if !reads {
                    // Later this thread may have to read.
                    socket::wait(self.as_fd(), PollFlags::OUT, Some(PAUSE))?;
                    return Ok(None);
                }
                let ready = socket::wait(self.as_fd(), PollFlags::IN | PollFlags::OUT, None)?;
                if ready.contains(PollFlags::OUT) || !ready.contains(PollFlags::IN) {
                    return Ok(None);
                }
                self.receive_return().map(Some)
            })?;
        }
        Ok(())
    }

    /// Waits for a buffer of `pool`, and imports it for use in the order of `stream`.
    ///
    /// If the buffer was [lent](Self::lend), the other end waits for it. [`give_back`](Self::give_back) ends that wait.
    /// Dropping the buffer does too, once a later wait or release in this process finds no work left in its stream, and
    /// space in the channel if too many messages were unread at the other end. If a lent buffer cannot be imported, the
    /// wait ends with [`PeerFailed`](crate::ErrorKind::PeerFailed). A lent buffer may outlive this channel, and keeps its socket
    /// open.
    ///
    /// # Safety
    ///
    /// As [`ImportedPool::import`]: the process at the other end uses this crate, sends buffers of this
    /// pool with [`send_buffer`](Self::send_buffer) or [`lend`](Self::lend), and keeps them until they
    /// are given back here.
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive) and [`ImportedPool::import`]; [`InvalidValue`](crate::ErrorKind::InvalidValue) for
    /// any other message.
    #[track_caller]
    pub unsafe fn receive_buffer<T: Pod>(
        &self,
        pool: &ImportedPool,
        stream: &Stream,
    ) -> Result<DeviceBuffer<T>> {
        let message = self.receive()?;
        let what = "a buffer";
        let (kind @ (SENT | LENT), body) = wire::open(what, &message.bytes)? else {
            return Err(unexpected(what));
        };
        let Some((number, shared)) = body.split_first_chunk::<8>() else {
            return Err(unexpected(what));
        };
        let number = u64::from_le_bytes(*number);
        let imported = SharedBuffer::from_bytes(shared).and_then(|shared| {
            let received = Received::new(&self.open, number, kind == LENT);
            // SAFETY: the caller vouches for the other process, and the sender has waited for the
            // allocation (R55).
            unsafe { pool.import_as(stream, &shared, received) }
        });
        if let (LENT, Err(error)) = (kind, &imported) {
            // The caller gets the first failure; after a second one the channel is closed.
            let _ = self.answer(reply::failed(number, &error.to_string()));
        }
        imported
    }

    /// Waits until the work of a received buffer is complete, frees the buffer, and notifies the other end, which waits
    /// for that in [`ExportedBuffer`](super::ExportedBuffer). Waits while too many messages are unread at the other end, so
    /// for ever if that never receives nor waits for a loan; see [`send_buffer`](Self::send_buffer).
    ///
    /// If the buffer comes back with the error, you can try again. After an error of kind
    /// [`Capturing`](crate::ErrorKind::Capturing) its end gives it back, once the capture is over. If its stream could not be
    /// waited for otherwise and it is dropped then, or if it does not come back, the other end's wait ends with
    /// [`PeerFailed`](crate::ErrorKind::PeerFailed).
    /// If the other end cannot be notified, the channel is closed in both directions, and its wait ends with
    /// [`PeerGone`](crate::ErrorKind::PeerGone).
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the buffer was not received through this channel;
    /// [`InUse`](crate::ErrorKind::InUse) while another view of the same memory exists, and the other end continues to
    /// wait then; [`Capturing`](crate::ErrorKind::Capturing) while the stream is captured; otherwise as the driver
    /// answers, and as [`send`](Self::send).
    pub fn give_back<T: Pod>(
        &self,
        mut buffer: DeviceBuffer<T>,
    ) -> Result<(), Failed<DeviceBuffer<T>>> {
        let loan = buffer.loan();
        let Some(Loan { number, .. }) = loan.filter(|loan| loan.channel == self.open.identity())
        else {
            let through = if loan.is_some() { "this" } else { "a" };
            let text = format!(
                "{} was not received through {through} channel",
                buffer.in_words()
            );
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
        // First, so that nothing here uses the memory even if it cannot be freed.
        if let Err(error) = buffer
            .wait_for_pending_uses()
            .and_then(|()| buffer.stream().as_ref().wait_uncaptured())
        {
            buffer.note_return(ReturnAttempt::after(&error));
            return Err(Failed::new(error, buffer));
        }
        buffer.note_return(ReturnAttempt::Begun);
        match buffer.free_sync() {
            Ok(()) => self.answer(reply::returned(number)).map_err(Failed::lost),
            Err(failed) => {
                match &failed.object {
                    Some(buffer) => buffer.note_return(ReturnAttempt::after(&failed.error)),
                    None => {
                        let words = failed.error.to_string();
                        // The caller gets the first failure; after a second one the channel is closed.
                        let _ = self.answer(reply::failed(number, &words));
                    }
                }
                Err(failed)
            }
        }
    }

    /// Sends the answer that the other end waits for, and waits for space in the channel, also if the program has made
    /// the socket one that does not wait. If it cannot be sent, the channel is closed, so that the other end does not wait
    /// for ever.
    fn answer(&self, bytes: Vec<u8>) -> Result<()> {
        let mut bytes = Some(bytes);
        while !self.open.send_answers(bytes.take())? {
            socket::wait(self.as_fd(), PollFlags::OUT, None)?;
        }
        Ok(())
    }

    /// Sends answers that found the channel full before, and waits for a message while some of them are left: the other
    /// end may send nothing before it has them.
    pub(super) fn send_answers_until_message(&self) -> Result<()> {
        // If they cannot be sent, what the other end has sent before can still be read.
        while let Ok(false) = self.open.send_answers(None) {
            let limit = socket::never_waits(self.as_fd()).then_some(Duration::ZERO);
            let ready = socket::wait(self.as_fd(), PollFlags::IN | PollFlags::OUT, limit)?;
            if !ready.contains(PollFlags::OUT) {
                break;
            }
        }
        Ok(())
    }

    /// Waits until the buffer with this number was given back.
    pub(super) fn wait_for_return(&self, number: u64) -> Result<()> {
        let found = self.returns.wait(number, || self.receive_return())?;
        match found.failure {
            None => Ok(()),
            Some(words) => Err(Error::new(
                ErrorKind::PeerFailed,
                format!(
                    "the other process could not give the buffer back, and work of it may still use the \
                 memory; it says: {words}"
                ),
            )),
        }
    }

    /// Waits for the next message, which must be the answer to a buffer. Also if the program has made the socket one that
    /// does not wait: the memory is in use until the answer is here.
    fn receive_return(&self) -> Result<Return> {
        socket::wait_for_message(self.as_fd())?;
        let message = self.receive()?;
        let what = "word that a buffer is given back";
        let (kind, body) = wire::open(what, &message.bytes)?;
        let (number, words) = body
            .split_first_chunk::<8>()
            .ok_or_else(|| unexpected(what))?;
        let failure = match kind {
            RETURNED if words.is_empty() => None,
            FAILED => Some(String::from_utf8_lossy(words).replace(char::is_control, " ")),
            _ => return Err(unexpected(what)),
        };
        let number = u64::from_le_bytes(*number);
        Ok(Return { number, failure })
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
    /// # Safety
    ///
    /// The process at the other end uses this crate, and sends an event with [`send_event`](Self::send_event). The
    /// driver does not validate the handle, see [`EventHandle::from_bytes`].
    ///
    /// # Errors
    ///
    /// As [`receive`](Self::receive) and [`Context::import_event`]; [`InvalidValue`](crate::ErrorKind::InvalidValue)
    /// for any other message.
    ///
    /// ```compile_fail,E0133
    /// # fn example(channel: cuda_mem::interop::Channel, context: cuda_mem::Context) {
    /// let _ = channel.receive_event(&context); // error: unsafe
    /// # }
    /// ```
    #[track_caller]
    pub unsafe fn receive_event(&self, context: &Context) -> Result<Event> {
        let message = self.receive()?;
        // SAFETY: the caller vouches for the other process.
        context.import_event(&unsafe { EventHandle::from_bytes(&message.bytes) }?)
    }
}

/// A number for a buffer to send. No other of this process has it, so that a late answer of one loan is not taken for that
/// of another, even where one socket is taken over by several channels in turn.
pub(super) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Waits until the buffer's memory exists and holds what was written. The other end gives it back under this number.
fn numbered<T: Pod>(kind: u8, buffer: &DeviceBuffer<T>, number: u64) -> Result<Vec<u8>> {
    let shared = buffer.export()?;
    buffer.wait_for_writers()?;
    buffer.stream().synchronize()?;
    let body = [&number.to_le_bytes()[..], &shared.to_bytes()].concat();
    Ok(wire::seal(kind, &body))
}

fn unexpected(what: &str) -> Error {
    Error::invalid(format!("the other process sent something else than {what}"))
}

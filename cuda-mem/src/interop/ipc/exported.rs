//! A buffer while another process uses it.

use std::{fmt, thread};

use bytemuck::Pod;

use super::channel::Channel;
use super::message::next_number;
use super::socket::PAUSE;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::report;
use crate::memory::buffer::DeviceBuffer;

impl Channel {
    /// Lends a buffer to the other process until that gives it back, drops it or dies. Sends it as
    /// [`send_buffer`](Self::send_buffer) does. Several buffers may be on loan at a time, and come back in any order;
    /// several threads may wait, each for one of them. Meanwhile nothing else may be received at this end. If the other
    /// process drops its channel, the buffers that it has received stay on loan until it is done with them.
    ///
    /// Waits while too many messages are unread at the other end, and meanwhile takes back the buffers that are given back
    /// there.
    ///
    /// # Errors
    ///
    /// The same errors; [`InvalidValue`](ErrorKind::InvalidValue) also if another message came meanwhile, which is lost.
    /// The buffer is not on loan then.
    ///
    /// ```no_run
    /// # fn example(
    /// #     channel: cuda_mem::interop::Channel,
    /// #     pool: cuda_mem::MemoryPool,
    /// #     stream: cuda_mem::Stream,
    /// # ) -> Result<(), cuda_mem::Error> {
    /// channel.send_pool(&pool)?;
    /// let mut buffer = pool.alloc_from(&stream, &[1.0f32; 1000])?;
    /// channel.lend(&mut buffer)?.wait()?; // the other process has it
    /// println!("{:?}", buffer.to_vec()?);
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias = "cuMemPoolExportPointer")]
    pub fn lend<'a, T: Pod>(
        &'a self,
        buffer: &'a mut DeviceBuffer<T>,
    ) -> Result<ExportedBuffer<'a, T>> {
        buffer.wait_for_pending_uses()?;
        let number = next_number();
        // Before it is sent: another waiting thread may read the answer first.
        self.returns.expect(number)?;
        if let Err(error) = self.send_lent(buffer, number) {
            self.returns.forget(number);
            return Err(error);
        }
        Ok(ExportedBuffer {
            channel: self,
            buffer,
            number,
            is_waited_for: false,
        })
    }
}

/// A buffer on loan to another process. The buffer cannot be used or freed here until that process gives it back, so
/// that it frees first, as the driver requires (R56).
///
/// Dropping it waits too, until the buffer comes back or the other process ends, and as long as reading the socket fails.
/// If it is leaked, the buffer can be
/// freed while the other process uses it; that process then reads and writes memory that may be in other use, since it
/// stays mapped there (measured).
#[must_use = "it waits for the other process when dropped"]
pub struct ExportedBuffer<'a, T: Pod> {
    channel: &'a Channel,
    buffer: &'a mut DeviceBuffer<T>,
    number: u64,
    is_waited_for: bool,
}

impl<T: Pod> ExportedBuffer<'_, T> {
    /// Waits until the other process has given the buffer back.
    ///
    /// # Errors
    ///
    /// [`PeerGone`](ErrorKind::PeerGone) if it died instead, or closed the channel without having received the buffer. Its
    /// mapping goes with it; work that it had submitted may run for a moment more.
    /// [`PeerFailed`](ErrorKind::PeerFailed) if it could not import the buffer, wait for its work or free its mapping;
    /// the error says why. [`InvalidValue`](ErrorKind::InvalidValue) if it sent another message, which is lost, and
    /// [`System`](ErrorKind::System) if the socket fails; the wait continues when the guard is dropped, which is at
    /// once.
    pub fn wait(mut self) -> Result<()> {
        let answer = self.channel.wait_for_return(self.number);
        let is_end =
            |error: &Error| matches!(error.kind(), ErrorKind::PeerGone | ErrorKind::PeerFailed);
        self.is_waited_for = answer.as_ref().err().is_none_or(is_end);
        answer
    }
}

impl<T: Pod> Drop for ExportedBuffer<'_, T> {
    fn drop(&mut self) {
        if !self.is_waited_for {
            report::release("lent buffer", || {
                loop {
                    let Err(error) = self.channel.wait_for_return(self.number) else {
                        return Ok(());
                    };
                    match error.kind() {
                        ErrorKind::PeerGone => return Ok(()),
                        ErrorKind::PeerFailed | ErrorKind::Forked => return Err(error),
                        // Another message was received.
                        ErrorKind::InvalidValue => {}
                        // The socket failed, for want of memory for example.
                        _ => thread::sleep(PAUSE),
                    }
                    // The buffer is still on loan.
                }
            });
        }
        self.channel.returns.forget(self.number);
    }
}

impl<T: Pod> fmt::Debug for ExportedBuffer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ExportedBuffer").field(&self.buffer).finish()
    }
}

//! Memory that is used on another stream than its own.

use std::fmt;

use bytemuck::Pod;

use super::pending_uses::PendingUses;
use super::span::Span;
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::lock::Lock;
use crate::base::report;
use crate::stream::Stream;
use crate::stream::join::{order, order_outside_captures};

/// Marks a slice that is bound to another stream than the memory's own. From `on` and `read_on` of buffers and slices.
///
/// When the slice is dropped, the memory's stream waits for the other one; if another library captures one of the two then,
/// before the memory's next use.
pub struct OnStream<'a>(Option<Borrowed<'a>>);

/// What there is to do when the slice is dropped.
struct Borrowed<'a> {
    home: &'a Stream,
    other: &'a Stream,
    /// Of the pending use.
    number: u64,
    pending_uses: &'a Lock<PendingUses>,
}

impl<'a, T: Pod> Span<'a, T> {
    /// The same memory in the order of `other`. Its own stream has waited for pending uses.
    pub(super) fn lend(self, other: &'a Stream, reads: bool) -> Result<(Self, OnStream<'a>)> {
        match reads {
            true => self.require_reach_in(other.context())?,
            false => self.require_writing_in(other.context())?,
        }
        let home = self.stream;
        if home == other || self.size_bytes() == 0 {
            let waited = self.waited;
            return Ok((self.in_order_of(other, waited), OnStream(None)));
        }
        let Some(pending_uses) = self.pending_uses else {
            let text = "memory of a graph is used in the order of the graph's stream only";
            return Err(Error::not_supported(text.to_owned()));
        };
        order(home.as_ref(), other.as_ref())?;
        let number = pending_uses.lock()?.push(other, self.addresses(), reads);
        Ok(self.bind(other, number))
    }

    /// As [`lend`](Self::lend), if the streams have been ordered and the use has been noted under this number.
    pub(super) fn bind(self, other: &'a Stream, number: u64) -> (Self, OnStream<'a>) {
        let borrowed = self.pending_uses.map(|pending_uses| Borrowed {
            home: self.stream,
            other,
            number,
            pending_uses,
        });
        (self.in_order_of(other, number), OnStream(borrowed))
    }
}

impl Drop for OnStream<'_> {
    fn drop(&mut self) {
        let Some(borrowed) = self.0.take() else {
            return;
        };
        // Before the next use of the memory the host waits for the context of that stream.
        if borrowed.other.is_foreign() {
            return;
        }
        report::release("slice on another stream", || {
            let (other, home) = (borrowed.other.as_ref(), borrowed.home.as_ref());
            let ordered = order_outside_captures(other, home);
            let mut pending_uses = borrowed.pending_uses.lock()?;
            match ordered {
                Ok(()) => pending_uses.remove(borrowed.number),
                // The use stays pending, and is waited for before the memory's next use.
                Err(_) => pending_uses.end(borrowed.number),
            }
            match ordered {
                Err(error) if error.kind() == ErrorKind::Capturing => Ok(()),
                ordered => ordered,
            }
        });
    }
}

impl fmt::Debug for OnStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let home = self.0.as_ref().map(|borrowed| borrowed.home);
        f.debug_tuple("OnStream").field(&home).finish()
    }
}

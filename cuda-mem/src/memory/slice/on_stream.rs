//! Memory that is used on another stream than its own.

use std::fmt;
use std::ops::Range;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::pending_uses::{PendingUse, PendingUses};
use super::span::Span;
use crate::base::error::{Error, Result};
use crate::base::lock::Lock;
use crate::base::report;
use crate::stream::Stream;
use crate::stream::join::order;

/// Marks a slice that is bound to another stream than the memory's own. From `on` and `read_on` of buffers and slices.
///
/// When the slice is dropped, the memory's stream waits for the other one.
pub struct OnStream<'a>(Option<Borrowed<'a>>);

/// What there is to do when the slice is dropped.
struct Borrowed<'a> {
    home: &'a Stream,
    other: &'a Stream,
    bytes: Range<CUdeviceptr>,
    reads: bool,
    pending_uses: &'a Lock<PendingUses>,
}

impl<'a, T: Pod> Span<'a, T> {
    /// The same memory in the order of `other`.
    pub(super) fn lend(self, other: &'a Stream, reads: bool) -> Result<(Self, OnStream<'a>)> {
        self.require_reach_in(other.context())?;
        self.wait_for_pending_uses(!reads)?;
        let home = self.stream();
        if home == other || self.size_bytes() == 0 {
            return Ok((self.in_order_of(other), OnStream(None)));
        }
        let Some(pending_uses) = self.pending_uses() else {
            let text = "memory of a graph is used in the order of the graph's stream only";
            return Err(Error::not_supported(text.to_owned()));
        };
        order(home.as_ref(), other.as_ref())?;
        let bytes = self.addresses();
        pending_uses.lock()?.push(PendingUse {
            stream: other.clone(),
            bytes: bytes.clone(),
            reads,
        });
        let borrowed = Borrowed {
            home,
            other,
            bytes,
            reads,
            pending_uses,
        };
        Ok((self.in_order_of(other), OnStream(Some(borrowed))))
    }
}

impl Drop for OnStream<'_> {
    fn drop(&mut self) {
        let Some(borrowed) = self.0.take() else {
            return;
        };
        report::release("slice on another stream", || {
            // On failure the use stays pending, and is waited for before the memory's next use.
            order(borrowed.other.as_ref(), borrowed.home.as_ref())?;
            let mut pending_uses = borrowed.pending_uses.lock()?;
            pending_uses.remove_first(|pending_use| {
                pending_use.stream == *borrowed.other
                    && pending_use.bytes == borrowed.bytes
                    && pending_use.reads == borrowed.reads
            });
            Ok(())
        });
    }
}

impl fmt::Debug for OnStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let home = self.0.as_ref().map(|borrowed| borrowed.home);
        f.debug_tuple("OnStream").field(&home).finish()
    }
}

//! Streams other than a memory's own that may still use it.

#![forbid(unsafe_code)]

use std::ops::{Deref, Range};

use cuda_driver_sys::CUdeviceptr;

use crate::base::error::Result;
use crate::stream::Stream;
use crate::stream::join::order_outside_captures;

/// A stream that may still use part of a memory.
#[derive(Clone)]
pub(crate) struct PendingUse {
    /// Higher than that of every earlier use of the memory.
    pub(super) number: u64,
    pub(crate) stream: Stream,
    /// What it uses, so that parts of one memory can be used on several streams at the same time.
    bytes: Range<CUdeviceptr>,
    /// Whether it only reads, so that other readers need not wait for it.
    reads: bool,
    /// Nothing more is submitted for it.
    is_over: bool,
}

impl PendingUse {
    /// Whether a use of `bytes` has to wait for this one.
    pub(super) fn is_in_the_way(&self, bytes: &Range<CUdeviceptr>, writes: bool) -> bool {
        (writes || !self.reads) && self.overlaps(bytes)
    }

    /// Whether a use of `bytes` can put an end to this one by waiting for it.
    pub(super) fn can_be_removed(&self, bytes: &Range<CUdeviceptr>) -> bool {
        self.is_over && self.overlaps(bytes) && !self.stream.is_foreign()
    }

    fn overlaps(&self, bytes: &Range<CUdeviceptr>) -> bool {
        self.bytes.start < bytes.end && bytes.start < self.bytes.end
    }
}

/// Lets `own` come after the work of a pending use's stream. Nothing can be ordered with the own stream of another thread,
/// so the host waits for all of its context.
#[cold]
pub(crate) fn wait_for_use(other: &Stream, own: &Stream) -> Result<()> {
    if other.is_foreign() {
        return other.as_ref().wait_foreign();
    }
    order_outside_captures(other.as_ref(), own.as_ref())
}

/// A list that is nearly always empty. An empty list is one word, and one check when the buffer ends.
#[derive(Clone, Default)]
pub(crate) struct PendingUses(Option<Box<List>>);

#[derive(Clone, Default)]
struct List {
    /// The number of the last use.
    last: u64,
    uses: Vec<PendingUse>,
}

/// Only the check for an empty list is inlined where a buffer ends; the loop over a list stays out of line.
impl Drop for PendingUses {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(list) = self.0.take() {
            drop_list(list);
        }
    }
}

#[cold]
#[inline(never)]
fn drop_list(list: Box<List>) {
    drop(list);
}

impl PendingUses {
    /// Notes a use, and returns its number.
    pub(crate) fn push(&mut self, stream: &Stream, bytes: Range<CUdeviceptr>, reads: bool) -> u64 {
        let list = self.0.get_or_insert_default();
        list.last += 1;
        list.uses.push(PendingUse {
            number: list.last,
            stream: stream.clone(),
            bytes,
            reads,
            is_over: false,
        });
        list.last
    }

    /// Nothing more is submitted for this use, but it could not be waited for.
    pub(super) fn end(&mut self, number: u64) {
        if let Some(list) = &mut self.0
            && let Some(it) = list.uses.iter_mut().find(|it| it.number == number)
        {
            it.is_over = true;
        }
    }

    pub(crate) fn pop(&mut self) -> Option<PendingUse> {
        self.0.as_mut()?.uses.pop()
    }

    pub(super) fn remove(&mut self, number: u64) {
        if let Some(place) = self.iter().position(|it| it.number == number)
            && let Some(list) = &mut self.0
        {
            list.uses.swap_remove(place);
        }
    }
}

impl Deref for PendingUses {
    type Target = [PendingUse];

    #[inline]
    fn deref(&self) -> &[PendingUse] {
        self.0.as_deref().map_or(&[], |list| &list.uses)
    }
}

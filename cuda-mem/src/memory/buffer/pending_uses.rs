//! Streams that may still use a buffer's memory.

#![forbid(unsafe_code)]

use std::ops::Deref;

use crate::stream::Stream;

/// A stream that may still use a buffer's memory.
#[derive(Clone)]
pub(super) struct PendingUse {
    pub(super) stream: Stream,
    /// Whether it only reads, so that other readers need not wait for it.
    pub(super) reads: bool,
}

/// A list that is nearly always empty. An empty list is one word, and one check when the buffer ends.
#[derive(Clone, Default)]
#[expect(clippy::box_collection, reason = "it is in every buffer")]
pub(super) struct PendingUses(Option<Box<Vec<PendingUse>>>);

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
#[expect(clippy::box_collection, reason = "what `PendingUses` has")]
fn drop_list(list: Box<Vec<PendingUse>>) {
    drop(list);
}

impl PendingUses {
    pub(super) fn push(&mut self, pending_use: PendingUse) {
        self.0.get_or_insert_default().push(pending_use);
    }

    pub(super) fn pop(&mut self) -> Option<PendingUse> {
        self.0.as_mut()?.pop()
    }

    /// Removes the first entry that satisfies `is_over`.
    pub(super) fn remove_first(&mut self, is_over: impl Fn(&PendingUse) -> bool) {
        if let Some(place) = self.iter().position(is_over)
            && let Some(pending_uses) = &mut self.0
        {
            pending_uses.swap_remove(place);
        }
    }
}

impl Deref for PendingUses {
    type Target = [PendingUse];

    #[inline]
    fn deref(&self) -> &[PendingUse] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

//! Streams that may still use a buffer's memory.

#![forbid(unsafe_code)]

use std::ops::Deref;

use crate::stream::Stream;

/// A stream that may still use a buffer's memory.
#[derive(Clone)]
pub(super) struct Debt {
    pub(super) stream: Stream,
    /// It only reads, so that other readers need not wait for it.
    pub(super) reads: bool,
}

/// A list that nearly always is empty: one word then, and a look at it when the buffer ends.
#[derive(Clone, Default)]
#[expect(clippy::box_collection, reason = "it is in every buffer")]
pub(super) struct Debts(Option<Box<Vec<Debt>>>);

/// Only the look is made where a buffer ends: the loop over a list stays out of line.
impl Drop for Debts {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(list) = self.0.take() {
            drop_list(list);
        }
    }
}

#[cold]
#[inline(never)]
#[expect(clippy::box_collection, reason = "what `Debts` has")]
fn drop_list(list: Box<Vec<Debt>>) {
    drop(list);
}

impl Debts {
    pub(super) fn push(&mut self, debt: Debt) {
        self.0.get_or_insert_default().push(debt);
    }

    pub(super) fn pop(&mut self) -> Option<Debt> {
        self.0.as_mut()?.pop()
    }

    /// Strikes off what this is true of, once.
    pub(super) fn strike(&mut self, is_paid: impl Fn(&Debt) -> bool) {
        if let Some(place) = self.iter().position(is_paid)
            && let Some(debts) = &mut self.0
        {
            debts.swap_remove(place);
        }
    }
}

impl Deref for Debts {
    type Target = [Debt];

    #[inline]
    fn deref(&self) -> &[Debt] {
        self.0.as_deref().map_or(&[], Vec::as_slice)
    }
}

//! Moves of memory back to where it was, next to other free memory. It is still mapped there, so no driver call is
//! made.

use std::collections::BTreeSet;

use super::backing::Chunk;
use super::page_map::CacheId;
use super::{Inner, UNIT, thread};
use crate::stream::context::Context;

/// How many bytes beyond the missing ones may move: pieces do not end where a request does.
const MORE: u64 = 128 << 20;

/// Memory that can move back to where it was.
#[derive(Clone, Copy, Debug)]
struct Return {
    chunk: Chunk,
    to: u64,
}

impl Return {
    fn end(&self) -> u64 {
        self.to + self.chunk.bytes
    }
}

impl Inner {
    /// Moves free and completed chunks back to their earlier addresses if that makes `bytes` contiguous. Moves at most
    /// [`MORE`] bytes beyond `missing`, which is what a move to the end would need; beyond that, the move to the end
    /// splits less free memory. Returns whether that succeeded. The caller holds the turn to grow.
    #[cold]
    pub(super) fn move_back(
        &self,
        bytes: u64,
        missing: u64,
        own: CacheId,
        context: &Context,
    ) -> bool {
        let may_move = self.may_query() && self.free_bytes() >= bytes;
        let aliases = if may_move {
            self.backing.aliases()
        } else {
            Vec::new()
        };
        if aliases.is_empty() {
            return false;
        }
        self.with_movable(|found| {
            let movable: BTreeSet<u64> = found.iter().map(|chunk| chunk.address).collect();
            let returns = aliases
                .into_iter()
                .filter(|(_, chunk)| movable.contains(&chunk.address));
            let returns: Vec<Return> = returns.map(|(to, chunk)| Return { chunk, to }).collect();
            let rows = returns.chunk_by(|one, next| one.end() == next.to);
            let places = rows.filter_map(|row| self.fewest(row, bytes, own));
            let sum = |place: &&[Return]| place.iter().map(|one| one.chunk.bytes).sum::<u64>();
            let place = places
                .filter(|place| sum(place) <= missing + MORE)
                .min_by_key(sum);
            place.is_some_and(|place| self.send_back(place, context))
        })
    }

    /// The shortest part of a row that, with the free memory it touches, makes `bytes` contiguous.
    fn fewest<'a>(&self, row: &'a [Return], bytes: u64, own: CacheId) -> Option<&'a [Return]> {
        let (first, last) = (row.first()?, row.last()?);
        let central = self.central.lock(thread::number());
        let before = central.usable_tail(first.to / UNIT, own);
        let behind = central.usable_head(last.end() / UNIT, own);
        drop(central);
        let before = before.map_or(first.to, |start| start * UNIT);
        let behind = behind.map_or(last.end(), |end| end * UNIT);
        let makes_a_place = |part: &&[Return]| {
            let (Some(from), Some(to)) = (part.first(), part.last()) else {
                return false;
            };
            let start = if from.to == first.to { before } else { from.to };
            let end = if to.to == last.to { behind } else { to.end() };
            // Memory that is there already cannot move there.
            let is_foreign = |part: &Return| part.chunk.end() <= start || part.chunk.address >= end;
            end - start >= bytes && part.iter().all(is_foreign)
        };
        let count = row.len();
        let parts = (1..=count).flat_map(|taken| [&row[..taken], &row[count - taken..]]);
        parts.into_iter().find(makes_a_place)
    }

    fn send_back(&self, place: &[Return], context: &Context) -> bool {
        place.iter().all(|one| {
            // Another thread may have taken part of it; memory that has moved back stays there.
            self.take_to_move(one.chunk) && self.move_chunk(one.chunk, one.to, context).is_some()
        })
    }
}

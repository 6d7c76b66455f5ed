//! A naive model of a heap: pieces of memory by address, each with its true last user. And a walk over all headers of a
//! heap, to compare the two.

use std::collections::BTreeMap;

use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};

use super::super::Tlsf;
use crate::arena::header::{Id, NONE, State};
use crate::arena::last_use::LastUse;
use crate::arena::page_map::CacheId;

/// From this address on there are runs that are larger than a header can hold.
pub(super) const HUGE: u64 = 1 << 38;

pub(super) type Outcome = Result<(), TestCaseError>;

/// The last user of a piece, and the epoch of that use, if any.
pub(super) type Use = Option<(CacheId, u64)>;

pub(super) fn last_use(last: Use) -> LastUse {
    last.map_or(LastUse::FREE, |(cache, epoch)| LastUse::new(cache, epoch))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Used,
    /// Free pieces are never merged here.
    Free(Use),
}

/// A free block, or a used one, in units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) uses: Vec<Use>,
}

impl Block {
    pub(super) fn end(&self) -> u64 {
        self.start + self.size
    }
}

#[derive(Debug, Default)]
pub(super) struct Model(BTreeMap<u64, (u64, Piece)>);

impl Model {
    /// Whether there is any memory here.
    pub(super) fn has(&self, start: u64, end: u64) -> bool {
        let before = self.0.range(..end).next_back();
        before.is_some_and(|(at, (size, _))| at + size > start)
    }

    pub(super) fn add(&mut self, start: u64, units: u64, last: Use, used: u64) {
        if used > 0 {
            self.0.insert(start, (used, Piece::Used));
        }
        if units > used {
            let rest = (units - used, Piece::Free(last));
            self.0.insert(start + used, rest);
        }
    }

    /// Removes a part of free memory, and returns whether all of it was free.
    fn carve(&mut self, start: u64, end: u64) -> bool {
        let mut at = start;
        while at < end {
            let Some((&piece, &(size, kind))) = self.0.range(..=at).next_back() else {
                return false;
            };
            let piece_end = piece + size;
            if !matches!(kind, Piece::Free(_)) || piece_end <= at {
                return false;
            }
            self.0.remove(&piece);
            if piece < at {
                self.0.insert(piece, (at - piece, kind));
            }
            if piece_end > end {
                self.0.insert(end, (piece_end - end, kind));
            }
            at = piece_end;
        }
        true
    }

    pub(super) fn take(&mut self, start: u64, size: u64) -> Outcome {
        prop_assert!(
            self.carve(start, start + size),
            "{start}+{size} was not free"
        );
        self.0.insert(start, (size, Piece::Used));
        Ok(())
    }

    pub(super) fn cut(&mut self, start: u64, units: u64) -> Outcome {
        prop_assert!(
            self.carve(start, start + units),
            "{start}+{units} was not free"
        );
        Ok(())
    }

    /// Frees a used block, and returns its size.
    pub(super) fn free(&mut self, start: u64, last: Use) -> Option<u64> {
        let (size, piece) = self.0.get_mut(&start)?;
        if *piece != Piece::Used {
            return None;
        }
        *piece = Piece::Free(last);
        Some(*size)
    }

    pub(super) fn used(&self) -> Vec<Block> {
        let used = self.0.iter().filter(|(_, (_, kind))| *kind == Piece::Used);
        used.map(|(start, (size, _))| Block {
            start: *start,
            size: *size,
            uses: Vec::new(),
        })
        .collect()
    }

    /// Contiguous free memory, however large.
    pub(super) fn free_blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        for (start, (size, kind)) in &self.0 {
            let Piece::Free(last) = *kind else { continue };
            match blocks.last_mut() {
                Some(block) if block.end() == *start => {
                    block.size += size;
                    block.uses.push(last);
                }
                _ => blocks.push(Block {
                    start: *start,
                    size: *size,
                    uses: vec![last],
                }),
            }
        }
        blocks
    }

    /// The true last uses of the free memory here.
    fn uses(&self, start: u64, end: u64) -> Vec<Use> {
        let pieces = self.0.range(..end).rev();
        pieces
            .take_while(|(at, (size, _))| *at + size > start)
            .filter_map(|(_, (_, kind))| match kind {
                Piece::Free(last) => Some(*last),
                Piece::Used => None,
            })
            .collect()
    }

    fn units(&self) -> u64 {
        self.0.values().map(|(size, _)| size).sum()
    }

    /// Compares a heap with this model.
    pub(super) fn check(&self, heap: &Tlsf) -> Outcome {
        let walked = walk(heap)?;
        let used: Vec<_> = self.used().iter().map(|b| (b.start, b.size)).collect();
        let of = |state| {
            let found = walked.iter().filter(move |header| header.2 == state);
            found.map(|header| (header.0, header.1)).collect::<Vec<_>>()
        };
        prop_assert_eq!(of(State::Used), used, "used blocks");
        let free = of(State::Free);
        // Free neighbours are one block, unless they were once too large for one.
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, size) in &free {
            match merged.last_mut() {
                Some(last) if last.0 + last.1 == *start => {
                    prop_assert!(*start >= HUGE, "not merged at {start}");
                    last.1 += size;
                }
                _ => merged.push((*start, *size)),
            }
        }
        let expected: Vec<_> = self
            .free_blocks()
            .iter()
            .map(|b| (b.start, b.size))
            .collect();
        prop_assert_eq!(merged, expected, "free blocks");
        let sum: u64 = free.iter().map(|block| block.1).sum();
        prop_assert_eq!(heap.free_units(), sum);
        prop_assert_eq!(heap.total_units(), self.units());
        let largest = free.iter().map(|block| block.1).max();
        prop_assert_eq!(heap.largest_free(), largest.unwrap_or(0));
        self.check_lists(heap, &free)?;
        for header in walked.iter().filter(|header| header.2 == State::Free) {
            for last in self.uses(header.0, header.0 + header.1) {
                covers(header.3, last)?;
            }
        }
        Ok(())
    }

    /// Each free block is in the lists once, and a block of its size is found.
    fn check_lists(&self, heap: &Tlsf, free: &[(u64, u64)]) -> Outcome {
        let in_lists = heap.classes.at_least(&heap.headers, 1);
        let mut listed: Vec<_> = in_lists
            .map(|id| (heap.headers[id].start(), u64::from(heap.headers[id].size)))
            .collect();
        listed.sort_unstable();
        prop_assert_eq!(listed, free, "the lists");
        for (_, size) in free {
            let found = heap.classes.find(&heap.headers, *size as u32);
            let found = found.map(|id| heap.headers[id].start());
            let found = free.iter().find(|block| Some(block.0) == found);
            prop_assert!(
                found.is_some_and(|block| block.1 >= *size),
                "none for {size}: {found:?}"
            );
        }
        Ok(())
    }
}

/// All blocks in the order of their addresses: start, size, state, last use. Checks what each header says about
/// its neighbours.
fn walk(heap: &Tlsf) -> Result<Vec<(u64, u64, State, LastUse)>, TestCaseError> {
    let mut all = Vec::new();
    let mut end_of_run = None;
    for (start, (first, last)) in &heap.runs {
        prop_assert!(
            end_of_run < Some(*start),
            "runs that touch are one: {start}"
        );
        let mut at = *start;
        let mut id: Id = *first;
        let mut before = None;
        loop {
            let header = &heap.headers[id];
            prop_assert_eq!(header.start(), at, "blocks leave no gap");
            let sentinel = id == *first || id == *last;
            prop_assert_eq!(
                header.state() == State::Sentinel,
                sentinel,
                "edges are at the ends"
            );
            prop_assert_eq!(header.size == 0, sentinel);
            if let Some(before) = before {
                prop_assert_eq!(header.before, before, "neighbours know each other");
            }
            if !sentinel {
                all.push((
                    at,
                    u64::from(header.size),
                    header.state(),
                    header.last_use(),
                ));
                let known = heap.size_of(at);
                prop_assert_eq!(
                    known.is_some(),
                    header.state() == State::Used,
                    "index at {}",
                    at
                );
            }
            at = header.end();
            if id == *last {
                break;
            }
            before = Some(id);
            id = header.after;
            prop_assert!(id != NONE, "a run has an end");
        }
        prop_assert!(at > *start, "no run is empty");
        end_of_run = Some(at);
    }
    Ok(all)
}

/// Checks that a last use covers the true one of a piece.
pub(super) fn covers(last_use: LastUse, last: Use) -> Outcome {
    let Some((user, epoch)) = last else {
        return Ok(());
    };
    prop_assert!(last_use.epoch >= epoch, "{last_use:?} forgets {last:?}");
    prop_assert_eq!(last_use.cache(), Some(user));
    Ok(())
}

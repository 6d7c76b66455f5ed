//! The free pages of all lanes side by side: what lies next to each other there may be taken together,
//! whosever it is.

use std::collections::BTreeMap;

use super::course::Seen;
use super::lanes::Centre;
use super::owners::LaneId;
use super::{Inner, PAGE_UNITS, UNIT, thread};

/// Free pages of one lane, in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) lane: LaneId,
    /// In use until the end of this epoch of that lane.
    pub(super) epoch: u32,
    /// Every stream comes after that.
    pub(super) known: bool,
    /// Epochs before this one are as good as the piece's.
    until: u32,
}

/// Pieces without a gap between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) start: u64,
    pub(super) end: u64,
    pieces: Vec<Piece>,
}

impl Run {
    pub(super) fn pages(&self) -> u64 {
        (self.end - self.start) / PAGE_UNITS
    }

    /// The first so many pages of it.
    pub(super) fn first(&self, pages: u64) -> Self {
        self.part(self.start, self.start + pages * PAGE_UNITS)
    }

    /// What of it lies between two places.
    pub(super) fn part(&self, start: u64, end: u64) -> Self {
        let pieces = self.pieces.iter().filter_map(|piece| {
            let (start, end) = (piece.start.max(start), piece.end.min(end));
            (start < end).then_some(Piece {
                start,
                end,
                ..*piece
            })
        });
        Self {
            start,
            end,
            pieces: pieces.collect(),
        }
    }
}

impl Run {
    /// The lanes that the stream of lane `own` has to wait for, and until the end of which epoch.
    pub(super) fn debts(&self, own: LaneId) -> BTreeMap<LaneId, u32> {
        let mut debts = BTreeMap::new();
        for piece in &self.pieces {
            if !piece.known && piece.lane != own {
                let epoch = debts.entry(piece.lane).or_insert(piece.epoch);
                *epoch = piece.epoch.max(*epoch);
            }
        }
        debts
    }

    /// Whether every stream comes after all that used the run.
    pub(super) fn is_known(&self) -> bool {
        self.pieces.iter().all(|piece| piece.known)
    }
}

/// Brings pieces together.
fn join(mut pieces: Vec<Piece>) -> Vec<Run> {
    pieces.sort_unstable_by_key(|piece| piece.start);
    let mut runs: Vec<Run> = Vec::new();
    for piece in pieces {
        match runs.last_mut() {
            Some(run) if run.end == piece.start => {
                run.end = piece.end;
                run.pieces.push(piece);
            }
            _ => runs.push(Run {
                start: piece.start,
                end: piece.end,
                pieces: vec![piece],
            }),
        }
    }
    runs
}

impl Inner {
    /// The lanes that may have free pages, those with most of them first.
    pub(super) fn by_free(&self) -> Vec<LaneId> {
        let lanes = self.lanes.iter();
        let mut lanes: Vec<(u64, LaneId)> = lanes
            .map(|(id, slot)| (slot.counters.free(), id as LaneId))
            .filter(|(free, _)| *free >= PAGE_UNITS)
            .collect();
        lanes.sort_unstable_by(|a, b| b.cmp(a));
        lanes.into_iter().map(|(_, id)| id).collect()
    }

    /// All free pages of these lanes that are done or, if `waits`, can be waited for. Those of `own` count as
    /// done.
    pub(super) fn survey(
        &self,
        centre: &mut Centre,
        lanes: &[LaneId],
        own: Option<LaneId>,
        waits: bool,
    ) -> Vec<Run> {
        let me = thread::number();
        let mut pieces = Vec::new();
        for &id in lanes {
            let slot = self.slot(id);
            let own = own == Some(id);
            let seen = if own {
                Seen {
                    done: u32::MAX,
                    marked: u32::MAX,
                }
            } else {
                centre.courses[id as usize].settle();
                self.advance(centre, id)
            };
            let until = if waits { seen.marked } else { seen.done };
            let mut lane = slot.lock.lock(me);
            lane.flush();
            let free = lane.fit().free_pages(1).filter(|place| place.epoch < until);
            pieces.extend(free.map(|place| Piece {
                start: place.start,
                end: place.start + place.units,
                lane: id,
                epoch: place.epoch,
                known: !own && place.epoch < seen.done,
                until: if place.epoch < seen.done {
                    seen.done
                } else {
                    until
                },
            }));
        }
        join(pieces)
    }

    /// Takes all of a run out of its lanes, unless somebody took of it meanwhile.
    pub(super) fn withdraw(&self, run: &Run) -> bool {
        let me = thread::number();
        for (count, piece) in run.pieces.iter().enumerate() {
            let slot = self.slot(piece.lane);
            let mut lane = slot.lock.lock(me);
            if !lane.give_away(piece.start, piece.end - piece.start, piece.until) {
                drop(lane);
                self.put_back(&run.pieces[..count]);
                return false;
            }
            slot.counters.holds(lane.fit().total_units());
        }
        true
    }

    fn put_back(&self, pieces: &[Piece]) {
        for piece in pieces {
            let units = piece.end - piece.start;
            self.owners
                .note(piece.start * UNIT, units * UNIT, Some(piece.lane));
            // Its present epoch is later than the piece's, and so on the safe side.
            self.add(piece.lane, piece.start, units, false, None);
        }
    }

    pub(super) fn return_run(&self, run: &Run) {
        self.put_back(&run.pieces);
    }
}

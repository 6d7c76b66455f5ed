//! The ground truth: at which point of which stream each piece of memory was last used, and which points precede which.

use std::collections::BTreeMap;

use crate::arena::page_map::CacheId;

/// A point in the order of all streams, as a vector clock: for each stream, how many of its steps precede the point.
type Point = Vec<u64>;

/// The last step of a stream that used a piece.
type Use = Option<(CacheId, u64)>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Piece {
    Held,
    /// Last used by this step of this stream.
    Free(Use),
}

pub(super) struct Truth {
    pieces: BTreeMap<u64, (u64, Piece)>,
    /// By stream: what precedes its next step.
    points: Vec<Point>,
    /// What the host has seen.
    host: Point,
}

impl Truth {
    pub(super) fn new(caches: usize) -> Self {
        Self {
            pieces: BTreeMap::new(),
            points: vec![vec![0; caches]; caches],
            host: vec![0; caches],
        }
    }

    /// What precedes an event that is recorded now.
    pub(super) fn point(&self, cache: CacheId) -> Point {
        self.points[cache as usize].clone()
    }

    pub(super) fn wait(&mut self, cache: CacheId, other: CacheId) {
        let other = self.point(other);
        join(&mut self.points[cache as usize], &other);
    }

    pub(super) fn seen(&mut self, point: &Point) {
        join(&mut self.host, point);
    }

    pub(super) fn add(&mut self, start: u64, units: u64) {
        self.pieces.insert(start, (units, Piece::Free(None)));
    }

    /// Removes a part that must be free, and returns its last uses.
    fn carve(&mut self, start: u64, units: u64) -> Vec<(u64, u64, Use)> {
        let end = start + units;
        let mut uses = Vec::new();
        let mut at = start;
        while at < end {
            let piece = self.pieces.range(..=at).next_back();
            let (&from, &(size, piece)) = piece.expect("there is memory");
            let Piece::Free(last) = piece else {
                panic!("{at} is handed out twice");
            };
            let to = from + size;
            assert!(to > at, "there is no memory at {at}");
            self.pieces.remove(&from);
            if from < at {
                self.pieces.insert(from, (at - from, piece));
            }
            if to > end {
                self.pieces.insert(end, (to - end, piece));
            }
            uses.push((at, to.min(end) - at, last));
            at = to;
        }
        uses
    }

    fn is_before(&self, last: Use, cache: CacheId) -> bool {
        last.is_none_or(|(user, step)| {
            let user_at = user as usize;
            step <= self.points[cache as usize][user_at] || step <= self.host[user_at]
        })
    }

    /// Checks that the stream may use this free memory.
    pub(super) fn check(&mut self, start: u64, units: u64, cache: CacheId) {
        for (at, size, last) in self.carve(start, units) {
            assert!(
                self.is_before(last, cache),
                "{at} is still in use: {last:?}"
            );
            self.pieces.insert(at, (size, Piece::Free(last)));
        }
    }

    pub(super) fn take(&mut self, start: u64, units: u64, cache: CacheId) {
        self.check(start, units, cache);
        self.carve(start, units);
        self.pieces.insert(start, (units, Piece::Held));
    }

    /// Frees a block; the stream's next step is its last use.
    pub(super) fn free(&mut self, start: u64, cache: CacheId) {
        let step = &mut self.points[cache as usize][cache as usize];
        *step += 1;
        let piece = self.pieces.get_mut(&start).expect("it is held");
        assert_eq!(piece.1, Piece::Held);
        piece.1 = Piece::Free(Some((cache, *step)));
    }

    /// Free memory that a stream may use goes to others.
    pub(super) fn pass_on(&mut self, start: u64, units: u64, cache: CacheId) {
        self.check(start, units, cache);
    }

    /// Memory goes back to the device: the host must have seen the end of all its uses.
    pub(super) fn leave(&mut self, start: u64, units: u64) {
        for (at, _, last) in self.carve(start, units) {
            let over = last.is_none_or(|(user, step)| step <= self.host[user as usize]);
            assert!(over, "{at} goes while it is in use: {last:?}");
        }
    }

    pub(super) fn units(&self) -> u64 {
        self.pieces.values().map(|(size, _)| size).sum()
    }
}

fn join(point: &mut Point, other: &Point) {
    for (point, other) in point.iter_mut().zip(other) {
        *point = (*point).max(*other);
    }
}

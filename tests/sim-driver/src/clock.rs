//! Happens-before tracking: one logical clock per stream, what each stream has waited for, and what the host has
//! observed. Updated at submission, not at execution.
//!
//! A query or a returned copy lets the host know that work is done. The driver counts only synchronisation, not what
//! the host knows, before it reuses freed memory for any stream.

use rustc_hash::FxHashMap;

use std::collections::BTreeMap;

/// A stream, even after its destruction. Never reused.
pub(crate) type StreamId = u64;

/// A point in one stream's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Point {
    pub(crate) stream: StreamId,
    pub(crate) time: u64,
}

/// For each stream, the latest point known to come before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Past(BTreeMap<StreamId, u64>);

impl Past {
    pub(crate) fn contains(&self, point: Point) -> bool {
        self.0
            .get(&point.stream)
            .is_some_and(|time| *time >= point.time)
    }

    fn add(&mut self, point: Point) {
        let time = self.0.entry(point.stream).or_default();
        *time = point.time.max(*time);
    }

    /// The streams with a point in this past.
    pub(crate) fn streams(&self) -> impl Iterator<Item = StreamId> + '_ {
        self.0.keys().copied()
    }

    fn points(&self) -> impl Iterator<Item = Point> + '_ {
        self.0.iter().map(|(&stream, &time)| Point { stream, time })
    }
}

/// One stream's clock.
#[derive(Debug, Default)]
struct Track {
    time: u64,
    /// What comes before all future submissions.
    past: Past,
    /// The latest point that the host knows to be done.
    observed: u64,
    /// The latest point that the host has synchronised with.
    synchronised: u64,
    retired: bool,
}

/// The clocks of all streams.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    tracks: FxHashMap<StreamId, Track>,
    /// Changes whenever the host synchronises with something new, so that others can detect it cheaply.
    epoch: u64,
}

impl Clocks {
    pub(crate) fn add(&mut self, stream: StreamId) {
        self.tracks.insert(stream, Track::default());
    }

    /// The stream accepts no more work. Its clock is kept until all of it counts as synchronised.
    pub(crate) fn retire(&mut self, stream: StreamId) {
        if let Some(track) = self.tracks.get_mut(&stream) {
            track.retired = true;
        }
        self.forget_finished();
    }

    fn forget_finished(&mut self) {
        let mut forgotten = Vec::new();
        self.tracks.retain(|id, track| {
            let finished = track.retired && track.synchronised >= track.time;
            if finished {
                forgotten.push(*id);
            }
            !finished
        });
        for track in self.tracks.values_mut() {
            for id in &forgotten {
                track.past.0.remove(id);
            }
        }
    }

    /// Counts a submission and returns its point.
    pub(crate) fn tick(&mut self, stream: StreamId) -> Point {
        let track = self.tracks.entry(stream).or_default();
        track.time += 1;
        Point {
            stream,
            time: track.time,
        }
    }

    /// The latest point of a stream.
    pub(crate) fn now(&self, stream: StreamId) -> Point {
        let time = self.tracks.get(&stream).map_or(0, |track| track.time);
        Point { stream, time }
    }

    /// Everything that comes before the next submission: what an event recorded now represents.
    pub(crate) fn past(&self, stream: StreamId) -> Past {
        let Some(track) = self.tracks.get(&stream) else {
            return Past::default();
        };
        let mut past = track.past.clone();
        past.add(Point {
            stream,
            time: track.time,
        });
        past
    }

    /// Orders all future work of `stream` after `past`.
    pub(crate) fn join(&mut self, stream: StreamId, past: &Past) {
        let others = past.points().filter(|point| point.stream != stream);
        let known: Vec<Point> = others
            .filter(|point| self.tracks.contains_key(&point.stream))
            .collect();
        if let Some(track) = self.tracks.get_mut(&stream) {
            for point in known {
                track.past.add(point);
            }
        }
    }

    /// Orders all future work of `stream` after `point`.
    pub(crate) fn join_point(&mut self, stream: StreamId, point: Point) {
        let mut past = Past::default();
        past.add(point);
        self.join(stream, &past);
    }

    /// The host knows that all of `past` is done.
    pub(crate) fn observe(&mut self, past: &Past) {
        for point in past.points() {
            if let Some(track) = self.tracks.get_mut(&point.stream) {
                track.observed = track.observed.max(point.time);
            }
        }
    }

    /// The host has synchronised with all of `past`.
    pub(crate) fn synchronise(&mut self, past: &Past) {
        self.observe(past);
        let mut news = false;
        for point in past.points() {
            if let Some(track) = self.tracks.get_mut(&point.stream)
                && track.synchronised < point.time
            {
                track.synchronised = point.time;
                news = true;
            }
        }
        if news {
            self.epoch += 1;
            self.forget_finished();
        }
    }

    pub(crate) fn is_observed(&self, point: Point) -> bool {
        self.tracks
            .get(&point.stream)
            .is_none_or(|track| track.observed >= point.time)
    }

    pub(crate) fn is_synchronised(&self, point: Point) -> bool {
        self.tracks
            .get(&point.stream)
            .is_none_or(|track| track.synchronised >= point.time)
    }

    /// Whether the next submission to `stream` comes after `point` by stream order alone.
    pub(crate) fn follows(&self, stream: StreamId, point: Point) -> bool {
        let track = self.tracks.get(&stream);
        stream == point.stream || track.is_some_and(|track| track.past.contains(point))
    }

    /// The same, also counting what the host has observed before it submits.
    pub(crate) fn is_after(&self, stream: StreamId, point: Point) -> bool {
        self.is_observed(point) || self.follows(stream, point)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three() -> Clocks {
        let mut clocks = Clocks::default();
        for stream in 1..=3 {
            clocks.add(stream);
        }
        clocks
    }

    #[test]
    fn a_stream_is_after_itself_and_not_after_others() {
        let mut clocks = three();
        let point = clocks.tick(1);
        assert!(clocks.is_after(1, point));
        assert!(!clocks.is_after(2, point));
        assert!(!clocks.is_observed(point));
    }

    #[test]
    fn an_event_orders_what_came_before_it_only() {
        let mut clocks = three();
        let before = clocks.tick(1);
        let event = clocks.past(1);
        let behind = clocks.tick(1);
        clocks.join(2, &event);
        assert!(clocks.is_after(2, before));
        assert!(!clocks.is_after(2, behind));
    }

    #[test]
    fn order_is_transitive() {
        let mut clocks = three();
        let point = clocks.tick(1);
        clocks.join(2, &clocks.past(1));
        clocks.tick(2);
        clocks.join(3, &clocks.past(2));
        assert!(clocks.is_after(3, point));
    }

    #[test]
    fn what_the_host_saw_is_before_everything() {
        let mut clocks = three();
        let point = clocks.tick(1);
        clocks.join(2, &clocks.past(1));
        clocks.observe(&clocks.past(2));
        assert!(clocks.is_observed(point), "through stream 2");
        assert!(clocks.is_after(3, point) && !clocks.follows(3, point));
        let later = clocks.tick(1);
        assert!(!clocks.is_after(3, later));
    }

    #[test]
    fn knowing_is_less_than_synchronising() {
        let mut clocks = three();
        let point = clocks.tick(1);
        clocks.join(2, &clocks.past(1));
        let epoch = clocks.epoch();
        clocks.observe(&clocks.past(1));
        assert!(!clocks.is_synchronised(point));
        assert!(clocks.follows(2, point), "still known");
        assert_eq!(clocks.epoch(), epoch);
        clocks.synchronise(&clocks.past(2));
        assert!(clocks.is_synchronised(point));
        assert_ne!(clocks.epoch(), epoch);
    }

    #[test]
    fn a_retired_stream_is_remembered_until_the_host_saw_its_end() {
        let mut clocks = three();
        let point = clocks.tick(1);
        let past = clocks.past(1);
        clocks.retire(1);
        assert!(!clocks.is_observed(point));
        clocks.synchronise(&past);
        assert!(clocks.is_synchronised(point));
        assert!(!clocks.tracks.contains_key(&1));
    }
}

//! The lanes of an arena: which stream has which, and what becomes of one when its stream ends.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use cuda_driver_sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};

use super::counters::Counters;
use super::course::Course;
use super::lane::Lane;
use super::lock::Lock;
use super::owners::LaneId;
use super::{Inner, count, thread};
use crate::error::{Error, Result};
use crate::pool::ReusePolicy;
use crate::stream::{Follower, Stream};

/// A lane, on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Slot {
    pub(super) lock: Lock<Lane>,
    pub(super) counters: Counters,
}

/// Whose a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// A stream's, by its number.
    Stream(u64),
    /// That of the legacy default stream of a context, which everybody may make handles of.
    Legacy(usize),
}

impl Key {
    fn of(stream: &Stream) -> Self {
        if stream.as_raw() == CU_STREAM_LEGACY {
            Self::Legacy(stream.context().as_raw().addr())
        } else {
            Self::Stream(stream.number())
        }
    }
}

/// What is used by one thread at a time, seldom.
#[derive(Debug, Default)]
pub(super) struct Centre {
    by_stream: HashMap<Key, LaneId>,
    /// By the number of the lane.
    pub(super) courses: Vec<Course>,
    /// Lanes whose streams have ended.
    orphans: Vec<LaneId>,
}

impl Inner {
    /// The stream's lane. A stream that is new takes over that of one which has ended, with all memory in it,
    /// if there is one.
    pub(super) fn lane_of(self: &Arc<Self>, stream: &Stream) -> Result<LaneId> {
        if let Some(device) = self.device
            && stream.device() != device
            && !self.properties.reaches(stream.device())
        {
            return Err(Error::invalid(format!(
                "{stream:?} is of a device that does not reach the memory of {self:?}"
            )));
        }
        // A thread's own stream is named on that thread only.
        drop(stream.enter()?);
        let key = Key::of(stream);
        let mut centre = self.centre();
        let known = centre.by_stream.get(&key).copied();
        let id = match known {
            Some(id) => id,
            None => {
                let id = self
                    .adopt(&mut centre, stream)
                    .unwrap_or_else(|| self.new_lane(&mut centre));
                centre.courses[id as usize].serve(stream);
                centre.by_stream.insert(key, id);
                id
            }
        };
        drop(centre);
        if known.is_none() && matches!(key, Key::Stream(_)) {
            let follower: Weak<Self> = Arc::downgrade(self);
            stream.follow(follower);
        }
        // What only one thread may name is not at hand, so that each use is checked.
        if stream.as_raw() != CU_STREAM_PER_THREAD {
            let note = u64::from(self.number) << 32 | u64::from(id);
            stream.slot(self.number).store(note, Ordering::Relaxed);
        }
        Ok(id)
    }

    fn new_lane(&self, centre: &mut Centre) -> LaneId {
        let id = self.lanes.push(Slot {
            lock: Lock::new(thread::number(), Lane::default()),
            counters: Counters::default(),
        });
        centre.courses.push(Course::new(&self.seldom.calls));
        id as LaneId
    }

    /// A lane whose stream has ended, if all that was in it comes before what is in `stream` from now on.
    fn adopt(&self, centre: &mut Centre, stream: &Stream) -> Option<LaneId> {
        for place in 0..centre.orphans.len() {
            let id = centre.orphans[place];
            let last = self.slot(id).lock.lock(thread::number()).epoch() - 1;
            let course = &mut centre.courses[id as usize];
            let seen = course.settle();
            let ready = if seen.done > last {
                true
            } else if seen.marked > last
                && self
                    .reuse
                    .contains(ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES)
            {
                count(&self.seldom.waits);
                course.hold_back(stream, last).is_ok()
            } else {
                false
            };
            if ready {
                centre.orphans.swap_remove(place);
                return Some(id);
            }
        }
        None
    }
}

impl Follower for Inner {
    fn stream_ends(&self, number: u64) {
        let mut centre = self.centre();
        let Some(id) = centre.by_stream.remove(&Key::Stream(number)) else {
            return;
        };
        let ended = self.slot(id).lock.lock(thread::number()).end_epoch();
        let course = &mut centre.courses[id as usize];
        course.ended(ended);
        course.leave();
        centre.orphans.push(id);
    }
}

//! The lanes of an arena: which stream has which, and what becomes of one when its stream ends.

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cuda_driver_sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};

use super::course::Course;
use super::owners::LaneId;
use super::{Inner, thread};
use crate::deferred::ResourceCall;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::progress;
use crate::resource::CAPTURED;
use crate::stream::{Follower, Reach, Stream};

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

/// The centre, apart from the rest of the arena: streams have to be heard when they end also while that is
/// on its way out.
#[derive(Debug, Default)]
pub(super) struct Hall(Mutex<Centre>);

impl Hall {
    pub(super) fn centre(&self) -> CentreGuard<'_> {
        CentreGuard {
            _call: ResourceCall::enter(),
            centre: self.0.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// The centre, for one thread. Marks that go meanwhile may let go of the last handle of a context; what waits for its
/// end may need the centre, and is not released here.
pub(super) struct CentreGuard<'a> {
    centre: MutexGuard<'a, Centre>,
    _call: ResourceCall,
}

impl Deref for CentreGuard<'_> {
    type Target = Centre;

    fn deref(&self) -> &Centre {
        &self.centre
    }
}

impl DerefMut for CentreGuard<'_> {
    fn deref_mut(&mut self) -> &mut Centre {
        &mut self.centre
    }
}

impl Reach for Inner {
    fn require_reach(&self, device: Device) -> Result<()> {
        if self.device.is_none_or(|own| own == device) || self.properties.reaches(device) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "{device} does not reach the memory of {self}"
        )))
    }
}

impl Inner {
    /// The stream's lane. A stream that is new takes over that of one which has ended, with all memory in it,
    /// if there is one. Whatever may not use the arena is refused here.
    pub(super) fn lane_of(&self, stream: &Stream) -> Result<LaneId> {
        stream.as_ref().require_reach(self)?;
        if !stream.context().is_primary() {
            // An arena keeps marks, and with them contexts, longer than the maker of this one can know.
            return Err(Error::not_supported(format!(
                "{stream} is of a context that was handed in; an arena takes streams of primary contexts"
            )));
        }
        stream.as_ref().refuse_captured(CAPTURED)?;
        let key = Key::of(stream);
        let mut centre = self.centre();
        let known = centre.by_stream.get(&key).copied();
        let id = match known {
            Some(id) => id,
            None => {
                let id = self
                    .adopt(&mut centre, stream)
                    .unwrap_or_else(|| self.new_lane(&mut centre));
                let course = &mut centre.courses[id as usize];
                course.serve(stream);
                self.note_done(course, id);
                centre.by_stream.insert(key, id);
                id
            }
        };
        drop(centre);
        if known.is_none() && matches!(key, Key::Stream(_)) {
            let hall: Weak<Hall> = Arc::downgrade(&self.hall);
            stream.follow(hall);
        }
        // What only one thread may name is not at hand, so that each use is checked.
        if stream.as_raw() != CU_STREAM_PER_THREAD {
            let note = u64::from(self.number) << 32 | u64::from(id);
            stream.slot(self.number).store(note, Ordering::Relaxed);
        }
        Ok(id)
    }

    fn new_lane(&self, centre: &mut Centre) -> LaneId {
        let id = self.lanes.push(thread::number());
        centre.courses.push(Course::new(&self.calls));
        if id > 0 {
            let mut commons = self.commons.lock(thread::number());
            commons.share(0, progress::now());
        }
        self.limit_fronts();
        id
    }

    /// A lane whose stream has ended, if all that was in it comes before what is in `stream` from now on.
    fn adopt(&self, centre: &mut Centre, stream: &Stream) -> Option<LaneId> {
        let may_wait = self.may_wait();
        for place in 0..centre.orphans.len() {
            let id = centre.orphans[place];
            let course = &mut centre.courses[id as usize];
            let mut ready = course.settle() == u64::MAX;
            if !ready && may_wait {
                ready = course.hold_back_last(stream).unwrap_or(false);
            }
            if ready {
                centre.orphans.swap_remove(place);
                return Some(id);
            }
        }
        None
    }
}

impl Follower for Hall {
    fn stream_ends(&self, number: u64) {
        let mut centre = self.centre();
        let Some(id) = centre.by_stream.remove(&Key::Stream(number)) else {
            return;
        };
        let course = &mut centre.courses[id as usize];
        course.leave();
        centre.orphans.push(id);
    }
}

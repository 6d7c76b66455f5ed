//! The end of an arena.

use std::sync::Arc;

use super::Inner;
use super::course::Course;
use super::ground::Ground;
use crate::deferred::{self, Deferred, Outcome};
use crate::error::{Error, ErrorKind};
use crate::ledger;
use crate::report;

/// The memory of an arena without handles, and the marks behind which nobody uses it.
#[derive(Debug)]
struct Remains {
    ground: Arc<Ground>,
    courses: Vec<Course>,
}

impl Deferred for Remains {
    fn name(&self) -> &'static str {
        "arena"
    }

    fn try_release(&mut self) -> Outcome {
        if self.courses.iter().any(Course::is_lost) {
            // Nobody will know when it is not in use any more, so it stays.
            return Outcome::GivenUp(Error::memory_in_use());
        }
        if !self.courses.iter_mut().all(Course::is_over) {
            return Outcome::NotYet;
        }
        let mut failed = None;
        for chunk in self.ground.chunks_in(0, u64::MAX) {
            // SAFETY: the arena has no handles, so nobody has anything of it, and all marks are done.
            match unsafe { self.ground.release(chunk) } {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Capturing => return Outcome::NotYet,
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => Outcome::GivenUp(error),
            None => Outcome::Done,
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a fork it is the parent's.
        if report::is_forked() {
            return;
        }
        ledger::ended(&self.item());
        // Streams that end meanwhile wait for this, and find nothing of theirs afterwards.
        let centre = {
            let mut centre = self.hall.centre();
            for course in &mut centre.courses {
                course.leave();
            }
            std::mem::take(&mut *centre)
        };
        let stats = self.stats();
        if stats.live_blocks > 0 {
            // Somebody has addresses without a handle. Their memory stays.
            let blocks = usize::try_from(stats.live_blocks).unwrap_or(usize::MAX);
            report::failed("arena", &Error::still_allocated(blocks, stats.live));
            return;
        }
        let remains = Remains {
            ground: Arc::clone(&self.ground),
            courses: centre.courses,
        };
        if let Err(error) = deferred::release_or_defer(Box::new(remains)) {
            report::failed("arena", &error);
        }
    }
}

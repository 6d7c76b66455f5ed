//! The end of an arena.

use std::sync::{Arc, PoisonError};

use super::Inner;
use super::course::Course;
use super::ground::Ground;
use crate::error::Error;
use crate::later::{self, Outcome, Pending};
use crate::report;

/// The memory of an arena without handles, and the marks behind which nobody uses it.
#[derive(Debug)]
struct Remains {
    ground: Arc<Ground>,
    courses: Vec<Course>,
}

impl Pending for Remains {
    fn name(&self) -> &'static str {
        "arena"
    }

    fn try_release(&mut self) -> Outcome {
        if !self.courses.iter_mut().all(Course::is_over) {
            return Outcome::NotYet;
        }
        for chunk in self.ground.chunks_in(0, u64::MAX) {
            // SAFETY: the arena has no handles, so nobody has anything of it, and all marks are done.
            if let Err(error) = unsafe { self.ground.release(chunk) } {
                return Outcome::GivenUp(error);
            }
        }
        Outcome::Done
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // In a fork it is the parent's.
        if report::is_forked() {
            return;
        }
        let stats = self.stats();
        if stats.live_blocks > 0 {
            // Somebody has addresses without a handle. Their memory stays.
            let blocks = usize::try_from(stats.live_blocks).unwrap_or(usize::MAX);
            report::failed("arena", &Error::still_allocated(blocks, stats.live));
            return;
        }
        let centre = self
            .centre
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let mut centre = std::mem::take(centre);
        for course in &mut centre.courses {
            course.leave();
        }
        let mut remains = Remains {
            ground: Arc::clone(&self.ground),
            courses: centre.courses,
        };
        match remains.try_release() {
            Outcome::Done => {}
            Outcome::NotYet | Outcome::Again(_) => later::keep(Box::new(remains)),
            Outcome::GivenUp(error) => report::failed("arena", &error),
        }
    }
}

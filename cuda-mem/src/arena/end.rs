//! The end of an arena.

use std::sync::Arc;

use super::Inner;
use super::course::Course;
use super::ground::Ground;
use crate::deferred::{self, Deferred, Outcome};
use crate::error::{Error, ErrorKind};
use crate::{ledger, progress, report};

/// The memory of an arena without handles, and the marks behind which nobody uses it.
#[derive(Debug)]
struct EndedArena {
    ground: Arc<Ground>,
    courses: Vec<Course>,
    /// When the arena ended.
    ticket: u64,
}

impl Deferred for EndedArena {
    fn name(&self) -> &'static str {
        "arena"
    }

    fn try_release(&mut self) -> Outcome {
        // What is over holds no context any more.
        let ended = self.ticket;
        self.courses.retain_mut(|course| !course.is_over(ended));
        if !self.courses.is_empty() {
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
        let centre = std::mem::take(&mut *self.hall.centre());
        let stats = self.stats();
        if stats.live_blocks > 0 {
            // Somebody has addresses without a handle. Their memory stays.
            let blocks = usize::try_from(stats.live_blocks).unwrap_or(usize::MAX);
            report::failed("arena", &Error::still_allocated(blocks, stats.live));
            return;
        }
        let ended = EndedArena {
            ground: Arc::clone(&self.ground),
            courses: centre.courses,
            ticket: progress::now(),
        };
        if let Err(error) = deferred::release_or_defer(Box::new(ended)) {
            report::failed("arena", &error);
        }
    }
}

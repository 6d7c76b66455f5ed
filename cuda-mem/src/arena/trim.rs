//! Memory that goes back before the arena ends.

use super::lanes::Centre;
use super::owners::LaneId;
use super::stamp::Stamp;
use super::{Inner, UNIT, count, thread};
use crate::error::Result;

impl Inner {
    fn look_at_all(&self, centre: &mut Centre) {
        for (id, course) in centre.courses.iter_mut().enumerate() {
            course.look_now();
            self.note_done(course, id as LaneId);
        }
    }

    /// Gives back chunks that nobody has anything of and whose end the host sees, until no more than `keep`
    /// bytes are held. Waits for nothing.
    pub(super) fn trim_to(&self, keep: u64) -> Result<()> {
        let me = thread::number();
        let mut centre = self.centre();
        if self.ground.reserved().current() <= keep {
            return Ok(());
        }
        self.look_at_all(&mut centre);
        for (id, _) in self.lanes.iter() {
            self.recover(&mut centre, id, None);
        }
        // What is gathered may have been in use until now, so that all are looked at again.
        self.gather();
        self.look_at_all(&mut centre);
        let mut places = self.commons.lock(me).done_pages();
        // From the far end, so that what is kept has no gaps.
        places.sort_unstable_by_key(|place| std::cmp::Reverse(place.start));
        for place in places {
            let (from, to) = (place.start * UNIT, (place.start + place.units) * UNIT);
            for chunk in self.ground.chunks_in(from, to).into_iter().rev() {
                if self.ground.reserved().current() <= keep {
                    return Ok(());
                }
                let (start, units) = (chunk.address / UNIT, chunk.bytes / UNIT);
                if !self.commons.lock(me).give_away(start, units, place.stamp) {
                    // Somebody took of it meanwhile.
                    break;
                }
                // SAFETY: the chunk is nowhere in the bookkeeping, and all that used it is done.
                let released = unsafe { self.ground.release(chunk) };
                if let Err(error) = released {
                    self.commons.lock(me).add(start, units, Stamp::FREE);
                    return Err(error);
                }
                count(&self.seldom.released);
            }
        }
        Ok(())
    }
}

//! Memory that goes back before the arena ends.

use super::ground::Chunk;
use super::lanes::Centre;
use super::owners::LaneId;
use super::stamp::Stamp;
use super::{Inner, UNIT, count, thread};
use crate::error::{Error, Result, took_effect};
use crate::{progress, report};

impl Inner {
    /// Looks how far every stream is.
    pub(super) fn look_at_all(&self, centre: &mut Centre) {
        for (id, course) in centre.courses.iter_mut().enumerate() {
            let newest = self.commons.lock(thread::number()).newest(id as LaneId);
            course.look_now(newest);
            self.note_done(course, id as LaneId);
        }
    }

    /// Gives back chunks that nobody has anything of and whose end the host sees, until no more than `keep`
    /// bytes are held. Waits for nothing, unless the upstream does.
    pub(super) fn trim_to(&self, keep: u64) -> Result<()> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        let _turn = self.ground.growing();
        self.trim(keep)
    }

    /// As [`trim_to`](Self::trim_to), by the thread whose turn it is to grow: one that finds too little must not miss
    /// what is on its way back.
    pub(super) fn trim(&self, keep: u64) -> Result<()> {
        let chunks = self.take_chunks(keep);
        // An upstream may do what it likes: with one, nothing is locked here.
        let mut failed = Ok(());
        for chunk in chunks {
            // SAFETY: the chunk is nowhere in the bookkeeping, and all that used it is done.
            let released = unsafe { self.ground.release(chunk) };
            if took_effect(&released) {
                count(&self.seldom.released);
            } else {
                self.add_to_commons(chunk.address / UNIT, chunk.bytes / UNIT, Stamp::FREE);
            }
            failed = failed.and(released);
        }
        failed
    }

    /// Takes chunks out of the bookkeeping that can be given back.
    fn take_chunks(&self, keep: u64) -> Vec<Chunk> {
        let me = thread::number();
        let mut centre = self.centre();
        let mut held = self.ground.reserved().current();
        let mut chunks = Vec::new();
        if held <= keep {
            return chunks;
        }
        // Memory may go only when the host has seen its end.
        self.commons.lock(me).share(0, progress::now());
        self.look_at_all(&mut centre);
        for (id, _) in self.lanes.iter() {
            self.recover(&mut centre, id, None, true);
        }
        // What is gathered may have been in use until now, so that all are looked at again.
        self.gather(true);
        self.look_at_all(&mut centre);
        self.take_done(&mut held, keep, &mut chunks);
        if self.lanes.count() <= 1 {
            self.commons.lock(me).unshare();
        }
        chunks
    }

    /// Takes chunks that nobody uses, until no more than `keep` bytes are held.
    fn take_done(&self, held: &mut u64, keep: u64, chunks: &mut Vec<Chunk>) {
        let me = thread::number();
        let mut places = self.commons.lock(me).done_pages();
        // From the far end, so that what is kept has no gaps.
        places.sort_unstable_by_key(|place| std::cmp::Reverse(place.start));
        for place in places {
            let (from, to) = (place.start * UNIT, (place.start + place.units) * UNIT);
            for chunk in self.ground.chunks_in(from, to).into_iter().rev() {
                if *held <= keep {
                    return;
                }
                let (start, units) = (chunk.address / UNIT, chunk.bytes / UNIT);
                let taken = self.commons.lock(me).give_away(start, units);
                if !taken {
                    // Somebody took of it meanwhile.
                    break;
                }
                *held = held.saturating_sub(chunk.bytes);
                chunks.push(chunk);
            }
        }
    }
}

//! Memory that goes back before the arena ends.

use super::{Inner, UNIT, count};
use crate::error::Result;

impl Inner {
    /// Gives back chunks that nobody has anything of and whose end the host sees, until no more than `keep`
    /// bytes are held. Waits for nothing.
    pub(super) fn trim_to(&self, keep: u64) -> Result<()> {
        let mut centre = self.centre();
        for run in self
            .survey(&mut centre, &self.by_free(), None, false)
            .iter()
            .rev()
        {
            // From the far end, so that what is kept has no gaps.
            let chunks = self.ground.chunks_in(run.start * UNIT, run.end * UNIT);
            for chunk in chunks.into_iter().rev() {
                if self.ground.reserved().current() <= keep {
                    return Ok(());
                }
                let part = run.part(chunk.address / UNIT, chunk.end() / UNIT);
                if !self.withdraw(&part) {
                    // Somebody took of it meanwhile.
                    continue;
                }
                self.owners.note(chunk.address, chunk.bytes, None);
                // SAFETY: the chunk is in no lane, and all that used it ended in epochs that are done.
                let released = unsafe { self.ground.release(chunk) };
                if let Err(error) = released {
                    self.return_run(&part);
                    return Err(error);
                }
                count(&self.seldom.released);
            }
        }
        Ok(())
    }
}

//! Requests of an arena that is observed. Its caches are noted in the slots of streams with a mark that the usual path does
//! not take for its own, so all requests come here, and the usual path need not ask.

#![forbid(unsafe_code)]

use std::alloc::Layout;
use std::sync::atomic::Ordering;

use super::page_map::CacheId;
use super::slow_path::For;
use super::{Inner, UNIT, UnknownBlock, units};
use crate::base::error::{Error, Result};
use crate::base::{origin, report};
use crate::stream::Stream;

impl Inner {
    /// The mark with which a cache is noted in a stream's slot. Arena numbers stay below 2³¹, so the two never collide.
    pub(super) fn note_mark(&self) -> u32 {
        if self.backing.observer.begin() {
            !self.number
        } else {
            self.number
        }
    }

    /// As [`noted_cache`](Self::noted_cache), for an arena that is observed.
    #[inline]
    fn noted_observed_cache(&self, stream: &Stream) -> Option<CacheId> {
        if report::is_forked() {
            return None;
        }
        // Acquire, as there.
        let note = stream.slot(self.number).load(Ordering::Acquire);
        ((note >> 32) as u32 == !self.number).then_some(note as u32)
    }

    /// The usual path of such an arena, so it is not cold; but never part of what other arenas run.
    #[inline(never)]
    #[track_caller]
    pub(super) fn allocate_observed(&self, layout: Layout, stream: &Stream) -> Result<u64> {
        let size = units(layout.size()).filter(|size| *size != 0);
        let found = self
            .noted_observed_cache(stream)
            .zip(size)
            .and_then(|(id, size)| self.try_allocate(id, size));
        let is_slow = found.is_none();
        let answer = match found {
            Some(start) => Ok(start * UNIT),
            None => {
                let answer = self.find_or_grow(layout, stream);
                self.report_unknown_blocks();
                answer
            }
        };
        let observer = &self.backing.observer;
        observer.answered(&answer, layout.size() as u64, stream, origin::current());
        // The next free records what calls the usual path makes.
        if is_slow {
            observer.calls(self.driver_calls());
        }
        answer
    }

    /// `size` is that of the block, in units.
    #[inline(never)]
    pub(super) fn deallocate_observed(
        &self,
        address: u64,
        layout: Layout,
        size: u32,
        stream: &Stream,
    ) -> Result<()> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        // What the stream may not do is refused before the free is recorded. A free that fails later is of no block.
        let id = match self.noted_observed_cache(stream) {
            Some(id) => id,
            None => self.cache_of(stream, For::Free)?,
        };
        let observer = &self.backing.observer;
        // From the free on, another thread may get the block.
        observer.frees(address, layout.size() as u64, stream);
        let freed = self.deallocate_in(id, address, size).unwrap_or_else(|| {
            let start = address / UNIT;
            Err(self.unknown(UnknownBlock { start }))
        });
        observer.calls(self.driver_calls());
        freed
    }
}

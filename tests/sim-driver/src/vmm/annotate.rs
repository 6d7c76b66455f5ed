//! Blocks that a program allocates from mapped memory itself, reported to the order sanitizer. The driver knows nothing
//! of them.

use std::collections::BTreeMap;

use cuda_driver_sys::{CUresult, CUstream};

use crate::clock::{Clocks, Point, StreamId};
use crate::export::{Answer, Call, INVALID_VALUE};
use crate::pool::Block;
use crate::sanitizer::{self, Access, Reports};
use crate::state::State;

/// Annotated blocks, and the last free at each address. Grows with the fragmentation of mapped memory, not with the
/// total number of blocks.
#[derive(Debug, Default)]
pub(crate) struct Annotations {
    live: BTreeMap<u64, Block>,
    /// End and last free of the ranges free now. They do not overlap.
    freed: BTreeMap<u64, (u64, Point)>,
}

impl Annotations {
    pub(crate) fn live(&self) -> u64 {
        self.live.len() as u64
    }

    /// The live blocks, by address.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (u64, &Block)> {
        self.live.iter().map(|(start, block)| (*start, block))
    }

    /// Start, end and last free of the ranges free now, by address.
    pub(crate) fn freed(&self) -> impl Iterator<Item = (u64, u64, Point)> {
        let all = self.freed.iter();
        all.map(|(start, (end, point))| (*start, *end, *point))
    }

    /// The live block that starts there.
    pub(crate) fn block_mut(&mut self, start: u64) -> Option<&mut Block> {
        self.live.get_mut(&start)
    }

    /// The last block that starts before `end`, if it extends beyond `start`.
    fn block_in(&self, start: u64, end: u64) -> Option<(u64, &Block)> {
        let (&at, block) = self.live.range(..end).next_back()?;
        (at + block.size > start).then_some((at, block))
    }

    fn freed_in(&self, start: u64, end: u64) -> Option<(u64, u64, Point)> {
        let (&at, &(freed, point)) = self.freed.range(..end).next_back()?;
        (freed > start).then_some((at, freed, point))
    }

    /// Removes a range from the free ranges; returns the frees in it, the last of each stream.
    fn carve(&mut self, start: u64, end: u64) -> Vec<Point> {
        let mut frees: Vec<Point> = Vec::new();
        while let Some((at, freed, point)) = self.freed_in(start, end) {
            self.freed.remove(&at);
            if freed > end {
                self.freed.insert(end, (freed, point));
            }
            if at < start {
                self.freed.insert(at, (start, point));
            }
            match frees.iter_mut().find(|old| old.stream == point.stream) {
                Some(old) => *old = point.max(*old),
                None => frees.push(point),
            }
        }
        frees
    }

    fn allocate(
        &mut self,
        reports: &mut Reports,
        clocks: &Clocks,
        (start, size): (u64, u64),
        at: Point,
    ) -> Answer {
        let (end, stream) = (start + size, at.stream);
        if let Some((other, block)) = self.block_in(start, end) {
            reports.add(format!(
                "overlap: {size} bytes at {start:#x} allocated on stream {stream:#x}, where a block \
                 of {} bytes at {other:#x} is alive, of stream {:#x}",
                block.size, block.allocated.stream
            ));
            return Err(INVALID_VALUE);
        }
        for freed in self.carve(start, end) {
            if !clocks.is_after(stream, freed) {
                reports.add(format!(
                    "reuse before free: {size} bytes at {start:#x} allocated on stream {stream:#x}, \
                     not ordered after a free there on stream {:#x}",
                    freed.stream
                ));
            }
        }
        self.live.insert(start, Block::new(size, at));
        Ok(())
    }

    /// False if there is no such block.
    fn free(
        &mut self,
        reports: &mut Reports,
        clocks: &Clocks,
        (start, size): (u64, u64),
        at: Point,
    ) -> bool {
        let is_known = self
            .live
            .get(&start)
            .is_some_and(|block| block.size == size);
        let Some(block) = is_known.then(|| self.live.remove(&start)).flatten() else {
            return false;
        };
        sanitizer::free(reports, clocks, start, &block, at.stream);
        self.freed.insert(start, (start + size, at));
        true
    }

    /// Checks a copy or fill. An access that touches neither a block nor a former one is ignored.
    pub(super) fn access(&mut self, reports: &mut Reports, clocks: &Clocks, access: Access) {
        let (start, end) = (access.address, access.address + access.len);
        if let Some((at, _)) = self.block_in(start, start + 1) {
            if let Some(block) = self.live.get_mut(&at) {
                sanitizer::access(reports, clocks, at, block, access);
            }
            return;
        }
        if let Some((.., freed)) = self.freed_in(start, end) {
            sanitizer::access_after_free(reports, access, Some(freed));
        }
        for (at, block) in self.live.range_mut(start..end) {
            sanitizer::runs_into(reports, access, *at, block.size);
            sanitizer::remember(&mut block.accesses, access.at);
        }
    }

    /// The memory is unmapped, with its annotations.
    pub(super) fn unmap(&mut self, reports: &mut Reports, clocks: &Clocks, start: u64, end: u64) {
        while let Some((at, block)) = self.block_in(start, end) {
            reports.add(format!(
                "unmap of a live block: {} bytes at {at:#x}, allocated on stream {:#x}",
                block.size, block.allocated.stream
            ));
            self.live.remove(&at);
        }
        for freed in self.carve(start, end) {
            if !clocks.is_observed(freed) {
                reports.add(format!(
                    "unmap before free: memory from {start:#x} to {end:#x} unmapped by the host, \
                     which has not seen a free there on stream {:#x} done",
                    freed.stream
                ));
            }
        }
    }
}

impl State {
    /// The point of an annotation in its stream, if the whole range is mapped.
    fn annotation(&mut self, start: u64, size: u64, stream: CUstream) -> Answer<Point> {
        let id: StreamId = self.resolve(stream, Call { per_thread: false })?;
        let end = start.checked_add(size).ok_or(INVALID_VALUE)?;
        let mut at = start;
        while at < end {
            let Some((view_start, view)) = self.view(at) else {
                self.reports.add(format!(
                    "not mapped: a block of {size} bytes at {start:#x} on stream {id:#x}, with \
                     nothing at {at:#x}"
                ));
                return Err(INVALID_VALUE);
            };
            at = view_start + view.len;
        }
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        if self.is_recording(id)? {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        self.begin(id)
    }

    /// Makes the range a block from this point of the stream on.
    pub(crate) fn annotate_allocate(&mut self, start: u64, size: u64, stream: CUstream) -> Answer {
        let at = self.annotation(start, size, stream)?;
        let Self {
            vmm,
            clocks,
            reports,
            ..
        } = self;
        vmm.annotations.allocate(reports, clocks, (start, size), at)
    }

    /// Ends the block at this point of the stream.
    pub(crate) fn annotate_free(&mut self, start: u64, size: u64, stream: CUstream) -> Answer {
        let at = self.annotation(start, size, stream)?;
        let Self {
            vmm,
            clocks,
            reports,
            ..
        } = self;
        if vmm.annotations.free(reports, clocks, (start, size), at) {
            return Ok(());
        }
        self.reports.add(format!(
            "wrong free: {size} bytes at {start:#x}, freed by stream {:#x}, are no live block",
            at.stream
        ));
        Err(INVALID_VALUE)
    }
}

//! The order sanitizer: memory may be accessed only between its allocation and its free, in stream order. No real
//! driver checks that.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use cuda_sim_support::settings::machine_folder;

use crate::clock::{Clocks, Point, StreamId};
use crate::logs;
use crate::pool::Block;
use crate::state::State;

/// Number of reports kept; all are counted.
const KEPT: usize = 1000;

/// Reports of violations.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    lines: Vec<String>,
    count: u64,
    /// Of launches whose accesses are not all known yet.
    unfinished: Vec<Weak<UnorderedFrees>>,
}

/// Frees submitted before a kernel has run that are not ordered after it. They are wrong if it accesses the memory.
#[derive(Debug)]
pub(crate) struct UnorderedFrees {
    /// The launch.
    at: Point,
    found: Mutex<Vec<UnorderedFree>>,
}

#[derive(Clone, Copy, Debug)]
struct UnorderedFree {
    start: u64,
    allocated: Point,
    by: FreedBy,
}

/// Who frees memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FreedBy {
    Stream(StreamId),
    Host,
}

impl UnorderedFrees {
    fn lock(&self) -> MutexGuard<'_, Vec<UnorderedFree>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who freed this block, the first time it is asked.
    pub(crate) fn take(&self, start: u64, allocated: Point) -> Option<FreedBy> {
        let mut found = self.lock();
        let place = found
            .iter()
            .position(|free| free.start == start && free.allocated == allocated)?;
        Some(found.swap_remove(place).by)
    }
}

impl Reports {
    pub(crate) fn add(&mut self, line: String) {
        self.count += 1;
        // A test with a machine of its own may never ask.
        if self.lines.len() < KEPT && machine_folder().is_some() {
            logs::say(&line);
        }
        if self.lines.len() < KEPT {
            self.lines.push(line);
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn line(&self, index: usize) -> Option<&str> {
        self.lines.get(index).map(String::as_str)
    }

    pub(crate) fn clear(&mut self) {
        self.lines.clear();
        self.count = 0;
    }

    /// Collects the frees that are not ordered after a launch, as long as the result lives.
    pub(crate) fn watch_frees(&mut self, at: Point) -> Arc<UnorderedFrees> {
        let frees = Arc::new(UnorderedFrees {
            at,
            found: Mutex::default(),
        });
        self.unfinished.retain(|other| other.strong_count() > 0);
        self.unfinished.push(Arc::downgrade(&frees));
        frees
    }

    /// A block was freed. Launches that have accessed it already are reported with the free.
    fn note_free(
        &mut self,
        start: u64,
        block: &Block,
        by: FreedBy,
        is_ordered: impl Fn(Point) -> bool,
    ) {
        for frees in self.unfinished.iter().filter_map(Weak::upgrade) {
            if !is_ordered(frees.at) && !block.accesses.contains(&frees.at) {
                frees.lock().push(UnorderedFree {
                    start,
                    allocated: block.allocated,
                    by,
                });
            }
        }
    }
}

/// A memory access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    /// `copy from`, `copy to`, `memset`, `kernel read`, `kernel write`.
    pub(crate) what: &'static str,
    pub(crate) at: Point,
    pub(crate) address: u64,
    pub(crate) len: u64,
}

impl Access {
    pub(crate) fn writes(&self) -> bool {
        !matches!(self.what, "copy from" | "kernel read")
    }
}

/// Checks an access to a live block, and records it for the free.
pub(crate) fn access(
    reports: &mut Reports,
    clocks: &Clocks,
    start: u64,
    block: &mut Block,
    access: Access,
) {
    let size = block.size;
    if access.address + access.len > start + size {
        out_of_bounds(reports, access, start, size);
    }
    if !clocks.is_after(access.at.stream, block.allocated) {
        before_allocation(reports, access, start, size, block.allocated);
    }
    remember(&mut block.accesses, access.at);
}

/// Keeps the last access of each stream. Those of models become known late.
pub(crate) fn remember(accesses: &mut Vec<Point>, point: Point) {
    match accesses.iter_mut().find(|old| old.stream == point.stream) {
        Some(old) => *old = point.max(*old),
        None => accesses.push(point),
    }
}

/// Reports an access that begins in a block and does not end there.
pub(crate) fn out_of_bounds(reports: &mut Reports, access: Access, start: u64, size: u64) {
    beyond(reports, access, "past", start, size);
}

/// Reports an access that begins before a block.
pub(crate) fn runs_into(reports: &mut Reports, access: Access, start: u64, size: u64) {
    beyond(reports, access, "into", start, size);
}

fn beyond(reports: &mut Reports, access: Access, way: &str, start: u64, size: u64) {
    let Access {
        what,
        at,
        address,
        len,
    } = access;
    reports.add(format!(
        "out of bounds: {what} {len} bytes at {address:#x} on stream {:#x} runs {way} the block of \
         {size} bytes at {start:#x}",
        at.stream
    ));
}

/// Reports an access that its stream does not order after the allocation.
pub(crate) fn before_allocation(
    reports: &mut Reports,
    access: Access,
    start: u64,
    size: u64,
    allocated: Point,
) {
    let Access {
        what,
        at,
        address,
        len,
    } = access;
    reports.add(format!(
        "before allocation: {what} {len} bytes at {address:#x} on stream {:#x} is not ordered \
         after the allocation of {size} bytes at {start:#x} on stream {:#x}",
        at.stream, allocated.stream
    ));
}

/// Reports a free that is not ordered after an access.
pub(crate) fn free_before_access(
    reports: &mut Reports,
    start: u64,
    size: u64,
    by: FreedBy,
    access: Point,
) {
    let other = access.stream;
    reports.add(match by {
        FreedBy::Stream(stream) => format!(
            "free before access: {size} bytes at {start:#x} freed on stream {stream:#x}, not \
             ordered after an access on stream {other:#x}"
        ),
        FreedBy::Host => format!(
            "free before access: {size} bytes at {start:#x} freed by the host, which has not seen \
             the work on stream {other:#x} done"
        ),
    });
}

/// Reports an access to freed memory.
pub(crate) fn access_after_free(reports: &mut Reports, access: Access, freed: Option<Point>) {
    let Access {
        what, address, len, ..
    } = access;
    let stream = access.at.stream;
    reports.add(match freed {
        Some(freed) => format!(
            "after free: {what} {len} bytes at {address:#x} on stream {stream:#x}, freed on \
             stream {:#x}",
            freed.stream
        ),
        None => format!(
            "after free: {what} {len} bytes at {address:#x} on stream {stream:#x}, freed and seen \
             freed by the host"
        ),
    });
}

/// Checks that a free on `stream` comes after the allocation and every access.
pub(crate) fn free(
    reports: &mut Reports,
    clocks: &Clocks,
    start: u64,
    block: &Block,
    stream: StreamId,
) {
    let size = block.size;
    if !clocks.is_after(stream, block.allocated) {
        reports.add(format!(
            "free before allocation: {size} bytes at {start:#x} freed on stream {stream:#x}, not \
             ordered after the allocation on stream {:#x}",
            block.allocated.stream
        ));
    }
    let by = FreedBy::Stream(stream);
    let is_ordered = |point| clocks.is_after(stream, point);
    for point in &block.accesses {
        if !is_ordered(*point) {
            free_before_access(reports, start, size, by, *point);
        }
    }
    reports.note_free(start, block, by, is_ordered);
}

/// As [`free`], for an immediate free: the host must have observed every access as done.
pub(crate) fn free_now(reports: &mut Reports, clocks: &Clocks, start: u64, block: &Block) {
    let is_observed = |point| clocks.is_observed(point);
    for point in block.accesses.iter().chain([&block.allocated]) {
        if !is_observed(*point) {
            free_before_access(reports, start, block.size, FreedBy::Host, *point);
        }
    }
    reports.note_free(start, block, FreedBy::Host, is_observed);
}

impl State {
    /// Reports a free of an address that is not a live block.
    pub(crate) fn report_wrong_free(&mut self, address: u64, stream: Option<StreamId>) {
        let stream = stream.map_or("the host".to_owned(), |id| format!("stream {id:#x}"));
        self.reports.add(format!(
            "wrong free: {address:#x}, freed by {stream}, is no live allocation"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_access_does_not_hide_a_later_one() {
        let point = |stream, time| Point { stream, time };
        let mut accesses = Vec::new();
        for (stream, time) in [(1, 5), (2, 1), (1, 3), (2, 4)] {
            remember(&mut accesses, point(stream, time));
        }
        assert_eq!(accesses, [point(1, 5), point(2, 4)]);
    }
}

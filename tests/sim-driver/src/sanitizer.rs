//! The order sanitizer: memory may be accessed only between its allocation and its free, in stream order. No real
//! driver checks that.

use crate::clock::{Clocks, Point, StreamId};
use crate::pool::Block;
use crate::state::State;

/// Number of reports kept; all are counted.
const KEPT: usize = 1000;

/// Reports of violations.
#[derive(Debug, Default)]
pub(crate) struct Reports {
    lines: Vec<String>,
    count: u64,
}

impl Reports {
    pub(crate) fn add(&mut self, line: String) {
        self.count += 1;
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
        *self = Self::default();
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
    let stream = access.at.stream;
    let Access {
        what, address, len, ..
    } = access;
    let size = block.size;
    if address + len > start + size {
        reports.add(format!(
            "out of bounds: {what} {len} bytes at {address:#x} on stream {stream:#x} runs past \
             the block of {size} bytes at {start:#x}"
        ));
    }
    if !clocks.is_after(stream, block.allocated) {
        reports.add(format!(
            "before allocation: {what} {len} bytes at {address:#x} on stream {stream:#x} is not \
             ordered after the allocation of {size} bytes at {start:#x} on stream {:#x}",
            block.allocated.stream
        ));
    }
    remember(&mut block.accesses, access.at);
}

/// Keeps the last access of each stream.
pub(crate) fn remember(accesses: &mut Vec<Point>, point: Point) {
    match accesses.iter_mut().find(|old| old.stream == point.stream) {
        Some(old) => *old = point,
        None => accesses.push(point),
    }
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
    for point in &block.accesses {
        if !clocks.is_after(stream, *point) {
            reports.add(format!(
                "free before access: {size} bytes at {start:#x} freed on stream {stream:#x}, not \
                 ordered after an access on stream {:#x}",
                point.stream
            ));
        }
    }
}

/// As [`free`], for an immediate free: the host must have observed every access as done.
pub(crate) fn free_now(reports: &mut Reports, clocks: &Clocks, start: u64, block: &Block) {
    let size = block.size;
    for point in block.accesses.iter().chain([&block.allocated]) {
        if !clocks.is_observed(*point) {
            reports.add(format!(
                "free before access: {size} bytes at {start:#x} freed by the host, which has not \
                 seen the work on stream {:#x} done",
                point.stream
            ));
        }
    }
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

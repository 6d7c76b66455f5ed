//! Copies and fills in reservations, and their records for the order sanitizer.

use super::{READ, READ_AND_WRITE};
use crate::clock::Point;
use crate::copy::By;
use crate::export::{Answer, INVALID_VALUE};
use crate::reach::{Extent, ExtentKind};
use crate::sanitizer::{Access, remember};
use crate::state::{State, state};

/// Reports work on memory that was unmapped after submission. A real device would stop the context; here the work is
/// skipped and reported.
pub(crate) fn report_unmapped(address: u64) {
    if let Ok(mut state) = state() {
        state.reports.add(format!(
            "after unmap: work at {address:#x} was left out, its memory was unmapped before it ran"
        ));
    }
}

impl State {
    /// Checks an access that starts in a reservation; `None` if it does not. It may cross into the next mapping.
    pub(crate) fn touch_mapped(&mut self, access: Access, by: By) -> Option<Answer> {
        let (_, reservation) = self.vmm.reservations.range(..=access.address).next_back()?;
        (access.address < reservation.base() + reservation.len())
            .then(|| self.touch_views(access, by))
    }

    fn touch_views(&mut self, access: Access, by: By) -> Answer {
        let device = match by {
            By::Stream(id) => self.stream(id)?.device,
            By::Device(device) | By::Named(device) => device,
        };
        // A guess: writing read-only memory fails like access to inaccessible memory.
        let needed = if access.writes() {
            READ_AND_WRITE
        } else {
            READ
        };
        let end = access.address + access.len;
        let mut at = access.address;
        let mut starts = Vec::new();
        while at < end {
            let (start, view) = self.view(at).ok_or(INVALID_VALUE)?;
            if view.access_of(device) & needed != needed {
                return Err(INVALID_VALUE);
            }
            starts.push(start);
            at = start + view.len;
        }
        let ends_fills = |at| self.vmm.views.get(at).is_some_and(|view| view.ends_fills);
        if starts.len() > 1 && access.what == "memset" && starts.iter().any(ends_fills) {
            return Err(INVALID_VALUE);
        }
        // Measured: otherwise fills may cross, and copies may if a context is current or they name theirs.
        if starts.len() > 1 && matches!(by, By::Device(_)) && self.current().is_err() {
            return Err(INVALID_VALUE);
        }
        for start in starts {
            self.note_access(start, access.at);
        }
        let annotations = &mut self.vmm.annotations;
        annotations.access(&mut self.reports, &self.clocks, access);
        Ok(())
    }

    /// The mappings that a device can access.
    pub(crate) fn views_of(&self, device: usize) -> impl Iterator<Item = Extent> {
        let views = self.vmm.views.iter();
        let open = views.filter(move |(_, view)| view.access_of(device) & READ != 0);
        open.map(move |(start, view)| Extent {
            start: *start,
            size: view.len,
            is_writable: view.access_of(device) & READ_AND_WRITE == READ_AND_WRITE,
            kind: ExtentKind::View,
        })
    }

    /// Records an access to the mapping.
    pub(crate) fn note_access(&mut self, start: u64, at: Point) {
        if let Some(view) = self.vmm.views.get_mut(&start) {
            remember(&mut view.accesses, at);
        }
    }

    /// Before an unmap: the host must have observed all work there as done, and the blocks in it as freed.
    pub(super) fn check_unmap(&mut self, start: u64, end: u64) {
        let Self {
            vmm,
            clocks,
            reports,
            ..
        } = self;
        for (at, view) in vmm.views.range(start..end) {
            for point in &view.accesses {
                if !clocks.is_observed(*point) {
                    reports.add(format!(
                        "unmap before access: {} bytes at {at:#x} unmapped by the host, which has \
                         not seen the work on stream {:#x} done",
                        view.len, point.stream
                    ));
                }
            }
        }
        vmm.annotations.unmap(reports, clocks, start, end);
    }
}

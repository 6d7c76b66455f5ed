//! Managed memory that a pool of no place released while it was on a device. Measured: what a device writes there
//! afterwards does not reach the host, until the page is prefetched or discarded, or the host has written it. Here it
//! does, but it is reported.

use cuda_sim_support::page::host_page;

use crate::copy::Side;
use crate::pool::Runs;
use crate::state::State;

/// Pages, as ranges of addresses. What the host writes is not seen here, so it changes nothing.
#[derive(Debug, Default)]
pub(crate) struct Released {
    /// On a device, and not released since.
    used: Runs,
    /// Released since.
    lost: Runs,
}

/// The pages that a range touches.
fn touched(start: u64, len: u64) -> (u64, u64) {
    let first = start - start % host_page();
    (first, (start + len).next_multiple_of(host_page()) - first)
}

/// The pages within a range.
fn within(start: u64, len: u64) -> (u64, u64) {
    let first = start.next_multiple_of(host_page());
    let end = start + len;
    (first, (end - end % host_page()).saturating_sub(first))
}

impl Released {
    fn bring(&mut self, start: u64, len: u64) {
        let (start, len) = touched(start, len);
        self.lost.remove(start, len);
        self.used.remove(start, len);
        self.used.add(start, len);
    }

    fn discard(&mut self, start: u64, len: u64) {
        let (start, len) = within(start, len);
        self.lost.remove(start, len);
        self.used.remove(start, len);
    }

    /// The pool releases memory.
    pub(crate) fn release(&mut self, start: u64, len: u64) {
        for (at, len) in self.used.parts(start, len) {
            self.used.remove(at, len);
            self.lost.remove(at, len);
            self.lost.add(at, len);
        }
    }

    /// The memory is nobody's any more.
    pub(crate) fn end(&mut self, start: u64, len: u64) {
        self.lost.remove(start, len);
        self.used.remove(start, len);
    }
}

impl State {
    /// Whether an address is in a managed pool of no place.
    fn may_lose_writes(&self, address: u64) -> bool {
        let pool = self.pool_at(address);
        pool.is_some_and(|(_, pool)| pool.properties.is_managed_anywhere())
    }

    /// A prefetch.
    pub(super) fn renew(&mut self, address: u64, len: usize) {
        if self.may_lose_writes(address) {
            self.released.bring(address, len as u64);
        }
    }

    pub(super) fn renew_within(&mut self, address: u64, len: usize) {
        if self.may_lose_writes(address) {
            self.released.discard(address, len as u64);
        }
    }

    /// A device writes.
    pub(super) fn report_lost_writes(&mut self, to: Side, len: usize) {
        let address = to.address();
        if len == 0 || matches!(to, Side::Host(_)) || !self.may_lose_writes(address) {
            return;
        }
        let (start, whole) = touched(address, len as u64);
        if !self.released.lost.parts(start, whole).is_empty() {
            self.reports.add(format!(
                "lost write: a device writes {len} B at {address:#x}, managed memory that its pool released since a \
                 device had it last. The host may not see them, unless the memory is prefetched or discarded first"
            ));
        }
        self.released.bring(address, len as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(released: &Released) -> Vec<(u64, u64)> {
        released.lost.iter().collect()
    }

    #[test]
    fn only_what_was_on_a_device_is_lost_and_a_discard_takes_whole_pages() {
        let mut released = Released::default();
        released.bring(100, 2 * host_page());
        released.release(0, 10 * host_page());
        assert_eq!(lost(&released), [(0, 3 * host_page())]);
        released.discard(0, 2 * host_page() + 5);
        assert_eq!(lost(&released), [(2 * host_page(), host_page())]);
        released.discard(2 * host_page() + 1, host_page());
        assert_eq!(lost(&released), [(2 * host_page(), host_page())]);
        released.bring(2 * host_page() + 1, 1);
        assert_eq!(lost(&released), []);
        released.release(3 * host_page(), host_page());
        assert_eq!(lost(&released), []);
        released.end(0, 10 * host_page());
        released.release(0, 10 * host_page());
        assert_eq!(lost(&released), []);
    }
}

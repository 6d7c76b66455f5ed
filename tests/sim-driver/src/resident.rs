//! Device memory occupied by managed memory. The bytes do not move; this only counts, so that a device reports what a
//! real one would.

use std::collections::BTreeMap;

/// Managed memory migrates in pieces of this size. A guess: the hardware was measured with whole blocks of 64 MiB.
const PIECE: u64 = 2 << 20;

/// The device that holds each piece, by the piece's number in the address space. Managed blocks start at a piece
/// boundary, or share a piece with other blocks in a slab.
#[derive(Debug, Default)]
pub(crate) struct Resident(BTreeMap<u64, usize>);

fn pieces(start: u64, len: u64) -> std::ops::Range<u64> {
    start / PIECE..(start + len).div_ceil(PIECE)
}

impl Resident {
    /// Makes this range resident on the device, and on no other.
    pub(crate) fn bring(&mut self, device: usize, start: u64, len: u64) {
        self.0
            .extend(pieces(start, len).map(|piece| (piece, device)));
    }

    /// Makes this range resident nowhere.
    pub(crate) fn end(&mut self, start: u64, len: u64) {
        let range = pieces(start, len);
        while let Some((&piece, _)) = self.0.range(range.clone()).next() {
            self.0.remove(&piece);
        }
    }

    /// Resident bytes on a device.
    pub(crate) fn bytes(&self, device: usize) -> u64 {
        let its = self.0.values().filter(|owner| **owner == device);
        its.count() as u64 * PIECE
    }

    /// Evicts memory until no more than `limit` bytes are resident on the device. Documented: managed memory gives way.
    /// A guess: which part goes first.
    pub(crate) fn shrink(&mut self, device: usize, limit: u64) {
        let mut excess = self.bytes(device).saturating_sub(limit).div_ceil(PIECE);
        self.0.retain(|_, owner| {
            let goes = excess > 0 && *owner == device;
            excess -= u64::from(goes);
            !goes
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_move_give_way_and_end() {
        let mut resident = Resident::default();
        resident.bring(0, 4 * PIECE, 3 * PIECE);
        resident.bring(0, 4 * PIECE + 5, 1);
        assert_eq!(resident.bytes(0), 3 * PIECE);
        resident.bring(1, 6 * PIECE - 1, 2);
        assert_eq!(
            [0, 1].map(|device| resident.bytes(device)),
            [PIECE, 2 * PIECE]
        );
        resident.shrink(1, 2 * PIECE - 1);
        assert_eq!([0, 1].map(|device| resident.bytes(device)), [PIECE, PIECE]);
        resident.shrink(0, PIECE);
        assert_eq!(resident.bytes(0), PIECE);
        resident.end(4 * PIECE, 3 * PIECE);
        assert_eq!([0, 1].map(|device| resident.bytes(device)), [0, 0]);
    }
}

//! Until when a free block was in use.
//!
//! Time is counted in tickets, one count for the whole arena: each mark that is set in a stream takes the
//! next one. A block that is given back notes the lane and the present ticket; it is free for all once
//! that lane's stream has passed a mark with that ticket or a later one.

#![forbid(unsafe_code)]

use super::owners::LaneId;

/// Who used a block last, and when. Kept small, because every node has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Stamp {
    pub(super) ticket: u64,
    /// 0: nobody. Without the highest bit: one lane, by its number plus one. With it: a set of lanes, by the
    /// remainders of their numbers.
    pub(super) users: u32,
}

const SET: u32 = 1 << 31;
/// Remainders that a set tells apart.
const REMAINDERS: u32 = 31;

impl Stamp {
    /// Free for every stream.
    pub(super) const FREE: Self = Self {
        ticket: 0,
        users: 0,
    };

    #[inline]
    pub(super) fn new(lane: LaneId, ticket: u64) -> Self {
        Self {
            ticket,
            users: lane + 1,
        }
    }

    #[inline]
    fn set(self) -> u32 {
        match self.users {
            0 => 0,
            users if users & SET != 0 => users,
            users => SET | 1 << ((users - 1) % REMAINDERS),
        }
    }

    /// The stamp of both blocks as one.
    #[inline]
    pub(super) fn and(self, other: Self) -> Self {
        if other.users == 0 {
            return self;
        }
        if self.users == 0 {
            return other;
        }
        Self {
            ticket: self.ticket.max(other.ticket),
            users: if self.users == other.users {
                self.users
            } else {
                self.set() | other.set()
            },
        }
    }

    /// Whether nobody but this lane used it.
    #[inline]
    pub(super) fn is_of(self, lane: LaneId) -> bool {
        self.users == 0 || self.users == lane + 1
    }

    /// The lanes that may have used it, of so many that there are, without `own` where it is sure that it is
    /// no other.
    pub(super) fn lanes(self, count: usize, own: LaneId) -> impl Iterator<Item = LaneId> {
        let set = self.users & SET != 0;
        let all = match self.users {
            0 => 0..0,
            _ if set => 0..count as LaneId,
            // There may be many lanes, and this is asked often.
            users => users - 1..users,
        };
        let alone = count <= REMAINDERS as usize;
        all.filter(move |lane| {
            let used = !set || self.users & 1 << (lane % REMAINDERS) != 0;
            used && !(*lane == own && (alone || !set))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::random::cases;
    use super::*;
    use proptest::prelude::*;

    fn lanes(stamp: Stamp, count: usize, own: LaneId) -> Vec<LaneId> {
        stamp.lanes(count, own).collect()
    }

    #[test]
    fn one_lane_stays_one_lane() {
        let stamp = Stamp::new(40, 7).and(Stamp::new(40, 9)).and(Stamp::FREE);
        assert_eq!((stamp.ticket, stamp.is_of(40)), (9, true));
        assert_eq!(lanes(stamp, 100, 3), [40]);
        assert!(lanes(stamp, 100, 40).is_empty());
        assert_eq!(Stamp::FREE.and(stamp), stamp);
    }

    #[test]
    fn no_lane_is_forgotten() {
        let stamp = Stamp::new(2, 5)
            .and(Stamp::new(40, 3))
            .and(Stamp::new(2, 1));
        assert_eq!(stamp.ticket, 5);
        assert!(!stamp.is_of(2));
        assert_eq!(lanes(stamp, 10, 2), [9], "40 leaves 9");
        let many = lanes(stamp, 100, 2);
        assert!(
            many.contains(&40) && many.contains(&2),
            "2 may stand for 33: {many:?}"
        );
        assert!(Stamp::FREE.is_of(1));
        assert!(lanes(Stamp::FREE, 100, 1).is_empty());
    }

    #[test]
    fn a_merged_stamp_covers_every_use_for_everybody() {
        let uses = prop::collection::vec((0_u32..100, 0_u64..20), 0..6);
        let order = any::<bool>();
        cases(2000, &(uses, order, 0_u32..100), |(uses, left, own)| {
            let mut stamp = Stamp::FREE;
            for (lane, ticket) in &uses {
                let new = Stamp::new(*lane, *ticket);
                stamp = if left { stamp.and(new) } else { new.and(stamp) };
            }
            let others = uses.iter().any(|(lane, _)| *lane != own);
            prop_assert!(
                !others || !stamp.is_of(own),
                "{stamp:?} is not {own}'s alone"
            );
            let last = uses.iter().map(|(_, ticket)| *ticket).max();
            prop_assert_eq!(stamp.ticket, last.unwrap_or(0));
            let most = uses.iter().map(|(lane, _)| *lane + 1).max().unwrap_or(0);
            for count in [most, most + 1, 30, 31, 32, 100] {
                let told: Vec<_> = stamp.lanes(count as usize, own).collect();
                prop_assert!(told.is_sorted_by(|a, b| a < b), "each once: {:?}", told);
                for (lane, _) in uses.iter().filter(|(lane, _)| *lane < count) {
                    prop_assert!(
                        *lane == own || told.contains(lane),
                        "{stamp:?} forgets {lane} of {count} for {own}"
                    );
                    // Its own number may stand for another one.
                    let another = uses
                        .iter()
                        .any(|(user, _)| user % 31 == lane % 31 && user != lane);
                    prop_assert!(
                        !(count > most && another) || told.iter().any(|user| user != lane)
                    );
                }
            }
            Ok(())
        });
    }
}

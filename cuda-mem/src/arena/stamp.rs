//! Until when a free block was in use.
//!
//! A block that is given back notes the lane and the present ticket ([`progress`](crate::progress)); it is free for all
//! once that lane's stream has passed a mark with that ticket or a later one. A free block has one last user or none:
//! blocks of two users are not merged, so no block is left that neither of them may use.

#![forbid(unsafe_code)]

use super::owners::LaneId;

/// Who used a block last, and when. Kept small, because every node has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Stamp {
    pub(super) ticket: u64,
    /// The lane's number plus one; 0: nobody.
    pub(super) user: u32,
}

impl Stamp {
    /// Free for every stream.
    pub(super) const FREE: Self = Self { ticket: 0, user: 0 };

    #[inline]
    pub(super) fn new(lane: LaneId, ticket: u64) -> Self {
        Self {
            ticket,
            user: lane + 1,
        }
    }

    /// The stamp of both blocks as one, if they may be one.
    #[inline]
    pub(super) fn join(self, other: Self) -> Option<Self> {
        (self.user == other.user).then(|| Self {
            ticket: self.ticket.max(other.ticket),
            user: self.user,
        })
    }

    /// Whether this lane's stream may use it at once.
    #[inline]
    pub(super) fn is_usable_by(self, lane: LaneId) -> bool {
        self.user == 0 || self.user == lane + 1
    }

    /// The lane that used it last.
    #[inline]
    pub(super) fn lane(self) -> Option<LaneId> {
        self.user.checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_one_user_are_one() {
        let joined = Stamp::new(40, 7).join(Stamp::new(40, 9));
        assert_eq!(joined, Some(Stamp::new(40, 9)));
        assert_eq!(Stamp::FREE.join(Stamp::FREE), Some(Stamp::FREE));
    }

    #[test]
    fn blocks_of_two_users_stay_two() {
        assert_eq!(Stamp::new(1, 7).join(Stamp::new(2, 7)), None);
        assert_eq!(Stamp::FREE.join(Stamp::new(2, 7)), None);
        assert_eq!(Stamp::new(2, 7).join(Stamp::FREE), None);
    }

    #[test]
    fn a_block_is_its_last_users_or_everybodys() {
        assert!(Stamp::FREE.is_usable_by(3) && Stamp::FREE.lane().is_none());
        let used = Stamp::new(3, 1);
        assert!(used.is_usable_by(3) && !used.is_usable_by(2));
        assert_eq!(used.lane(), Some(3));
    }
}

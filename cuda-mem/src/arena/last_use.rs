//! The last use of a free block.
//!
//! A freed block records the stream's cache and the current epoch ([`epoch`](crate::stream::epoch)). Any stream may use
//! it once that cache's stream has passed an event of that epoch or a later one. A free block has one last user or
//! none: blocks of two users are not merged, because neither of them could use the result at once.

#![forbid(unsafe_code)]

use super::page_map::CacheId;

/// Which stream used a block last, and until which epoch. Kept small, because every header has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct LastUse {
    pub(super) epoch: u64,
    /// The cache's number plus one; 0 for none.
    pub(super) user: u32,
}

impl LastUse {
    /// Free for every stream.
    pub(super) const FREE: Self = Self { epoch: 0, user: 0 };

    #[inline]
    pub(super) fn new(cache: CacheId, epoch: u64) -> Self {
        Self {
            epoch,
            user: cache + 1,
        }
    }

    /// The last use of two merged blocks, if they may merge.
    #[inline]
    pub(super) fn join(self, other: Self) -> Option<Self> {
        (self.user == other.user).then(|| Self {
            epoch: self.epoch.max(other.epoch),
            user: self.user,
        })
    }

    /// Whether this cache's stream may use it at once.
    #[inline]
    pub(super) fn is_usable_by(self, cache: CacheId) -> bool {
        self.user == 0 || self.user == cache + 1
    }

    /// The cache that used it last.
    #[inline]
    pub(super) fn cache(self) -> Option<CacheId> {
        self.user.checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_one_user_are_one() {
        let joined = LastUse::new(40, 7).join(LastUse::new(40, 9));
        assert_eq!(joined, Some(LastUse::new(40, 9)));
        assert_eq!(LastUse::FREE.join(LastUse::FREE), Some(LastUse::FREE));
    }

    #[test]
    fn blocks_of_two_users_stay_two() {
        assert_eq!(LastUse::new(1, 7).join(LastUse::new(2, 7)), None);
        assert_eq!(LastUse::FREE.join(LastUse::new(2, 7)), None);
        assert_eq!(LastUse::new(2, 7).join(LastUse::FREE), None);
    }

    #[test]
    fn a_block_is_its_last_users_or_everybodys() {
        assert!(LastUse::FREE.is_usable_by(3) && LastUse::FREE.cache().is_none());
        let used = LastUse::new(3, 1);
        assert!(used.is_usable_by(3) && !used.is_usable_by(2));
        assert_eq!(used.cache(), Some(3));
    }
}

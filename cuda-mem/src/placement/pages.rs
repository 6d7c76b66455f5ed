//! Classes of page sizes, and rounding to them.

#![forbid(unsafe_code)]

use std::fmt;

use crate::base::error::Bytes;

pub(super) const TWO_MIB: u64 = 2 << 20;

/// The largest request: larger than any address space, and rounding up to a page cannot overflow.
pub(super) const LIMIT: u64 = 1 << 62;

/// The page size of memory, in the three classes that GPUs have in common.
///
/// ```
/// use cuda_mem::placement::PageClass;
///
/// assert_eq!(PageClass::of(100), PageClass::Small);
/// assert_eq!(PageClass::of(64 << 10), PageClass::Big);
/// assert_eq!(PageClass::of(5 << 20), PageClass::Huge);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum PageClass {
    /// 4 KiB, for less than 64 KiB.
    Small,
    /// 64 KiB, for less than 2 MiB.
    Big,
    /// 2 MiB or more, for the rest.
    Huge,
}

impl PageClass {
    /// The page class for this many bytes of device memory.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        [Self::Huge, Self::Big]
            .into_iter()
            .find(|class| class.bytes() <= bytes)
            .unwrap_or(Self::Small)
    }

    /// The minimum page size of this class, in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Small => 4 << 10,
            Self::Big => 64 << 10,
            Self::Huge => TWO_MIB,
        }
    }
}

impl fmt::Display for PageClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "class of {} pages", Bytes(self.bytes()))
    }
}

/// Rounds `bytes` up to whole pages. `bytes` is at most [`LIMIT`] and `page` a power of two that is no larger, so this
/// cannot overflow.
pub(super) fn whole(bytes: u64, page: u64) -> u64 {
    bytes.next_multiple_of(page)
}

/// Rounds `bytes` up to whole pages of 4 KiB or 64 KiB, as device memory does. The policy compares this with its
/// limits, so that rounding up cannot exceed one.
pub(super) fn counted(bytes: u64) -> u64 {
    whole(bytes, PageClass::of(bytes).min(PageClass::Big).bytes())
}

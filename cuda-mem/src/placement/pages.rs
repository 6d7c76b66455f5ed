//! Classes of page sizes, and rounding to them.

#![forbid(unsafe_code)]

use std::fmt;

use crate::base::error::Bytes;

pub(super) const TWO_MIB: u64 = 2 << 20;

/// No request is larger: no address space has so much, and rounding up to a page cannot overflow.
pub(super) const LIMIT: u64 = 1 << 62;

/// How large the pages behind memory are, in the three steps that GPUs have in common.
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
    /// The class for so many bytes of device memory.
    #[must_use]
    pub fn of(bytes: u64) -> Self {
        [Self::Huge, Self::Big]
            .into_iter()
            .find(|class| class.bytes() <= bytes)
            .unwrap_or(Self::Small)
    }

    /// The least size of a page of this class, in bytes.
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

/// Bytes in whole pages. `bytes` is at most [`LIMIT`] and `page` a power of two that is no larger, so
/// there is nothing to overflow.
pub(super) fn whole(bytes: u64, page: u64) -> u64 {
    bytes.next_multiple_of(page)
}

/// Bytes as device memory counts them: in whole pages of 4 KiB or 64 KiB. What the policy compares with
/// its limits, so that rounding a size up does not take it past one.
pub(super) fn counted(bytes: u64) -> u64 {
    whole(bytes, PageClass::of(bytes).min(PageClass::Big).bytes())
}

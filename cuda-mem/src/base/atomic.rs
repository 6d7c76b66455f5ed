//! What the standard library calls `try_update`, and `fetch_update` in versions that this crate still builds with.

#![forbid(unsafe_code)]

use std::sync::atomic::{AtomicU64, Ordering};

/// Sets the number to what `next` makes of it, and returns what it was. If that is `None`, it stays, and is the error.
/// `order` is that of the loads, too.
#[inline]
pub(crate) fn try_update(
    number: &AtomicU64,
    order: Ordering,
    next: impl Fn(u64) -> Option<u64>,
) -> Result<u64, u64> {
    let mut now = number.load(order);
    loop {
        let Some(new) = next(now) else {
            return Err(now);
        };
        match number.compare_exchange_weak(now, new, order, order) {
            Ok(_) => return Ok(now),
            Err(other) => now = other,
        }
    }
}

//! Memory that is in no cache of the host.

/// How it gets there, in words.
pub(crate) const HOW: &str = if cfg!(target_arch = "x86_64") {
    "clflush of every line"
} else {
    "a walk over a buffer larger than the last-level cache"
};

/// Some memory of the host that a transfer uses.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "a walk asks for no addresses")
)]
pub(crate) struct Region {
    at: *const u8,
    bytes: usize,
}

impl Region {
    /// # Safety
    ///
    /// The host can read so many bytes there, until the region is dropped.
    pub(crate) unsafe fn new(at: *const u8, bytes: usize) -> Self {
        Self { at, bytes }
    }
}

/// Takes it out of all caches.
#[cfg(target_arch = "x86_64")]
pub(crate) fn evict(regions: &[Region]) {
    use std::sync::atomic::{Ordering, fence};
    const LINE: usize = 64;
    for region in regions {
        // The last byte may be on a line of its own.
        let offsets = (0..region.bytes)
            .step_by(LINE)
            .chain(region.bytes.checked_sub(1));
        for offset in offsets {
            let at = region.at.wrapping_add(offset);
            // SAFETY: the byte is readable, as the region's maker says. The content does not change.
            unsafe { std::arch::x86_64::_mm_clflush(at) };
        }
    }
    // Flushes are in order with locked instructions and full fences.
    fence(Ordering::SeqCst);
}

/// Takes it out of all caches, with everything else.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn evict(_: &[Region]) {
    use std::cell::RefCell;
    use std::hint::black_box;
    thread_local! {
        static OTHER: RefCell<Vec<u8>> = RefCell::new(vec![0; 2 * last_level_cache()]);
    }
    OTHER.with_borrow_mut(|other| {
        for byte in other.iter_mut().step_by(64) {
            *byte = black_box(byte.wrapping_add(1));
        }
    });
}

/// In bytes; much if the system does not tell.
#[cfg(not(target_arch = "x86_64"))]
fn last_level_cache() -> usize {
    let sizes = (0..8).filter_map(|index| {
        let file = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(file).ok()?;
        let kibibytes: usize = text.trim().strip_suffix('K')?.parse().ok()?;
        Some(kibibytes << 10)
    });
    sizes.max().unwrap_or(128 << 20)
}

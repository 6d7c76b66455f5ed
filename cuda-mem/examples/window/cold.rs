//! Evicting host memory from all caches.

/// The method, in words.
pub(crate) const HOW: &str = if cfg!(target_arch = "x86_64") {
    "clflush of every line"
} else {
    "a walk over a buffer larger than the last-level cache"
};

/// A range of host memory that a transfer uses.
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
    /// `bytes` bytes there stay readable for the host until the region is dropped.
    pub(crate) unsafe fn new(at: *const u8, bytes: usize) -> Self {
        Self { at, bytes }
    }
}

/// Evicts the regions from all caches.
#[cfg(target_arch = "x86_64")]
pub(crate) fn evict(regions: &[Region]) {
    use std::sync::atomic::{Ordering, fence};
    const LINE: usize = 64;
    for region in regions {
        // The last byte may be on a separate line.
        let offsets = (0..region.bytes)
            .step_by(LINE)
            .chain(region.bytes.checked_sub(1));
        for offset in offsets {
            let at = region.at.wrapping_add(offset);
            // SAFETY: the region's creator guarantees that the byte is readable. The content does not change.
            unsafe { std::arch::x86_64::_mm_clflush(at) };
        }
    }
    // Flushes are ordered with locked instructions and full fences.
    fence(Ordering::SeqCst);
}

/// Evicts the regions from all caches, with everything else.
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

/// In bytes; a large value if the system does not report it.
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

//! An asymmetric barrier: the light half costs nothing and is passed often; the heavy half makes up for it and is
//! passed seldom.
//!
//! A store followed by a load may appear to other threads in the opposite order, unless a barrier separates the two,
//! and a barrier costs as much as a locked instruction. Linux can make all processors that run this process pass one
//! (`membarrier`), so the frequent side only has to stop the compiler from reordering. Where the system cannot do
//! this, [`is_there`] says so, and the halves must not be relied on; the two halves of [`pair`] are then full
//! barriers.

#[cfg(all(target_os = "linux", not(miri)))]
mod system {
    use std::sync::atomic::{AtomicU8, Ordering, compiler_fence};

    use rustix::thread::{MembarrierCommand, MembarrierQuery, membarrier, membarrier_query};

    const UNKNOWN: u8 = 0;
    const THERE: u8 = 1;
    const ABSENT: u8 = 2;

    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

    #[cold]
    fn register() -> bool {
        let there = membarrier_query().contains(MembarrierQuery::PRIVATE_EXPEDITED)
            && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
            && membarrier(MembarrierCommand::PrivateExpedited).is_ok();
        STATE.store(if there { THERE } else { ABSENT }, Ordering::Relaxed);
        there
    }

    pub(crate) fn is_there() -> bool {
        match STATE.load(Ordering::Relaxed) {
            UNKNOWN => register(),
            state => state == THERE,
        }
    }

    #[inline]
    pub(crate) fn light() {
        compiler_fence(Ordering::SeqCst);
    }

    #[cold]
    pub(crate) fn heavy() {
        for _ in 0..1000 {
            if membarrier(MembarrierCommand::PrivateExpedited).is_ok() {
                return;
            }
            // This can fail temporarily if the system is out of memory.
            std::thread::yield_now();
        }
        // It has been forbidden since. No processor delays a store for this long.
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Under a memory-model checker, each of the two halves is a full barrier.
#[cfg(miri)]
mod model {
    use std::sync::atomic::{Ordering, fence};

    pub(crate) fn is_there() -> bool {
        true
    }

    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(not(target_os = "linux"), not(miri)))]
mod absent {
    pub(crate) fn is_there() -> bool {
        false
    }

    pub(crate) fn light() {}

    pub(crate) fn heavy() {}
}

#[cfg(all(not(target_os = "linux"), not(miri)))]
pub(crate) use absent::{heavy, is_there, light};
#[cfg(miri)]
pub(crate) use model::{heavy, is_there, light};
#[cfg(all(target_os = "linux", not(miri)))]
pub(crate) use system::{heavy, is_there, light};

/// The same two halves on every system: where there is no asymmetric barrier, each half is a full barrier.
pub(crate) mod pair {
    use std::sync::atomic::{Ordering, fence};

    #[inline]
    pub(crate) fn light() {
        if super::is_there() {
            super::light();
        } else {
            fence(Ordering::SeqCst);
        }
    }

    #[cold]
    pub(crate) fn heavy() {
        if super::is_there() {
            super::heavy();
        } else {
            fence(Ordering::SeqCst);
        }
    }
}

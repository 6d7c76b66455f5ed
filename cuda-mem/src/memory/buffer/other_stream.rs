//! Frees that this crate makes in the order of another stream than the buffer's own.

use std::cell::Cell;

thread_local! {
    static IS_FREEING: Cell<bool> = const { Cell::new(false) };
}

/// This thread gives memory back in the order of a stream that the program did not name. All work in the buffer's own
/// stream precedes that free.
#[derive(Debug)]
pub(crate) struct FreeOnOther {
    outer: bool,
}

impl FreeOnOther {
    pub(super) fn enter() -> Self {
        Self {
            outer: IS_FREEING.replace(true),
        }
    }

    /// Whether this thread is in such a free.
    #[inline]
    pub(crate) fn is_running() -> bool {
        IS_FREEING.get()
    }
}

impl Drop for FreeOnOther {
    fn drop(&mut self) {
        IS_FREEING.set(self.outer);
    }
}

//! Calls of the driver beside PyTorch's captures. A capture in PyTorch's usual mode is spoilt by allocations and frees of any
//! thread, unless the thread has set its own mode to relaxed. PyTorch's own allocator does that, and so does this one.

use cuda_mem::Driver;
use cuda_mem::sys::{CUresult, CUstreamCaptureMode, DriverTable};

use super::captures;

/// The mode that this thread had.
struct Before(CUstreamCaptureMode);

impl Before {
    /// Sets the mode of this thread to relaxed. `None` if it cannot be set.
    fn relax() -> Option<Self> {
        let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        exchange(Driver::load().ok()?.table(), relaxed).map(Self)
    }
}

impl Drop for Before {
    fn drop(&mut self) {
        if let Ok(driver) = Driver::load() {
            exchange(driver.table(), self.0);
        }
    }
}

fn exchange(table: &DriverTable, mut mode: CUstreamCaptureMode) -> Option<CUstreamCaptureMode> {
    let exchange = table.cuThreadExchangeStreamCaptureMode?;
    // SAFETY: the function of the driver, with a mode, in whose place it puts the one of before.
    let result = unsafe { exchange(&raw mut mode) };
    (result == CUresult::CUDA_SUCCESS).then_some(mode)
}

/// Makes calls that allocate or free, in relaxed mode while PyTorch captures anything.
pub(super) fn relaxed_while_capturing<T>(calls: impl FnOnce() -> T) -> T {
    let _before = captures::any().then(Before::relax);
    calls()
}

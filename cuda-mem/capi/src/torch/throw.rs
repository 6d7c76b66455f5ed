//! Failures as exceptions of C++, thrown by PyTorch's own function: a null pointer would be used.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::OnceLock;

use crate::status::{Status, cudamem_last_error_message, cudamem_last_error_status};

type Throw = unsafe extern "C-unwind" fn(*const c_char, *const c_char, u32, *const c_char);

static THROW: OnceLock<Throw> = OnceLock::new();

/// # Safety
///
/// `function` is null, or of this type, and does not return.
pub(super) unsafe fn set(function: *const c_void) {
    if !function.is_null() {
        // SAFETY: promised by the caller, in the words of the section above.
        let function = unsafe { std::mem::transmute::<*const c_void, Throw>(function) };
        let _ = THROW.set(function);
    }
}

/// Throws what this thread's last call failed with. Returns if it is not known how.
pub(super) fn throw_last_error() {
    let Some(throw) = THROW.get() else { return };
    // SAFETY: a zero-terminated string, until this thread's next error.
    let text = unsafe { CStr::from_ptr(cudamem_last_error_message()) }.to_string_lossy();
    // Programs look for these words.
    let is_memory = cudamem_last_error_status() == Status::OutOfMemory as i32;
    let start = if is_memory {
        "CUDA out of memory. "
    } else {
        "cuda-mem: "
    };
    let text = CString::new(format!("{start}{text}")).unwrap_or_default();
    // SAFETY: four zero-terminated strings and a number, as the function takes them. Its exception passes through functions
    // that are declared to let one pass.
    unsafe { throw(c"allocate".as_ptr(), c"cuda-mem".as_ptr(), 0, text.as_ptr()) };
}

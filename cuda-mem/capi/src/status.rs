//! What functions return, and the last error of a thread.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cuda_mem::{Error, ErrorKind};

/// What a function returns. Later versions may add codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum Status {
    /// It did what was asked.
    Success = 0,
    /// An argument is wrong; nothing was changed.
    InvalidValue = 1,
    /// Not enough memory; nothing was changed.
    OutOfMemory = 2,
    /// The device, the driver or the system cannot do this.
    NotSupported = 3,
    /// There is no CUDA driver, or it is too old.
    NoDriver = 4,
    /// No device has this number.
    InvalidDevice = 5,
    /// This process may not do this.
    NotPermitted = 6,
    /// The object is in use.
    InUse = 7,
    /// The context has ended, or the driver is shutting down.
    ContextLost = 8,
    /// Device code or hardware failed; the context and everything in it are lost.
    DeviceFault = 9,
    /// This process is a fork of the one that uses the GPU.
    Forked = 10,
    /// A stream is being captured into a graph, where this is not possible.
    Capturing = 11,
    /// Any other error: see the text and the driver's code.
    Other = 12,
    /// A mistake in this library.
    Internal = 13,
}

impl From<ErrorKind> for Status {
    fn from(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::InvalidValue => Self::InvalidValue,
            ErrorKind::OutOfMemory => Self::OutOfMemory,
            ErrorKind::NotSupported => Self::NotSupported,
            ErrorKind::DriverMissing | ErrorKind::SymbolMissing => Self::NoDriver,
            ErrorKind::InvalidDevice => Self::InvalidDevice,
            ErrorKind::NotPermitted => Self::NotPermitted,
            ErrorKind::InUse | ErrorKind::StillAllocated => Self::InUse,
            ErrorKind::InvalidContext | ErrorKind::ContextDestroyed | ErrorKind::Deinitialized => {
                Self::ContextLost
            }
            ErrorKind::DeviceFault => Self::DeviceFault,
            ErrorKind::Forked => Self::Forked,
            ErrorKind::Capturing => Self::Capturing,
            _ => Self::Other,
        }
    }
}

/// The last error of a thread.
#[derive(Debug, Default)]
struct Last {
    status: c_int,
    text: CString,
    driver_code: c_int,
    had_no_effect: bool,
}

thread_local! {
    static LAST: RefCell<Last> = RefCell::default();
}

/// Keeps an error for the calling thread. At the end of a thread there is no place for it.
fn keep(error: Last) {
    let _ = LAST.try_with(|last| {
        if let Ok(mut last) = last.try_borrow_mut() {
            *last = error;
        }
    });
}

/// Runs the body of a function. A panic becomes [`Status::Internal`].
pub(crate) fn answer(body: impl FnOnce() -> Result<(), Error>) -> Status {
    let answered = catch_unwind(AssertUnwindSafe(|| match body() {
        Ok(()) => Status::Success,
        Err(error) => refuse(&error),
    }));
    answered.unwrap_or_else(|panic| {
        broken(&*panic);
        // Its destructor may panic, too.
        std::mem::forget(panic);
        Status::Internal
    })
}

#[cold]
fn refuse(error: &Error) -> Status {
    keep(Last {
        status: Status::from(error.kind()) as c_int,
        text: c_string(&error.to_string()),
        driver_code: error.code().map_or(0, |code| code.0.cast_signed()),
        had_no_effect: error.had_no_effect(),
    });
    error.kind().into()
}

#[cold]
fn broken(panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    let text = format!("a mistake in cuda-mem: {}", text.unwrap_or("no message"));
    keep(Last {
        status: Status::Internal as c_int,
        text: c_string(&text),
        ..Last::default()
    });
}

fn c_string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

/// An error about an argument.
pub(crate) fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidValue, text)
}

/// A struct of numbers without padding, so that every byte of it is a value. It may grow at its end.
///
/// # Safety
///
/// It is as described.
pub(crate) unsafe trait Plain: Copy {
    /// Its size in the first version of the header.
    const FIRST_SIZE: usize;
}

/// Writes a struct to a caller with an older or newer header, whose struct has `size` bytes.
///
/// # Safety
///
/// `out` is null or valid for writes of `size` bytes.
pub(crate) unsafe fn write_struct<T: Plain>(
    out: *mut T,
    name: &str,
    size: usize,
    value: &T,
) -> Result<(), Error> {
    if out.is_null() {
        return Err(invalid(format!("`{name}` is null; it receives the result")));
    }
    if size < T::FIRST_SIZE || size > LARGEST_STRUCT {
        return Err(invalid(format!(
            "the size of `{name}` is {size}; pass the size of its struct"
        )));
    }
    let known = size.min(size_of::<T>());
    let out = out.cast::<u8>();
    // SAFETY: `out` has at least this many bytes, and so has the value; neither has padding.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast(), out, known) };
    // SAFETY: the rest of the caller's struct.
    unsafe { out.wrapping_add(known).write_bytes(0, size - known) };
    Ok(())
}

/// More than any struct of this interface will have.
pub(crate) const LARGEST_STRUCT: usize = 4096;

/// Writes a result.
///
/// # Safety
///
/// `out` is null or valid for a write.
pub(crate) unsafe fn write<T>(out: *mut T, name: &str, value: T) -> Result<(), Error> {
    if out.is_null() {
        return Err(invalid(format!("`{name}` is null; it receives the result")));
    }
    // SAFETY: not null, so valid by the contract of this function.
    unsafe { out.write(value) };
    Ok(())
}

/// The text of the last error of the calling thread: what was asked, what was there, and what to do. An empty string if
/// there was none; never null. Valid until this thread's next call that fails, and until the thread ends: take it in a
/// statement after the call, and copy it to keep it.
#[unsafe(no_mangle)]
pub extern "C" fn cudamem_last_error_message() -> *const c_char {
    LAST.try_with(|last| {
        last.try_borrow()
            .map_or(c"".as_ptr(), |last| last.text.as_ptr())
    })
    .unwrap_or(c"".as_ptr())
}

/// The status of the last error of the calling thread; 0 if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn cudamem_last_error_status() -> c_int {
    let status = LAST.try_with(|last| last.try_borrow().map_or(0, |last| last.status));
    status.unwrap_or(0)
}

/// The driver's code (a CUresult) of the last error of the calling thread; 0 if the driver was not the reason.
#[unsafe(no_mangle)]
pub extern "C" fn cudamem_last_error_driver_code() -> c_int {
    let code = LAST.try_with(|last| last.try_borrow().map_or(0, |last| last.driver_code));
    code.unwrap_or(0)
}

/// 1 if the call of the last error changed nothing: memory that it should have deallocated is still allocated, and can
/// be deallocated again. 0 if that memory counts as lost, or if there was no error.
#[unsafe(no_mangle)]
pub extern "C" fn cudamem_last_error_had_no_effect() -> c_int {
    let had_none = LAST.try_with(|last| last.try_borrow().is_ok_and(|last| last.had_no_effect));
    c_int::from(had_none.unwrap_or(false))
}

/// A short phrase for a status, such as "out of memory". Any number is allowed; never null.
#[unsafe(no_mangle)]
pub extern "C" fn cudamem_status_name(status: c_int) -> *const c_char {
    let name = match status {
        0 => c"success",
        1 => c"invalid argument",
        2 => c"out of memory",
        3 => c"not supported",
        4 => c"no CUDA driver",
        5 => c"no such device",
        6 => c"not permitted",
        7 => c"in use",
        8 => c"context lost",
        9 => c"device fault",
        10 => c"process forked",
        11 => c"stream being captured",
        12 => c"other error",
        13 => c"internal error",
        _ => c"unknown status",
    };
    name.as_ptr()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn message() -> String {
        // SAFETY: a zero-terminated string, until the next error of this thread.
        let text = unsafe { CStr::from_ptr(cudamem_last_error_message()) };
        text.to_str().expect("text").to_owned()
    }

    #[test]
    fn an_error_is_kept_for_its_thread() {
        assert_eq!(message(), "");
        let status = answer(|| Err(invalid("a \0 in the text")));
        assert_eq!(
            (status, message().contains("a   in the text")),
            (Status::InvalidValue, true)
        );
        std::thread::scope(|scope| {
            scope.spawn(|| assert_eq!(message(), ""));
        });
        assert_eq!(answer(|| Ok(())), Status::Success);
        assert_ne!(message(), "", "a success leaves the text");
    }

    #[test]
    fn a_panic_is_an_answer() {
        let status = answer(|| panic!("on purpose"));
        assert_eq!(status, Status::Internal);
        assert_eq!(message(), "a mistake in cuda-mem: on purpose");
    }
}

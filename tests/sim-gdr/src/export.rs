//! Exports of functions: their types are checked against the bindings.

use std::ffi::c_int;

/// The result of a simulated function; `Err` carries the errno.
pub(crate) type Answer<T = ()> = Result<T, c_int>;

pub(crate) fn code(answer: Answer) -> c_int {
    answer.err().unwrap_or(0)
}

/// Writes a result, or refuses a null pointer.
///
/// # Safety
///
/// The pointer is null or valid for one write.
pub(crate) unsafe fn write<T>(place: *mut T, value: T) -> Answer {
    if place.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: not null, so valid by the contract of this function.
    unsafe { place.write(value) };
    Ok(())
}

/// The errno of the last system call.
pub(crate) fn last_errno() -> c_int {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EINVAL)
}

/// Exports functions that return 0 or an errno.
macro_rules! exports {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $ty),*) -> ::std::ffi::c_int {
            let run = || -> $crate::export::Answer { $body };
            $crate::export::code(run())
        }

        // The field has the type of the bindings: a wrong signature does not compile.
        const _: fn(&mut ::cuda_driver_sys::gdr::GdrTable) = |table| table.$name = Some($name);
    )*};
}

pub(crate) use exports;

//! Exports of functions: their types are checked against the bindings, calls are counted, panics end here.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use cuda_driver_sys::CUstream;
use cuda_driver_sys::nccl::{
    ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId, ncclWindow_t,
};

use crate::{calls, group, words};

/// Why a call failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) code: ncclResult_t,
    pub(crate) words: String,
}

/// The result of a simulated function.
pub(crate) type Answer<T = ()> = Result<T, Failure>;

pub(crate) fn fail<T>(code: ncclResult_t, words: impl Into<String>) -> Answer<T> {
    let words = words.into();
    Err(Failure { code, words })
}

pub(crate) fn invalid_argument<T>(words: impl Into<String>) -> Answer<T> {
    fail(ncclResult_t::ncclInvalidArgument, words)
}

pub(crate) fn invalid_usage<T>(words: impl Into<String>) -> Answer<T> {
    fail(ncclResult_t::ncclInvalidUsage, words)
}

/// The success of a call that has no other.
pub(crate) const SUCCESS: Answer<ncclResult_t> = Ok(ncclResult_t::ncclSuccess);

pub(crate) fn enter(name: &str, run: impl FnOnce() -> Answer<ncclResult_t>) -> ncclResult_t {
    if let Some(code) = calls::enter(name) {
        let words = format!("{name} was made to fail");
        words::set_last(&words);
        group::made_to_fail(name, &Failure { code, words });
        return code;
    }
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(code)) => code,
        Ok(Err(failure)) => {
            words::set_last(&format!("{name}: {}", failure.words));
            failure.code
        }
        Err(_) => {
            words::set_last(&format!("{name} panicked"));
            ncclResult_t::ncclInternalError
        }
    }
}

/// Converts a C argument to the simulation's type.
pub(crate) trait FromC {
    /// The type in the C signature.
    type C;

    /// # Safety
    ///
    /// A pointer must be null or valid for what the function does with it according to NCCL.
    unsafe fn from_c(raw: Self::C) -> Self;
}

macro_rules! same_in_c {
    ($($ty:ty),*) => {$(
        impl FromC for $ty {
            type C = Self;

            unsafe fn from_c(raw: Self) -> Self {
                raw
            }
        }
    )*};
}

same_in_c!(
    c_int,
    usize,
    ncclDataType_t,
    ncclRedOp_t,
    ncclUniqueId,
    CUstream
);

/// A communicator by its number. The program's pointer is never followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Comm(pub(crate) u64);

impl Comm {
    pub(crate) fn to_c(self) -> ncclComm_t {
        std::ptr::without_provenance_mut(self.0 as usize)
    }
}

impl FromC for Comm {
    type C = ncclComm_t;

    unsafe fn from_c(raw: ncclComm_t) -> Self {
        Self(raw.addr() as u64)
    }
}

/// A window by its number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window(pub(crate) u64);

impl FromC for Window {
    type C = ncclWindow_t;

    unsafe fn from_c(raw: ncclWindow_t) -> Self {
        Self(raw.addr() as u64)
    }
}

/// Memory of a device, or a handle, which C passes as a pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address(pub(crate) u64);

impl FromC for Address {
    type C = *mut c_void;

    unsafe fn from_c(raw: *mut c_void) -> Self {
        Self(raw.addr() as u64)
    }
}

/// Memory of a device that is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source(pub(crate) u64);

impl FromC for Source {
    type C = *const c_void;

    unsafe fn from_c(raw: *const c_void) -> Self {
        Self(raw.addr() as u64)
    }
}

/// Settings, if any were passed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config(pub(crate) Option<ncclConfig_t>);

impl FromC for Config {
    type C = *mut ncclConfig_t;

    unsafe fn from_c(raw: *mut ncclConfig_t) -> Self {
        // SAFETY: null, or valid for a read by the contract of this function; it is plain data.
        Self(unsafe { raw.as_ref() }.copied())
    }
}

/// An output pointer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Out<T>(*mut T);

// SAFETY: kept until a call completes, as `ncclCommWindowRegister` does; NCCL's contract lets any thread write there.
unsafe impl<T> Send for Out<T> {}

impl<T> FromC for Out<T> {
    type C = *mut T;

    unsafe fn from_c(raw: *mut T) -> Self {
        Self(raw)
    }
}

impl<T: Copy> Out<T> {
    pub(crate) fn required(&self) -> Answer {
        if self.0.is_null() {
            return invalid_argument("an output pointer is null");
        }
        Ok(())
    }

    pub(crate) fn write(&self, value: T) -> Answer {
        self.required()?;
        // SAFETY: not null, so valid for a write by the promise made to `from_c`.
        unsafe { self.0.write(value) };
        Ok(())
    }
}

/// Exports functions. The types implement [`FromC`]; the body is an `Answer<ncclResult_t>`.
macro_rules! exports {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "NCCL's name")]
        unsafe extern "C" fn $name(
            $($arg: <$ty as $crate::export::FromC>::C),*
        ) -> ::cuda_driver_sys::nccl::ncclResult_t {
            $(
                // SAFETY: the caller obeys NCCL's contract for its pointers.
                let $arg = unsafe { <$ty as $crate::export::FromC>::from_c($arg) };
            )*
            $crate::export::enter(stringify!($name), || $body)
        }

        // The field has the type of the bindings: a wrong signature does not compile.
        const _: fn(&mut ::cuda_driver_sys::nccl::NcclTable) = |table| table.$name = Some($name);
    )*};
}

pub(crate) use exports;

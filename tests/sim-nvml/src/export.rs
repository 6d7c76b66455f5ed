//! Exports of functions: their types are checked against the bindings, and calls before initialisation are refused.

use std::ffi::{CStr, c_char, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_driver_sys::nvml::{nvmlDevice_t, nvmlReturn_t};

use crate::configuration::Unit;
use crate::machine;

/// The result of a simulated function; `Err` carries the code.
pub(crate) type Answer<T = ()> = Result<T, nvmlReturn_t>;

/// Initialisations without a matching shutdown.
static STARTS: AtomicU32 = AtomicU32::new(0);

pub(crate) fn start() {
    STARTS.fetch_add(1, Ordering::SeqCst);
}

pub(crate) fn end() -> Answer {
    let order = Ordering::SeqCst;
    let mut starts = STARTS.load(order);
    while let Some(fewer) = starts.checked_sub(1) {
        match STARTS.compare_exchange_weak(starts, fewer, order, order) {
            Ok(_) => return Ok(()),
            Err(now) => starts = now,
        }
    }
    Err(nvmlReturn_t::NVML_ERROR_UNINITIALIZED)
}

pub(crate) fn enter(run: impl FnOnce() -> Answer) -> nvmlReturn_t {
    if STARTS.load(Ordering::SeqCst) == 0 {
        return nvmlReturn_t::NVML_ERROR_UNINITIALIZED;
    }
    match run() {
        Ok(()) => nvmlReturn_t::NVML_SUCCESS,
        Err(code) => code,
    }
}

/// Converts a C argument to the simulation's type.
pub(crate) trait FromC {
    /// The type in the C signature.
    type C;

    /// # Safety
    ///
    /// A pointer must be null or valid for what the function does with it according to NVML.
    unsafe fn from_c(raw: Self::C) -> Self;
}

impl FromC for c_uint {
    type C = Self;

    unsafe fn from_c(raw: Self) -> Self {
        raw
    }
}

/// The device argument of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device(nvmlDevice_t);

impl FromC for Device {
    type C = nvmlDevice_t;

    unsafe fn from_c(raw: nvmlDevice_t) -> Self {
        Self(raw)
    }
}

impl Device {
    pub(crate) fn unit(self) -> Answer<Unit> {
        machine::unit(self.0)
    }

    /// The GPU; NOT_SUPPORTED for a MIG instance.
    pub(crate) fn gpu(self) -> Answer<usize> {
        match self.unit()? {
            (gpu, None) => Ok(gpu),
            _ => Err(nvmlReturn_t::NVML_ERROR_NOT_SUPPORTED),
        }
    }
}

/// An output pointer.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> FromC for Out<T> {
    type C = *mut T;

    unsafe fn from_c(raw: *mut T) -> Self {
        Self(raw)
    }
}

impl<T: Copy> Out<T> {
    fn required(&self) -> Answer<*mut T> {
        if self.0.is_null() {
            return Err(nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT);
        }
        Ok(self.0)
    }

    pub(crate) fn write(&self, value: T) -> Answer {
        // SAFETY: not null, so valid for a write by the promise made to `from_c`.
        unsafe { self.required()?.write(value) };
        Ok(())
    }

    pub(crate) fn read(&self) -> Answer<T> {
        // SAFETY: not null, so valid for a read by the promise made to `from_c`; all are plain data.
        Ok(unsafe { self.required()?.read() })
    }

    pub(crate) fn write_all(&self, values: &[T]) -> Answer {
        for (index, value) in values.iter().enumerate() {
            Self(self.required()?.wrapping_add(index)).write(*value)?;
        }
        Ok(())
    }
}

impl Out<c_char> {
    /// Writes `text` and a final zero, or returns INSUFFICIENT_SIZE.
    pub(crate) fn write_text(&self, room: c_uint, text: &str) -> Answer {
        self.required()?;
        if text.len() >= room as usize {
            return Err(nvmlReturn_t::NVML_ERROR_INSUFFICIENT_SIZE);
        }
        let bytes = text.bytes().chain([0]).map(|byte| byte as c_char);
        self.write_all(&bytes.collect::<Vec<_>>())
    }
}

/// A text argument.
#[derive(Debug)]
pub(crate) struct Text(*const c_char);

impl FromC for Text {
    type C = *const c_char;

    unsafe fn from_c(raw: *const c_char) -> Self {
        Self(raw)
    }
}

impl Text {
    pub(crate) fn read(&self) -> Answer<String> {
        if self.0.is_null() {
            return Err(nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT);
        }
        // SAFETY: not null, so a zero-terminated string by the promise made to `from_c`.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// Exports functions that need initialisation. The types implement [`FromC`].
macro_rules! exports {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "NVML's name")]
        unsafe extern "C" fn $name(
            $($arg: <$ty as $crate::export::FromC>::C),*
        ) -> ::cuda_driver_sys::nvml::nvmlReturn_t {
            $(
                // SAFETY: the caller obeys NVML's contract for its pointers.
                let $arg = unsafe { <$ty as $crate::export::FromC>::from_c($arg) };
            )*
            $crate::export::enter(|| $body)
        }

        // The field has the type of the bindings: a wrong signature does not compile.
        const _: fn(&mut ::cuda_driver_sys::nvml::NvmlTable) = |table| table.$name = Some($name);
    )*};
}

pub(crate) use exports;

//! Exports of driver functions: one macro checks the type against the generated table, counts the call, injects faults,
//! stops panics, and refuses calls before `cuInit`.

use std::ffi::{CStr, c_char, c_int, c_short, c_uchar, c_uint, c_ushort, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;

use cuda_driver_sys::{
    CUcontext, CUdevice_P2PAttribute, CUdevice_attribute, CUevent,
    CUflushGPUDirectRDMAWritesScope_enum, CUflushGPUDirectRDMAWritesTarget_enum, CUfunc_cache,
    CUfunction, CUfunction_attribute, CUgraph, CUgraphExec, CUgraphMem_attribute, CUgraphNode,
    CUhostFn, CUipcEventHandle, CUipcMemHandle, CUjitInputType, CUkernel, CUlibrary, CUlimit,
    CUlinkState, CUmem_advise, CUmem_range_attribute, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationType, CUmemLocation, CUmemPool_attribute,
    CUmemRangeHandleType_enum, CUmemoryPool, CUmodule, CUoccupancyB2DSize, CUpointer_attribute,
    CUresult, CUsharedconfig, CUstream, CUstreamCallback, CUstreamCaptureMode, CUuserObject,
};

use crate::configuration::Configuration;
use crate::fault;
use crate::logs;

/// The result of a simulated function; `Err` carries the driver's code.
pub(crate) type Answer<T = ()> = Result<T, CUresult>;

/// An argument is out of range.
pub(crate) const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// How an injected fault affects a call, and whether the function works before `cuInit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(non_camel_case_types, reason = "the macro's own keywords")]
pub(crate) enum Kind {
    /// Needs `cuInit`; a fault prevents any effect.
    plain,
    /// Works before `cuInit`.
    early,
    /// Releases something, even when a fault makes it return an error.
    release,
}

/// One exported function.
#[derive(Debug)]
pub(crate) struct Export {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) calls: AtomicU64,
    address: *const c_void,
}

// SAFETY: the address is a function's, valid and constant until the process exits.
unsafe impl Sync for Export {}

impl Export {
    pub(crate) const fn new(name: &'static str, kind: Kind, address: *const c_void) -> Self {
        Self {
            name,
            kind,
            calls: AtomicU64::new(0),
            address,
        }
    }

    pub(crate) fn address(&self) -> *mut c_void {
        self.address.cast_mut()
    }
}

/// How a function was called.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Through the `_ptsz`/`_ptds` twin, whose null stream is the thread's own.
    pub(crate) per_thread: bool,
}

/// Runs the body of an export.
pub(crate) fn enter(
    export: &'static Export,
    per_thread: bool,
    run: impl FnOnce(Call) -> Answer,
) -> CUresult {
    if Configuration::get().stub {
        return CUresult::CUDA_ERROR_STUB_LIBRARY;
    }
    let fault = match fault::count(export) {
        Some(hit) if export.kind != Kind::release || !hit.releases => {
            logs::failed(export, hit.code);
            return hit.code;
        }
        hit => hit.map(|hit| hit.code),
    };
    let body = || {
        if export.kind != Kind::early {
            crate::state::check_initialised()?;
            crate::callback::check_permitted()?;
        }
        run(Call { per_thread })
    };
    let answer = catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(CUresult::CUDA_ERROR_UNKNOWN));
    match (fault, answer) {
        (Some(code), _) | (None, Err(code)) => {
            logs::failed(export, code);
            code
        }
        (None, Ok(())) => CUresult::CUDA_SUCCESS,
    }
}

/// Converts a C argument to the simulator's type.
pub(crate) trait FromC {
    /// The type in the C signature.
    type C;

    /// # Safety
    ///
    /// A pointer must be null or valid for what the function does with it according to the driver API.
    unsafe fn from_c(raw: Self::C) -> Self;
}

macro_rules! plain_arguments {
    ($($ty:ty),* $(,)?) => {$(
        impl FromC for $ty {
            type C = $ty;

            unsafe fn from_c(raw: Self::C) -> Self {
                raw
            }
        }
    )*};
}

plain_arguments!(
    c_int,
    c_uint,
    c_uchar,
    c_ushort,
    c_short,
    u64,
    usize,
    *mut c_void,
    *const c_void,
    CUcontext,
    CUstream,
    CUevent,
    CUmemoryPool,
    CUhostFn,
    CUipcEventHandle,
    CUipcMemHandle,
    CUmemAllocationHandleType,
    CUresult,
    CUdevice_P2PAttribute,
    CUdevice_attribute,
    CUmemAllocationType,
    CUmemLocation,
    CUmemAllocationGranularity_flags,
    CUpointer_attribute,
    CUmem_advise,
    CUmem_range_attribute,
    CUmemPool_attribute,
    CUgraph,
    CUgraphNode,
    CUgraphExec,
    CUgraphMem_attribute,
    CUstreamCaptureMode,
    CUmodule,
    CUfunction,
    CUfunction_attribute,
    CUlibrary,
    CUkernel,
    CUlinkState,
    CUjitInputType,
    CUoccupancyB2DSize,
    CUflushGPUDirectRDMAWritesScope_enum,
    CUflushGPUDirectRDMAWritesTarget_enum,
    CUmemRangeHandleType_enum,
    CUlimit,
    CUfunc_cache,
    CUsharedconfig,
    CUstreamCallback,
    CUuserObject,
);

/// An output pointer.
#[derive(Debug)]
pub(crate) struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> FromC for Out<T> {
    type C = *mut T;

    unsafe fn from_c(raw: *mut T) -> Self {
        Self(raw)
    }
}

impl<T> Out<T> {
    /// A pointer in a struct of the program.
    pub(crate) fn new(raw: *mut T) -> Self {
        Self(raw)
    }

    /// For a function that lacks an output of another one.
    pub(crate) fn none() -> Self {
        Self(std::ptr::null_mut())
    }

    /// INVALID_VALUE if the pointer is null.
    pub(crate) fn required(self) -> Answer<Self> {
        if self.0.is_null() {
            Err(INVALID_VALUE)
        } else {
            Ok(self)
        }
    }

    pub(crate) fn write(self, value: T) -> Answer {
        let place = self.required()?.0;
        // SAFETY: not null, so valid for one write by the promise made to `from_c`; the write assumes no alignment.
        unsafe { place.write_unaligned(value) };
        Ok(())
    }

    /// For optional outputs.
    pub(crate) fn write_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // Cannot fail: the pointer is not null.
            let _ = self.write(value);
        }
    }

    /// Pointer to one element of a list.
    pub(crate) fn at(self, index: usize) -> Self {
        Self(self.0.wrapping_add(index))
    }

    /// For results written after the call returns.
    pub(crate) fn address(self) -> u64 {
        self.0.expose_provenance() as u64
    }

    /// The same pointer for inputs that the header does not declare `const`.
    pub(crate) fn as_input(self) -> In<T> {
        In(self.0)
    }
}

impl Out<c_char> {
    /// Writes `text` and a final zero into `len` bytes, truncated if it does not fit.
    pub(crate) fn write_text(self, len: c_int, text: &str) -> Answer {
        let place = self.required()?.0;
        let len = usize::try_from(len).map_err(|_| INVALID_VALUE)?;
        let kept = text.len().min(len.checked_sub(1).ok_or(INVALID_VALUE)?);
        // SAFETY: the caller guarantees `len` bytes, and `kept` is less.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), place, kept) };
        // SAFETY: as above; `kept` < `len`.
        let end = unsafe { place.add(kept) };
        // SAFETY: as above.
        unsafe { end.write(0) };
        Ok(())
    }
}

/// An input pointer.
#[derive(Debug)]
pub(crate) struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> FromC for In<T> {
    type C = *const T;

    unsafe fn from_c(raw: *const T) -> Self {
        Self(raw)
    }
}

impl<T> In<T> {
    pub(crate) fn new(raw: *const T) -> Self {
        Self(raw)
    }
}

impl<T: Copy> In<T> {
    /// INVALID_VALUE if the pointer is null, even for an empty list.
    pub(crate) fn required(self) -> Answer<Self> {
        if self.0.is_null() {
            Err(INVALID_VALUE)
        } else {
            Ok(self)
        }
    }

    pub(crate) fn read(self) -> Answer<T> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so valid for one read by the promise made to `from_c`; all structs of the driver API are
        // plain data.
        Ok(unsafe { self.0.read_unaligned() })
    }

    pub(crate) fn read_all(self, count: usize) -> Answer<Vec<T>> {
        if count > 0 && self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        (0..count)
            .map(|index| In(self.0.wrapping_add(index)).read())
            .collect()
    }
}

impl In<c_char> {
    pub(crate) fn text(self) -> Answer<String> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, so a zero-terminated string by the promise made to `from_c`.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// A `void*` whose type another argument determines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value(*mut c_void);

impl FromC for Value {
    type C = *mut c_void;

    unsafe fn from_c(raw: *mut c_void) -> Self {
        Self(raw)
    }
}

impl Value {
    pub(crate) fn new(raw: *mut c_void) -> Self {
        Self(raw)
    }

    pub(crate) fn required(self) -> Answer<Self> {
        if self.0.is_null() {
            Err(INVALID_VALUE)
        } else {
            Ok(self)
        }
    }

    /// For lists written element by element.
    pub(crate) fn address(self) -> *mut c_void {
        self.0
    }

    pub(crate) fn write<T>(self, value: T) -> Answer {
        Out(self.0.cast::<T>()).write(value)
    }

    pub(crate) fn read<T: Copy>(self) -> Answer<T> {
        In(self.0.cast_const().cast::<T>()).read()
    }
}

/// Exports functions. `kind fn symbol(call, argument: Type, …) twin symbol_ptsz { body }`: the body returns an
/// [`Answer`], `call` says how it was called, and the types implement [`FromC`].
macro_rules! exports {
    ($($kind:ident fn $name:ident $args:tt $(twin $twin:ident)? $body:block)*) => {
        /// What this file exports.
        pub(crate) static EXPORTS: &[&$crate::export::Export] =
            &[$(&$name::EXPORT, $(&$twin::EXPORT,)?)*];

        $(
            #[allow(non_snake_case, reason = "the driver's name")]
            mod $name {
                #[allow(unused_imports, reason = "what the body needs differs")]
                use super::*;

                pub(super) static EXPORT: $crate::export::Export = $crate::export::Export::new(
                    stringify!($name),
                    $crate::export::Kind::$kind,
                    super::$name as *const ::std::ffi::c_void,
                );

                $crate::export::exports!(@run $args $body);
            }
            $crate::export::exports!(@export $name $name false $args);

            $(
                #[allow(non_snake_case, reason = "the driver's name")]
                mod $twin {
                    pub(super) static EXPORT: $crate::export::Export = $crate::export::Export::new(
                        stringify!($twin),
                        $crate::export::Kind::$kind,
                        super::$twin as *const ::std::ffi::c_void,
                    );
                }
                $crate::export::exports!(@export $twin $name true $args);
            )?
        )*
    };

    (@run ($call:pat_param $(, $arg:ident : $ty:ty)* $(,)?) $body:block) => {
        #[allow(clippy::too_many_arguments, reason = "the driver's signature")]
        pub(super) fn run(
            $call: $crate::export::Call
            $(, $arg: $ty)*
        ) -> $crate::export::Answer $body
    };

    (@export $export:ident $name:ident $per_thread:literal
        ($call:pat_param $(, $arg:ident : $ty:ty)* $(,)?)
    ) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "the driver's name")]
        unsafe extern "C" fn $export(
            $($arg: <$ty as $crate::export::FromC>::C),*
        ) -> ::cuda_driver_sys::CUresult {
            $(
                // SAFETY: the caller obeys the contract of the driver API for its pointers.
                let $arg = unsafe { <$ty as $crate::export::FromC>::from_c($arg) };
            )*
            $crate::export::enter(&$export::EXPORT, $per_thread, |call| {
                $name::run(call $(, $arg)*)
            })
        }

        // The field has the type of the generated `PFN_…`: a wrong signature does not compile.
        const _: fn(&mut ::cuda_driver_sys::DriverTable) =
            |table| table.$export = Some($export);
    };
}

pub(crate) use exports;

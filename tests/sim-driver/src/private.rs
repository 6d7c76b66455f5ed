//! Functions of the driver that its main header does not explain: tables for NVIDIA's own libraries, and the profiler's
//! switches.

use std::ffi::{c_char, c_int, c_void};

use cuda_driver_sys::{CUresult, CUuuid};

use crate::export::{Answer, Export, INVALID_VALUE, In, Kind, Out, enter, exports};
use crate::state::state;

exports! {
    // Measured for numbers that the driver does not know, also before `cuInit`. NVRTC and the runtime ask for
    // tables by number; they go on if there is none.
    early fn cuGetExportTable(_, out: Out<*const c_void>, id: In<CUuuid>) {
        out.required()?;
        id.required()?;
        out.write(std::ptr::null())?;
        Err(INVALID_VALUE)
    }
}

/// Exports a function that the generated table lacks, because another header declares it.
macro_rules! elsewhere {
    ($($name:ident($($arg:ident: $ty:ty),*) $body:block)*) => {
        /// By name, for `cuGetProcAddress` and the counts.
        pub(crate) static ELSEWHERE: &[&Export] = &[$(&$name::EXPORT),*];

        $(
            #[allow(non_snake_case, reason = "the driver's name")]
            mod $name {
                use super::{Export, Kind};

                pub(super) static EXPORT: Export = Export::new(
                    stringify!($name),
                    Kind::plain,
                    super::$name as *const std::ffi::c_void,
                );
            }

            #[unsafe(no_mangle)]
            #[allow(non_snake_case, reason = "the driver's name")]
            extern "C" fn $name($($arg: $ty),*) -> CUresult {
                $(let _ = $arg;)*
                enter(&$name::EXPORT, false, |_| -> Answer { $body })
            }
        )*
    };
}

elsewhere! {
    cuProfilerStart() { state()?.current().map(|_| ()) }

    cuProfilerStop() { state()?.current().map(|_| ()) }

    // Documented: an error where no profiler is attached. A guess: this one.
    cuProfilerInitialize(config: *const c_char, output: *const c_char, mode: c_int) {
        Err(CUresult::CUDA_ERROR_PROFILER_DISABLED)
    }
}

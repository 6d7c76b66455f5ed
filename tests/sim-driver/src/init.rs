//! Driver initialisation, version, and error names.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint};
use std::sync::{Mutex, PoisonError};

use cuda_driver_sys::CUresult;
use cuda_sim_support::settings::{machine_folder, setting};

use crate::configuration::Configuration;
use crate::device;
use crate::export::{Answer, INVALID_VALUE, Out, exports};
use crate::state;

exports! {
    early fn cuInit(_, flags: c_uint) {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let configuration = Configuration::get();
        if let Some(code) = configuration.init_error {
            return Err(CUresult(code));
        }
        if state::is_initialised() {
            // Refused in a forked child, as by the driver.
            return state::check_initialised();
        }
        let devices = device::visible(configuration, visible_devices().as_deref());
        if devices.is_empty() {
            return Err(CUresult::CUDA_ERROR_NO_DEVICE);
        }
        state::watch_forks()?;
        state::initialise(configuration, devices);
        Ok(())
    }

    early fn cuDriverGetVersion(_, out: Out<c_int>) {
        out.write(Configuration::get().version.cast_signed())
    }

    early fn cuGetErrorName(_, code: CUresult, out: Out<*const c_char>) {
        text(out, code.name())
    }

    early fn cuGetErrorString(_, code: CUresult, out: Out<*const c_char>) {
        match code {
            // Programs compare this one.
            CUresult::CUDA_SUCCESS => text(out, Some("no error")),
            code => text(out, code.meaning()),
        }
    }
}

fn visible_devices() -> Option<String> {
    const NAME: &str = "CUDA_VISIBLE_DEVICES";
    if machine_folder().is_some() {
        return setting(NAME);
    }
    // Non-UTF-8 text is neither a number nor a name.
    std::env::var_os(NAME).map(|value| value.to_string_lossy().into_owned())
}

/// Returns a static text; null and INVALID_VALUE for an unknown code.
fn text(out: Out<*const c_char>, text: Option<&'static str>) -> Answer {
    static TEXTS: Mutex<Option<HashMap<&'static str, CString>>> = Mutex::new(None);
    let Some(text) = text else {
        out.write(std::ptr::null())?;
        return Err(INVALID_VALUE);
    };
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let texts = texts.get_or_insert_default();
    let text = texts
        .entry(text)
        .or_insert_with(|| CString::new(text).unwrap_or_default());
    out.write(text.as_ptr())
}

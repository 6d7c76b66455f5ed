//! An older driver lacks newer symbols, and so does a simulator of one.

use std::ffi::c_void;

use cuda_driver_sys::{CudaVersion, Symbol};

use crate::configuration::Configuration;

cuda_sim_support::on_load!(on_load);

/// Run first by the loader.
extern "C" fn on_load() {
    cuda_sim_support::hide_in_library(on_load as *const c_void, |name| {
        let version = CudaVersion::from_raw(Configuration::get().version);
        Symbol::find(name).is_some_and(|symbol| symbol.since() > version)
    });
}

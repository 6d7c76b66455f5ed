//! Symbols that the library lacks, like an older one.

use std::ffi::c_void;

use crate::configuration::Configuration;

cuda_sim_support::on_load!(on_load);

/// Run first by the loader. Does nothing in a program that only links this crate.
extern "C" fn on_load() {
    let missing = &Configuration::get().missing;
    if !missing.is_empty() {
        cuda_sim_support::hide_in_library(on_load as *const c_void, |name| {
            missing.iter().any(|symbol| symbol == name)
        });
    }
}

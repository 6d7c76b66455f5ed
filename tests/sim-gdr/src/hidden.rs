//! Symbols that a library of this version lacks.

use std::ffi::c_void;

use crate::configuration::{Configuration, Version};

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

/// Run first by the loader. Does nothing in a program that only links this crate.
extern "C" fn on_load() {
    cuda_sim_support::elf::hide_in_library(on_load as *const c_void, |name| {
        let configuration = Configuration::get();
        let is_missing = configuration.missing.iter().any(|missing| missing == name);
        is_missing || !is_of(name, configuration.version)
    });
}

/// Whether a library of this version has a symbol.
fn is_of(name: &str, version: Version) -> bool {
    match name {
        "gdr_copy_to_bar" | "gdr_copy_from_bar" => version < (2, 0),
        "gdr_copy_to_mapping"
        | "gdr_copy_from_mapping"
        | "gdr_runtime_get_version"
        | "gdr_driver_get_version" => version >= (2, 0),
        "gdr_get_info_v2" => version >= (2, 4),
        "gdr_pin_buffer_v2"
        | "gdr_map_v2"
        | "gdr_get_attribute"
        | "gdr_get_mapping_type_string" => version >= (2, 5),
        _ => true,
    }
}

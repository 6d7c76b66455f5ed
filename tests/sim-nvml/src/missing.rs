//! Symbols that the library lacks, as an older one does.

use std::ffi::c_void;

use crate::knobs::Knobs;

#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

/// What the loader runs first. In a program that merely links this crate it does nothing.
extern "C" fn on_load() {
    let missing = &Knobs::get().missing;
    if !missing.is_empty() {
        crate::elf::hide_in_library(on_load as *const c_void, |name| {
            missing.iter().any(|symbol| symbol == name)
        });
    }
}

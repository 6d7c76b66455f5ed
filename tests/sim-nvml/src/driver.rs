//! Memory usage of the simulated driver in this process, if loaded.

use std::ffi::c_void;
use std::sync::OnceLock;

use cuda_sim_support::find::built_library;
use cuda_sim_support::library::Library;
use cuda_sim_support::library_file;
use cuda_sim_support::settings::machine_folder;

use crate::configuration::Unit;

/// `simcuda_memory_used`: a GPU, and one of its instances counted from 1, or 0 for the whole GPU.
type MemoryUsed = unsafe extern "C" fn(u64, u64) -> u64;

/// Bytes that the process has allocated on a GPU or instance.
pub(crate) fn used((gpu, instance): Unit) -> u64 {
    let instance = instance.map_or(0, |instance| instance as u64 + 1);
    // SAFETY: the simulated driver's function, which accepts any numbers.
    function().map_or(0, |function| unsafe { function(gpu as u64, instance) })
}

/// Retried until found, because the driver may be loaded after this library.
fn function() -> Option<MemoryUsed> {
    static FOUND: OnceLock<MemoryUsed> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Some(*found);
    }
    const FILE: &str = library_file!("cuda_sim");
    let path = match machine_folder() {
        Some(folder) => folder.join(FILE),
        None => built_library("CUDA_SIM_LIBRARY", FILE)?,
    };
    let symbol = Library::if_open(&path)?.address(c"simcuda_memory_used");
    if symbol.is_null() {
        return None;
    }
    // SAFETY: the simulated driver exports it with this signature.
    let found = unsafe { std::mem::transmute::<*mut c_void, MemoryUsed>(symbol) };
    Some(*FOUND.get_or_init(|| found))
}

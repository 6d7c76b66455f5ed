//! Which functions of the simulated driver a question calls, for the table of what is measured.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::{Result, ensure};
use cuda_driver_sys::SYMBOLS;

/// `simcuda_calls`: how often a function was called.
type Count = unsafe extern "C" fn(*const c_char) -> u64;

static COUNT: OnceLock<Count> = OnceLock::new();

/// From now on every process of a question prints what it called, as a comment.
///
/// # Errors
///
/// If the library is not the simulator.
pub(crate) fn show(library: &Path) -> Result<()> {
    let path = CString::new(library.as_os_str().as_bytes())?;
    // SAFETY: with NOLOAD nothing is loaded.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    ensure!(!handle.is_null(), "{} is not loaded", library.display());
    // SAFETY: the library is open.
    let address = unsafe { libc::dlsym(handle, c"simcuda_calls".as_ptr()) };
    ensure!(!address.is_null(), "only the simulator counts its calls");
    // SAFETY: the simulator exports this name with this type.
    let count = unsafe { std::mem::transmute::<*mut c_void, Count>(address) };
    COUNT.get_or_init(|| count);
    Ok(())
}

fn count(name: &CStr) -> u64 {
    // SAFETY: the simulator's function, which reads the name.
    COUNT
        .get()
        .map_or(0, |count| unsafe { count(name.as_ptr()) })
}

/// Prints what this process has called, if that is wanted.
pub(crate) fn print(question: &str) {
    if COUNT.get().is_none() {
        return;
    }
    // Other headers declare these.
    let elsewhere = ["cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop"];
    let names = SYMBOLS.iter().map(cuda_driver_sys::Symbol::name);
    let called = names.chain(elsewhere).filter(|name| {
        let name = CString::new(*name).unwrap_or_default();
        count(&name) > 0
    });
    let called: Vec<&str> = called.collect();
    // The part behind the topic and the question is not needed.
    let question = question.split(' ').next().unwrap_or_default();
    println!("#calls {question}: {}", called.join(" "));
}

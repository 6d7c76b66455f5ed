//! The stand-in for NIXL's library: building it, loading it, and what it was told.

use std::ffi::c_int;
use std::path::Path;
use std::process::Command;

use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::Driver;
use libloading::Library;

static LIBRARY: OnceLock<Library> = OnceLock::new();
static TOLD: Mutex<Vec<Told>> = Mutex::new(Vec::new());

/// One call of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) is_registration: bool,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) device: u64,
    pub(crate) memory_type: c_int,
    /// Whether the driver knew the memory at that moment.
    pub(crate) is_allocated: bool,
}

/// NIXL's number for memory of a device.
pub(crate) const VRAM: c_int = 1;

/// Builds the library and loads it: nixl-sys asks the loader for its name later, and gets this one.
pub(crate) fn load() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("stand_in.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/registration/stand_in.c");
    let status = Command::new("gcc")
        .args(["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"])
        .args(["-Wl,-soname,libnixl_capi.so", "-o"])
        .args([&file, &source])
        .status()
        .context("gcc, which comes with the g++ that nixl-sys needs")?;
    ensure!(status.success(), "the stand-in could not be built");
    // SAFETY: the library has no initialisers.
    let library = unsafe { Library::new(&file) }?;
    type Listen = extern "C" fn(extern "C" fn(c_int, usize, usize, u64, c_int));
    // SAFETY: the signature in `stand_in.c`.
    let listen = unsafe { library.get::<Listen>(b"stand_in_listen\0") }?;
    listen(listener);
    ensure!(LIBRARY.set(library).is_ok(), "it was loaded before");
    Ok(())
}

extern "C" fn listener(
    is_registration: c_int,
    address: usize,
    bytes: usize,
    device: u64,
    memory_type: c_int,
) {
    let address = address as u64;
    let info = Driver::load().and_then(|driver| driver.pointer_info(address));
    TOLD.lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(Told {
            is_registration: is_registration != 0,
            address,
            bytes,
            device,
            memory_type,
            is_allocated: matches!(info, Ok(Some(_))),
        });
}

/// What it was told since the last time.
pub(crate) fn told() -> Vec<Told> {
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::take(&mut *told)
}

fn call<T: Copy>(name: &str) -> Result<T> {
    let library = LIBRARY.get().context("the stand-in is not loaded")?;
    // SAFETY: the callers below name the signatures in `stand_in.c`.
    let function = unsafe { library.get::<T>(name.as_bytes()) }?;
    Ok(*function)
}

/// The next registrations fail.
pub(crate) fn refuse_registrations(how_many: c_int) -> Result<()> {
    call::<extern "C" fn(c_int)>("stand_in_refuse_registrations")?(how_many);
    Ok(())
}

/// The next lists cannot be made.
pub(crate) fn refuse_lists(how_many: c_int) -> Result<()> {
    call::<extern "C" fn(c_int)>("stand_in_refuse_lists")?(how_many);
    Ok(())
}

/// The next options cannot be made: nixl-sys panics when it ends a registration.
pub(crate) fn refuse_options(how_many: c_int) -> Result<()> {
    call::<extern "C" fn(c_int)>("stand_in_refuse_options")?(how_many);
    Ok(())
}

/// How many lists and agents are alive.
pub(crate) fn alive() -> Result<(c_int, c_int)> {
    let lists = call::<extern "C" fn() -> c_int>("stand_in_lists_alive")?();
    let agents = call::<extern "C" fn() -> c_int>("stand_in_agents_alive")?();
    Ok((lists, agents))
}

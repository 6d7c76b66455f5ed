//! Hides exports of a library, because an older one lacks newer symbols.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use windows_sys::Win32::Foundation::HMODULE;
use windows_sys::Win32::System::LibraryLoader::{
    GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS, GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT,
    GetModuleHandleExW, GetModuleHandleW,
};
use windows_sys::Win32::System::Memory::{PAGE_READWRITE, VirtualProtect};

/// Where the header of the format begins, in the header of the file.
const PE_HEADER: u64 = 0x3c;

/// Where the directory of exports is named, from there, in 64-bit files.
const EXPORTS: u64 = 24 + 112;

/// The file that contains an address.
pub(crate) fn module_of(address: *const c_void) -> HMODULE {
    let mut module = null_mut();
    let flags =
        GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
    // SAFETY: with this flag any address is allowed, and the place is valid for a write, null on failure.
    unsafe { GetModuleHandleExW(flags, address.cast(), &raw mut module) };
    module
}

/// Hides exports of the library that contains `address`. Called from its initialisers, before any symbol lookup. Does
/// nothing in a program that only links the code.
pub fn hide_in_library(address: *const c_void, is_hidden: impl Fn(&str) -> bool) {
    let module = module_of(address);
    // SAFETY: null asks for the program's own file.
    let program = unsafe { GetModuleHandleW(std::ptr::null()) };
    if module.is_null() || module == program {
        return;
    }
    let base = module.expose_provenance() as u64;
    let table = u64::from(load::<u32>(base + PE_HEADER)) + EXPORTS;
    let directory = match load::<u32>(base + table) {
        0 => return,
        offset => base + u64::from(offset),
    };
    let word = |index: u64| u64::from(load::<u32>(directory + index * 4));
    let (names, [functions, texts, ordinals]) = (word(6), [7, 8, 9].map(|at| base + word(at)));
    let slots = functions..functions + word(5) * 4;
    let Some(old) = protect(&slots, PAGE_READWRITE) else {
        eprintln!("cuda-sim: cannot hide symbols");
        return;
    };
    for index in 0..names {
        let text = base + u64::from(load::<u32>(texts + index * 4));
        // SAFETY: the names of a loaded file end in a zero.
        let name = unsafe { CStr::from_ptr(pointer(text)) };
        if name.to_str().is_ok_and(&is_hidden) {
            let slot = functions + u64::from(load::<u16>(ordinals + index * 2)) * 4;
            // Lookups treat a function at zero as absent.
            // SAFETY: the entry lies in the pages made writable above; no lookup reads a library whose initialisers
            // still run.
            unsafe { pointer::<u32>(slot).write_unaligned(0) };
        }
    }
    protect(&slots, old);
}

/// Reads from this library's own tables.
fn load<T: Copy>(address: u64) -> T {
    // SAFETY: the addresses come from the headers of a loaded file, and the types match the format.
    unsafe { pointer::<T>(address).read_unaligned() }
}

fn pointer<T>(address: u64) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// Changes the protection of pages, and returns that of the first.
fn protect(range: &std::ops::Range<u64>, protection: u32) -> Option<u32> {
    let len = (range.end - range.start) as usize;
    let mut old = 0;
    // SAFETY: the pages belong to this library, stay readable, and contain no code.
    let done = unsafe { VirtualProtect(pointer(range.start), len, protection, &raw mut old) };
    (done != 0).then_some(old)
}

//! Older or missing libraries and modules. Not in the original.

use std::ffi::c_int;

use cuda_driver_sys::gdr::{GDR_SYMBOLS, GdrTable};

use crate::environment::{Environment, Kind, SMALL, gdr, library, one};

one! { "library";
    a_module_that_is_not_there_leaves_an_errno, &[("CUDA_SIM_GDR_OPEN_ERROR", "2")],
        || assert_eq!(failure(), libc::ENOENT);
    a_module_that_is_not_ours_leaves_an_errno, &[("CUDA_SIM_GDR_OPEN_ERROR", "13")],
        || assert_eq!(failure(), libc::EACCES);
    a_module_that_is_too_old_leaves_none, &[("CUDA_SIM_GDR_DRIVER_VERSION", "1.9")],
        || assert_eq!(failure(), 0);
    version_1_3_has_other_names, &[("CUDA_SIM_GDR_VERSION", "1.3")], || has(
        &["gdr_copy_to_bar", "gdr_copy_from_bar", "gdr_get_info"], 10);
    version_2_0_copies_by_handle, &[("CUDA_SIM_GDR_VERSION", "2.0")], || has(
        &["gdr_copy_to_mapping", "gdr_runtime_get_version", "gdr_get_info"], 12);
    version_2_4_has_a_second_struct, &[("CUDA_SIM_GDR_VERSION", "2.4")], || has(
        &["gdr_copy_to_mapping", "gdr_get_info_v2"], 13);
    version_2_5_has_all, &[], || has(&["gdr_map_v2", "gdr_get_info"], 17);
    symbols_can_be_missing, &[("CUDA_SIM_GDR_MISSING", "gdr_map_v2,gdr_get_attribute")],
        || has(&["gdr_pin_buffer_v2"], 15);
    old_programs_copy_without_handles, &[("CUDA_SIM_GDR_VERSION", "1.3")], old_copies;
    without_a_driver_nothing_is_pinned, &[], no_driver;
}

/// The errno of a failed open.
fn failure() -> c_int {
    struct Alone {
        gdr: &'static GdrTable,
    }
    let alone = Alone { gdr: library() };
    // SAFETY: no preconditions.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: this thread's own location.
    unsafe { place.write(0) };
    assert!(gdr!(alone, gdr_open()).is_null());
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

fn has(names: &[&str], count: usize) {
    let path = gdrapi_sim::library_path().expect("built");
    let path = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).expect("a path");
    // SAFETY: the simulated library.
    let opened = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
    for name in GDR_SYMBOLS {
        let text = name.to_str().expect("ASCII");
        // SAFETY: the handle is open.
        let found = !unsafe { libc::dlsym(opened, name.as_ptr()) }.is_null();
        assert!(found || !names.contains(&text), "{text}");
    }
    assert_eq!(library().count(), count);
}

fn old_copies() {
    let env = Environment::new();
    let buffer = env.alloc(Kind::Cumemalloc, SMALL);
    let opened = env.open();
    let handle = env.pin(opened, buffer.at, SMALL);
    let mut base = std::ptr::null_mut();
    assert_eq!(
        gdr!(env, gdr_map(opened, handle, &raw mut base, SMALL as usize)),
        0
    );
    let (there, mut back) = ([1_u8, 2, 3, 4], [0_u8; 4]);
    assert_eq!(
        gdr!(env, gdr_copy_to_bar(base, there.as_ptr().cast(), 4)),
        0
    );
    assert_eq!(env.read(buffer.at, 4), there);
    assert_eq!(
        gdr!(env, gdr_copy_from_bar(back.as_mut_ptr().cast(), base, 4)),
        0
    );
    assert_eq!(back, there);
    env.close(opened);
    env.free(buffer);
}

fn no_driver() {
    struct Alone {
        gdr: &'static GdrTable,
    }
    let alone = Alone { gdr: library() };
    let opened = gdr!(alone, gdr_open());
    assert!(!opened.is_null());
    let mut handle = Default::default();
    let code = gdr!(
        alone,
        gdr_pin_buffer(opened, 1 << 40, 4096, 0, 0, &raw mut handle)
    );
    assert_eq!(code, libc::EINVAL);
    assert_eq!(gdr!(alone, gdr_close(opened)), 0);
}

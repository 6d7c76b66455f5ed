//! The log of errors: what it says of a call that was refused, and how it is read.

use std::ffi::{c_char, c_uint};

use cuda_driver_sys::*;

use crate::harness::*;
use crate::modules::{KERNELS, image, try_module};

/// Reads from here on into so many bytes.
fn read(from: Option<&mut CUlogIterator>, room: usize) -> (CUresult, String) {
    let mut text = vec![0x55_u8; room];
    let mut size = room;
    let iterator = from.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let buffer = text.as_mut_ptr().cast::<c_char>();
    let code = cu!(cuLogsDumpToMemory(iterator, buffer, &raw mut size, 0));
    if code == OK {
        assert_eq!(text[size], 0, "a zero is behind it");
    }
    text.truncate(size);
    (code, String::from_utf8(text).expect("text"))
}

#[test]
fn a_refused_launch_has_its_reason_in_the_log() {
    let fixture = Fixture::new();
    let text = KERNELS.replace(".entry spin", ".entry mine");
    let module = try_module(&image(&text)).expect("it is PTX");
    let function: CUfunction = handle!(cuModuleGetFunction(_, module, c"mine".as_ptr()));
    let mut from: CUlogIterator = get!(cuLogsCurrent(_, 0));
    assert_eq!(read(Some(&mut from), 1000), (OK, String::new()));
    let (argument, none) = (1_u64, std::ptr::null_mut());
    let mut each = [(&raw const argument).cast_mut().cast()];
    let one: c_uint = 1;
    let launched = cu!(cuLaunchKernel(
        function,
        one,
        one,
        one,
        one,
        one,
        one,
        0,
        fixture.stream,
        each.as_mut_ptr(),
        none
    ));
    assert_eq!(launched, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    let (code, log) = read(Some(&mut from), 1000);
    assert_eq!(code, OK);
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines.len(), 2, "{log}");
    assert!(
        lines[0].contains("[CUDA][E] the simulated driver cannot run the kernel `mine`"),
        "{log}"
    );
    assert!(
        lines[1]
            .ends_with("[CUDA][E] Returning 801 (CUDA_ERROR_NOT_SUPPORTED) from cuLaunchKernel"),
        "{log}"
    );
    assert_eq!(read(Some(&mut from), 1000).1, "", "it was read");
    assert!(read(None, 25_601).1.ends_with(&log), "all is there");
    let (code, _) = read(None, 5);
    assert_eq!(code, INVALID_VALUE, "nothing fits");
    assert_eq!(cu!(cuModuleUnload(module)), OK);
}

//! What only another process shows: settings, versions, forks, and the end.

use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd as _;
use std::process::Output;

use cuda_driver_sys::*;
use cuda_sim::library_path;

use crate::apart::{call, child_of, load};
use crate::harness::*;
use crate::launches::launch;
use crate::modules::{function, image, try_module};

fn child(name: &str, variables: &[(&str, &str)], body: impl FnOnce()) -> Option<Output> {
    child_of("process", name, variables, body)
}

#[test]
fn an_older_driver_lacks_what_came_later() {
    let version = [("CUDA_SIM_DRIVER_VERSION", "11020")];
    child("an_older_driver_lacks_what_came_later", &version, || {
        let table = load();
        assert!(table.has("cuMemPoolCreate") && table.has("cuMemAlloc_v2"));
        for newer in [
            "cuGetProcAddress",
            "cuGetProcAddress_v2",
            "cuCtxCreate_v4",
            "cuDeviceGetUuid_v2",
            "cuStreamGetId",
            "cuEventElapsedTime_v2",
            "cuCtxSynchronize_v2",
        ] {
            assert!(!table.has(newer), "{newer}");
        }
        let mut version = 0;
        assert_eq!(call!(table.cuDriverGetVersion(&raw mut version)), OK);
        assert_eq!(version, 11020);
        assert_eq!(call!(table.cuInit(0)), OK);
        let mut value = 7;
        let mut ask = |id| {
            let id = CUdevice_attribute(id);
            call!(table.cuDeviceGetAttribute(&raw mut value, id, 0))
        };
        assert_eq!(ask(115), OK);
        assert_eq!(ask(119), INVALID_VALUE);
        let mut wish = props();
        let mut pool = std::ptr::null_mut();
        let mut create = |wish: &CUmemPoolProps| call!(table.cuMemPoolCreate(&raw mut pool, wish));
        wish.maxSize = 1 << 30;
        assert_eq!(create(&wish), INVALID_VALUE, "maxSize came with 12.2");
        wish.maxSize = 0;
        assert_eq!(create(&wish), OK);
        let mut value = 0_u64;
        let mut ask = |id| {
            let (id, place) = (CUmemPool_attribute(id), (&raw mut value).cast::<c_void>());
            call!(table.cuMemPoolGetAttribute(pool, id, place))
        };
        assert_eq!(ask(4), OK);
        assert_eq!(ask(5), INVALID_VALUE, "came with 11.3");
    });
}

#[test]
fn before_11_2_there_are_no_pools() {
    let version = [("CUDA_SIM_DRIVER_VERSION", "11010")];
    child("before_11_2_there_are_no_pools", &version, || {
        let table = load();
        for newer in ["cuMemPoolCreate", "cuMemAllocAsync", "cuMemAllocAsync_ptsz"] {
            assert!(!table.has(newer), "{newer}");
        }
        assert!(table.has("cuMemAlloc_v2") && table.has("cuStreamCreate"));
    });
}

#[test]
fn the_newest_version_has_everything() {
    let version = [("CUDA_SIM_DRIVER_VERSION", "13050")];
    child("the_newest_version_has_everything", &version, || {
        let table = load();
        assert!(table.has("cuCtxCreate_v4") && table.has("cuGetProcAddress_v2"));
        assert_eq!(call!(table.cuInit(0)), OK);
        let wish = props();
        let mut pool = std::ptr::null_mut();
        let answer = call!(table.cuMemPoolCreate(&raw mut pool, &raw const wish));
        assert_eq!(answer, OK);
        let mut value = 9_i32;
        let place = (&raw mut value).cast::<c_void>();
        let id = CUmemPool_attribute(9);
        assert_eq!(call!(table.cuMemPoolGetAttribute(pool, id, place)), OK);
        assert_eq!(value, 1);
    });
}

#[test]
fn settings_set_up_the_machine() {
    let settings = [
        ("CUDA_SIM_DEVICES", "4"),
        ("CUDA_SIM_MEMORY", "256M"),
        ("CUDA_SIM_PEERS", "0"),
        ("CUDA_SIM_HANDLE_TYPES", "lots"),
        ("CUDA_VISIBLE_DEVICES", "2,0"),
    ];
    let output = child("settings_set_up_the_machine", &settings, || {
        let table = load();
        let mut number: c_int = 0;
        assert_eq!(
            call!(table.cuDeviceGetCount(&raw mut number)),
            CUresult::CUDA_ERROR_NOT_INITIALIZED
        );
        assert_eq!(call!(table.cuInit(0)), OK);
        assert_eq!(call!(table.cuDeviceGetCount(&raw mut number)), OK);
        assert_eq!(number, 2);
        let mut name = [0_u8; 32];
        let answer = call!(table.cuDeviceGetName(name.as_mut_ptr().cast(), 32, 0));
        assert_eq!(answer, OK);
        assert!(name.starts_with(b"Simulated GPU 2\0"));
        let answer = call!(table.cuDeviceCanAccessPeer(&raw mut number, 0, 1));
        assert_eq!((answer, number), (OK, 0));
        let mut memory = 0;
        assert_eq!(call!(table.cuDeviceTotalMem_v2(&raw mut memory, 0)), OK);
        assert_eq!(memory, 256 << 20);
    });
    let Some(output) = output else { return };
    let errors = String::from_utf8_lossy(&output.stderr);
    let complaints = errors.lines().filter(|line| line.contains("cuda-sim:"));
    assert_eq!(complaints.count(), 1, "{errors}");
    assert!(
        errors.contains("CUDA_SIM_HANDLE_TYPES=\"lots\""),
        "{errors}"
    );
}

#[test]
fn devices_without_pools_say_so() {
    let settings = [("CUDA_SIM_POOLS", "0")];
    child("devices_without_pools_say_so", &settings, || {
        let table = load();
        assert_eq!(call!(table.cuInit(0)), OK);
        let mut value = 7;
        let id = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        assert_eq!(call!(table.cuDeviceGetAttribute(&raw mut value, id, 0)), OK);
        assert_eq!(value, 0);
        let wish = props();
        let mut pool = std::ptr::null_mut();
        let refused = CUresult::CUDA_ERROR_NOT_SUPPORTED;
        let answer = call!(table.cuMemPoolCreate(&raw mut pool, &raw const wish));
        assert_eq!(answer, refused);
        let answer = call!(table.cuDeviceGetDefaultMemPool(&raw mut pool, 0));
        assert_eq!(answer, refused);
    });
}

/// What a pool of this type and location answers when it is made.
fn made(table: &DriverTable, kind: u32, place: u32, types: u32) -> CUresult {
    let wish = CUmemPoolProps {
        allocType: CUmemAllocationType(kind),
        handleTypes: CUmemAllocationHandleType(types),
        location: location(CUmemLocationType(place), 0),
        ..CUmemPoolProps::default()
    };
    let mut pool = std::ptr::null_mut();
    call!(table.cuMemPoolCreate(&raw mut pool, &raw const wish))
}

fn device_says(table: &DriverTable, id: u32) -> c_int {
    let mut value = 7;
    let id = CUdevice_attribute(id);
    assert_eq!(call!(table.cuDeviceGetAttribute(&raw mut value, id, 0)), OK);
    value
}

#[test]
fn a_machine_may_lack_kinds_of_pools() {
    let settings = [
        ("CUDA_SIM_HOST_POOLS", "0"),
        ("CUDA_SIM_NUMA_POOLS", "0"),
        ("CUDA_SIM_MANAGED_POOLS", "0"),
    ];
    child("a_machine_may_lack_kinds_of_pools", &settings, || {
        let table = load();
        assert_eq!(call!(table.cuInit(0)), OK);
        for (id, kind, place) in [(144, 1, 2), (142, 1, 3), (89, 2, 1), (89, 2, 0)] {
            assert_eq!(device_says(table, id), 0, "attribute {id}");
            let refused = CUresult::CUDA_ERROR_NOT_SUPPORTED;
            assert_eq!(made(table, kind, place, 0), refused);
            let mut pool = std::ptr::null_mut();
            let mut location = location(CUmemLocationType(place), 0);
            let kind = CUmemAllocationType(kind);
            let answer =
                call!(table.cuMemGetDefaultMemPool(&raw mut pool, &raw mut location, kind));
            assert_eq!(answer, refused);
        }
        assert_eq!(made(table, 1, 1, 0), OK);
    });
}

#[test]
fn handle_types_may_be_promised_and_not_kept() {
    let settings = [("CUDA_SIM_BROKEN_HANDLE_TYPES", "1")];
    child(
        "handle_types_may_be_promised_and_not_kept",
        &settings,
        || {
            let table = load();
            assert_eq!(call!(table.cuInit(0)), OK);
            assert_eq!(device_says(table, 119), 9);
            let refused = CUresult::CUDA_ERROR_NOT_SUPPORTED;
            assert_eq!(made(table, 1, 1, 1), refused);
            assert_eq!(made(table, 1, 1, 9), refused);
            assert_eq!(made(table, 1, 1, 8), OK);
        },
    );
}

#[test]
fn chosen_pairs_of_devices_are_no_peers() {
    let settings = [
        ("CUDA_SIM_DEVICES", "3"),
        ("CUDA_SIM_NO_PEERS", "0-2"),
        ("CUDA_VISIBLE_DEVICES", "2,1,0"),
    ];
    child("chosen_pairs_of_devices_are_no_peers", &settings, || {
        let table = load();
        assert_eq!(call!(table.cuInit(0)), OK);
        for (one, other, expected) in [(0, 1, 1), (1, 2, 1), (0, 2, 0), (2, 0, 0)] {
            let mut can = 7;
            let answer = call!(table.cuDeviceCanAccessPeer(&raw mut can, one, other));
            assert_eq!((answer, can), (OK, expected), "{one} and {other}");
            let what = CUdevice_P2PAttribute(2);
            let answer = call!(table.cuDeviceGetP2PAttribute(&raw mut can, what, one, other));
            assert_eq!((answer, can), (OK, expected));
        }
        let wish = props();
        let mut pool = std::ptr::null_mut();
        let answer = call!(table.cuMemPoolCreate(&raw mut pool, &raw const wish));
        assert_eq!(answer, OK);
        for (device, expected) in [(1, OK), (2, CUresult::CUDA_ERROR_INVALID_DEVICE)] {
            let wish = CUmemAccessDesc {
                location: location(CUmemLocationType(1), device),
                flags: CUmemAccess_flags(3),
            };
            let answer = call!(table.cuMemPoolSetAccess(pool, &raw const wish, 1));
            assert_eq!(answer, expected);
        }
    });
}

#[test]
fn newer_pools_tell_what_they_are() {
    let version = [("CUDA_SIM_DRIVER_VERSION", "13020")];
    child("newer_pools_tell_what_they_are", &version, || {
        let table = load();
        assert_eq!(call!(table.cuInit(0)), OK);
        let wish = CUmemPoolProps {
            handleTypes: CUmemAllocationHandleType(9),
            maxSize: 64 << 20,
            usage: 2,
            ..props()
        };
        let mut pool = std::ptr::null_mut();
        let answer = call!(table.cuMemPoolCreate(&raw mut pool, &raw const wish));
        assert_eq!(answer, OK);
        let ask = |id: u32| {
            let mut value = 0_u64;
            let place = (&raw mut value).cast::<c_void>();
            let id = CUmemPool_attribute(id);
            let answer = call!(table.cuMemPoolGetAttribute(pool, id, place));
            if answer == OK { Ok(value) } else { Err(answer) }
        };
        let told: Vec<_> = (9..=14).map(ask).collect();
        assert_eq!(told, [1, 9, 0, 1, 64 << 20, 1].map(Ok));
        assert_eq!(ask(15), Err(INVALID_VALUE), "came with 13.4");
    });
}

#[test]
fn the_driver_can_refuse_to_start() {
    let settings = [("CUDA_SIM_INIT_ERROR", "802")];
    child("the_driver_can_refuse_to_start", &settings, || {
        let table = load();
        let refused = CUresult::CUDA_ERROR_SYSTEM_NOT_READY;
        assert_eq!(call!(table.cuInit(0)), refused);
    });
}

#[test]
fn a_machine_may_show_no_device() {
    let variables = [("CUDA_VISIBLE_DEVICES", "")];
    child("a_machine_may_show_no_device", &variables, || {
        let table = load();
        assert_eq!(call!(table.cuInit(0)), CUresult::CUDA_ERROR_NO_DEVICE);
    });
}

#[test]
fn the_stub_answers_every_call_that_it_is_one() {
    let settings = [("CUDA_SIM_STUB", "1")];
    child(
        "the_stub_answers_every_call_that_it_is_one",
        &settings,
        || {
            let path = library_path().expect("built");
            // SAFETY: the simulator's functions have the signatures of the driver.
            let refused = unsafe { load_from(path) }.expect_err("a stub is no driver");
            assert!(refused.to_string().contains("CUDA_ERROR_STUB_LIBRARY"));
        },
    );
}

#[test]
fn a_forked_child_has_no_driver() {
    let _turn = turn();
    // SAFETY: the child makes two calls that answer before they take any lock, and ends at once.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let refused = CUresult::CUDA_ERROR_NOT_INITIALIZED;
        let mut count = 0;
        let right = cu!(cuDeviceGetCount(&raw mut count)) == refused && cu!(cuInit(0)) == refused;
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(c_int::from(!right)) };
    }
    let mut status = 0;
    // SAFETY: the child was made above, and the status is written to a live local.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert_eq!(status, 0);
}

#[test]
fn a_program_ends_while_streams_are_busy() {
    child("a_program_ends_while_streams_are_busy", &[], || {
        let turn = turn();
        let stream = stream();
        std::mem::forget(Gate::hold(stream));
        // Dropping the turn would wait for ever.
        std::mem::forget(turn);
    });
}

#[test]
fn the_library_is_found_by_its_variable() {
    let path = library_path().expect("built");
    assert!(path.is_absolute() && path.ends_with("libcuda_sim.so"));
    let text = path.to_str().expect("UTF-8");
    let variables = [("CUDA_SIM_LIBRARY", text), ("WANTED", text)];
    child("the_library_is_found_by_its_variable", &variables, || {
        assert_eq!(library_path().map(Into::into), std::env::var_os("WANTED"));
        // SAFETY: this child runs one test, on one thread.
        unsafe { std::env::set_var("CUDA_SIM_LIBRARY", "/nowhere") };
        assert_eq!(library_path(), None);
        // SAFETY: as above.
        unsafe { std::env::remove_var("CUDA_SIM_LIBRARY") };
        cuda_sim::use_if_no_driver();
        assert!(cuda_driver_sys::load().is_ok());
    });
}

#[test]
fn the_simulator_says_in_one_line_that_it_is_used() {
    let name = "the_simulator_says_in_one_line_that_it_is_used";
    for (version, shown) in [("13000", "13.0"), ("11020", "11.2")] {
        let variables = [
            ("CUDA_DRIVER_SYS_LIBRARY", ""),
            ("CUDA_SIM_DRIVER_VERSION", version),
        ];
        let output = child(name, &variables, || {
            cuda_sim::use_if_no_driver();
            // The library is named already.
            cuda_sim::use_if_no_driver();
            let used = std::env::var("CUDA_DRIVER_SYS_LIBRARY").is_ok_and(|path| !path.is_empty());
            println!("used: {used}");
        });
        let Some(output) = output else { return };
        let (out, errors) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let line = format!("no GPU driver found: using the simulated driver (CUDA {shown})\n");
        let expected = if out.contains("used: true") {
            &*line
        } else {
            ""
        };
        assert_eq!(errors, expected, "{out}");
    }
}

#[test]
fn standard_error_may_be_closed_at_its_other_end() {
    let name = "standard_error_may_be_closed_at_its_other_end";
    child(name, &[], || {
        let _turn = turn();
        let stream = stream();
        let module = try_module(&image(
            ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry unknown() { ret; }",
        ));
        let unknown = function(module.expect("loads"), c"unknown");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        // SAFETY: the descriptors are open, and the copy is closed nowhere else.
        let before = unsafe { libc::dup(2) };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::dup2(writer.as_raw_fd(), 2) }, 2);
        let code = launch(unknown, [1, 1], stream, [0]);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::dup2(before, 2) }, 2);
        assert_eq!(code, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    });
}

//! Several machines in one process: each with devices, memory, counts and faults of its own.

use std::ffi::{c_int, c_uint};

use cuda_driver_sys::*;
use cuda_sim::{Machine, Simulator};

use crate::apart::call;
use crate::harness::{INVALID_VALUE, OK};

/// An initialised machine, and a stream in a current context of its first device.
pub(crate) fn started(machine: Machine) -> (Simulator, &'static DriverTable, CUstream) {
    let simulator = machine.start().expect("the simulator was built");
    let table = simulator.library().table();
    let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    assert_eq!(call!(table.cuInit(0)), OK);
    assert_eq!(
        call!(table.cuDevicePrimaryCtxRetain(&raw mut context, 0)),
        OK
    );
    assert_eq!(call!(table.cuCtxSetCurrent(context)), OK);
    assert_eq!(call!(table.cuStreamCreate(&raw mut stream, 1)), OK);
    (simulator, table, stream)
}

fn devices(table: &DriverTable) -> c_int {
    let mut count = -1;
    assert_eq!(call!(table.cuDeviceGetCount(&raw mut count)), OK);
    count
}

#[test]
fn each_machine_has_its_own_devices_counts_and_faults() {
    let (one, first, _) = started(Machine::new());
    let (three, second, _) = started(Machine::new().devices(3).memory(64 << 20));
    assert_eq!((devices(first), devices(second)), (1, 3));
    let total = |table: &DriverTable| {
        let mut bytes = 0_usize;
        assert_eq!(call!(table.cuDeviceTotalMem_v2(&raw mut bytes, 0)), OK);
        bytes
    };
    assert_eq!((total(first), total(second)), (150_109_880_320, 64 << 20));
    assert_eq!(one.control().calls("cuDeviceTotalMem_v2"), 1);
    one.control().fail("cuDeviceGetCount", 1, INVALID_VALUE);
    assert_eq!(devices(second), 3);
    let mut count = -1;
    assert_eq!(call!(first.cuDeviceGetCount(&raw mut count)), INVALID_VALUE);
    assert_eq!(three.control().live().streams, 1);
}

#[test]
fn handles_of_one_machine_mean_nothing_to_another() {
    let (_one, first, stream) = started(Machine::new());
    let (_other, second, other) = started(Machine::new());
    assert_ne!(stream, other);
    let unknown = CUresult::CUDA_ERROR_INVALID_HANDLE;
    assert_eq!(call!(second.cuStreamSynchronize(stream)), unknown);
    assert_eq!(call!(first.cuStreamSynchronize(other)), unknown);
    assert_eq!(call!(first.cuStreamSynchronize(stream)), OK);
}

#[test]
fn many_threads_start_machines_at_once() {
    std::thread::scope(|scope| {
        for wanted in 1..=6 {
            scope.spawn(move || {
                let (simulator, table, stream) = started(Machine::new().devices(wanted));
                assert_eq!(devices(table), wanted as c_int);
                let mut block = 0;
                assert_eq!(
                    call!(table.cuMemAllocAsync(&raw mut block, 4096, stream)),
                    OK
                );
                assert_eq!(call!(table.cuMemsetD8Async(block, 7, 4096, stream)), OK);
                assert_eq!(call!(table.cuMemFreeAsync(block, stream)), OK);
                assert_eq!(call!(table.cuStreamSynchronize(stream)), OK);
                simulator.check().expect("in order");
                assert_eq!(simulator.control().live().allocations, 0);
            });
        }
    });
}

#[test]
fn a_machine_without_pools_says_so() {
    let (_simulator, table, stream) = started(Machine::new().devices(2).no_pools_on(0));
    let pools = |device| {
        let (mut value, id) = (-1, CUdevice_attribute(115));
        assert_eq!(
            call!(table.cuDeviceGetAttribute(&raw mut value, id, device)),
            OK
        );
        value
    };
    assert_eq!((pools(0), pools(1)), (0, 1));
    let mut block = 0;
    let refused = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    assert_eq!(
        call!(table.cuMemAllocAsync(&raw mut block, 64, stream)),
        refused
    );
}

#[test]
fn an_old_machine_lacks_new_functions_and_a_hidden_device_is_not_seen() {
    let (_old, table, _) = started(Machine::new().devices(2).visible(1).cuda_version(11, 8));
    assert_eq!(devices(table), 1);
    assert!(table.cuGraphAddNode.is_none() && table.cuMemPoolCreate.is_some());
    let mut version = 0;
    assert_eq!(call!(table.cuDriverGetVersion(&raw mut version)), OK);
    assert_eq!(version, 11_080);
}

#[test]
fn a_machine_that_cannot_be_is_refused() {
    let wrong = Machine::new()
        .devices(100)
        .mig(7, 2)
        .set("CUDA_SIM_MEMROY", "1G")
        .start();
    let text = wrong.expect_err("three mistakes").to_string();
    for part in [
        "CUDA_SIM_DEVICES",
        "no device 7",
        "CUDA_SIM_MEMROY is no setting",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// A wait for its own stream would never end.
#[test]
fn a_model_must_not_call_the_driver() {
    const PTX: &std::ffi::CStr =
        c".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry waits() { ret; }";
    let (simulator, table, stream) = started(Machine::new());
    let answer = std::sync::Arc::new(std::sync::OnceLock::new());
    let (told, synchronise) = (answer.clone(), table.cuCtxSynchronize.expect("exported"));
    simulator.control().kernel("waits", move |_| {
        // SAFETY: no arguments.
        let _ = told.set(unsafe { synchronise() });
        Ok(())
    });
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    let image = PTX.as_ptr().cast();
    assert_eq!(call!(table.cuModuleLoadData(&raw mut module, image)), OK);
    let name = c"waits".as_ptr();
    assert_eq!(
        call!(table.cuModuleGetFunction(&raw mut function, module, name)),
        OK
    );
    let none = std::ptr::null_mut;
    let launched =
        call!(table.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, none(), none()));
    assert_eq!(
        (launched, call!(table.cuStreamSynchronize(stream))),
        (OK, OK)
    );
    assert_eq!(answer.get(), Some(&CUresult::CUDA_ERROR_NOT_PERMITTED));
}

#[test]
fn a_violation_fails_the_check() {
    let (simulator, table, stream) = started(Machine::new());
    let mut other = std::ptr::null_mut();
    let flags: c_uint = 1;
    assert_eq!(call!(table.cuStreamCreate(&raw mut other, flags)), OK);
    let mut block = 0;
    assert_eq!(
        call!(table.cuMemAllocAsync(&raw mut block, 4096, stream)),
        OK
    );
    assert_eq!(call!(table.cuMemsetD8Async(block, 7, 4096, other)), OK);
    let found = simulator.check().expect_err("the streams are not ordered");
    assert_eq!(found.reports().len(), 1, "{found}");
    assert!(found.to_string().contains("before allocation"), "{found}");
    simulator.control().reset();
    assert_eq!(simulator.check(), Ok(()));
}

#[test]
fn what_a_killed_process_left_is_removed() {
    let left = std::env::temp_dir().join("cuda-sim-4294967294-1-0");
    std::fs::create_dir_all(&left).expect("a folder of a process that cannot be");
    // Once in a process, so in a process of its own.
    crate::apart::child_of(
        "several",
        "what_a_killed_process_left_is_removed",
        &[],
        || {
            let _simulator = Machine::new().start().expect("the simulator was built");
            assert!(!left.exists());
        },
    );
    assert!(!left.exists());
}

#[test]
fn its_files_are_gone_when_it_is_dropped() {
    let (simulator, table, _) = started(Machine::new());
    let path = simulator.path().to_owned();
    assert!(path.is_file());
    drop(simulator);
    assert!(!path.exists() && !path.parent().expect("a folder").exists());
    assert_eq!(devices(table), 1, "the driver works on");
}

//! The simulated NCCL as programs use it: each test has a machine and a library of its own.

#![cfg(target_os = "linux")]

mod failures;
mod graphs;
mod groups;
mod harness;
mod init;
mod memory;
mod operations;
mod polling;
mod windows;

cuda_mem_watchdog::watch_program!();

/// A program that opens the built libraries, without machines.
#[test]
fn a_program_finds_the_driver_that_it_has() {
    use std::process::Command;
    use std::ptr::{from_mut, null_mut};

    use cuda_driver_sys::nccl::ncclResult_t;

    const CHILD: &str = "NCCL_SIM_TEST_PROGRAM";
    if std::env::var_os(CHILD).is_none() {
        let program = std::env::current_exe().expect("this test");
        let test = "a_program_finds_the_driver_that_it_has";
        let mut command = Command::new(program);
        let status = command.args(["--exact", test]).env(CHILD, "1").status();
        return assert!(status.expect("it starts").success());
    }
    let path = cuda_sim::library_path().expect("the simulated driver is built");
    // SAFETY: the file is the simulated driver.
    let library = unsafe { cuda_driver_sys::load_from(path) }.expect("it opens");
    let path = nccl_sim::library_path().expect("the simulated NCCL is built");
    // SAFETY: the file is the simulated NCCL.
    let nccl = unsafe { cuda_driver_sys::nccl::load_from(path) }.expect("it opens");
    let init = library.table().cuInit.expect("every driver has it");
    let alloc = nccl.table().ncclMemAlloc.expect("this NCCL has it");
    // SAFETY: no pointers.
    assert_eq!(unsafe { init(0) }.0, 0);
    let mut address = null_mut();
    // SAFETY: the place is valid for a write.
    let code = unsafe { alloc(from_mut(&mut address), 1) };
    // It has asked this driver, which has no context yet.
    assert_eq!(code, ncclResult_t::ncclUnhandledCudaError);
}

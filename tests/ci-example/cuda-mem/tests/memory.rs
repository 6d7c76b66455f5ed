//! Tests that need no GPU. Each has a machine of its own, so they may run at the same time.

use std::error::Error;

use cuda_mem::{Driver, ErrorKind, MemoryPool};
use cuda_sim::{Machine, Simulator};
use gpu_memory_with_cuda_mem::add;

type Result = std::result::Result<(), Box<dyn Error>>;

/// The simulator runs no PTX: what the kernel does is said in Rust.
fn register_model(simulator: &Simulator) {
    simulator.control().kernel("vector_add", |launch| {
        let [sum, a, b] = [launch.argument(0)?, launch.argument(1)?, launch.argument(2)?];
        let count = launch.argument::<u64>(3)? as usize;
        let (a, b) = (launch.read::<f32>(a, count)?, launch.read::<f32>(b, count)?);
        let sums: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        launch.write(sum, &sums)
    });
}

#[test]
fn a_pool_on_a_machine_of_this_test() -> Result {
    let device = Driver::simulated().device(0)?;
    let stream = device.primary_context()?.stream()?;
    let numbers = MemoryPool::builder(&device).build()?.alloc_from(&stream, &[1, 2, 3])?;
    assert_eq!(numbers.to_vec()?, [1, 2, 3]);
    Ok(())
}

#[test]
fn sums_are_right_and_nothing_is_left() -> Result {
    let simulator = Machine::new().start()?;
    register_model(&simulator);
    let sums = add(Driver::load_simulated(&simulator)?, &[1.0, 2.0], &[0.5, 0.5])?;
    assert_eq!(sums, [1.5, 2.5]);
    simulator.check()?; // no access out of order or out of bounds
    assert_eq!(simulator.control().live().allocations, 0);
    Ok(())
}

#[test]
fn out_of_memory_is_an_error_of_its_own_kind() -> Result {
    let simulator = Machine::new().memory(64 << 20).start()?;
    let list = vec![0.0_f32; 16 << 20];
    let error = add(Driver::load_simulated(&simulator)?, &list, &list).expect_err("128 MiB of 64");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory);
    Ok(())
}

/// Every driver call fails once: an error comes back or the result is right, and no memory is left behind.
#[test]
fn every_failure_is_survived() -> Result {
    let mut failures = 0;
    for nth in 1.. {
        let simulator = Machine::new().start()?;
        register_model(&simulator);
        let driver = Driver::load_simulated(&simulator)?;
        let control = simulator.control();
        control.fail_call(nth, cuda_sim::CUresult::CUDA_ERROR_UNKNOWN);
        let before = control.calls_total();
        let outcome = add(driver, &[1.0], &[2.0]);
        let count = control.calls_total() - before;
        control.clear_faults();
        assert_eq!(control.live().allocations, 0, "the call {nth} failed: {outcome:?}");
        simulator.check()?;
        match &outcome {
            Err(_) => failures += 1,
            // A failed release is not reported to the caller. The result must still be right.
            Ok(sums) => assert_eq!(*sums, [3.0]),
        }
        // It has fewer calls than that.
        if count < nth {
            assert_eq!(outcome?, [3.0]);
            assert!(failures > 10, "only {failures} failures of {nth} were told");
            return Ok(());
        }
    }
    unreachable!("`add` ends")
}

#[test]
fn machines_that_few_people_have() -> Result {
    let eight = Driver::load_simulated(&Machine::new().devices(8).visible("3,5").start()?)?;
    assert_eq!(eight.devices()?.len(), 2);

    let old = Driver::load_simulated(&Machine::new().no_pools().cuda_version(11, 8).start()?)?;
    let refused = MemoryPool::builder(&old.device(0)?).build();
    assert_eq!(refused.expect_err("no pools").kind(), ErrorKind::NotSupported);
    Ok(())
}

//! Ranks find each other, or do not.

use std::ffi::CStr;
use std::ptr::{from_mut, null_mut};

use cuda_driver_sys::nccl::{ncclComm_t, ncclResult_t, ncclUniqueId};
use cuda_sim::Machine;

use crate::harness::{INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, SUCCESS, Sim, nccl};

#[test]
fn ranks_know_their_place() {
    let sim = Sim::new(3);
    assert_ne!(sim.id().internal, sim.id().internal);
    sim.ranks_at_once(3, |rank, barrier| {
        let mut numbers = [-1; 3];
        let [count, device, own] = numbers.each_mut().map(from_mut);
        assert_eq!(nccl!(sim, ncclCommCount(rank.comm, count)), SUCCESS);
        assert_eq!(nccl!(sim, ncclCommCuDevice(rank.comm, device)), SUCCESS);
        assert_eq!(nccl!(sim, ncclCommUserRank(rank.comm, own)), SUCCESS);
        assert_eq!(numbers, [3, rank.rank, rank.rank]);
        barrier.wait();
        assert_eq!(sim.control.live().communicators, 3);
        let all = sim.control.communicators();
        assert!(all.iter().any(|it| it.as_raw() == rank.comm));
        barrier.wait();
    });
    sim.check();
}

#[test]
fn versions_and_missing_functions_are_set() {
    let machine = Machine::new()
        .set("NCCL_SIM_VERSION", 21903)
        .set("NCCL_SIM_MISSING", "ncclCommWindowRegister,ncclMemAlloc");
    let sim = Sim::of(machine);
    let mut version = 0;
    assert_eq!(nccl!(sim, ncclGetVersion(from_mut(&mut version))), SUCCESS);
    assert_eq!(version, 21903);
    assert!(sim.nccl.ncclCommWindowRegister.is_none() && sim.nccl.ncclMemAlloc.is_none());
    assert_eq!(sim.nccl.count(), 25);
}

/// The codes of two ranks that call at once: device, number of ranks, and rank of each.
fn codes(sim: &Sim, calls: [(i32, i32, i32); 2]) -> [ncclResult_t; 2] {
    let id = sim.id();
    std::thread::scope(|scope| {
        let threads = calls.map(|(device, ranks, rank)| {
            scope.spawn(move || {
                sim.use_device(device);
                let mut comm: ncclComm_t = null_mut();
                let place = from_mut(&mut comm);
                let code = nccl!(sim, ncclCommInitRank(place, ranks, id, rank));
                assert!(comm.is_null(), "there is none after a failure");
                code
            })
        });
        threads.map(|thread| thread.join().expect("it ends"))
    })
}

#[test]
fn ranks_that_do_not_fit_all_fail() {
    let sim = Sim::new(3);
    for (calls, code) in [
        ([(0, 2, 0), (0, 2, 1)], INVALID_USAGE),
        ([(0, 3, 1), (1, 3, 1)], INVALID_USAGE),
        ([(0, 2, 0), (1, 3, 1)], INVALID_ARGUMENT),
        ([(0, 2, 0), (1, 2, 2)], INVALID_ARGUMENT),
        ([(0, 2, 0), (1, 2, -1)], INVALID_ARGUMENT),
    ] {
        assert_eq!(codes(&sim, calls), [code; 2], "{calls:?}");
    }
    sim.check();
}

#[test]
fn an_id_of_elsewhere_and_no_context_are_refused() {
    let sim = Sim::new(1);
    let mut comm: ncclComm_t = null_mut();
    let id = ncclUniqueId { internal: [1; 128] };
    let without_context = nccl!(sim, ncclCommInitRank(from_mut(&mut comm), 1, id, 0));
    assert_eq!(without_context, ncclResult_t::ncclUnhandledCudaError);
    sim.use_device(0);
    let code = nccl!(sim, ncclCommInitRank(from_mut(&mut comm), 1, id, 0));
    assert_eq!(code, INVALID_ARGUMENT);
    let code = nccl!(sim, ncclCommInitRank(null_mut(), 1, sim.id(), 0));
    assert_eq!(code, INVALID_ARGUMENT);
    assert_eq!(sim.control.faults().len(), 1);
}

#[test]
fn a_destroyed_communicator_is_not_used_again() {
    let sim = Sim::new(1);
    let mut rank = sim.rank(0);
    assert_eq!(rank.init(1, sim.id()), SUCCESS);
    let comm = rank.comm;
    rank.destroy();
    assert_eq!(nccl!(sim, ncclCommDestroy(comm)), INVALID_ARGUMENT);
    let faults = sim.control.faults();
    assert!(faults[0].contains("no communicator"), "{faults:?}");
}

#[test]
fn a_communicator_takes_no_calls_after_its_end() {
    let sim = Sim::new(2);
    sim.ranks_at_once(2, |rank, _| {
        let memory = rank.memory(&[1.0]);
        assert_eq!(rank.sum(memory, 1), SUCCESS);
        assert_eq!(nccl!(sim, ncclCommFinalize(rank.comm)), SUCCESS);
        assert_eq!(rank.sum(memory, 1), INVALID_USAGE);
        assert_eq!(rank.values(memory, 1), [2.0]);
    });
    sim.check();
}

#[test]
fn failures_have_words() {
    let sim = Sim::new(1);
    let words = |code| {
        let text = nccl!(sim, ncclGetErrorString(code));
        // SAFETY: NCCL's texts end in a zero, and stay.
        unsafe { CStr::from_ptr(text) }
    };
    assert_eq!(words(SUCCESS), c"no error");
    assert!(words(REMOTE_ERROR).to_string_lossy().contains("remote"));
    let mut rank = sim.rank(0);
    assert_eq!(rank.init(1, sim.id()), SUCCESS);
    assert_eq!(rank.send(8, 1, 7), INVALID_ARGUMENT);
    let text = nccl!(sim, ncclGetLastError(rank.comm));
    // SAFETY: as above.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    assert_eq!(text, "ncclSend: there is no such rank");
}

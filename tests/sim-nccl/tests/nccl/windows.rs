//! Windows.

use std::ptr::{from_mut, null_mut};

use cuda_driver_sys::nccl::{
    NCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_DEFAULT, ncclResult_t, ncclWindow_t,
};

use crate::harness::{INVALID_ARGUMENT, REMOTE_ERROR, Rank, SUCCESS, Sim, nccl, pointer};
use crate::memory::mapped;

fn register(
    rank: &Rank<'_>,
    address: u64,
    bytes: usize,
    window: &mut ncclWindow_t,
) -> ncclResult_t {
    let (at, out, flags) = (pointer(address), from_mut(window), NCCL_WIN_COLL_SYMMETRIC);
    nccl!(
        rank.sim,
        ncclCommWindowRegister(rank.comm, at, bytes, out, flags)
    )
}

fn deregister(rank: &Rank<'_>, window: ncclWindow_t) -> ncclResult_t {
    nccl!(rank.sim, ncclCommWindowDeregister(rank.comm, window))
}

fn free(sim: &Sim, address: u64) {
    assert_eq!(nccl!(sim, ncclMemFree(pointer(address))), SUCCESS);
}

#[test]
fn ranks_register_windows_together() {
    let sim = Sim::new(2);
    sim.ranks_at_once(2, |rank, barrier| {
        let memory = mapped(rank, 8192);
        let mut window = null_mut();
        assert_eq!(register(rank, memory + 4096, 4096, &mut window), SUCCESS);
        assert!(!window.is_null());
        barrier.wait();
        assert_eq!(sim.control.live().windows, 2);
        assert_eq!(rank.sum(memory + 4096, 4), SUCCESS);
        rank.synchronise();
        barrier.wait();
        assert_eq!(deregister(rank, window), SUCCESS);

        // Of different sizes: no rank has one.
        let mut window = null_mut();
        let bytes = 4096 * (1 + rank.rank as usize);
        let code = register(rank, memory, bytes, &mut window);
        assert_eq!((code, window.is_null()), (INVALID_ARGUMENT, true));
        assert_eq!(rank.sum(memory, 4), SUCCESS);
        rank.synchronise();
        free(&sim, memory);
    });
    sim.check();
}

#[test]
fn one_thread_registers_windows_of_two_ranks() {
    let sim = Sim::new(2);
    let mut ranks = sim.ranks_of_this_thread(2);
    let memory: Vec<u64> = ranks.iter().map(|rank| mapped(rank, 8192)).collect();
    let mut windows = [[null_mut(); 2]; 2];
    sim.group(|| {
        for ((rank, memory), [low, high]) in ranks.iter().zip(&memory).zip(&mut windows) {
            assert_eq!(register(rank, *memory, 4096, low), SUCCESS);
            assert_eq!(register(rank, memory + 4096, 4096, high), SUCCESS);
        }
    });
    for ((rank, memory), windows) in ranks.iter_mut().zip(memory).zip(windows) {
        for window in windows {
            assert_eq!(deregister(rank, window), SUCCESS);
        }
        rank.destroy();
        free(&sim, memory);
    }
    sim.check();
}

#[test]
fn a_window_has_an_alignment_and_known_flags() {
    let sim = Sim::new(1);
    let mut ranks = sim.ranks_of_this_thread(1);
    let rank = &mut ranks[0];
    let memory = mapped(rank, 8192);
    let mut window = null_mut();
    assert_eq!(
        register(rank, memory + 256, 4096, &mut window),
        INVALID_ARGUMENT
    );
    for (flags, expected) in [(2, INVALID_ARGUMENT), (NCCL_WIN_DEFAULT, SUCCESS)] {
        let (at, out) = (pointer(memory), from_mut(&mut window));
        let code = nccl!(sim, ncclCommWindowRegister(rank.comm, at, 4096, out, flags));
        assert_eq!(code, expected);
    }
    // Registered still: a fault.
    rank.destroy();
    let faults = sim.control.faults();
    assert!(faults[0].contains("destroyed with a window"), "{faults:?}");
    free(&sim, memory);
}

#[test]
fn an_abort_ends_the_wait_for_a_window() {
    let sim = Sim::new(2);
    sim.ranks_at_once(2, |rank, _| {
        if rank.rank == 1 {
            return rank.abort();
        }
        let memory = mapped(rank, 4096);
        let mut window = null_mut();
        // Before the abort or after it.
        assert_eq!(register(rank, memory, 4096, &mut window), REMOTE_ERROR);
        free(&sim, memory);
    });
    sim.check();
}

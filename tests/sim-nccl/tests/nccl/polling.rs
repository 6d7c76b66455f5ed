//! Communicators that do not block.

use std::ptr::{from_mut, null_mut};

use cuda_driver_sys::CU_STREAM_PER_THREAD;
use cuda_driver_sys::nccl::NCCL_WIN_COLL_SYMMETRIC;

use crate::harness::{
    IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, Rank, SUCCESS, Sim, cu, nccl,
    pointer,
};
use crate::memory::mapped;

fn two(sim: &Sim) -> [Rank<'_>; 2] {
    let id = sim.id();
    let mut ranks = [sim.rank(0), sim.rank(1)];
    for rank in &mut ranks {
        rank.make_current();
        assert_eq!(rank.init_without_blocking(2, id), IN_PROGRESS);
    }
    for rank in &ranks {
        assert_eq!(rank.error(), SUCCESS);
    }
    ranks
}

#[test]
fn a_rank_waits_for_the_others_in_the_background() {
    let sim = Sim::new(2);
    let id = sim.id();
    let mut first = sim.rank(0);
    assert_eq!(first.init_without_blocking(2, id), IN_PROGRESS);
    assert_eq!([first.error(), first.error()], [IN_PROGRESS; 2]);
    let memory = first.memory(&[1.0]);
    assert_eq!(first.sum(memory, 1), INVALID_ARGUMENT);
    let mut count = 0;
    let code = nccl!(sim, ncclCommCount(first.comm, from_mut(&mut count)));
    assert_eq!(code, INVALID_ARGUMENT);
    let mut second = sim.rank(1);
    assert_eq!(second.init_without_blocking(2, id), IN_PROGRESS);
    assert_eq!([first.error(), second.error()], [SUCCESS; 2]);
    first.destroy();
    second.destroy();
    let faults = sim.control.faults();
    assert!(faults[0].contains("ncclCommGetAsyncError"), "{faults:?}");
}

#[test]
fn an_own_stream_is_that_of_the_thread_that_starts_the_work() {
    let sim = Sim::new(2);
    let mut ranks = two(&sim);
    for rank in &mut ranks {
        let own = std::mem::replace(&mut rank.stream, CU_STREAM_PER_THREAD);
        rank.make_current();
        let mut memory = 0;
        // There from then on in the order of this thread's stream.
        cu!(
            sim,
            cuMemAllocAsync(from_mut(&mut memory), 4, CU_STREAM_PER_THREAD)
        );
        assert_eq!(rank.sum(memory, 1), IN_PROGRESS);
        assert_eq!([rank.error(), rank.error()], [IN_PROGRESS, SUCCESS]);
        rank.stream = own;
    }
    for rank in &ranks {
        // What is not done yet has not been looked at.
        rank.make_current();
        cu!(sim, cuCtxSynchronize());
    }
    let said = sim.simulator.check().expect_err("they are in two streams");
    assert!(said.to_string().contains("not ordered"), "{said}");
}

#[test]
fn each_operation_is_asked_about() {
    let sim = Sim::new(2);
    let mut ranks = two(&sim);
    let memory = ranks.each_ref().map(|rank| rank.memory(&[1.0, 1.0]));
    for (rank, memory) in ranks.iter().zip(memory) {
        assert_eq!(rank.sum(memory, 1), IN_PROGRESS);
        assert_eq!([rank.error(), rank.error()], [IN_PROGRESS, SUCCESS]);
    }
    let code = sim.group_code(|| {
        for (rank, memory) in ranks.iter().zip(memory) {
            assert_eq!(rank.sum(memory, 1), SUCCESS);
            assert_eq!(rank.sum(memory + 4, 1), SUCCESS);
        }
    });
    assert_eq!(code, IN_PROGRESS);
    for (rank, memory) in ranks.iter_mut().zip(memory) {
        assert_eq!([rank.error(), rank.error()], [IN_PROGRESS, SUCCESS]);
        assert_eq!(rank.values(memory, 2), [4.0, 2.0]);
        assert_eq!(nccl!(sim, ncclCommFinalize(rank.comm)), IN_PROGRESS);
        assert_eq!(rank.error(), SUCCESS);
        rank.destroy();
    }
    sim.check();
}

#[test]
fn ranks_that_do_not_fit_are_told_in_the_background() {
    let sim = Sim::new(2);
    let id = sim.id();
    let mut ranks = [sim.rank(0), sim.rank(0)];
    for (index, rank) in ranks.iter_mut().enumerate() {
        rank.rank = index as i32;
        assert_eq!(rank.init_without_blocking(3, id), IN_PROGRESS);
    }
    for rank in &mut ranks {
        assert_eq!(rank.error(), INVALID_USAGE);
        rank.abort();
    }
    sim.check();
}

#[test]
fn a_rank_that_gives_up_ends_the_wait_of_others() {
    let sim = Sim::new(2);
    let id = sim.id();
    let mut ranks = [sim.rank(0), sim.rank(1)];
    for rank in &mut ranks {
        rank.make_current();
        assert_eq!(rank.init_without_blocking(3, id), IN_PROGRESS);
    }
    ranks[0].abort();
    assert_eq!(ranks[1].error(), REMOTE_ERROR);
    ranks[1].abort();
    sim.check();
}

#[test]
fn a_window_is_there_once_all_have_come() {
    let sim = Sim::new(2);
    let mut ranks = two(&sim);
    let memory = ranks.each_ref().map(|rank| mapped(rank, 4096));
    let mut windows = [null_mut(); 2];
    let flags = NCCL_WIN_COLL_SYMMETRIC;
    for index in 0..2 {
        let (comm, window) = (ranks[index].comm, from_mut(&mut windows[index]));
        let at = pointer(memory[index]);
        let code = nccl!(sim, ncclCommWindowRegister(comm, at, 4096, window, flags));
        assert_eq!(code, IN_PROGRESS);
        if index == 0 {
            assert_eq!(ranks[0].error(), IN_PROGRESS);
        }
    }
    for (rank, window) in ranks.iter().zip(&windows) {
        assert_eq!(rank.error(), SUCCESS);
        assert!(!window.is_null());
        let code = nccl!(sim, ncclCommWindowDeregister(rank.comm, *window));
        assert_eq!(code, SUCCESS);
    }
    for (rank, memory) in ranks.iter_mut().zip(memory) {
        rank.destroy();
        assert_eq!(nccl!(sim, ncclMemFree(pointer(memory))), SUCCESS);
    }
    sim.check();
}

#[test]
fn a_held_operation_stays_in_progress() {
    let sim = Sim::new(2);
    let mut ranks = two(&sim);
    let memory = ranks.each_ref().map(|rank| rank.memory(&[1.0]));
    assert!(sim.control.hold(ranks[0].comm, true));
    for (rank, memory) in ranks.iter().zip(memory) {
        assert_eq!(rank.sum(memory, 1), IN_PROGRESS);
    }
    assert_eq!([ranks[1].error(), ranks[1].error()], [IN_PROGRESS, SUCCESS]);
    assert_eq!([ranks[0].error(); 3], [IN_PROGRESS; 3]);
    assert!(sim.control.hold(ranks[0].comm, false));
    assert_eq!([ranks[0].error(), ranks[0].error()], [IN_PROGRESS, SUCCESS]);
    for rank in &mut ranks {
        rank.destroy();
    }
    assert!(!sim.control.hold(null_mut(), true));
    sim.check();
}

//! Ranks that disagree, abort or die, and calls that fail.

use std::ffi::CStr;
use std::ptr::from_mut;

use cuda_driver_sys::nccl::{ncclRedOp_t, ncclResult_t};

use crate::harness::{
    FLOAT, INVALID_ARGUMENT, INVALID_USAGE, REMOTE_ERROR, Rank, SUCCESS, Sim, cu, nccl, pointer,
};

/// Two ranks do different things: both get the error, nothing is written, and the streams go on.
fn check_disagreement(calls: impl Fn(&Rank<'_>, u64) -> ncclResult_t + Sync) {
    let sim = Sim::new(2);
    sim.ranks(2, |rank| {
        let memory = rank.memory(&[5.0, 5.0, 0.0]);
        assert_eq!(calls(rank, memory), SUCCESS);
        cu!(sim, cuMemsetD32Async(memory + 8, 1, 1, rank.stream));
        let mut expected = vec![5.0, 5.0, f32::from_bits(1)];
        assert_eq!(rank.values(memory, 3), expected);
        assert_eq!(rank.error(), INVALID_USAGE);
        expected.truncate(2);
        // The error stays, and refuses later calls.
        assert_eq!(rank.sum(memory, 1), INVALID_USAGE);
        let text = nccl!(sim, ncclGetLastError(rank.comm));
        // SAFETY: NCCL's texts end in a zero, and stay.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        assert!(text.contains("do not agree"), "{text}");
        assert_eq!(rank.values(memory, 2), expected);
    });
    sim.check();
}

#[test]
fn ranks_must_agree_on_the_count() {
    check_disagreement(|rank, memory| rank.sum(memory, 1 + rank.rank as usize));
}

#[test]
fn ranks_must_agree_on_operation_and_type() {
    check_disagreement(|rank, memory| {
        let at = pointer(memory);
        let op = [ncclRedOp_t::ncclSum, ncclRedOp_t::ncclMax][rank.rank as usize];
        nccl!(
            rank.sim,
            ncclAllReduce(at.cast_const(), at, 1, FLOAT, op, rank.comm, rank.stream)
        )
    });
    check_disagreement(|rank, memory| {
        let (at, comm, stream) = (pointer(memory), rank.comm, rank.stream);
        if rank.rank == 0 {
            return rank.sum(memory, 1);
        }
        nccl!(
            rank.sim,
            ncclAllGather(at.cast_const(), at, 1, FLOAT, comm, stream)
        )
    });
    check_disagreement(|rank, memory| {
        let ty = cuda_driver_sys::nccl::ncclDataType_t(7 - rank.rank as u32);
        let (at, sum) = (pointer(memory), ncclRedOp_t::ncclSum);
        nccl!(
            rank.sim,
            ncclAllReduce(at.cast_const(), at, 1, ty, sum, rank.comm, rank.stream)
        )
    });
}

#[test]
fn ranks_must_agree_on_the_root_and_what_is_sent() {
    check_disagreement(|rank, memory| {
        let at = pointer(memory);
        nccl!(
            rank.sim,
            ncclBroadcast(
                at.cast_const(),
                at,
                1,
                FLOAT,
                rank.rank,
                rank.comm,
                rank.stream
            )
        )
    });
    check_disagreement(|rank, memory| match rank.rank {
        0 => rank.send(memory, 1, 1),
        _ => rank.receive(memory, 2, 0),
    });
}

#[test]
fn an_abort_ends_what_waits_for_a_call_that_never_comes() {
    let sim = Sim::new(3);
    sim.ranks_at_once(3, |rank, barrier| {
        let memory = rank.memory(&[5.0]);
        if rank.rank != 2 {
            assert_eq!(rank.sum(memory, 1), SUCCESS);
            assert_eq!(rank.sum(memory, 1), SUCCESS);
            assert!(!rank.is_done());
            assert_eq!(rank.error(), SUCCESS);
        }
        barrier.wait();
        if rank.rank == 0 {
            rank.abort();
        } else {
            assert_eq!(rank.wait_for_error(), REMOTE_ERROR);
            assert_eq!(rank.sum(memory, 1), REMOTE_ERROR);
        }
        // Without the operations' effect.
        assert_eq!(rank.values(memory, 1), [5.0]);
        if rank.rank == 1 {
            rank.abort();
        }
    });
    sim.check();
}

#[test]
fn a_killed_rank_fails_and_the_others_are_told() {
    let sim = Sim::new(2);
    sim.ranks_at_once(2, |rank, barrier| {
        let memory = rank.memory(&[5.0]);
        if rank.rank == 0 {
            assert_eq!(rank.sum(memory, 1), SUCCESS);
            barrier.wait();
            assert_eq!(rank.wait_for_error(), REMOTE_ERROR);
        } else {
            barrier.wait();
            assert!(sim.control.kill(rank.comm));
            let died = ncclResult_t::ncclSystemError;
            assert_eq!(rank.sum(memory, 1), died);
            assert_eq!(rank.error(), died);
            let mut count = 0;
            let code = nccl!(sim, ncclCommCount(rank.comm, from_mut(&mut count)));
            assert_eq!(code, died);
        }
        assert_eq!(rank.values(memory, 1), [5.0]);
    });
    sim.check();
}

#[test]
fn a_rank_whose_memory_is_gone_does_not_hold_the_others() {
    let sim = Sim::new(2);
    sim.ranks(2, |rank| {
        let memory = rank.memory(&[5.0]);
        let used = [memory, 64][rank.rank as usize];
        assert_eq!(rank.sum(used, 1), SUCCESS);
        assert_eq!(rank.values(memory, 1), [5.0]);
        let own = ncclResult_t::ncclUnhandledCudaError;
        assert_eq!(
            rank.wait_for_error(),
            [REMOTE_ERROR, own][rank.rank as usize]
        );
    });
    let reports = sim.simulator.control().reports();
    assert!(reports[0].contains("illegal address"), "{reports:?}");
}

#[test]
fn a_call_fails_when_a_test_wants_it() {
    let sim = Sim::new(1);
    let mut ranks = sim.ranks_of_this_thread(1);
    let rank = &mut ranks[0];
    let memory = rank.memory(&[5.0]);
    let code = ncclResult_t::ncclInternalError;
    sim.control.fail("ncclAllReduce", 2, code);
    let codes = [0; 3].map(|_| rank.sum(memory, 1));
    assert_eq!(codes, [SUCCESS, code, SUCCESS]);
    assert_eq!(sim.control.calls("ncclAllReduce"), 3);
    sim.control.reset();
    assert_eq!(sim.control.calls("ncclAllReduce"), 0);
    // A kernel that the driver refuses does not hold the later ones.
    let control = sim.simulator.control();
    control.fail(
        "cuLaunchKernel",
        1,
        cuda_sim::CUresult::CUDA_ERROR_LAUNCH_FAILED,
    );
    assert_eq!(rank.sum(memory, 1), ncclResult_t::ncclUnhandledCudaError);
    assert_eq!(rank.sum(memory, 1), SUCCESS);
    rank.synchronise();
    assert_eq!(
        nccl!(sim, ncclCommDestroy(pointer(1).cast())),
        INVALID_ARGUMENT
    );
    rank.destroy();
}

//! What the operations compute.

use std::ffi::c_void;
use std::sync::Barrier;

use cuda_driver_sys::nccl::{ncclDataType_t, ncclRedOp_t};

use crate::harness::{FLOAT, INVALID_ARGUMENT, SUCCESS, Sim, cu, nccl, pointer};

#[test]
fn all_ranks_get_the_sum() {
    let sim = Sim::new(3);
    sim.ranks(3, |rank| {
        let own = rank.rank as f32;
        let from = rank.memory(&[own, 10.0 * own]);
        let to = rank.memory(&[0.0; 2]);
        for (op, expected) in [
            (ncclRedOp_t::ncclSum, [3.0, 30.0]),
            (ncclRedOp_t::ncclProd, [0.0, 0.0]),
            (ncclRedOp_t::ncclMax, [2.0, 20.0]),
            (ncclRedOp_t::ncclMin, [0.0, 0.0]),
            (ncclRedOp_t::ncclAvg, [1.0, 10.0]),
        ] {
            let (from, to) = (pointer(from).cast_const(), pointer(to));
            let code = nccl!(
                sim,
                ncclAllReduce(from, to, 2, FLOAT, op, rank.comm, rank.stream)
            );
            assert_eq!(code, SUCCESS);
            assert_eq!(rank.values(to.addr() as u64, 2), expected);
        }
        // In place, on the same memory once more.
        assert_eq!(rank.sum(from, 2), SUCCESS);
        assert_eq!(rank.values(from, 2), [3.0, 30.0]);
    });
    sim.check();
}

#[test]
fn sixteen_bits_are_enough() {
    let sim = Sim::new(2);
    sim.ranks(2, |rank| {
        // Each half of a word is one, two, or their sum, in f16 and in bf16.
        let words = [[0x3c00_3f80, 0x4000_4000], [0x4000_4000, 0x4200_4040]];
        let bits = words[0][rank.rank as usize];
        let memory = rank.memory(&[f32::from_bits(bits); 2]);
        let at = |offset| {
            (
                pointer(memory + offset).cast_const(),
                pointer(memory + offset),
            )
        };
        for (offset, ty) in [
            (0, ncclDataType_t::ncclBfloat16),
            (4, ncclDataType_t::ncclFloat16),
        ] {
            let (from, to) = at(offset);
            let sum = ncclRedOp_t::ncclSum;
            let code = nccl!(
                sim,
                ncclAllReduce(from, to, 2, ty, sum, rank.comm, rank.stream)
            );
            assert_eq!(code, SUCCESS);
        }
        let sums = rank
            .values(memory, 2)
            .iter()
            .map(|it| it.to_bits())
            .collect::<Vec<_>>();
        // The right half of each type is exact; the other has bits of the other type.
        assert_eq!(sums[0] & 0xffff, words[1][1] & 0xffff);
        assert_eq!(sums[1] >> 16, words[1][1] >> 16);
    });
    sim.check();
}

#[test]
fn data_goes_where_it_belongs() {
    let sim = Sim::new(3);
    sim.ranks(3, |rank| {
        let own = rank.rank as f32;
        let small = rank.memory(&[own, own + 10.0]);
        let large = rank.memory(&[0.0; 6]);
        let (from, to) = (pointer(small).cast_const(), pointer(large));
        let gathered = [0.0, 10.0, 1.0, 11.0, 2.0, 12.0];
        let code = nccl!(
            sim,
            ncclAllGather(from, to, 2, FLOAT, rank.comm, rank.stream)
        );
        assert_eq!(code, SUCCESS);
        assert_eq!(rank.values(large, 6), gathered);

        // In place: this rank's part lies where it belongs.
        let mut values = [0.0; 6];
        let start = rank.rank as usize * 2;
        values[start..start + 2].copy_from_slice(&[own, own + 10.0]);
        let large = rank.memory(&values);
        let (from, to) = (
            pointer(large + start as u64 * 4).cast_const(),
            pointer(large),
        );
        let code = nccl!(
            sim,
            ncclAllGather(from, to, 2, FLOAT, rank.comm, rank.stream)
        );
        assert_eq!(code, SUCCESS);
        assert_eq!(rank.values(large, 6), gathered);

        let (from, to) = (pointer(large).cast_const(), pointer(small));
        let sum = ncclRedOp_t::ncclSum;
        let code = nccl!(
            sim,
            ncclReduceScatter(from, to, 2, FLOAT, sum, rank.comm, rank.stream)
        );
        assert_eq!(code, SUCCESS);
        assert_eq!(rank.values(small, 2), [own * 3.0, (own + 10.0) * 3.0]);

        // Only the root's source is read.
        let from = if rank.rank == 2 {
            pointer(small)
        } else {
            pointer(0)
        };
        let code = nccl!(
            sim,
            ncclBroadcast(from.cast_const(), to, 2, FLOAT, 2, rank.comm, rank.stream)
        );
        assert_eq!(code, SUCCESS);
        assert_eq!(rank.values(small, 2), [6.0, 36.0]);
    });
    sim.check();
}

#[test]
fn sends_meet_receives_in_order() {
    let sim = Sim::new(2);
    sim.ranks(2, |rank| {
        let memory = rank.memory(&[1.0, 2.0]);
        for index in [0, 1] {
            let place = memory + index * 4;
            let code = match rank.rank {
                0 => rank.send(place, 1, 1),
                _ => rank.receive(memory + 4 - index * 4, 1, 0),
            };
            assert_eq!(code, SUCCESS);
        }
        let expected = [[1.0, 2.0], [2.0, 1.0]];
        assert_eq!(rank.values(memory, 2), expected[rank.rank as usize]);
    });
    sim.check();
}

#[test]
fn operations_are_in_stream_order_and_wait_for_the_others() {
    let sim = Sim::new(2);
    sim.ranks_at_once(2, |rank, barrier| {
        let memory = rank.memory(&[0.0; 2]);
        let bits = (rank.rank as f32 + 1.0).to_bits();
        if rank.rank == 1 {
            // The other rank's stream waits, and its device does other work meanwhile.
            barrier.wait();
        }
        cu!(sim, cuMemsetD32Async(memory, bits, 1, rank.stream));
        assert_eq!(rank.sum(memory, 1), SUCCESS);
        cu!(
            sim,
            cuMemcpyDtoDAsync_v2(memory + 4, memory, 4, rank.stream)
        );
        if rank.rank == 0 {
            let other = sim.rank(0);
            let elsewhere = other.memory(&[0.0]);
            cu!(sim, cuMemsetD32Async(elsewhere, 7, 1, other.stream));
            other.synchronise();
            assert!(!rank.is_done(), "its part is not there");
            barrier.wait();
        }
        assert_eq!(rank.values(memory, 2), [3.0, 3.0]);
    });
    sim.check();
}

unsafe extern "C" fn wait(barrier: *mut c_void) {
    // SAFETY: the test passes a barrier, which it keeps until the stream is done.
    unsafe { &*barrier.cast::<Barrier>() }.wait();
}

#[test]
fn two_streams_of_a_rank_keep_the_order_of_their_calls() {
    let sim = Sim::new(2);
    sim.ranks(2, |rank| {
        let (first, second) = (rank.memory(&[1.0]), rank.memory(&[2.0, 2.0]));
        let own = rank.stream;
        let other = sim.rank(rank.rank).stream;
        let gate = Barrier::new(2);
        let mut event = std::ptr::null_mut();
        cu!(sim, cuEventCreate(&raw mut event, 2));
        // Several times, because a wrong order shows only if the second stream is quick.
        for round in 1..=20 {
            if rank.rank == 0 {
                // The second operation's stream comes to it long before the first one's.
                let gate = (&raw const gate).cast_mut().cast();
                cu!(sim, cuLaunchHostFunc(own, Some(wait), gate));
            }
            rank.stream = own;
            assert_eq!(rank.sum(first, 1), SUCCESS);
            rank.stream = other;
            cu!(sim, cuEventRecord(event, other));
            assert_eq!(rank.sum(second, 2), SUCCESS);
            cu!(sim, cuEventSynchronize(event));
            if rank.rank == 0 {
                assert!(!rank.is_done());
                gate.wait();
            }
            let sum = 2_f32.powi(round);
            assert_eq!(rank.values(second, 2), [2.0 * sum; 2]);
            rank.stream = own;
            assert_eq!(rank.values(first, 1), [sum]);
        }
    });
    sim.check();
}

#[test]
fn wrong_arguments_are_refused_at_once() {
    let sim = Sim::new(1);
    let mut ranks = sim.ranks_of_this_thread(1);
    let rank = &mut ranks[0];
    let memory = rank.memory(&[0.0]);
    assert_eq!(rank.sum(0, 1), INVALID_ARGUMENT);
    assert_eq!(rank.sum(memory, usize::MAX / 2), INVALID_ARGUMENT);
    assert_eq!(rank.send(memory, 1, 1), INVALID_ARGUMENT);
    assert_eq!(rank.receive(memory, 1, -1), INVALID_ARGUMENT);
    let (from, to) = (pointer(memory).cast_const(), pointer(memory));
    for (ty, op) in [(10, 0), (7, 5)] {
        let (ty, op) = (ncclDataType_t(ty), ncclRedOp_t(op));
        let code = nccl!(
            sim,
            ncclAllReduce(from, to, 1, ty, op, rank.comm, rank.stream)
        );
        assert_eq!(code, INVALID_ARGUMENT);
    }
    // No elements need no memory.
    assert_eq!(rank.sum(0, 0), SUCCESS);
    rank.destroy();
    sim.check();
}

#[test]
fn the_order_sanitizer_sees_what_operations_access() {
    let sim = Sim::new(1);
    let mut ranks = sim.ranks_of_this_thread(1);
    let rank = &mut ranks[0];
    let other = sim.rank(0).stream;
    let mut memory = 0;
    cu!(sim, cuMemAllocAsync(&raw mut memory, 64, other));
    // Nothing orders the rank's stream after the allocation.
    assert_eq!(rank.sum(memory, 1), SUCCESS);
    rank.synchronise();
    let reports = sim.simulator.control().reports();
    assert!(!reports.is_empty());
    assert!(
        reports.iter().all(|it| it.contains("kernel")),
        "{reports:?}"
    );
    cu!(sim, cuMemFreeAsync(memory, other));
    rank.destroy();
}

//! Groups of calls.

use cuda_driver_sys::nccl::{ncclRedOp_t, ncclResult_t};

use crate::harness::{FLOAT, INVALID_ARGUMENT, INVALID_USAGE, SUCCESS, Sim, nccl, pointer};

#[test]
fn one_thread_drives_two_ranks() {
    let sim = Sim::new(2);
    let mut ranks = sim.ranks_of_this_thread(2);
    let memory: Vec<u64> = ranks
        .iter()
        .map(|rank| rank.memory(&[rank.rank as f32 + 1.0]))
        .collect();
    // Groups nest, and no call starts before the last end.
    sim.group(|| {
        sim.group(|| {
            assert_eq!(ranks[0].sum(memory[0], 1), SUCCESS);
        });
        assert!(ranks[0].is_done());
        assert_eq!(ranks[1].sum(memory[1], 1), SUCCESS);
    });
    for (rank, memory) in ranks.iter_mut().zip(&memory) {
        assert_eq!(rank.values(*memory, 1), [3.0]);
    }
    for rank in &mut ranks {
        rank.destroy();
    }
    sim.check();
}

#[test]
fn ranks_exchange_in_one_group() {
    let sim = Sim::new(2);
    sim.ranks(2, |rank| {
        let from = rank.memory(&[rank.rank as f32]);
        let to = rank.memory(&[7.0, 7.0]);
        let peer = 1 - rank.rank;
        sim.group(|| {
            assert_eq!(rank.send(from, 1, peer), SUCCESS);
            assert_eq!(rank.receive(to, 1, peer), SUCCESS);
            // To itself, too.
            assert_eq!(rank.send(from, 1, rank.rank), SUCCESS);
            assert_eq!(rank.receive(to + 4, 1, rank.rank), SUCCESS);
        });
        assert_eq!(rank.values(to, 2), [peer as f32, rank.rank as f32]);
    });
    sim.check();
}

#[test]
fn a_group_with_a_wrong_call_starts_nothing() {
    let sim = Sim::new(2);
    sim.ranks_at_once(2, |rank, _| {
        let memory = rank.memory(&[1.0]);
        let code = sim.group_code(|| {
            assert_eq!(rank.sum(memory, 1), SUCCESS);
            assert_eq!(rank.send(memory, 1, 9), INVALID_ARGUMENT);
        });
        assert_eq!(code, INVALID_ARGUMENT);
        assert_eq!(rank.values(memory, 1), [1.0]);
        // Its thread can start another.
        sim.group(|| assert_eq!(rank.sum(memory, 1), SUCCESS));
        assert_eq!(rank.values(memory, 1), [2.0]);
    });
    assert_eq!(nccl!(sim, ncclGroupEnd()), INVALID_USAGE);
    sim.check();
}

#[test]
fn a_group_fails_when_a_test_wants_it() {
    let sim = Sim::new(1);
    let mut ranks = sim.ranks_of_this_thread(1);
    let rank = &mut ranks[0];
    let memory = rank.memory(&[1.0]);
    let code = ncclResult_t::ncclSystemError;
    for (function, own) in [("ncclAllReduce", code), ("ncclGroupEnd", SUCCESS)] {
        sim.control.fail(function, 1, code);
        let end = sim.group_code(|| {
            assert_eq!(rank.sum(memory, 1), own);
            assert_eq!(rank.sum(memory, 1), SUCCESS);
        });
        assert_eq!(end, code);
        // The group is over.
        assert_eq!(nccl!(sim, ncclGroupEnd()), INVALID_USAGE);
    }
    rank.destroy();
    sim.check();
}

#[test]
fn a_group_that_fails_leaves_no_communicators() {
    let sim = Sim::new(1);
    let mut rank = sim.rank(0);
    let code = sim.group_code(|| {
        assert_eq!(rank.init(2, sim.id()), SUCCESS);
        assert_eq!(rank.sum(8, 1), INVALID_ARGUMENT);
    });
    assert_eq!((code, rank.comm.is_null()), (INVALID_ARGUMENT, true));
    assert_eq!(sim.control.live().communicators, 0);
}

#[test]
fn a_rank_does_not_wait_for_itself() {
    let sim = Sim::new(1);
    let mut ranks = sim.ranks_of_this_thread(1);
    let memory = ranks[0].memory(&[1.0]);
    assert_eq!(ranks[0].send(memory, 1, 0), INVALID_USAGE);
    assert_eq!(ranks[0].receive(memory, 1, 0), INVALID_USAGE);
    ranks[0].destroy();
    sim.check();
}

#[test]
fn one_group_has_operations_of_all_kinds() {
    let sim = Sim::new(2);
    sim.ranks(2, |rank| {
        let sums = rank.memory(&[1.0; 3]);
        let all = rank.memory(&[rank.rank as f32; 2]);
        let own = all + 4 * rank.rank as u64;
        let (from, to) = (pointer(own).cast_const(), pointer(all));
        sim.group(|| {
            let code = nccl!(
                sim,
                ncclAllGather(from, to, 1, FLOAT, rank.comm, rank.stream)
            );
            assert_eq!(code, SUCCESS);
            for index in 0..2 {
                let at = pointer(sums + index * 4);
                let op = [ncclRedOp_t::ncclSum, ncclRedOp_t::ncclMax][index as usize];
                let code = nccl!(
                    sim,
                    ncclAllReduce(at.cast_const(), at, 1, FLOAT, op, rank.comm, rank.stream)
                );
                assert_eq!(code, SUCCESS);
            }
        });
        assert_eq!(rank.values(all, 2), [0.0, 1.0]);
        assert_eq!(rank.values(sums, 3), [2.0, 1.0, 1.0]);
    });
    sim.check();
}

//! Operations in graphs.

use std::ptr::{from_mut, null_mut};

use cuda_driver_sys::{CUgraphExec, CUstreamCaptureMode};

use crate::harness::{Rank, SUCCESS, Sim, cu};

fn capture(rank: &Rank<'_>, calls: impl FnOnce()) -> CUgraphExec {
    let sim = rank.sim;
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    cu!(sim, cuStreamBeginCapture_v2(rank.stream, mode));
    calls();
    let (mut graph, mut exec) = (null_mut(), null_mut());
    cu!(sim, cuStreamEndCapture(rank.stream, from_mut(&mut graph)));
    cu!(
        sim,
        cuGraphInstantiateWithFlags(from_mut(&mut exec), graph, 0)
    );
    cu!(sim, cuGraphDestroy(graph));
    exec
}

#[test]
fn a_graph_does_its_operations_each_time() {
    let sim = Sim::new(2);
    sim.ranks(2, |rank| {
        let memory = rank.memory(&[1.0, 1.0]);
        let exec = capture(rank, || {
            assert_eq!(rank.sum(memory, 1), SUCCESS);
            sim.group(|| {
                let (there, here) = (memory, memory + 4);
                let peer = 1 - rank.rank;
                assert_eq!(rank.send(there, 1, peer), SUCCESS);
                assert_eq!(rank.receive(here, 1, peer), SUCCESS);
            });
        });
        assert_eq!(rank.values(memory, 2), [1.0; 2], "it was only captured");
        for round in 1..=3 {
            cu!(sim, cuGraphLaunch(exec, rank.stream));
            // Direct calls between replays are counted with them.
            assert_eq!(rank.sum(memory, 1), SUCCESS);
            let sum = 4_f32.powi(round);
            assert_eq!(rank.values(memory, 2), [sum, sum / 2.0]);
        }
        cu!(sim, cuGraphExecDestroy(exec));
    });
    sim.check();
}

#[test]
fn a_graph_that_outlives_its_communicator_is_a_fault() {
    let sim = Sim::new(1);
    let mut ranks = sim.ranks_of_this_thread(1);
    let rank = &mut ranks[0];
    let memory = rank.memory(&[1.0]);
    let exec = capture(rank, || assert_eq!(rank.sum(memory, 1), SUCCESS));
    rank.destroy();
    cu!(sim, cuGraphLaunch(exec, rank.stream));
    assert_eq!(rank.values(memory, 1), [1.0]);
    let faults = sim.control.faults();
    assert!(faults[0].contains("a graph replays"), "{faults:?}");
}

#[test]
fn launches_before_an_abort_end_and_those_after_are_a_fault() {
    let sim = Sim::new(2);
    let mut ranks = sim.ranks_of_this_thread(2);
    let rank = &mut ranks[0];
    let memory = rank.memory(&[1.0]);
    let exec = capture(rank, || assert_eq!(rank.sum(memory, 1), SUCCESS));
    // The second waits behind the first, and that for the other rank.
    cu!(sim, cuGraphLaunch(exec, rank.stream));
    cu!(sim, cuGraphLaunch(exec, rank.stream));
    rank.abort();
    assert_eq!(rank.values(memory, 1), [1.0]);
    assert_eq!(sim.control.faults(), [""; 0]);
    cu!(sim, cuGraphLaunch(exec, rank.stream));
    rank.synchronise();
    let faults = sim.control.faults();
    assert!(faults[0].contains("a graph replays"), "{faults:?}");
    ranks[1].abort();
}

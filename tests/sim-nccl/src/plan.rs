//! What one kernel does: the operations of one rank that were started together.

use std::sync::Arc;

use cuda_driver_sys::nccl::ncclResult_t;

use crate::clique::Key;
use crate::export::Comm;
use crate::launch::KernelMemory;
use crate::operation::Operation;
use crate::state::{State, changed, state, wait_until};
use crate::words;

/// The operations of one kernel.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) comm: Comm,
    pub(crate) clique: u64,
    pub(crate) rank: usize,
    pub(crate) operations: Vec<Operation>,
    /// Whether it was captured: then it may run any number of times.
    pub(crate) is_captured: bool,
}

/// Runs the plan of this number, which was submitted at that time.
pub(crate) fn run(number: u64, submitted_ns: u64, memory: &KernelMemory) {
    let mut locked = state();
    let Some(plan) = locked.plans.get(&number).cloned() else {
        let aborted = locked.aborted_plans.get(&number);
        let was_before = aborted.is_some_and(|aborted| submitted_ns <= *aborted);
        drop(locked);
        if was_before {
            // The abort has ended it.
            return;
        }
        words::fault("a graph replays operations of a communicator that is gone".to_owned());
        return;
    };
    if plan.is_captured {
        // The others are counted from their submission on.
        locked.count_pending(plan.comm, 1);
    }
    drop(locked);
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        plan.run(number, memory);
    }));
    let mut locked = state();
    if result.is_err() {
        plan.break_off(&mut locked, "its kernel panicked");
    }
    if !plan.is_captured {
        locked.plans.remove(&number);
    }
    locked.count_pending(plan.comm, -1);
    changed();
}

impl State {
    fn count_pending(&mut self, comm: Comm, change: i64) {
        if let Some(comm) = self.comms.get_mut(&comm) {
            comm.pending += change;
        }
    }
}

impl Plan {
    /// Comes to all rendezvous first, so that sends and receives of one group do not wait for each other.
    fn run(&self, number: u64, memory: &KernelMemory) {
        let Some(keys) = self.arrive(number) else {
            return;
        };
        for (operation, key) in self.operations.iter().zip(&keys) {
            if !self.wait_for_all(*key) || !self.read_and_share(operation, *key, memory) {
                return;
            }
        }
        for (operation, key) in self.operations.iter().zip(&keys) {
            if !self.take_and_write(operation, *key, memory) {
                return;
            }
        }
    }

    /// Comes to the rendezvous of each operation; `None` if this rank's work has ended.
    fn arrive(&self, number: u64) -> Option<Vec<Key>> {
        let mut state = wait_until(state(), |state| {
            self.is_captured || self.is_stopped(state) || self.is_next(state, number)
        });
        let is_stopped = self.is_stopped(&state);
        let clique = state.cliques.get_mut(&self.clique)?;
        if let Some(member) = clique.member_mut(self.rank) {
            member.queued.retain(|other| *other != number);
        }
        changed();
        if is_stopped {
            return None;
        }
        let keys = self.operations.iter().map(|operation| {
            let sequence = operation.sequence(self.rank);
            clique.arrive(self.rank, sequence, operation.signature())
        });
        Some(keys.collect())
    }

    fn is_stopped(&self, state: &State) -> bool {
        state.is_stopped(self.clique, self.rank)
    }

    fn is_next(&self, state: &State, number: u64) -> bool {
        let clique = state.cliques.get(&self.clique);
        let member = clique.and_then(|clique| clique.member(self.rank));
        member.is_none_or(|member| member.queued.front() == Some(&number))
    }

    /// Waits until all ranks of an operation have come. False if this rank's work has ended.
    fn wait_for_all(&self, key: Key) -> bool {
        let state = wait_until(state(), |state| {
            self.is_stopped(state) || self.agrees(state, key).is_some()
        });
        // Ranks that do not agree have an error.
        !self.is_stopped(&state)
    }

    fn agrees(&self, state: &State, key: Key) -> Option<bool> {
        state.cliques.get(&self.clique)?.agrees(key)
    }

    fn ranks(&self) -> usize {
        let state = state();
        let clique = state.cliques.get(&self.clique);
        clique.map_or(0, |clique| clique.ranks())
    }

    fn read_and_share(&self, operation: &Operation, key: Key, memory: &KernelMemory) -> bool {
        if !operation.is_sender(self.rank) {
            return true;
        }
        let data = memory.read(operation.from, operation.input_bytes(self.ranks()));
        let mut state = state();
        let Some(data) = data else {
            self.break_off(&mut state, "its memory cannot be read");
            return false;
        };
        if let Some(clique) = state.cliques.get_mut(&self.clique) {
            clique.share(key, self.rank, data.into());
        }
        changed();
        true
    }

    fn take_and_write(&self, operation: &Operation, key: Key, memory: &KernelMemory) -> bool {
        let senders = operation.senders(self.ranks());
        let mut data: Option<Vec<Arc<[u8]>>> = None;
        let mut state = wait_until(state(), |state| {
            let clique = state.cliques.get(&self.clique);
            data = clique.and_then(|clique| clique.shared(key, &senders));
            data.is_some() || self.is_stopped(state)
        });
        let Some(data) = data else {
            return false;
        };
        if let Some(clique) = state.cliques.get_mut(&self.clique) {
            clique.leave(key, self.rank, operation.signature().is_receiver());
        }
        drop(state);
        let Some(output) = operation.output(self.rank, &data) else {
            return true;
        };
        let is_written = memory.write(operation.to, &output);
        if !is_written {
            self.break_off(&mut crate::state::state(), "its memory cannot be written");
        }
        is_written
    }

    /// This rank cannot do its part, so the others cannot do theirs.
    fn break_off(&self, state: &mut State, why: &str) {
        let Some(clique) = state.cliques.get_mut(&self.clique) else {
            return;
        };
        clique.set_error(self.rank, ncclResult_t::ncclUnhandledCudaError, why);
        let words = format!("rank {} failed: {why}", self.rank);
        for rank in 0..clique.ranks() {
            clique.set_error(rank, ncclResult_t::ncclRemoteError, &words);
        }
        changed();
    }
}

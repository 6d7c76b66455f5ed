//! All communicators of the process, behind one lock.
//!
//! The driver is never called with the lock held: its calls may wait for kernels, and these take the lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::nccl::NCCL_UNIQUE_ID_BYTES;
use cuda_sim_support::clock::monotonic_ns;

use crate::clique::Clique;
use crate::communicator::RankComm;
use crate::export::Comm;
use crate::plan::Plan;

/// The bytes of a unique id.
pub(crate) type Id = [u8; NCCL_UNIQUE_ID_BYTES];

/// What the process has.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The ranks of each unique id, by number.
    pub(crate) cliques: BTreeMap<u64, Clique>,
    pub(crate) ids: BTreeMap<Id, u64>,
    pub(crate) comms: BTreeMap<Comm, RankComm>,
    /// Submitted operations by the number that their kernel has.
    pub(crate) plans: BTreeMap<u64, Arc<Plan>>,
    /// When captured plans were aborted, in nanoseconds of the monotonic clock. Launches from before do nothing.
    pub(crate) aborted_plans: BTreeMap<u64, u64>,
}

static STATE: Mutex<State> = Mutex::new(State {
    cliques: BTreeMap::new(),
    ids: BTreeMap::new(),
    comms: BTreeMap::new(),
    plans: BTreeMap::new(),
    aborted_plans: BTreeMap::new(),
});

static CHANGED: Condvar = Condvar::new();

pub(crate) type Locked = MutexGuard<'static, State>;

pub(crate) fn state() -> Locked {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Wakes all that wait.
pub(crate) fn changed() {
    CHANGED.notify_all();
}

/// Waits until `is_done`.
pub(crate) fn wait_until(state: Locked, mut is_done: impl FnMut(&mut State) -> bool) -> Locked {
    CHANGED
        .wait_while(state, |state| !is_done(state))
        .unwrap_or_else(PoisonError::into_inner)
}

/// A number for a new object. Never used twice, and no address of anything.
pub(crate) fn new_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl State {
    /// The communicator is aborted now.
    pub(crate) fn note_aborted_plans(&mut self, comm: Comm) {
        let now = monotonic_ns();
        let captured = self
            .plans
            .iter()
            .filter(|(_, plan)| plan.comm == comm && plan.is_captured);
        let numbers = captured.map(|(number, _)| (*number, now));
        self.aborted_plans.extend(numbers);
    }

    /// Whether this rank's work ends without effect: its communicator has an error, or is gone.
    pub(crate) fn is_stopped(&self, clique: u64, rank: usize) -> bool {
        let member = self
            .cliques
            .get(&clique)
            .and_then(|clique| clique.member(rank));
        member.is_none_or(|member| member.is_gone || member.error.is_some())
    }
}

//! The ranks of one unique id, and where they meet.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::CStr;
use std::sync::Arc;

use cuda_driver_sys::nccl::ncclResult_t;

use crate::export::{Answer, Comm, Failure, fail};
use crate::operation::Signature;
use crate::words;

/// A rank of a clique.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) comm: Comm,
    pub(crate) device: i32,
    /// Its communicator is freed, or its process counts as dead.
    pub(crate) is_gone: bool,
    /// The asynchronous error, which stays.
    pub(crate) error: Option<ncclResult_t>,
    pub(crate) words: &'static CStr,
    /// How many times it has come to the rendezvous of a sequence, apart for receivers: both ends of a pair may be one rank.
    numbers: BTreeMap<(Sequence, bool), u64>,
    /// Submitted plans that have not begun, in the order of submission. Streams may reach them in another.
    pub(crate) queued: VecDeque<u64>,
}

/// Rendezvous that are numbered together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sequence {
    /// Operations of all ranks.
    Collective,
    /// From a rank to a rank.
    Pair { from: usize, to: usize },
    /// Registrations of windows.
    Window,
}

/// One rendezvous: its sequence, and its number there.
pub(crate) type Key = (Sequence, u64);

/// One place at a rendezvous.
#[derive(Debug, Default)]
struct Slot {
    signature: Option<Signature>,
    data: Option<Arc<[u8]>>,
    has_left: bool,
}

/// An operation in progress.
#[derive(Debug)]
struct Rendezvous {
    slots: Vec<Slot>,
    /// Whether the ranks agree, once all have come.
    agrees: Option<bool>,
}

/// The ranks of one unique id.
#[derive(Debug, Default)]
pub(crate) struct Clique {
    /// By rank; empty until the first has come.
    members: Vec<Option<Member>>,
    /// Why it cannot come to be.
    failure: Option<Failure>,
    rendezvous: BTreeMap<Key, Rendezvous>,
}

impl Clique {
    /// Adds a rank. A failure is that of all ranks, also of those that come later.
    pub(crate) fn join(
        &mut self,
        ranks: usize,
        rank: usize,
        device: i32,
        comm: Comm,
    ) -> Answer<()> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        if self.members.is_empty() {
            self.members.resize_with(ranks, || None);
        }
        let known = self.members.len();
        let joined = if known != ranks {
            let code = ncclResult_t::ncclInvalidArgument;
            fail(
                code,
                format!("rank {rank} has {ranks} ranks, others {known}"),
            )
        } else if self.members[rank].is_some() {
            let code = ncclResult_t::ncclInvalidUsage;
            fail(code, format!("there are two ranks {rank}"))
        } else if let Some(other) = self.rank_on(device) {
            let code = ncclResult_t::ncclInvalidUsage;
            fail(
                code,
                format!("ranks {other} and {rank} are both on device {device}"),
            )
        } else {
            Ok(())
        };
        match joined {
            Ok(()) => {
                self.members[rank] = Some(Member {
                    comm,
                    device,
                    is_gone: false,
                    error: None,
                    words: c"",
                    numbers: BTreeMap::new(),
                    queued: VecDeque::new(),
                });
            }
            // A program that uses an id again harms nobody but itself.
            Err(_) if self.is_complete() => {}
            Err(ref failure) => self.fail(failure),
        }
        joined
    }

    fn rank_on(&self, device: i32) -> Option<usize> {
        let is_on = |member: &Option<Member>| {
            member
                .as_ref()
                .is_some_and(|member| member.device == device)
        };
        self.members.iter().position(is_on)
    }

    /// It cannot come to be, for any rank.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        self.failure.get_or_insert_with(|| failure.clone());
        for rank in 0..self.members.len() {
            self.set_error(rank, failure.code, &failure.words);
        }
    }

    pub(crate) fn is_complete(&self) -> bool {
        !self.members.is_empty() && self.members.iter().all(Option::is_some)
    }

    /// Whether no communicator is left, and none can come.
    pub(crate) fn is_over(&self) -> bool {
        let mut present = self.members.iter().flatten();
        self.is_complete() && present.all(|member| member.is_gone)
    }

    pub(crate) fn ranks(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn member(&self, rank: usize) -> Option<&Member> {
        self.members.get(rank)?.as_ref()
    }

    pub(crate) fn member_mut(&mut self, rank: usize) -> Option<&mut Member> {
        self.members.get_mut(rank)?.as_mut()
    }

    /// Gives a rank an asynchronous error, unless it has one.
    pub(crate) fn set_error(&mut self, rank: usize, code: ncclResult_t, why: &str) {
        if let Some(member) = self.member_mut(rank)
            && member.error.is_none()
            && !member.is_gone
        {
            member.error = Some(code);
            member.words = words::keep(why);
            words::set_last(&format!("rank {rank}: {why}"));
        }
    }

    /// A rank ends before its time; all others get REMOTE_ERROR.
    pub(crate) fn end_rank(&mut self, rank: usize, why: &str) {
        if let Some(member) = self.member_mut(rank) {
            member.is_gone = true;
        }
        let remote = ncclResult_t::ncclRemoteError;
        let words = format!("rank {rank} {why}");
        if self.is_complete() {
            for other in 0..self.members.len() {
                self.set_error(other, remote, &words);
            }
        } else {
            self.fail(&Failure {
                code: remote,
                words,
            });
        }
    }

    /// A rank comes to its next rendezvous of a sequence, with what it is to do there.
    pub(crate) fn arrive(&mut self, rank: usize, sequence: Sequence, signature: Signature) -> Key {
        let number = match self.member_mut(rank) {
            Some(member) => member.next(sequence, signature.is_receiver()),
            None => 0,
        };
        let key = (sequence, number);
        let slots = match sequence {
            Sequence::Pair { .. } => 2,
            Sequence::Collective | Sequence::Window => self.members.len(),
        };
        let slot = self.slot(sequence, rank, signature.is_receiver());
        let rendezvous = self.rendezvous.entry(key).or_insert_with(|| Rendezvous {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            agrees: None,
        });
        rendezvous.slots[slot].signature = Some(signature);
        let signatures: Option<Vec<&Signature>> = rendezvous
            .slots
            .iter()
            .map(|slot| slot.signature.as_ref())
            .collect();
        let Some(signatures) = signatures else {
            return key;
        };
        let first = signatures[0];
        let other = signatures.iter().find(|other| !first.agrees(other));
        rendezvous.agrees = Some(other.is_none());
        if let Some(other) = other
            && sequence != Sequence::Window
        {
            let why = format!("the ranks do not agree: one calls {first}, another {other}");
            for rank in self.participants(sequence) {
                self.set_error(rank, ncclResult_t::ncclInvalidUsage, &why);
            }
        }
        key
    }

    fn slot(&self, sequence: Sequence, rank: usize, is_receiver: bool) -> usize {
        match sequence {
            Sequence::Pair { .. } => usize::from(is_receiver),
            Sequence::Collective | Sequence::Window => rank,
        }
    }

    fn participants(&self, sequence: Sequence) -> Vec<usize> {
        match sequence {
            Sequence::Pair { from, to } => vec![from, to],
            Sequence::Collective | Sequence::Window => (0..self.members.len()).collect(),
        }
    }

    /// Whether the ranks of a rendezvous agree; `None` until all have come.
    pub(crate) fn agrees(&self, key: Key) -> Option<bool> {
        self.rendezvous.get(&key)?.agrees
    }

    /// A rank shares its data.
    pub(crate) fn share(&mut self, key: Key, rank: usize, data: Arc<[u8]>) {
        // Only senders share.
        let slot = self.slot(key.0, rank, false);
        if let Some(rendezvous) = self.rendezvous.get_mut(&key) {
            rendezvous.slots[slot].data = Some(data);
        }
    }

    /// The data of the senders, once all of them have shared it.
    pub(crate) fn shared(&self, key: Key, senders: &[usize]) -> Option<Vec<Arc<[u8]>>> {
        let rendezvous = self.rendezvous.get(&key)?;
        let data = |rank: &usize| {
            let slot = self.slot(key.0, *rank, false);
            rendezvous.slots[slot].data.clone()
        };
        senders.iter().map(data).collect()
    }

    /// A rank needs nothing more of a rendezvous, which ends when all have left.
    pub(crate) fn leave(&mut self, key: Key, rank: usize, is_receiver: bool) {
        let slot = self.slot(key.0, rank, is_receiver);
        if let Some(rendezvous) = self.rendezvous.get_mut(&key) {
            rendezvous.slots[slot].has_left = true;
            if rendezvous.slots.iter().all(|slot| slot.has_left) {
                self.rendezvous.remove(&key);
            }
        }
    }
}

impl Member {
    fn next(&mut self, sequence: Sequence, is_receiver: bool) -> u64 {
        let number = self.numbers.entry((sequence, is_receiver)).or_default();
        *number += 1;
        *number
    }
}

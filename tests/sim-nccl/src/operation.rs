//! The operations: their arguments checked, what they read, and what they write.

use std::fmt;
use std::sync::Arc;

use cuda_driver_sys::nccl::{ncclDataType_t, ncclRedOp_t};

use crate::clique::Sequence;
use crate::export::{Answer, invalid_argument};
use crate::reduce::{is_known, reduce, size_of_element};

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    AllReduce(ncclRedOp_t),
    AllGather,
    Broadcast { root: usize },
    ReduceScatter(ncclRedOp_t),
    Send { to: usize },
    Receive { from: usize },
}

/// One call of an operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) count: usize,
    pub(crate) ty: ncclDataType_t,
}

/// What the ranks of a rendezvous must agree on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Signature {
    Operation(Kind, usize, ncclDataType_t),
    Window { bytes: usize, flags: i32 },
}

impl Signature {
    pub(crate) fn is_receiver(&self) -> bool {
        matches!(self, Self::Operation(Kind::Receive { .. }, ..))
    }

    pub(crate) fn agrees(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::Operation(kind, count, ty),
                Self::Operation(other_kind, other_count, other_ty),
            ) => kind.agrees(*other_kind) && count == other_count && ty == other_ty,
            (
                Self::Window { bytes, flags },
                Self::Window {
                    bytes: other_bytes,
                    flags: other_flags,
                },
            ) => bytes == other_bytes && flags == other_flags,
            _ => false,
        }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operation(kind, count, ty) => {
                write!(f, "{kind:?} of {count} elements of type {}", ty.0)
            }
            Self::Window { bytes, flags } => {
                write!(f, "a window of {bytes} bytes with flags {flags}")
            }
        }
    }
}

impl Kind {
    fn agrees(self, other: Self) -> bool {
        let is_pair = matches!(
            (self, other),
            (Self::Send { .. }, Self::Receive { .. }) | (Self::Receive { .. }, Self::Send { .. })
        );
        is_pair || self == other
    }
}

impl Operation {
    /// Refuses arguments that are wrong whatever the other ranks do.
    pub(crate) fn check(&self, ranks: usize) -> Answer {
        let Some(element) = size_of_element(self.ty) else {
            return invalid_argument(format!("there is no element type {}", self.ty.0));
        };
        let bytes = self.count.checked_mul(element);
        if bytes.and_then(|bytes| bytes.checked_mul(ranks)).is_none() {
            return invalid_argument(format!("{} elements are too many", self.count));
        }
        match self.kind {
            Kind::AllReduce(op) | Kind::ReduceScatter(op) if !is_known(op) => {
                return invalid_argument(format!("there is no operation {}", op.0));
            }
            Kind::Broadcast { root: rank }
            | Kind::Send { to: rank }
            | Kind::Receive { from: rank }
                if rank >= ranks =>
            {
                return invalid_argument("there is no such rank");
            }
            _ => {}
        }
        Ok(())
    }

    /// The same, with addresses, which are needed unless there are no elements.
    pub(crate) fn check_addresses(&self, rank: usize) -> Answer {
        let reads = self.is_sender(rank);
        let writes = !matches!(self.kind, Kind::Send { .. });
        if self.count > 0 && (reads && self.from == 0 || writes && self.to == 0) {
            return invalid_argument("a buffer is null");
        }
        Ok(())
    }

    pub(crate) fn signature(&self) -> Signature {
        Signature::Operation(self.kind, self.count, self.ty)
    }

    pub(crate) fn sequence(&self, rank: usize) -> Sequence {
        match self.kind {
            Kind::Send { to } => Sequence::Pair { from: rank, to },
            Kind::Receive { from } => Sequence::Pair { from, to: rank },
            _ => Sequence::Collective,
        }
    }

    /// Whether this rank's memory is read.
    pub(crate) fn is_sender(&self, rank: usize) -> bool {
        match self.kind {
            Kind::Receive { .. } => false,
            Kind::Broadcast { root } => root == rank,
            _ => true,
        }
    }

    /// The ranks whose data this one needs.
    pub(crate) fn senders(&self, ranks: usize) -> Vec<usize> {
        match self.kind {
            Kind::Send { .. } => Vec::new(),
            Kind::Receive { from } => vec![from],
            Kind::Broadcast { root } => vec![root],
            _ => (0..ranks).collect(),
        }
    }

    fn bytes(&self) -> usize {
        self.count * size_of_element(self.ty).unwrap_or(0)
    }

    /// Bytes that are read.
    pub(crate) fn input_bytes(&self, ranks: usize) -> usize {
        match self.kind {
            Kind::ReduceScatter(_) => self.bytes() * ranks,
            _ => self.bytes(),
        }
    }

    /// What is written, made of the data of all senders; `None` if nothing is.
    pub(crate) fn output(&self, rank: usize, data: &[Arc<[u8]>]) -> Option<Vec<u8>> {
        let all: Vec<&[u8]> = data.iter().map(|data| &**data).collect();
        Some(match self.kind {
            Kind::Send { .. } => return None,
            Kind::AllReduce(op) => reduce(self.ty, op, &all),
            Kind::AllGather | Kind::Broadcast { .. } | Kind::Receive { .. } => all.concat(),
            Kind::ReduceScatter(op) => {
                let own = rank * self.bytes()..(rank + 1) * self.bytes();
                let parts: Vec<&[u8]> = all.iter().map(|data| &data[own.clone()]).collect();
                reduce(self.ty, op, &parts)
            }
        })
    }
}

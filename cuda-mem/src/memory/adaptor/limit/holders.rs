//! How much each thread has allocated, for the error of a request that timed out.

use std::collections::BTreeMap;
use std::fmt;

use cuda_driver_sys::CUdeviceptr;

use crate::base::biased::thread;
use crate::base::error::Bytes;
use crate::base::table::Shards;

/// Live allocations, each with the thread that made it.
#[derive(Debug, Default)]
pub(super) struct Holders(Shards<Holding>);

#[derive(Clone, Copy, Debug)]
pub(super) struct Holding {
    thread: u64,
    bytes: u64,
}

impl Holders {
    pub(super) fn insert(&self, address: CUdeviceptr, bytes: u64) {
        let thread = thread::own();
        self.0.insert(address, Holding { thread, bytes });
    }

    pub(super) fn remove(&self, address: CUdeviceptr) -> Option<Holding> {
        self.0.remove(address)
    }

    pub(super) fn restore(&self, address: CUdeviceptr, holding: Option<Holding>) {
        if let Some(holding) = holding {
            self.0.insert(address, holding);
        }
    }

    /// In words, the largest first: `600 B by thread 2, 400 B by this thread (1)`. Nothing if there are none.
    pub(super) fn describe(&self) -> String {
        let mut by_thread: BTreeMap<u64, u64> = BTreeMap::new();
        self.0.for_each(|_, holding| {
            *by_thread.entry(holding.thread).or_default() += holding.bytes;
        });
        Shares {
            by_thread,
            this: thread::own(),
        }
        .to_string()
    }
}

struct Shares {
    by_thread: BTreeMap<u64, u64>,
    this: u64,
}

/// How many threads are listed; the others are summed up.
const LISTED: usize = 8;

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shares: Vec<_> = self.by_thread.iter().collect();
        shares.sort_by_key(|(_, bytes)| std::cmp::Reverse(**bytes));
        for (index, (thread, bytes)) in shares.iter().take(LISTED).enumerate() {
            let before = if index == 0 { "" } else { ", " };
            write!(f, "{before}{} by ", Bytes(**bytes))?;
            if **thread == self.this {
                write!(f, "this thread ({thread})")?;
            } else {
                write!(f, "thread {thread}")?;
            }
        }
        if let Some(rest @ [_, ..]) = shares.get(LISTED..) {
            let bytes = rest.iter().map(|(_, bytes)| **bytes).sum();
            write!(f, ", {} by {} others", Bytes(bytes), rest.len())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_named_first_and_many_are_summed_up() {
        let shares = |by_thread: &[(u64, u64)]| Shares {
            by_thread: by_thread.iter().copied().collect(),
            this: 1,
        };
        assert_eq!(shares(&[]).to_string(), "");
        assert_eq!(
            shares(&[(1, 400), (2, 600)]).to_string(),
            "600 B by thread 2, 400 B by this thread (1)"
        );
        let many: Vec<_> = (1..=10).map(|thread| (thread, 100 - thread)).collect();
        let text = shares(&many).to_string();
        assert!(
            text.ends_with("92 B by thread 8, 181 B by 2 others"),
            "{text}"
        );
    }
}

//! Where an arena's memory comes from: pages that it maps itself, or blocks of another resource.

mod upstream;
mod vmm;

pub(super) use upstream::Upstream;
pub(super) use vmm::Vmm;

use std::collections::BTreeMap;
use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::arena::SleepContents;
use crate::base::error::{Bytes, Error, ErrorKind, Result, took_effect};
use crate::stream::Stream;
use crate::stream::context::Context;

/// Memory of the arena in whole granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) address: u64,
    pub(super) bytes: u64,
}

impl Chunk {
    pub(super) fn end(self) -> u64 {
        self.address + self.bytes
    }
}

/// While it lives no other thread grows. Nothing with an upstream, which may make its callers wait for each other.
#[must_use]
pub(super) struct Growing<'a>(
    #[expect(dead_code, reason = "it is only held")] Option<MutexGuard<'a, ()>>,
);

#[derive(Debug)]
pub(super) enum Backing {
    Vmm(Vmm),
    Upstream(Upstream),
}

impl Backing {
    /// The address of the next chunk of this size, if it is known before. The chunk will extend memory that ends there.
    pub(super) fn frontier(&self, bytes: u64) -> Option<u64> {
        match self {
            Self::Vmm(vmm) => vmm.frontier(bytes),
            Self::Upstream(_) => None,
        }
    }

    /// Whether a block of an upstream begins here. No block of the arena lies across such an address.
    pub(super) fn is_boundary(&self, address: u64) -> bool {
        match self {
            Self::Vmm(_) => false,
            Self::Upstream(upstream) => upstream.is_boundary(address),
        }
    }

    /// Whether new memory is ordered by the stream that it was asked for, and not free for all.
    pub(super) fn is_ordered(&self) -> bool {
        matches!(self, Self::Upstream(_))
    }

    /// The turn to grow, or to give memory back: one thread has it at a time.
    pub(super) fn growing(&self) -> Growing<'_> {
        match self {
            Self::Vmm(vmm) => Growing(Some(vmm.growing())),
            Self::Upstream(_) => Growing(None),
        }
    }

    /// As [`growing`](Self::growing), unless another thread has it, or this one.
    pub(super) fn try_growing(&self) -> Option<Growing<'_>> {
        match self {
            Self::Vmm(vmm) => vmm.try_growing().map(|guard| Growing(Some(guard))),
            Self::Upstream(_) => Some(Growing(None)),
        }
    }

    /// New memory of this size, a multiple of the granule, at this frontier if there is still room.
    pub(super) fn grow(&self, frontier: Option<u64>, bytes: u64, stream: &Stream) -> Result<Chunk> {
        match self {
            Self::Vmm(vmm) => vmm.grow(frontier, bytes, stream.context()),
            Self::Upstream(upstream) => upstream.grow(bytes, stream),
        }
    }

    /// As [`grow`](Self::grow), for no stream. `None` if that fails, and with an upstream.
    pub(super) fn grow_ahead(&self, at: u64, bytes: u64, context: &Context) -> Option<Chunk> {
        match self {
            Self::Vmm(vmm) => vmm.grow(Some(at), bytes, context).ok(),
            Self::Upstream(_) => None,
        }
    }

    /// Whether physical memory can get another address.
    pub(super) fn can_move(&self) -> bool {
        matches!(self, Self::Vmm(_))
    }

    /// Each address that memory could go back to without a driver call, in order, and where that memory is.
    pub(super) fn aliases(&self) -> Vec<(u64, Chunk)> {
        match self {
            Self::Vmm(vmm) => vmm.aliases(),
            Self::Upstream(_) => Vec::new(),
        }
    }

    /// Gives the memory of a chunk another address, which is a place for it. `None` if that fails: the chunk is where it
    /// was then.
    ///
    /// # Safety
    ///
    /// As [`release`](Self::release).
    pub(super) unsafe fn relocate(
        &self,
        chunk: Chunk,
        to: u64,
        context: &Context,
    ) -> Option<Chunk> {
        match self {
            // SAFETY: the caller's.
            Self::Vmm(vmm) => unsafe { vmm.relocate(chunk, to, context) },
            Self::Upstream(_) => None,
        }
    }

    /// The chunk that an address is in.
    pub(super) fn chunk_at(&self, address: u64) -> Option<Chunk> {
        match self {
            Self::Vmm(vmm) => vmm.chunk_at(address),
            Self::Upstream(upstream) => upstream.chunk_at(address),
        }
    }

    /// Gives all physical memory back, and keeps the addresses.
    pub(super) fn sleep(&self, contents: SleepContents, stream: &Stream) -> Result<()> {
        match self {
            Self::Vmm(vmm) => vmm.sleep(contents, stream),
            Self::Upstream(_) => Ok(()),
        }
    }

    /// Takes memory again for the addresses that sleep.
    pub(super) fn wake(&self, stream: &Stream) -> Result<()> {
        match self {
            Self::Vmm(vmm) => vmm.wake(stream),
            Self::Upstream(_) => Ok(()),
        }
    }

    /// A place for so many bytes, if places are known before memory is there.
    pub(super) fn reserve(&self, bytes: u64) -> Option<u64> {
        match self {
            Self::Vmm(vmm) => vmm.reserve(bytes).ok(),
            Self::Upstream(_) => None,
        }
    }

    /// The chunks that lie wholly between two addresses.
    pub(super) fn chunks_in(&self, from: u64, to: u64) -> Vec<Chunk> {
        match self {
            Self::Vmm(vmm) => vmm.chunks_in(from, to),
            Self::Upstream(upstream) => upstream.chunks_in(from, to),
        }
    }

    /// Whether the chunk is still there, after it was to be released.
    pub(super) fn is_kept(&self, released: &Result<()>) -> bool {
        match self {
            Self::Vmm(_) => released.is_err(),
            Self::Upstream(_) => !took_effect(released),
        }
    }

    /// Gives a chunk back.
    ///
    /// # Safety
    ///
    /// No block of it may be in use, and the host must know that all work with it is done.
    pub(super) unsafe fn release(&self, chunk: Chunk) -> Result<()> {
        match self {
            // SAFETY: the caller's.
            Self::Vmm(vmm) => unsafe { vmm.release(chunk) },
            // SAFETY: the caller's.
            Self::Upstream(upstream) => unsafe { upstream.release(chunk) },
        }
    }

    /// The most that the arena may hold.
    pub(super) fn max(&self) -> u64 {
        match self {
            Self::Vmm(vmm) => vmm.max,
            Self::Upstream(upstream) => upstream.max,
        }
    }

    pub(super) fn reserved(&self) -> &Reserved {
        match self {
            Self::Vmm(vmm) => &vmm.reserved,
            Self::Upstream(upstream) => &upstream.reserved,
        }
    }

    /// Driver calls made for it, without those of an upstream.
    pub(super) fn calls(&self) -> u64 {
        match self {
            Self::Vmm(vmm) => vmm.calls(),
            Self::Upstream(_) => 0,
        }
    }
}

/// Bytes that an arena holds.
#[derive(Debug, Default)]
pub(super) struct Reserved {
    current: AtomicU64,
    peak: AtomicU64,
    /// In chunks that are on their way back.
    leaving: AtomicU64,
    /// Not held, but to be taken again.
    asleep: AtomicU64,
}

impl Reserved {
    /// Adds, unless that exceeds `max`, until the claim is dropped, or for good if it is kept.
    fn claim(&self, bytes: u64, max: u64) -> Result<Claim<'_>> {
        let sum = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= max);
        let relaxed = Ordering::Relaxed;
        match self.current.fetch_update(relaxed, relaxed, sum) {
            Ok(_) => Ok(Claim {
                reserved: self,
                bytes,
            }),
            Err(_) => Err(full(max, self)),
        }
    }

    fn subtract(&self, bytes: u64) {
        self.current.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// The bytes went back for a while.
    fn falls_asleep(&self, bytes: u64) {
        self.subtract(bytes);
        self.asleep.fetch_add(bytes, Ordering::Relaxed);
    }

    /// They were taken again.
    fn wakes(&self, bytes: u64) {
        self.asleep.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes of addresses whose memory went back for a while.
    pub(super) fn asleep(&self) -> u64 {
        self.asleep.load(Ordering::Relaxed)
    }

    pub(super) fn current(&self) -> u64 {
        self.current.load(Ordering::Relaxed)
    }

    /// Bytes that are not on their way back.
    pub(super) fn staying(&self) -> u64 {
        self.current()
            .saturating_sub(self.leaving.load(Ordering::Relaxed))
    }

    /// A chunk is to be given back.
    pub(super) fn leaves(&self, bytes: u64) {
        self.leaving.fetch_add(bytes, Ordering::Relaxed);
    }

    /// It was given back, or could not be.
    pub(super) fn has_left(&self, bytes: u64) {
        self.leaving.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub(super) fn reset_peak(&self) {
        self.peak.store(self.current(), Ordering::Relaxed);
    }
}

/// Bytes that count as held before they are, so that threads together stay under the limit. A panic of an upstream
/// gives them up too.
struct Claim<'a> {
    reserved: &'a Reserved,
    bytes: u64,
}

impl Claim<'_> {
    /// The bytes are there.
    fn keep(self) {
        let current = self.reserved.current();
        self.reserved.peak.fetch_max(current, Ordering::Relaxed);
        std::mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.reserved.subtract(self.bytes);
    }
}

/// The chunks of a map by address that lie wholly between two addresses. `bytes` says how large one is, if it is there.
fn chunks_in<T>(
    chunks: &BTreeMap<u64, T>,
    from: u64,
    to: u64,
    bytes: impl Fn(&T) -> Option<u64>,
) -> Vec<Chunk> {
    let found = chunks.range(from..to);
    found
        .filter_map(|(address, chunk)| {
            Some(Chunk {
                address: *address,
                bytes: bytes(chunk)?,
            })
        })
        .filter(|chunk| chunk.end() <= to)
        .collect()
}

/// The chunk of such a map that an address is in.
fn chunk_at<T>(
    chunks: &BTreeMap<u64, T>,
    address: u64,
    bytes: impl Fn(&T) -> Option<u64>,
) -> Option<Chunk> {
    let (start, chunk) = chunks.range(..=address).next_back()?;
    let chunk = Chunk {
        address: *start,
        bytes: bytes(chunk)?,
    };
    (address < chunk.end()).then_some(chunk)
}

#[cold]
fn full(max: u64, reserved: &Reserved) -> Error {
    let text = format!(
        "the arena may hold {} and holds {} already",
        Bytes(max),
        Bytes(reserved.current())
    );
    Error::new(ErrorKind::OutOfMemory, text)
}

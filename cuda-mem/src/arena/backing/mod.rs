//! Where an arena's memory comes from: pages that it maps itself, or blocks of another resource.

mod upstream;
mod vmm;

pub(super) use upstream::Upstream;
pub(super) use vmm::Vmm;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use super::observer::Observer;
use crate::arena::SleepContents;
use crate::base::atomic::try_update;
use crate::base::error::{Bytes, Error, ErrorKind, Result, took_effect};
use crate::base::report::HookDeferringGuard;
use crate::ledger::{MemoryRange, Recorder};
use crate::memory::resource::MemoryResource as _;
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

/// The turn to grow: a lock, held while this lives. With an upstream there is no lock, because it may make its callers
/// wait for each other.
#[must_use]
pub(super) struct Growing<'a>(
    #[expect(dead_code, reason = "it is only held")] Option<HookDeferringGuard<'a, ()>>,
);

/// Memory of an arena, and who watches what becomes of it.
#[derive(Debug)]
pub(super) struct Backing {
    pub(super) kind: Kind,
    pub(super) observer: Observer,
}

#[derive(Debug)]
pub(super) enum Kind {
    Vmm(Vmm),
    Upstream(Upstream),
}

impl Backing {
    pub(super) fn new(kind: Kind, recorder: Option<Recorder>) -> Self {
        let is_plain = match &kind {
            Kind::Vmm(_) => false,
            Kind::Upstream(upstream) => upstream.is_plain(),
        };
        Self {
            kind,
            observer: Observer::new(recorder, is_plain),
        }
    }

    /// The address of the next chunk of this size, if known in advance. The chunk will extend memory that ends there.
    pub(super) fn frontier(&self, bytes: u64) -> Option<u64> {
        match &self.kind {
            Kind::Vmm(vmm) => vmm.frontier(bytes),
            Kind::Upstream(_) => None,
        }
    }

    /// Whether a block of an upstream begins here. No block of the arena crosses such an address.
    pub(super) fn is_boundary(&self, address: u64) -> bool {
        match &self.kind {
            Kind::Vmm(_) => false,
            Kind::Upstream(upstream) => upstream.is_boundary(address),
        }
    }

    /// Whether new memory belongs to the requesting stream at first, instead of being free for all.
    pub(super) fn is_ordered(&self) -> bool {
        matches!(self.kind, Kind::Upstream(_))
    }

    /// Whether giving memory back may call the program.
    pub(super) fn may_call_program(&self) -> bool {
        match &self.kind {
            Kind::Vmm(_) => false,
            Kind::Upstream(upstream) => upstream.resource().may_call_program(),
        }
    }

    /// Whether giving memory back waits for all work of the device.
    pub(super) fn waits_to_free(&self) -> bool {
        match &self.kind {
            Kind::Vmm(_) => false,
            Kind::Upstream(upstream) => upstream.resource().waits_to_free(),
        }
    }

    /// Tries again to give back blocks that hold no memory of the arena, and that the resource below did not take back.
    pub(super) fn give_back_refused(&self) -> Result<()> {
        match &self.kind {
            Kind::Vmm(_) => Ok(()),
            Kind::Upstream(upstream) => upstream.give_back_refused(),
        }
    }

    /// Whether there are such blocks.
    pub(super) fn has_refused(&self) -> bool {
        match &self.kind {
            Kind::Vmm(_) => false,
            Kind::Upstream(upstream) => upstream.has_refused(),
        }
    }

    /// Gets the turn to grow or to give memory back, which one thread has at a time.
    pub(super) fn growing(&self) -> Growing<'_> {
        match &self.kind {
            Kind::Vmm(vmm) => Growing(Some(vmm.growing())),
            Kind::Upstream(_) => Growing(None),
        }
    }

    /// As [`growing`](Self::growing), unless another thread or this one has it.
    pub(super) fn try_growing(&self) -> Option<Growing<'_>> {
        match &self.kind {
            Kind::Vmm(vmm) => vmm.try_growing().map(|guard| Growing(Some(guard))),
            Kind::Upstream(_) => Some(Growing(None)),
        }
    }

    /// New memory of this size, a multiple of the granule, at this frontier if there is still room.
    pub(super) fn grow(&self, frontier: Option<u64>, bytes: u64, stream: &Stream) -> Result<Chunk> {
        let grown = match &self.kind {
            Kind::Vmm(vmm) => vmm.grow(frontier, bytes, stream.context()),
            Kind::Upstream(upstream) => upstream.grow(bytes, stream),
        }?;
        self.report_growth(grown, stream.context());
        Ok(grown)
    }

    /// As [`grow`](Self::grow), but for no stream. `None` on failure, and with an upstream.
    pub(super) fn grow_ahead(&self, at: u64, bytes: u64, context: &Context) -> Option<Chunk> {
        match &self.kind {
            Kind::Vmm(vmm) => {
                let grown = vmm.grow(Some(at), bytes, context).ok()?;
                self.report_growth(grown, context);
                Some(grown)
            }
            Kind::Upstream(_) => None,
        }
    }

    /// Tells the observer of new memory, in the chunks in which it may move or go back.
    fn report_growth(&self, grown: Chunk, context: &Context) {
        if self.observer.is_on() {
            let chunks = self.chunks_in(grown.address, grown.end());
            chunks
                .into_iter()
                .for_each(|chunk| self.observer.mapped(chunk, Some(context)));
        }
    }

    /// Whether physical memory can move to another address.
    pub(super) fn can_move(&self) -> bool {
        matches!(self.kind, Kind::Vmm(_))
    }

    /// The addresses that memory can move back to without a driver call, in order, and where that memory is now.
    pub(super) fn aliases(&self) -> Vec<(u64, Chunk)> {
        match &self.kind {
            Kind::Vmm(vmm) => vmm.aliases(),
            Kind::Upstream(_) => Vec::new(),
        }
    }

    /// Moves the memory of a chunk to another address with space for it. `None` if that fails: the chunk then stays
    /// where it was.
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
        let Kind::Vmm(vmm) = &self.kind else {
            return None;
        };
        // SAFETY: the caller guarantees the same.
        let came = unsafe { vmm.relocate(chunk, to, context) }?;
        self.observer.moved(chunk, came, context);
        Some(came)
    }

    /// The chunk that contains an address.
    pub(super) fn chunk_at(&self, address: u64) -> Option<Chunk> {
        match &self.kind {
            Kind::Vmm(vmm) => vmm.chunk_at(address),
            Kind::Upstream(upstream) => upstream.chunk_at(address),
        }
    }

    /// Gives all physical memory back, and keeps the addresses.
    pub(super) fn sleep(&self, contents: SleepContents, stream: &Stream) -> Result<()> {
        match &self.kind {
            Kind::Vmm(vmm) => {
                if !self.observer.is_on() {
                    return vmm.sleep(contents, stream);
                }
                // A tool would object to copies of whole chunks, and to an end of their memory.
                let before = self.chunks_in(0, u64::MAX);
                before
                    .iter()
                    .for_each(|chunk| self.observer.unmapped(*chunk));
                let slept = vmm.sleep(contents, stream);
                let kept = self.chunks_in(0, u64::MAX);
                kept.into_iter()
                    .for_each(|chunk| self.observer.mapped(chunk, Some(stream.context())));
                slept
            }
            Kind::Upstream(_) => Ok(()),
        }
    }

    /// Takes memory again for the sleeping addresses.
    pub(super) fn wake(&self, stream: &Stream) -> Result<()> {
        match &self.kind {
            Kind::Vmm(vmm) => {
                if !self.observer.is_on() {
                    return vmm.wake(stream);
                }
                let before = self.chunks_in(0, u64::MAX);
                let woken = vmm.wake(stream);
                let after = self.chunks_in(0, u64::MAX).into_iter();
                let gained = after.filter(|chunk| !before.contains(chunk));
                gained.for_each(|chunk| self.observer.mapped(chunk, Some(stream.context())));
                woken
            }
            Kind::Upstream(_) => Ok(()),
        }
    }

    /// Addresses for this many bytes; `None` on failure, and with an upstream.
    pub(super) fn reserve(&self, bytes: u64) -> Option<u64> {
        match &self.kind {
            Kind::Vmm(vmm) => vmm.reserve(bytes).ok(),
            Kind::Upstream(_) => None,
        }
    }

    /// The chunks that lie wholly between two addresses.
    pub(super) fn chunks_in(&self, from: u64, to: u64) -> Vec<Chunk> {
        match &self.kind {
            Kind::Vmm(vmm) => vmm.chunks_in(from, to),
            Kind::Upstream(upstream) => upstream.chunks_in(from, to),
        }
    }

    /// All addresses that are held or asleep, in pieces.
    pub(super) fn ranges(&self) -> Vec<MemoryRange> {
        match &self.kind {
            Kind::Vmm(vmm) => vmm.ranges(),
            Kind::Upstream(upstream) => upstream.ranges(),
        }
    }

    /// Whether the arena still has the chunk after an attempt to release it.
    pub(super) fn is_kept(&self, released: &Result<()>) -> bool {
        match &self.kind {
            Kind::Vmm(_) => released.is_err(),
            Kind::Upstream(_) => !took_effect(released),
        }
    }

    /// Gives a chunk back.
    ///
    /// # Safety
    ///
    /// No block of it may be in use, and the host must know that all work with it is done.
    pub(super) unsafe fn release(&self, chunk: Chunk) -> Result<()> {
        // Before another owner may get the addresses.
        self.observer.unmapped(chunk);
        let released = match &self.kind {
            // SAFETY: the caller guarantees the same.
            Kind::Vmm(vmm) => unsafe { vmm.release(chunk) },
            // SAFETY: the caller guarantees the same.
            Kind::Upstream(upstream) => unsafe { upstream.release(chunk) },
        };
        if self.is_kept(&released) {
            self.observer.mapped(chunk, None);
        }
        released
    }

    pub(super) fn reserved(&self) -> &Reserved {
        match &self.kind {
            Kind::Vmm(vmm) => &vmm.reserved,
            Kind::Upstream(upstream) => &upstream.reserved,
        }
    }

    /// Driver calls that it has made, without those of an upstream.
    pub(super) fn calls(&self) -> u64 {
        match &self.kind {
            Kind::Vmm(vmm) => vmm.calls(),
            Kind::Upstream(_) => 0,
        }
    }
}

/// Bytes that an arena holds.
#[derive(Debug)]
pub(super) struct Reserved {
    max: AtomicU64,
    current: AtomicU64,
    peak: AtomicU64,
    /// Bytes in chunks that are being given back.
    leaving: AtomicU64,
    /// Bytes of sleeping addresses: not held, but to be taken again.
    asleep: AtomicU64,
}

impl Reserved {
    fn new(max: u64) -> Self {
        Self {
            max: AtomicU64::new(max),
            current: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            leaving: AtomicU64::new(0),
            asleep: AtomicU64::new(0),
        }
    }

    /// The most bytes that the arena may hold.
    pub(super) fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed)
    }

    pub(super) fn set_max(&self, bytes: u64) {
        self.max.store(bytes, Ordering::Relaxed);
    }

    /// Adds bytes, unless that exceeds the maximum. Dropping the claim subtracts them again, unless it is kept.
    fn claim(&self, bytes: u64) -> Result<Claim<'_>> {
        let max = self.max();
        let sum = |now: u64| now.checked_add(bytes).filter(|sum| *sum <= max);
        match try_update(&self.current, Ordering::Relaxed, sum) {
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

    /// The bytes were given back temporarily.
    fn falls_asleep(&self, bytes: u64) {
        self.subtract(bytes);
        self.asleep.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sleeping bytes were taken again.
    fn wakes(&self, bytes: u64) {
        self.asleep.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes of sleeping addresses.
    pub(super) fn asleep(&self) -> u64 {
        self.asleep.load(Ordering::Relaxed)
    }

    pub(super) fn current(&self) -> u64 {
        self.current.load(Ordering::Relaxed)
    }

    /// Bytes that are not being given back.
    pub(super) fn staying(&self) -> u64 {
        self.current()
            .saturating_sub(self.leaving.load(Ordering::Relaxed))
    }

    /// A chunk is to be given back.
    pub(super) fn leaves(&self, bytes: u64) {
        self.leaving.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The chunk was given back, or could not be.
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

/// Bytes that count as held before they are, so that all threads together stay under the limit. A panic of an upstream
/// drops the claim too.
struct Claim<'a> {
    reserved: &'a Reserved,
    bytes: u64,
}

impl Claim<'_> {
    /// The bytes are held now.
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

/// The chunks of a map by address that lie wholly between two addresses. `bytes` returns the size of a chunk; those
/// without one are skipped.
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

/// The chunk of such a map that contains an address.
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

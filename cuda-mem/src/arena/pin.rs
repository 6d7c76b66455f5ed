//! Memory that stays in place because others hold its address.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::CUdeviceptr;

use super::backing::Chunk;
use super::{Arena, Inner};
use crate::base::error::{Bytes, Error, ErrorKind, Result};
use crate::base::report;

/// Which pieces of memory are pinned, and which are being moved or given back. A piece is never both.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The number of pins of each piece, by its address.
    pinned: BTreeMap<u64, u32>,
    /// A count, because an upstream may hand out a block again before the thread that gave it back has noted that.
    leaving: BTreeMap<u64, u32>,
    /// All memory is being given back.
    is_refused: bool,
}

/// While it lives, nothing can be pinned.
pub(super) struct Unpinned<'a>(&'a Pins);

impl Drop for Unpinned<'_> {
    fn drop(&mut self) {
        self.0.state().is_refused = false;
    }
}

impl Pins {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks a chunk that is to move or to be given back. `false` if it is pinned.
    pub(super) fn may_leave(&self, chunk: Chunk) -> bool {
        let mut state = self.state();
        let may_leave = !state.pinned.contains_key(&chunk.address);
        if may_leave {
            *state.leaving.entry(chunk.address).or_default() += 1;
        }
        may_leave
    }

    /// The chunk has left, or it stays.
    pub(super) fn has_left(&self, chunk: Chunk) {
        let leaving = &mut self.state().leaving;
        if let Some(times) = leaving.get_mut(&chunk.address) {
            *times -= 1;
            if *times == 0 {
                leaving.remove(&chunk.address);
            }
        }
    }

    /// Refuses pins from now on. Fails if anything is pinned. Called by one thread at a time.
    pub(super) fn refuse(&self) -> Result<Unpinned<'_>> {
        let mut state = self.state();
        if !state.pinned.is_empty() {
            let text = format!("{} pieces of its memory are pinned", state.pinned.len());
            return Err(Error::new(ErrorKind::InUse, text));
        }
        state.is_refused = true;
        Ok(Unpinned(self))
    }
}

/// Keeps memory of an arena in place. From [`Arena::pin`].
#[must_use = "the memory is kept until this is dropped"]
pub struct ArenaPin {
    inner: Arc<Inner>,
    range: Range<CUdeviceptr>,
    /// The addresses of the pieces.
    pieces: Vec<u64>,
}

impl ArenaPin {
    /// The addresses that were pinned. The pieces that they lie in stay too.
    #[must_use]
    pub fn range(&self) -> Range<CUdeviceptr> {
        self.range.clone()
    }
}

impl Drop for ArenaPin {
    fn drop(&mut self) {
        // It is the parent's, and a thread of the parent may have the lock for ever.
        if report::is_forked() {
            return;
        }
        let mut state = self.inner.pins.state();
        for piece in &self.pieces {
            if let Some(count) = state.pinned.get_mut(piece) {
                *count -= 1;
                if *count == 0 {
                    state.pinned.remove(piece);
                }
            }
        }
    }
}

impl fmt::Debug for ArenaPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ArenaPin({:#x}..{:#x})",
            self.range.start, self.range.end
        )
    }
}

impl Arena {
    /// Keeps the physical memory at these addresses where it is until the pin is dropped, whether blocks of it are
    /// allocated or free: it is neither moved nor released to the device. The pin also keeps the arena alive.
    ///
    /// Use it for address holders that are unknown to the arena: a library that has registered the memory with a
    /// network card, another process, a graph. Blocks in it are allocated and freed as before.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for zero bytes, and for addresses where the arena has no
    /// memory.
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver, MemoryResource, Resource};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let arena = Arena::builder(&device).build()?;
    /// let buffer = arena.alloc::<u8>(&stream, 1 << 20)?;
    /// let pin = arena.pin(buffer.as_raw(), 1 << 20)?;
    /// drop(buffer);
    /// stream.synchronize()?;
    /// arena.trim_to(0)?; // nothing goes
    /// assert!(arena.stats().reserved >= 1 << 20);
    /// drop(pin);
    /// arena.trim_to(0)?;
    /// assert_eq!(arena.stats().reserved, 0);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn pin(&self, address: CUdeviceptr, bytes: u64) -> Result<ArenaPin> {
        if report::is_forked() {
            return Err(Error::forked());
        }
        let refused = || {
            Error::invalid(format!(
                "{} at {address:#x} are to be pinned; {} has no memory there",
                Bytes(bytes),
                self.0
            ))
        };
        let end = address.checked_add(bytes).filter(|_| bytes > 0);
        let end = end.ok_or_else(refused)?;
        // Under the lock, so that nothing begins to leave meanwhile.
        let mut state = self.0.pins.state();
        let mut pieces = Vec::new();
        let mut at = address;
        while at < end {
            let piece = self.0.backing.chunk_at(at);
            let stays =
                |piece: &Chunk| !state.is_refused && !state.leaving.contains_key(&piece.address);
            let piece = piece.filter(stays);
            let piece = piece.ok_or_else(refused)?;
            pieces.push(piece.address);
            at = piece.end();
        }
        for piece in &pieces {
            *state.pinned.entry(*piece).or_default() += 1;
        }
        drop(state);
        Ok(ArenaPin {
            inner: Arc::clone(&self.0),
            range: address..end,
            pieces,
        })
    }

    /// The addresses of the piece of physical memory, or of the upstream's block, that this address is in: the largest
    /// range around it that can be registered as one, and that is moved and released as one. `None` where the arena has
    /// no memory, and in a forked child.
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver, Resource};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let arena = Arena::builder(&device).build()?;
    /// let buffer = arena.alloc::<u8>(&stream, 1000)?;
    /// let piece = arena.piece_at(buffer.as_raw()).expect("it is the arena's");
    /// assert!(piece.contains(&buffer.as_raw()) && piece.end - piece.start >= 2 << 20);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[must_use]
    pub fn piece_at(&self, address: CUdeviceptr) -> Option<Range<CUdeviceptr>> {
        if report::is_forked() {
            return None;
        }
        let piece = self.0.backing.chunk_at(address)?;
        Some(piece.address..piece.end())
    }
}

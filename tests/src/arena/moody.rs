//! A resource below an arena that refuses, or panics.

use std::alloc::Layout;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use cuda_mem::memory::{DirectResource, MemoryProperties};
use cuda_mem::{Arena, Error, ErrorKind, MemoryResource, Stream};

use crate::environment::Environment;

/// How a resource behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// As it should.
    Good,
    /// Takes nothing back.
    Refuses,
    /// As if a capture forbade it.
    IsCaptured,
    /// For memory.
    PanicsWhenAsked,
    /// When the memory is free already.
    PanicsWhenGiven,
    /// The same, and again when it is printed: a lock that it would take is poisoned.
    PanicsWhenShown,
}

/// A resource that does not always do as it should.
pub struct Moody {
    direct: DirectResource,
    mood: Mutex<Mood>,
    allocated: AtomicU64,
    freed: AtomicU64,
}

impl fmt::Debug for Moody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.panic_as(Mood::PanicsWhenShown);
        f.write_str("Moody")
    }
}

impl Moody {
    fn mood(&self) -> Mood {
        *self.mood.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the mood.
    pub fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap_or_else(PoisonError::into_inner) = mood;
    }

    /// Panics in this mood, without the noise.
    fn panic_as(&self, mood: Mood) {
        if self.mood() == mood {
            std::panic::resume_unwind(Box::new("as a resource may"));
        }
    }

    /// Blocks that came and went.
    pub fn counts(&self) -> (u64, u64) {
        let count = |counter: &AtomicU64| counter.load(Ordering::SeqCst);
        (count(&self.allocated), count(&self.freed))
    }
}

// SAFETY: memory is the direct resource's, and what is refused was not freed.
unsafe impl MemoryResource for Moody {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        self.panic_as(Mood::PanicsWhenAsked);
        let address = self.direct.allocate(layout, stream)?;
        self.allocated.fetch_add(1, Ordering::SeqCst);
        Ok(address)
    }

    unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem::Result<()> {
        if self.mood() == Mood::Refuses {
            return Err(Error::new(ErrorKind::NotPermitted, "not now"));
        }
        if self.mood() == Mood::IsCaptured {
            return Err(Error::new(ErrorKind::Capturing, "not in a capture"));
        }
        // SAFETY: the caller's.
        unsafe { self.direct.deallocate(address, layout, stream) }?;
        self.freed.fetch_add(1, Ordering::SeqCst);
        self.panic_as(Mood::PanicsWhenGiven);
        self.panic_as(Mood::PanicsWhenShown);
        Ok(())
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.direct.memory_properties()
    }
}

/// Such a resource, and an arena over it.
///
/// # Errors
///
/// As the driver answers.
pub fn moody(env: &Environment) -> Result<(Arc<Moody>, Arena)> {
    let below = Arc::new(Moody {
        direct: DirectResource::new(env.device()?),
        mood: Mutex::new(Mood::Good),
        allocated: AtomicU64::new(0),
        freed: AtomicU64::new(0),
    });
    Ok((Arc::clone(&below), Arena::over(below)))
}

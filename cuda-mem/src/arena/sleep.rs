//! Arenas that temporarily release their physical memory and keep its addresses.

use super::trim::Search;
use super::{Arena, Inner};
use crate::base::error::{Error, Result};
use crate::memory::reclaim;
use crate::stream::Stream;
use crate::stream::deferred::{self, After, ResourceCall};

/// What becomes of the contents of an arena's memory while it [sleeps](Arena::sleep).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SleepContents {
    /// They are copied to the host, and back when it wakes.
    Keep,
    /// They are lost: on waking, the memory is as if newly allocated.
    Discard,
}

impl Arena {
    /// Gives all physical memory of the arena back to the device and keeps its addresses, until [`wake`](Self::wake): for
    /// a program that lends its device to another one for a while, as inference servers do between models. Returns how
    /// many bytes went back.
    ///
    /// Free memory is released as by [`trim_to(0)`](crate::MemoryResource::trim_to). The contents of the rest are kept
    /// on the host or lost. Blocks may be freed while the arena sleeps. Memory allocated meanwhile may be new and
    /// usable, or at sleeping addresses.
    ///
    /// Waits for all work of the device's primary context. With [`SleepContents::Keep`] it allocates the same amount of
    /// host memory and copies the contents.
    ///
    /// # Errors
    ///
    /// [`InUse`](crate::ErrorKind::InUse) while memory is [pinned](Self::pin);
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for an arena that takes blocks of another resource;
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if the host has no room for the contents. After these errors
    /// nothing sleeps. Otherwise any driver error; sleeping memory then wakes as usual.
    ///
    /// # Safety
    ///
    /// Nothing may use memory of the arena from now until it is awake: no work of the host, of other devices and of
    /// other contexts that was submitted before, and none that is submitted meanwhile. That holds for blocks allocated
    /// meanwhile too.
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver, Resource};
    /// use cuda_mem::arena::SleepContents;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let arena = Arena::builder(&device).build()?;
    /// let weights = arena.alloc_from(&stream, &[1.0f32, 2.0])?;
    ///
    /// // SAFETY: nobody uses `weights` before the arena is awake.
    /// unsafe { arena.sleep(SleepContents::Keep) }?;
    /// assert_eq!(arena.stats().reserved, 0);
    /// // … another program has the device …
    /// arena.wake()?;
    /// assert_eq!(weights.to_vec()?, [1.0, 2.0]); // where it was
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuMemUnmap", "cuMemRelease", "cuMemcpyDtoHAsync"))]
    pub unsafe fn sleep(&self, contents: SleepContents) -> Result<u64> {
        let inner = &*self.0;
        let Some(device) = inner.device.filter(|_| inner.backing.can_move()) else {
            return Err(Error::not_supported(format!(
                "{inner} is to sleep; blocks of another resource have no addresses that can be kept"
            )));
        };
        let context = device.primary_context()?;
        context.synchronize()?;
        let slept = inner.fall_asleep(contents, &context.stream()?);
        deferred::poll(After::Wait);
        inner.report_unknown_blocks();
        slept
    }

    /// Takes memory again for all [sleeping](Self::sleep) addresses, with the kept contents. Does nothing if the arena
    /// is awake. Waits until the contents are restored.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if the device, or [`max_bytes`](super::ArenaBuilder::max_bytes),
    /// has too little memory for all. Otherwise any driver error. The remaining addresses stay asleep,
    /// and this may be called again.
    #[doc(alias("cuMemCreate", "cuMemMap", "cuMemcpyHtoDAsync"))]
    pub fn wake(&self) -> Result<()> {
        let inner = &*self.0;
        let Some(device) = inner
            .device
            .filter(|_| inner.backing.reserved().asleep() > 0)
        else {
            return Ok(());
        };
        let stream = device.primary_context()?.stream()?;
        let asleep = inner.backing.reserved().asleep() as usize;
        match inner.try_wake(&stream) {
            // Without the locks: others may wait for the device to give memory back.
            Err(error)
                if error.code().is_some()
                    && reclaim::helps(&error, Some(device), &stream, asleep) =>
            {
                inner.try_wake(&stream)
            }
            woken => woken,
        }
    }
}

impl Inner {
    fn try_wake(&self, stream: &Stream) -> Result<()> {
        let _turn = self.backing.growing();
        let _quiet = ResourceCall::enter();
        match self.backing.wake(stream) {
            // Free memory goes back first, as before any request is refused.
            Err(error) if error.is_out_of_memory() => {
                // Its errors matter less than the original one, and the rest may suffice.
                let _ = self.trim(0, Search::Thorough);
                self.backing.wake(stream)
            }
            woken => woken,
        }
    }

    fn fall_asleep(&self, contents: SleepContents, stream: &Stream) -> Result<u64> {
        let _turn = self.backing.growing();
        // The copies wait for their stream. What is released after a wait may call the program, which may call the arena.
        let _quiet = ResourceCall::enter();
        let before = self.backing.reserved().current();
        let _unpinned = self.pins.refuse()?;
        // Memory that it cannot give back sleeps.
        let _ = self.trim(0, Search::Thorough);
        self.backing.sleep(contents, stream)?;
        // All of it: nothing grows meanwhile.
        Ok(before)
    }
}

//! Buffers that cannot be freed when they are dropped, because their stream is captured or held up: they are freed afterwards. See
//! `pool/free.rs`.

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::deallocator::{Deallocator, apart, give_back};
use super::{DeviceBuffer, FreeOnOther};
use crate::base::error::{Error, ErrorKind, Result, took_effect};
use crate::base::report;
use crate::ledger::{self, Item};
use crate::memory::pool::free_harmlessly;
use crate::memory::resource::CAPTURED;
use crate::memory::slice::PendingUses;
use crate::stream::epoch;
use crate::stream::join::{order, order_outside_captures};
use crate::stream::{OrderedRelease, Stream, StreamRef};

/// Memory of a buffer that could not be freed when it was dropped.
struct DeferredFree {
    address: CUdeviceptr,
    /// `None` once the memory is gone.
    deallocator: Option<Deallocator>,
    pending_uses: PendingUses,
    /// The memory stays in the ledger until it is freed.
    item: Option<Item>,
    /// When the buffer was dropped.
    epoch: u64,
    /// The resource has waited for the stream for too long, so it is tried again only once the stream is done.
    is_held_up: bool,
}

impl Drop for DeferredFree {
    fn drop(&mut self) {
        // The memory may be in use, so its deallocator must not be dropped as if it were not.
        std::mem::forget(self.deallocator.take());
    }
}

impl OrderedRelease for DeferredFree {
    fn waits_for_stream(&self) -> bool {
        let owner_waits = match &self.deallocator {
            Some(Deallocator::External(owner)) => owner.waits_for_stream(),
            _ => false,
        };
        // What waits for the device would wait for it in an unrelated call.
        self.is_held_up || owner_waits || self.waits_for_device()
    }

    fn waits_for_device(&self) -> bool {
        match &self.deallocator {
            Some(Deallocator::Resource(resource, _)) => resource.waits_to_free(),
            Some(Deallocator::Driver | Deallocator::External(_)) | None => false,
        }
    }

    fn release(&mut self, stream: StreamRef<'_>, handle: Option<&Stream>) -> Result<()> {
        let Some(item) = &self.item else {
            return self.give_back(stream, handle);
        };
        let item = *item;
        let ended = ledger::remove(&item);
        let given = self.give_back(stream, handle);
        if self.deallocator.is_some() {
            ledger::restore(&item, ended);
        }
        given
    }

    fn abandon(&mut self, failure: &Error) {
        if let Some(Deallocator::External(owner)) = &self.deallocator {
            owner.abandon(failure);
        }
    }
}

impl DeferredFree {
    fn give_back(&mut self, stream: StreamRef<'_>, handle: Option<&Stream>) -> Result<()> {
        if stream.is_foreign() {
            // The last handle is being dropped. After the wait, this thread's own stream can be used instead.
            stream.wait_foreign().map_err(Error::not_tried)?;
            let own = stream.context().per_thread_stream();
            return self.give_back(own.as_ref(), Some(&own));
        }
        for pending_use in &*self.pending_uses {
            let other = pending_use.stream.as_ref();
            if !other.is_foreign() {
                order_outside_captures(other, stream).map_err(Error::not_tried)?;
            } else if other.context().progress().done() < self.epoch {
                return Err(Error::capturing(format!(
                    "{other}, which is the own stream of another thread, may still use the memory; \
                     synchronise its context"
                )));
            }
        }
        let Some(deallocator) = self.deallocator.take() else {
            return Ok(());
        };
        let (given, deallocator) = self.send(deallocator, stream, handle);
        self.deallocator = deallocator;
        given
    }

    /// Frees the memory through its deallocator, which is returned if the memory was not freed.
    fn send(
        &self,
        deallocator: Deallocator,
        stream: StreamRef<'_>,
        handle: Option<&Stream>,
    ) -> (Result<()>, Option<Deallocator>) {
        let after = match after(stream, handle, &deallocator) {
            Ok(after) => after,
            Err(error) => return (Err(error.not_tried()), Some(deallocator)),
        };
        match (deallocator, after) {
            (Deallocator::External(owner), after) => {
                // An owner's destructor runs here, in an unrelated call.
                let mut left = None;
                let end = || match after {
                    Some(after) => owner.release(&after).map_err(|refused| {
                        left = refused.owner.map(Deallocator::External);
                        refused.error
                    }),
                    None => {
                        drop(owner);
                        Ok(())
                    }
                };
                let given = apart(&"an owner", end);
                (given, left)
            }
            (Deallocator::Resource(resource, layout), Some(after)) => {
                let _on_other = FreeOnOther::enter();
                // SAFETY: the buffer that had the address is gone, its pending uses have just been waited for, and
                // this is its own stream or one that waits for that.
                let freed = unsafe { give_back(&**resource, self.address, layout, &after) };
                if !took_effect(&freed) {
                    return (freed, Some(Deallocator::Resource(resource, layout)));
                }
                // This may be its last handle, and its destructor the program's, in an unrelated call.
                let ended = report::caught(|| drop(resource));
                let ended = ended.ok_or_else(|| {
                    Error::new(ErrorKind::Other, "the destructor of a resource panicked")
                });
                (freed.and(ended), None)
            }
            (deallocator, _) => {
                // SAFETY: the buffer that had the address is gone, and its pending uses have just been waited for.
                let freed = unsafe { free_harmlessly(self.address, stream) };
                let left = (!took_effect(&freed)).then_some(deallocator);
                (freed, left)
            }
        }
    }
}

/// This stream, if the deallocator frees in the order of a stream that it may keep. Without a handle of it, another one
/// that waits for everything in it.
fn after(
    stream: StreamRef<'_>,
    handle: Option<&Stream>,
    deallocator: &Deallocator,
) -> Result<Option<Stream>> {
    let needs_none = match deallocator {
        Deallocator::Driver => true,
        Deallocator::Resource(..) => false,
        Deallocator::External(owner) => owner.wait(stream)?,
    };
    if needs_none {
        return Ok(None);
    }
    // Ordering another stream behind a captured one would draw it into the capture.
    stream.refuse_captured(CAPTURED)?;
    if let Some(handle) = handle {
        return Ok(Some(handle.clone()));
    }
    let after = stream.context().stream()?;
    order(stream, after.as_ref())?;
    Ok(Some(after))
}

impl<T: Pod> DeviceBuffer<T> {
    /// Every later use of the memory waits for `stream`, and so does its free.
    pub(crate) fn note_use_by(&self, stream: &Stream) {
        // In a fork nothing was submitted.
        if let Some(mut pending_uses) = self.pending_uses.lock_unless_forked() {
            pending_uses.push(stream, self.span().addresses(), false);
        }
    }

    /// Hands the memory to the stream, to be freed after the capture, or the work, that prevents it now.
    #[cold]
    pub(super) fn defer_free(&mut self, error: Error) -> Result<()> {
        let is_kept = matches!(*self.deallocator, Deallocator::External(_));
        let is_held_up = error.is_held_up();
        let is_temporary = is_held_up || error.kind() == ErrorKind::Capturing;
        if !is_temporary || (self.address == 0 && !is_kept) {
            return Err(error);
        }
        let item = self.item();
        let pending_uses = self.pending_uses.get_mut();
        let dropped = DeferredFree {
            address: self.address,
            deallocator: Some(std::mem::replace(
                &mut *self.deallocator,
                Deallocator::Driver,
            )),
            pending_uses: std::mem::take(pending_uses),
            item,
            epoch: epoch::now(),
            is_held_up,
        };
        self.address = 0;
        self.stream.release_later(dropped);
        Ok(())
    }
}

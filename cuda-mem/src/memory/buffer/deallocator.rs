//! What frees a buffer's memory: the driver, a resource or an external owner.

use std::alloc::Layout;
use std::fmt;
use std::ptr;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::{DeviceBuffer, FreeOnOther};
use crate::base::biased::Held;
use crate::base::error::{Error, ErrorKind, Result, took_effect};
use crate::base::report;
use crate::driver::device::Device;
use crate::driver::raw::{self, Queue};
use crate::ledger;
use crate::memory::resource::{Handle, MemoryResource};
use crate::stream::deferred::ResourceCall;
use crate::stream::{Stream, StreamRef};

/// What frees a buffer's memory.
pub(super) enum Deallocator {
    /// The driver, in the order of the stream.
    Driver,
    /// The resource that it came from, with this layout.
    Resource(Held<Handle>, Layout),
    /// An owner that is notified when the buffer ends.
    External(Box<dyn ExternalOwner>),
}

/// What another process has lent to this one.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loan {
    /// Identifies the loan in its channel.
    pub(crate) number: u64,
    /// Identifies the channel.
    pub(crate) channel: usize,
}

/// An attempt to return memory to another process.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(crate) enum ReturnAttempt {
    /// It is made now, by one who tells that process.
    Begun,
    /// Nothing was done: the end of the buffer returns it.
    PutOff,
    /// It failed for this reason.
    Failed(String),
}

#[cfg(target_os = "linux")]
impl ReturnAttempt {
    /// After this error.
    pub(crate) fn after(error: &Error) -> Self {
        match error.kind() {
            ErrorKind::Capturing => Self::PutOff,
            _ => Self::Failed(error.to_string()),
        }
    }
}

/// Owns memory that a buffer must not free itself, such as memory of another process.
pub(crate) trait ExternalOwner: Send + Sync {
    /// Waits for the stream, if the release cannot be stream-ordered. Returns whether it waited: if so, the owner
    /// is dropped instead of released. After an error it is kept.
    fn wait(&self, _: StreamRef<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Whether a release that was put off has to find the stream without work. Not if all of it is stream-ordered.
    fn waits_for_stream(&self) -> bool {
        true
    }

    /// Called when the buffer ends. Work submitted to `stream` from now on runs after every use of the memory; work
    /// already submitted may still use it.
    fn release(self: Box<Self>, stream: &Stream) -> Result<(), Refused>;

    /// The loan of another process, if this is one.
    #[cfg(target_os = "linux")]
    fn loan(&self) -> Option<Loan> {
        None
    }

    /// Records what has become of an attempt to return the memory to another process.
    #[cfg(target_os = "linux")]
    fn note_return(&self, _return: ReturnAttempt) {}

    /// The memory cannot be released because of this, and there will be no further attempt.
    fn abandon(&self, _failure: &Error) {}

    /// Whether host threads may read and write this many bytes at the buffer's address; `None` if that follows from
    /// the kind of memory.
    fn is_open_to_host(&self, _bytes: usize) -> Option<bool> {
        None
    }

    /// The size of the memory in bytes, if that is more than the buffer's length.
    fn room_bytes(&self) -> Option<usize> {
        None
    }
}

/// An owner that has not released its memory.
pub(crate) struct Refused {
    pub(crate) error: Error,
    /// The owner, if nothing was done and it can be tried again.
    pub(crate) owner: Option<Box<dyn ExternalOwner>>,
}

impl<T: Pod> DeviceBuffer<T> {
    /// See [`ExternalOwner::is_open_to_host`].
    pub(crate) fn is_open_to_host(&self) -> Option<bool> {
        match &*self.deallocator {
            Deallocator::External(owner) => owner.is_open_to_host(self.size_bytes()),
            _ => None,
        }
    }

    /// The capacity of the memory in elements, which may exceed the buffer's length.
    pub(crate) fn room(&self) -> usize {
        match &*self.deallocator {
            // Elements of no size need none.
            _ if size_of::<T>() == 0 => usize::MAX,
            Deallocator::Resource(_, layout) => layout.size() / size_of::<T>(),
            Deallocator::External(owner) => owner
                .room_bytes()
                .map_or(self.len, |bytes| bytes / size_of::<T>()),
            _ => self.len,
        }
    }

    /// Sets the buffer's length, within the capacity.
    pub(crate) fn set_len(&mut self, len: usize) {
        debug_assert!(len <= self.room());
        self.len = len;
    }

    /// Records that the memory now belongs to another device, or to the host.
    pub(crate) fn set_device(&mut self, device: Option<Device>) {
        self.device = device;
    }

    /// Frees the memory to the driver, or to its resource and then drops that, if this needs no special handling,
    /// as for nearly all buffers. Returns whether it did.
    ///
    /// # Safety
    ///
    /// For the destructor: afterwards no field but the stream may be used, nor dropped.
    #[inline(always)]
    pub(super) unsafe fn end_plainly(&mut self) -> bool {
        if self.address == 0 || ledger::is_on() || !self.pending_uses.get_mut().is_empty() {
            return false;
        }
        if matches!(*self.deallocator, Deallocator::Driver) {
            // SAFETY: as in `free_in_order`: no use is pending.
            if let Err(error) = unsafe { free_plainly(self.address, &self.stream) } {
                self.not_freed(error);
            }
        } else if let Deallocator::Resource(resource, layout) = &mut *self.deallocator
            && self.stream.is_plain()
        {
            // SAFETY: as in `give_back_memory`.
            match unsafe { give_back_plainly(&***resource, self.address, *layout, &self.stream) } {
                // In place: moving the whole deallocator out would take longer than the rest.
                //
                // SAFETY: nobody uses it any more, as the caller vouches.
                Ok(()) => unsafe { ptr::drop_in_place(resource) },
                Err(error) => self.not_released(error),
            }
        } else {
            return false;
        }
        true
    }

    #[cold]
    #[inline(never)]
    fn not_released(&mut self, error: Error) {
        let refused = Err(error);
        if took_effect(&refused) {
            self.address = 0;
            *self.deallocator = Deallocator::Driver;
        }
        self.end(|_| refused);
    }

    #[cold]
    #[inline(never)]
    fn not_freed(&mut self, error: Error) {
        self.end(|buffer| buffer.free_otherwise(error));
    }

    /// Whether anything is to be given back. An external owner may have no bytes.
    pub(super) fn has_memory(&self) -> bool {
        self.address != 0 || matches!(*self.deallocator, Deallocator::External(_))
    }

    /// Returns the memory to its deallocator and drops that. The pending uses have been waited for.
    pub(super) fn give_back_memory(&mut self) -> Result<()> {
        if !self.has_memory() {
            *self.deallocator = Deallocator::Driver;
            return Ok(());
        }
        let elsewhere = self.stream.is_foreign().then(|| self.past_foreign());
        let elsewhere = elsewhere.transpose()?;
        let _on_other = elsewhere.is_some().then(FreeOnOther::enter);
        let stream = elsewhere.as_ref().unwrap_or(&self.stream);
        // A captured stream cannot free memory that does not belong to the graph; the deallocator stays.
        stream.as_ref().refuse_recorded()?;
        if let Deallocator::External(owner) = &*self.deallocator
            && owner.wait(stream.as_ref())?
        {
            self.address = 0;
            *self.deallocator = Deallocator::Driver;
            return Ok(());
        }
        match std::mem::replace(&mut *self.deallocator, Deallocator::Driver) {
            Deallocator::Driver => Ok(()),
            Deallocator::External(owner) => {
                let address = std::mem::take(&mut self.address);
                owner.release(stream).map_err(|refused| {
                    if let Some(owner) = refused.owner {
                        self.address = address;
                        *self.deallocator = Deallocator::External(owner);
                    }
                    refused.error
                })
            }
            Deallocator::Resource(resource, layout) => {
                // Taken before the call, so that nothing is freed twice, whatever the call does.
                let address = std::mem::take(&mut self.address);
                // SAFETY: the memory came from there as this layout, and the buffer's own stream waits for every
                // stream that used it, and this is that stream or one past it.
                let freed = unsafe { give_back(&**resource, address, layout, stream) };
                if took_effect(&freed) {
                    stream.release_deferred();
                } else {
                    self.address = address;
                    *self.deallocator = Deallocator::Resource(resource, layout);
                }
                freed
            }
        }
    }

    /// Returns the memory to its resource in the order of the buffer's stream, and after the work in `others`.
    pub(super) fn release_after(&mut self, others: &[&Stream]) -> Result<()> {
        if self.address == 0 {
            return Ok(());
        }
        self.wait_for_pending_uses()?;
        self.stream.as_ref().refuse_recorded()?;
        let item = if ledger::is_on() { self.item() } else { None };
        let Deallocator::Resource(resource, layout) =
            std::mem::replace(&mut *self.deallocator, Deallocator::Driver)
        else {
            return Ok(());
        };
        // As in `give_back_memory` and `release_listed`.
        let ended = item.as_ref().map(ledger::remove);
        let address = std::mem::take(&mut self.address);
        // SAFETY: the memory came from there as this layout. The buffer's own stream waits for all streams that
        // used it through this crate; the caller of unsafe code names the others.
        let call = || unsafe { resource.deallocate_after(address, layout, &self.stream, others) };
        let freed = apart(&&**resource, call);
        if took_effect(&freed) {
            self.stream.release_deferred();
            return freed;
        }
        self.address = address;
        *self.deallocator = Deallocator::Resource(resource, layout);
        if let (Some(item), Some(ended)) = (item, ended) {
            ledger::restore(&item, ended);
        }
        freed
    }

    /// Work cannot be ordered with another thread's per-thread stream, so the host waits, and then any stream will
    /// do.
    #[cold]
    fn past_foreign(&self) -> Result<Stream> {
        self.stream.as_ref().wait_unless_captured()?;
        Ok(self.stream.context().per_thread_stream())
    }
}

/// Returns memory to a resource. A panic there becomes an error, because this may run in a destructor.
///
/// # Safety
///
/// Same as [`MemoryResource::deallocate`].
#[inline(always)]
pub(crate) unsafe fn give_back(
    resource: &dyn MemoryResource,
    address: CUdeviceptr,
    layout: Layout,
    stream: &Stream,
) -> Result<()> {
    // SAFETY: the caller's.
    let call = || unsafe { resource.deallocate(address, layout, stream) };
    caught(call).unwrap_or_else(|| Err(panicked(&resource)))
}

/// Like [`give_back`], and then runs the stream's deferred releases. Not generic, so it is compiled only once.
///
/// # Safety
///
/// Same as [`MemoryResource::deallocate`].
unsafe fn give_back_plainly(
    resource: &dyn MemoryResource,
    address: CUdeviceptr,
    layout: Layout,
    stream: &Stream,
) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { give_back(resource, address, layout, stream) }?;
    stream.release_deferred();
    Ok(())
}

/// Frees in the order of a stream, and then runs the stream's deferred releases.
///
/// # Safety
///
/// Same as [`raw::alloc::free`].
#[inline(always)]
unsafe fn free_plainly(address: CUdeviceptr, stream: &Stream) -> Result<()> {
    // SAFETY: the caller's. A default stream's context is current (R8).
    let free = |queue: Queue<'_>| unsafe { raw::alloc::free(queue, address) };
    stream.as_ref().submit_free(free)?;
    stream.release_deferred();
    Ok(())
}

/// Calls the code that takes memory back.
pub(super) fn apart(who: &dyn fmt::Debug, call: impl FnOnce() -> Result<()>) -> Result<()> {
    caught(call).unwrap_or_else(|| Err(panicked(who)))
}

/// The result of the code that takes memory back; `None` if it panics.
#[inline(always)]
fn caught(call: impl FnOnce() -> Result<()>) -> Option<Result<()>> {
    let _inside = ResourceCall::enter();
    report::caught(call)
}

#[cold]
#[inline(never)]
fn panicked(who: &dyn fmt::Debug) -> Error {
    // Printing may panic too: by a lock that is poisoned now.
    let who = report::caught(|| format!("{who:?}"));
    let who = who.as_deref().unwrap_or("a resource, or an owner,");
    let text = format!("{who} panicked when it was given memory back");
    Error::new(ErrorKind::Other, text)
}

//! Buffers over any resource.

use std::alloc::Layout;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::DeviceBuffer;
use super::alloc::{bytes_of, too_large};
use super::deallocator::Deallocator;
use super::listed;
use crate::base::biased::Held;
use crate::base::error::{Error, Result};
use crate::base::lock::Lock;
use crate::base::origin;
use crate::base::report;
use crate::ledger;
use crate::memory::reclaim;
use crate::memory::resource::{RESOURCE_ALIGNMENT, Resource};
use crate::stream::Stream;
use crate::stream::deferred::{self, After, AgainCall, ResourceCall};

/// How often a request is made again: a callback may drop one object at a time.
const REPEATS: usize = 64;

impl Resource {
    /// Allocates `len` elements in the order of `stream`. Their contents are unspecified. The buffer keeps the
    /// resource alive. Zero elements, or zero-sized elements, need no call of the resource. Does not synchronise,
    /// unless the resource documents that it does.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the size overflows or the stream's device cannot access
    /// the memory; [`OutOfMemory`](crate::ErrorKind::OutOfMemory); otherwise any error from the resource.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// let resource = device.default_resource()?;
    /// let mut buffer = resource.alloc::<u32>(&stream, 1000)?;
    /// buffer.fill(7)?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[inline(always)]
    #[track_caller]
    pub fn alloc<T: Pod>(&self, stream: &Stream, len: usize) -> Result<DeviceBuffer<T>> {
        let layout = layout_of::<T>(len)?;
        let address = self.alloc_bytes(stream, layout)?;
        Ok(DeviceBuffer {
            address,
            len,
            stream: Held::new(stream),
            device: self.device,
            deallocator: ManuallyDrop::new(Deallocator::Resource(Held::new(&self.inner), layout)),
            pending_uses: Lock::default(),
            element: PhantomData,
        })
    }

    /// The memory of a buffer, without the buffer. Not generic, so it is compiled only once.
    #[track_caller]
    fn alloc_bytes(&self, stream: &Stream, layout: Layout) -> Result<CUdeviceptr> {
        let address = if layout.size() == 0 {
            0
        } else if report::is_forked() {
            return Err(Error::forked());
        } else {
            let _noted = origin::note();
            stream.release_deferred();
            stream.as_ref().refuse_recorded()?;
            // A resource that waits for memory can release nothing meanwhile.
            if deferred::has_entries() && self.inner.may_call_program() {
                deferred::poll(After::Wait);
            }
            match self.ask(stream, layout) {
                Err(error) if error.is_out_of_memory() && !error.is_over_limit() => {
                    self.ask_again(stream, layout, error)?
                }
                answer => answer?,
            }
        };
        if ledger::is_on() {
            let kind = listed::kind_from(&*self.inner);
            listed::insert(kind, (address, layout.size()), stream, self.device);
        }
        Ok(address)
    }

    #[inline]
    #[track_caller]
    fn ask(&self, stream: &Stream, layout: Layout) -> Result<CUdeviceptr> {
        let _inside = ResourceCall::enter();
        self.inner.allocate(layout, stream)
    }

    /// In the call, nothing could be released: neither what its remedies waited for, nor what callbacks dropped, nor memory
    /// whose free waits for the device. So the request is made again as long as something is released after it, without
    /// further waits for other threads.
    #[cold]
    #[track_caller]
    fn ask_again(&self, stream: &Stream, layout: Layout, error: Error) -> Result<CUdeviceptr> {
        // More memory of the device does not help where another limit refuses.
        let is_of_device = error.code().is_some();
        for _ in 0..REPEATS {
            let is_released = deferred::make_room();
            let is_reclaimed =
                is_of_device && reclaim::helps(&error, self.device, stream, layout.size());
            if !is_released && !is_reclaimed {
                break;
            }
            let _again = AgainCall::enter();
            match self.inner.allocate(layout, stream) {
                Err(again) if again.is_out_of_memory() => {}
                answer => return answer,
            }
        }
        // The first one says what was waited for.
        Err(error)
    }

    /// Allocates `len` elements and fills them with zero bytes, both in the order of `stream`.
    ///
    /// # Errors
    ///
    /// Same as [`alloc`](Self::alloc).
    #[doc(alias = "cuMemsetD8Async")]
    #[track_caller]
    pub fn alloc_zeroed<T: Pod>(&self, stream: &Stream, len: usize) -> Result<DeviceBuffer<T>> {
        let mut buffer = self.alloc(stream, len)?;
        buffer.zero()?;
        Ok(buffer)
    }

    /// Allocates as many elements as `from` has and copies them in. Synchronises the stream: the slice
    /// may be changed when this returns.
    ///
    /// # Errors
    ///
    /// Same as [`alloc`](Self::alloc) and [`DeviceBuffer::copy_from`].
    #[track_caller]
    pub fn alloc_from<T: Pod>(&self, stream: &Stream, from: &[T]) -> Result<DeviceBuffer<T>> {
        let mut buffer = self.alloc(stream, from.len())?;
        buffer.copy_from(from)?;
        Ok(buffer)
    }
}

/// The layout of `len` elements.
#[inline]
fn layout_of<T>(len: usize) -> Result<Layout> {
    let alignment = align_of::<T>().max(RESOURCE_ALIGNMENT);
    Layout::from_size_align(bytes_of::<T>(len)?, alignment)
        .map_err(|_| too_large(len, size_of::<T>()))
}

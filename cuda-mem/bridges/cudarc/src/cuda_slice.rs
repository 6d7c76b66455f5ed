//! Memory that changes its owner.

use std::sync::Arc;

use bytemuck::Pod;
use cuda_mem::DeviceBuffer;
use cuda_mem::base::Failed;
use cudarc::driver::{CudaSlice, DevicePtrMut as _, DeviceSlice as _};

use crate::buffer::Buffer;
use crate::error::{Error, Refused, Result};
use crate::stream::borrow_stream;

impl<T: Pod> Buffer<T> {
    /// Hands the memory over to cudarc, which frees it on the same stream when the slice is dropped. For functions that
    /// take a `CudaSlice` and nothing else. The memory still counts as used in its pool.
    ///
    /// # Errors
    ///
    /// [`Error::NotOfPool`] for all memory but whole allocations of a pool, made with
    /// [`Pool::alloc`](cuda_mem::Pool::alloc) and the like: cudarc would free part of an arena with `cuMemFreeAsync`. A
    /// buffer of a [`Resource`](cuda_mem::Resource) is refused even if the resource is a pool. [`Error::NoMemory`] if there
    /// are no bytes; otherwise any driver error. The buffer comes back.
    ///
    /// ```
    /// # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
    /// # driver::restart_if_no_driver();
    /// use cuda_mem::{Driver, MemoryPool};
    /// use cuda_mem_cudarc_bridge::{Buffer, borrow_stream};
    /// use cudarc::driver::{CudaContext, CudaSlice};
    ///
    /// let theirs = CudaContext::new(0)?.new_stream()?;
    /// let pool = MemoryPool::builder(&Driver::load()?.device(0)?).build()?;
    /// let memory = pool.alloc_from(&borrow_stream(&theirs)?, &[1.0f32, 2.0])?;
    /// let slice: CudaSlice<f32> = Buffer::new(memory, &theirs)?.into_cuda_slice()?;
    /// assert_eq!(theirs.clone_dtoh(&slice)?, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "upgrade_device_ptr")]
    #[allow(clippy::result_large_err, reason = "the buffer comes back")]
    pub fn into_cuda_slice(mut self) -> Result<CudaSlice<T>, Refused<Self>> {
        let len = self.len();
        let stream = Arc::clone(self.stream());
        if self.num_bytes() == 0 {
            return Err(Refused::new(Error::NoMemory, self));
        }
        // `upgrade_device_ptr` makes events and panics if it cannot, also for an error that the context has kept.
        let ready = self.wait_for_pending_uses().and_then(|()| {
            stream.context().bind_to_thread()?;
            stream.context().new_event(None)?;
            Ok(())
        });
        if let Err(error) = ready {
            return Err(Refused::new(error, self));
        }
        let (uses, memory) = self.parts();
        let address = match memory.into_raw() {
            Ok(address) => address,
            // No use is pending, so this is about the owner of the memory.
            Err(Failed { error, object }) => {
                return Err(Refused {
                    error: Error::NotOfPool(error),
                    object: object.map(|memory| Self::of_parts(uses, memory)),
                });
            }
        };
        // SAFETY: `into_raw` gave up a live allocation of `len` elements that the driver frees, in the order of this stream,
        // which has waited for all uses on others (R13). Every bit pattern is a `T`, because it is `Pod`.
        let mut slice = unsafe { stream.upgrade_device_ptr::<T>(address, len) };
        // The slice does not know what was submitted before: this notes it, for other streams that use the slice.
        let (_, noted) = slice.device_ptr_mut(&stream);
        drop(noted);
        Ok(slice)
    }

    /// Takes the memory over from cudarc. It is freed on the same stream when the buffer is dropped. The stream waits for the
    /// uses on others that cudarc's events know.
    ///
    /// # Errors
    ///
    /// As [`borrow_stream`]; the slice comes back.
    ///
    /// ```
    /// # mod driver { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bridge/driver.rs")); }
    /// # driver::restart_if_no_driver();
    /// use cuda_mem_cudarc_bridge::Buffer;
    /// use cudarc::driver::CudaContext;
    ///
    /// let theirs = CudaContext::new(0)?.new_stream()?;
    /// let buffer = Buffer::from_cuda_slice(theirs.clone_htod(&[1u8, 2, 3])?)?;
    /// assert_eq!(buffer.memory()?.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "leak")]
    pub fn from_cuda_slice(slice: CudaSlice<T>) -> Result<Self, Refused<CudaSlice<T>>> {
        let stream = Arc::clone(slice.stream());
        let ours = match borrow_stream(&stream) {
            Ok(ours) => ours,
            Err(error) => return Err(Refused::new(error, slice)),
        };
        let len = slice.len();
        // Makes the stream wait for uses on others.
        let address = slice.leak();
        // SAFETY: the slice owned `len` elements, to be freed in the order of this stream, and has just given them up. The
        // driver aligns to 256 bytes or more (R15).
        let memory = unsafe { DeviceBuffer::<T>::from_raw(&ours, address, len) };
        Ok(Self::with(memory, stream))
    }
}

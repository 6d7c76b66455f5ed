//! Other ends of a buffer, and the way to memory of other libraries.

use std::marker::PhantomData;
use std::sync::Mutex;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::DeviceBuffer;
use crate::error::{Failed, Result};
use crate::join::order;
use crate::pool::Pool;
use crate::stream::Stream;

impl<T: Pod> DeviceBuffer<T> {
    /// Frees the memory in the order of another stream, which first waits for the buffer's own. The
    /// host does not wait. For memory whose last user is `other`: the buffer's stream need not wait
    /// for it then.
    ///
    /// # Errors
    ///
    /// As [`free`](Self::free).
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let context = device.primary_context()?;
    /// # let (stream, other) = (context.stream()?, context.stream()?);
    /// let buffer = device.default_pool()?.alloc_zeroed::<u8>(&stream, 100)?;
    /// buffer.free_on(&other)?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuMemFreeAsync")]
    pub fn free_on(mut self, other: &Stream) -> Result<(), Failed<Self>> {
        let ordered = self
            .settle()
            .and_then(|()| order(self.stream.as_ref(), other.as_ref()));
        if let Err(error) = ordered {
            return Err(Failed::new(error, self));
        }
        // Freed there like its own: the order has just been made.
        let home = std::mem::replace(&mut self.stream, other.clone());
        self.free().map_err(|mut failed| {
            if let Some(buffer) = &mut failed.object {
                buffer.stream = home;
            }
            failed
        })
    }

    /// Frees the memory and waits on the host until the buffer's stream has done so, so that every
    /// stream can have it, whatever the reuse policy.
    ///
    /// # Errors
    ///
    /// As [`free`](Self::free), and faults of earlier work in the stream; the memory is freed then.
    #[doc(alias("cuMemFreeAsync", "cuStreamSynchronize"))]
    pub fn free_sync(self) -> Result<(), Failed<Self>> {
        let stream = self.stream.clone();
        // Not `cuMemFree`: it takes pool memory too, but leaves it among the pool's used bytes (R89).
        self.free()?;
        stream.synchronize().map_err(Failed::lost)
    }

    /// Gives the memory out of hand: the address, which somebody has to free. 0 if there are no bytes.
    ///
    /// # Errors
    ///
    /// As [`settle`](Self::settle); the buffer comes back.
    ///
    /// ```
    /// use cuda_mem::DeviceBuffer;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// let pool = device.default_pool()?;
    /// let address = pool.alloc_from(&stream, &[1u16, 2, 3])?.into_raw()?;
    /// // SAFETY: the address and the number come from a buffer of this pool and stream.
    /// let buffer = unsafe { DeviceBuffer::<u16>::from_raw(&pool, &stream, address, 3) };
    /// assert_eq!(buffer.to_vec()?, [1, 2, 3]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn into_raw(mut self) -> Result<CUdeviceptr, Failed<Self>> {
        if let Err(error) = self.settle() {
            return Err(Failed::new(error, self));
        }
        let address = self.address;
        // Nothing left to free; the handles of pool and stream are dropped as usual.
        self.address = 0;
        Ok(address)
    }

    /// Takes over `len` elements at `address`; they are freed in the order of `stream` when the buffer
    /// is dropped.
    ///
    /// # Safety
    ///
    /// The memory must have been allocated from `pool`, be at least this large, aligned for `T`, valid
    /// at the present point of `stream`, and nobody else may free it. 0 stands for no bytes.
    #[inline]
    pub unsafe fn from_raw(pool: &Pool, stream: &Stream, address: CUdeviceptr, len: usize) -> Self {
        Self {
            address,
            len: if address == 0 && size_of::<T>() != 0 {
                0
            } else {
                len
            },
            stream: stream.clone(),
            pool: pool.clone(),
            owed: Mutex::new(Vec::new()),
            element: PhantomData,
        }
    }
}

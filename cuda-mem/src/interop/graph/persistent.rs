//! Memory that a launch leaves allocated.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::{Graph, GraphExec};
use crate::base::error::{Error, Result};
use crate::memory::copy::Span;
use crate::stream::Stream;

/// Graph memory that no node of the graph frees: it exists after a launch, until it is freed.
pub struct PersistentAllocation<T> {
    pub(super) owner: u64,
    pub(super) index: usize,
    pub(super) address: CUdeviceptr,
    pub(super) len: usize,
    pub(super) element: PhantomData<fn() -> T>,
}

impl<T> Clone for PersistentAllocation<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PersistentAllocation<T> {}

impl<T> PersistentAllocation<T> {
    /// The address, the same for every launch; 0 if there are no bytes.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.address
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T> fmt::Debug for PersistentAllocation<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Left({} elements at {:#x})", self.len, self.address)
    }
}

/// Memory that the last launch left, used in the order of the stream of that launch.
pub struct PersistentBuffer<'a, T> {
    stream: &'a Stream,
    address: CUdeviceptr,
    len: usize,
    element: PhantomData<&'a mut T>,
}

impl GraphExec {
    /// This memory, as the last launch left it. Memory of a [`CapturePool`](crate::arena::CapturePool) also
    /// exists before the first launch.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if nothing is left, because there was no launch or the memory
    /// was freed; or if the memory is another graph's.
    pub fn left<T: Pod>(
        &mut self,
        left: &PersistentAllocation<T>,
    ) -> Result<PersistentBuffer<'_, T>> {
        let block = Graph::block(&self.parts, left)?;
        // Memory that the graph keeps always exists.
        let keeper = block.owned.and_then(|owned| self.parts.owned.get(owned));
        if let Some(keeper) = keeper {
            return Ok(PersistentBuffer {
                stream: keeper.buffer.stream(),
                address: left.address,
                len: left.len,
                element: PhantomData,
            });
        }
        match &self.alive {
            Some(alive) if alive.blocks.iter().any(|it| it.address == block.address) => {
                Ok(PersistentBuffer {
                    stream: &alive.stream,
                    address: left.address,
                    len: left.len,
                    element: PhantomData,
                })
            }
            _ => Err(Error::invalid(
                "no launch has left this memory, or it was freed since".to_owned(),
            )),
        }
    }
}

impl<T: Pod> PersistentBuffer<'_, T> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The stream that orders uses of the memory: that of the launch.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.stream
    }

    /// Submits a fill of all elements with `value`, of 1, 2 or 4 bytes (others do not compile).
    /// Does not synchronise.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias("cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async"))]
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.span().fill(value)
    }

    /// Copies in a host slice of the same length. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the lengths differ; otherwise any driver error.
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn copy_from(&mut self, from: &[T]) -> Result<()> {
        self.span().copy_from(from)
    }

    /// Copies the memory into a new vector. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuMemcpyDtoHAsync")]
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.span().to_vec()
    }

    fn span(&self) -> Span<'_, T> {
        // SAFETY: the last launch left the memory in this stream (R70), and the instance is borrowed
        // exclusively, so nothing frees it or launches again. Memory of a pool is the graph's while that lives, and its
        // stream comes after every launch.
        unsafe { Span::new(self.address, self.len, self.stream, true) }
    }
}

impl<T> fmt::Debug for PersistentBuffer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "LeftBuffer({} elements at {:#x} in {:?})",
            self.len, self.address, self.stream
        )
    }
}

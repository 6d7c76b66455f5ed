//! Memory that a launch leaves allocated.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::{Graph, GraphExec};
use crate::base::error::{Error, Result};
use crate::memory::slice::{DeviceSliceMut, Span};

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
        write!(
            f,
            "PersistentAllocation({} elements at {:#x})",
            self.len, self.address
        )
    }
}

impl GraphExec {
    /// This memory, as the last launch left it, in the order of the stream of that launch. Memory of a
    /// [`CapturePool`](crate::arena::CapturePool) also exists before the first launch.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if nothing is left, because there was no launch or the memory
    /// was freed; or if the memory is another graph's.
    pub fn left<T: Pod>(
        &mut self,
        left: &PersistentAllocation<T>,
    ) -> Result<DeviceSliceMut<'_, T>> {
        let block = Graph::block(&self.parts, left)?;
        let (owned, address) = (block.owned, block.address);
        // Other graphs of a capture pool may still use the memory.
        if let Some(keeper) = owned.and_then(|owned| self.parts.owned.get_mut(owned)) {
            keeper.buffer.wait_for_pending_uses()?;
        }
        // Memory that the graph keeps always exists.
        let keeper = owned.and_then(|owned| self.parts.owned.get(owned));
        let alive = self.alive.as_ref();
        let alive = alive.filter(|it| it.blocks.iter().any(|it| it.address == address));
        let stream = match (keeper, alive) {
            (Some(keeper), _) => keeper.buffer.stream(),
            (None, Some(alive)) => &alive.stream,
            (None, None) => {
                let text = "no launch has left this memory, or it was freed since";
                return Err(Error::invalid(text.to_owned()));
            }
        };
        // SAFETY: the last launch left the memory in this stream (R70), and the instance is borrowed
        // exclusively, so nothing frees it or launches again. Memory of a pool is the graph's while that lives, and its
        // stream comes after every launch.
        let span = unsafe { Span::new(left.address, left.len, stream, Some(stream.device())) };
        Ok(DeviceSliceMut::new(span))
    }
}

//! Buffers that a graph owns because it uses them.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;
use cuda_driver_sys::{CUdeviceptr, CUgraphNode};

use super::{Graph, GraphExec, Parts};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::lock::Lock;
use crate::memory::buffer::DeviceBuffer;
use crate::memory::slice::DeviceSliceMut;
use crate::stream::Stream;
use crate::stream::context::Context;
use crate::stream::join::order;

/// A token for a buffer that was given to a graph.
pub struct GraphOwned<T> {
    pub(super) owner: u64,
    pub(super) index: usize,
    pub(super) address: CUdeviceptr,
    pub(super) len: usize,
    /// Device memory; otherwise host memory.
    pub(super) on_device: bool,
    pub(super) element: PhantomData<fn() -> T>,
}

impl<T> Clone for GraphOwned<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for GraphOwned<T> {}

impl<T> GraphOwned<T> {
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

impl<T> fmt::Debug for GraphOwned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GraphOwned({} elements)", self.len)
    }
}

/// A buffer of any element type, or memory that several graphs use.
pub(crate) trait AnyBuffer: Any + Send + Sync {
    fn stream(&self) -> &Stream;
    /// Makes the buffer's stream wait for others that may still use it.
    fn wait_for_pending_uses(&mut self) -> Result<()>;
    /// `Ok` if work in this context may access the memory.
    fn require_reach_in(&self, context: &Context) -> Result<()>;
    /// Adds `stream` as a pending use: the memory may not be freed before `stream` has been waited for.
    fn owe(&self, stream: &Stream);
    fn as_any(&self) -> &dyn Any;
    fn as_any_mut(&mut self) -> &mut dyn Any;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;

    /// The number of memory that several graphs use; 0 for a buffer.
    fn number(&self) -> u64 {
        0
    }

    /// A lock for memory that several graphs use, held from before a launch waits for earlier uses until later ones
    /// wait for the launch. A buffer has only one graph, which one thread launches at a time.
    fn turn(&self) -> Option<Arc<Lock<()>>> {
        None
    }

    /// A graph that kept a block of it was dropped.
    fn take_back(&self, _: CUdeviceptr) {}
}

impl<T: Pod + Send + Sync> AnyBuffer for DeviceBuffer<T> {
    fn stream(&self) -> &Stream {
        DeviceBuffer::stream(self)
    }

    fn wait_for_pending_uses(&mut self) -> Result<()> {
        DeviceBuffer::wait_for_pending_uses(self)
    }

    fn require_reach_in(&self, context: &Context) -> Result<()> {
        DeviceBuffer::require_reach_in(self, context)
    }

    fn owe(&self, stream: &Stream) {
        self.note_use_by(stream);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// A buffer in a graph, and the last nodes that use it.
pub(super) struct OwnedBuffer {
    pub(super) buffer: Box<dyn AnyBuffer>,
    pub(super) last: Vec<CUgraphNode>,
    /// A capture may have used it, in nodes whose handles are unknown.
    pub(super) is_captured: bool,
    /// It is borrowed for work that is being recorded.
    pub(super) is_lent: bool,
}

impl Parts {
    pub(super) fn adopt<T: Pod + Send + Sync>(&mut self, buffer: DeviceBuffer<T>) -> GraphOwned<T> {
        let adopted = GraphOwned {
            owner: self.id,
            index: self.owned.len(),
            address: buffer.as_raw(),
            len: buffer.len(),
            on_device: buffer.device().is_some(),
            element: PhantomData,
        };
        self.owned.push(OwnedBuffer {
            buffer: Box::new(buffer),
            last: Vec::new(),
            is_captured: false,
            is_lent: false,
        });
        adopted
    }

    /// The index among the owned buffers of memory that several graphs use.
    pub(super) fn shared_owned(&mut self, memory: impl AnyBuffer) -> usize {
        let number = memory.number();
        let known = self.owned.iter();
        let known = known
            .map(|owned| owned.buffer.number())
            .position(|other| other == number);
        known.unwrap_or_else(|| {
            self.owned.push(OwnedBuffer {
                buffer: Box::new(memory),
                last: Vec::new(),
                is_captured: false,
                is_lent: false,
            });
            self.owned.len() - 1
        })
    }

    pub(super) fn owned<T: Pod>(&self, adopted: &GraphOwned<T>) -> Result<&DeviceBuffer<T>> {
        self.check_owner(adopted.owner)?;
        let owned = self.owned.get(adopted.index);
        owned
            .and_then(|owned| owned.buffer.as_any().downcast_ref())
            .ok_or_else(unknown)
    }

    pub(super) fn owned_mut<T: Pod>(
        &mut self,
        adopted: &GraphOwned<T>,
    ) -> Result<&mut DeviceBuffer<T>> {
        self.check_owner(adopted.owner)?;
        let owned = self.owned.get_mut(adopted.index);
        owned
            .and_then(|owned| owned.buffer.as_any_mut().downcast_mut())
            .ok_or_else(unknown)
    }

    /// `Ok` if work in this context may access the buffer.
    pub(super) fn require_reach_of<T: Pod>(
        &self,
        adopted: &GraphOwned<T>,
        context: &Context,
    ) -> Result<()> {
        let reach = self.owned(adopted)?.require_reach_in(context);
        reach.map_err(explain)
    }

    /// `Ok` if all memory of a graph for the context `home` may be accessed in a launch in `stream`. No driver call if
    /// all of it belongs to one context.
    pub(super) fn require_reach(&self, home: &Context, stream: &Stream) -> Result<()> {
        for owned in &self.owned {
            let reach = owned.buffer.require_reach_in(home);
            let reach = reach.and_then(|()| owned.buffer.require_reach_in(stream.context()));
            reach.map_err(explain)?;
        }
        let (own, other) = (home.device(), stream.device());
        let is_none = |block: &super::Block| block.address == 0 || block.owned.is_some();
        if own == other || self.blocks.iter().all(is_none) {
            return Ok(());
        }
        if self.left().next().is_some() {
            return Err(Error::invalid(format!(
                "the graph leaves memory of {own}, which is used in the stream of the launch, and {other} has no \
                 access to graph memory; launch it in a stream of {own}"
            )));
        }
        if other.can_access_peer(&own)? {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "the graph uses memory of {own}, which {other} cannot reach: they are no peers on this machine; launch \
             it in a stream of {own}"
        )))
    }

    /// The launch locks of all memory that other graphs use too, in locking order.
    pub(super) fn turns(&self) -> Vec<Arc<Lock<()>>> {
        let mut shared: Vec<_> = self
            .owned
            .iter()
            .filter_map(|owned| Some((owned.buffer.number(), owned.buffer.turn()?)))
            .collect();
        shared.sort_unstable_by_key(|(number, _)| *number);
        shared.into_iter().map(|(_, turn)| turn).collect()
    }

    /// For before the launch locks are taken: the host may have to wait for a whole context here, whose work may need a
    /// thread that wants one of them.
    pub(super) fn wait_for_pending_uses(&mut self) -> Result<()> {
        let mut owned = self.owned.iter_mut();
        owned.try_for_each(|owned| owned.buffer.wait_for_pending_uses())
    }

    /// `stream` waits for all earlier work on the buffers.
    pub(super) fn enter(&mut self, stream: &Stream) -> Result<()> {
        for owned in &mut self.owned {
            owned.buffer.wait_for_pending_uses()?;
            order(owned.buffer.stream().as_ref(), stream.as_ref())?;
        }
        Ok(())
    }

    /// Later work on the buffers waits for `stream`. All are tried; a buffer that could not be ordered records that,
    /// and is ordered before its next use.
    pub(super) fn leave(&self, stream: &Stream) {
        for owned in &self.owned {
            let home = owned.buffer.stream();
            if order(stream.as_ref(), home.as_ref()).is_err() {
                owned.buffer.owe(stream);
            }
        }
    }
}

/// Adds to an error which buffer it is about.
#[cold]
fn explain(error: Error) -> Error {
    if error.code().is_some() {
        return error.asked(|| "a buffer that the graph has adopted".to_owned());
    }
    match error.kind() {
        ErrorKind::InvalidValue => {
            Error::invalid(format!("of a buffer that the graph has adopted: {error}"))
        }
        _ => error,
    }
}

#[cold]
fn unknown() -> Error {
    Error::invalid("this graph has no such buffer".to_owned())
}

impl Graph {
    /// Gives a buffer to the graph, so that nodes can use it.
    pub fn adopt<T: Pod + Send + Sync>(&mut self, buffer: DeviceBuffer<T>) -> GraphOwned<T> {
        self.parts.adopt(buffer)
    }
}

impl GraphExec {
    /// An adopted buffer, to be read in the order of its own stream: after every launch so far.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if it was given to another graph.
    pub fn buffer<T: Pod>(&self, adopted: &GraphOwned<T>) -> Result<&DeviceBuffer<T>> {
        self.parts.owned(adopted)
    }

    /// As [`buffer`](Self::buffer), for writing.
    ///
    /// # Errors
    ///
    /// The same errors.
    ///
    /// An adopted buffer cannot be exchanged:
    ///
    /// ```compile_fail,E0308
    /// # use cuda_mem::{DeviceBuffer, Error};
    /// # use cuda_mem::interop::{GraphOwned, GraphExec};
    /// # fn example(exec: &mut GraphExec, adopted: &GraphOwned<u8>, mut other: DeviceBuffer<u8>)
    /// # -> Result<(), Error> {
    /// std::mem::swap(&mut exec.buffer_mut(adopted)?, &mut other); // error: mismatched types
    /// # Ok(())
    /// # }
    /// ```
    pub fn buffer_mut<T: Pod>(&mut self, adopted: &GraphOwned<T>) -> Result<DeviceSliceMut<'_, T>> {
        Ok(self.parts.owned_mut(adopted)?.as_mut_slice())
    }

    /// Drops the instance and returns one adopted buffer. Launches in progress complete before any later work on the
    /// buffer.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if it was given to another graph.
    pub fn into_buffer<T: Pod>(mut self, adopted: &GraphOwned<T>) -> Result<DeviceBuffer<T>> {
        self.parts.owned(adopted)?;
        let owned = self.parts.owned.swap_remove(adopted.index);
        // The last one is in its place now.
        let moved = self.parts.owned.len();
        for block in &mut self.parts.blocks {
            if block.owned == Some(moved) {
                block.owned = Some(adopted.index);
            }
        }
        let buffer = owned.buffer.into_any().downcast();
        buffer.map(|buffer| *buffer).map_err(|_| unknown())
    }
}

//! Operations on buffers.

use cuda_driver_sys::nccl::ncclDataType_t;

use super::Communicator;
use super::element::{Element, ReduceOp};
use super::group::Group;
use crate::base::error::{Error, Result};
use crate::driver::raw::nccl::{Operation, Transfer};
use crate::memory::slice::{DeviceMemory, DeviceMemoryMut, OnStream, Span};
use crate::stream::Stream;

/// One operation, with the memory it uses bound to its stream.
pub(super) struct Call<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) stream: &'a Stream,
    pub(super) is_recorded: bool,
    pub(super) operation: Operation,
    pub(super) transfer: Transfer,
    /// The bytes at `from` and `to`.
    pub(super) bytes: (usize, usize),
    /// Dropped once the operation is in the stream.
    _binding: Option<OnStream<'a>>,
}

/// The numbers of a rank that an operation names.
impl Communicator {
    fn peer(&self, rank: usize, what: &str) -> Result<i32> {
        let ranks = self.ranks();
        match i32::try_from(rank) {
            Ok(number) if rank < ranks => Ok(number),
            _ => Err(Error::invalid(format!(
                "rank {rank} is to {what}, and there are {ranks} ranks, which count from 0"
            ))),
        }
    }

    /// A call on memory of this rank's device; `None` if it moves nothing.
    fn call<'a, T: Element>(
        &'a self,
        operation: Operation,
        from: Option<Span<'a, T>>,
        to: Option<Span<'a, T>>,
        count: usize,
        binding: Option<OnStream<'a>>,
    ) -> Result<Option<Call<'a>>> {
        let Some(first) = to.or(from) else {
            return Ok(None);
        };
        let stream = first.stream();
        if stream.context() != self.context() {
            return Err(Error::invalid(format!(
                "{operation} is of {self}, and the memory is used in {stream}; use a stream of the communicator's context",
                operation = operation.function(),
            )));
        }
        let bytes = |span: Option<Span<'a, T>>| {
            span.map_or((0, 0), |span| {
                let addresses = span.addresses();
                (addresses.start, (addresses.end - addresses.start) as usize)
            })
        };
        let ((from, from_bytes), (to, to_bytes)) = (bytes(from), bytes(to));
        Ok((count > 0).then_some(Call {
            communicator: self,
            stream,
            is_recorded: first.is_recorded(),
            operation,
            transfer: Transfer {
                from,
                to,
                count,
                data_type: T::DATA_TYPE,
            },
            bytes: (from_bytes, to_bytes),
            _binding: binding,
        }))
    }

    /// A call from one piece of memory to another, in the order of the second one's stream.
    fn call_between<'a, T: Element>(
        &'a self,
        operation: Operation,
        from: &'a impl DeviceMemory<Element = T>,
        to: &'a mut impl DeviceMemoryMut<Element = T>,
        count: impl FnOnce(usize, usize) -> Option<usize>,
    ) -> Result<Option<Call<'a>>> {
        let (source, target) = (from.as_slice(), to.as_mut_slice());
        let (have, room) = (source.len(), target.len());
        let Some(count) = count(have, room) else {
            return Err(Error::invalid(format!(
                "{} of {} ranks from {have} elements to {room}",
                operation.function(),
                self.ranks()
            )));
        };
        let target = target.into_span();
        target.wait_for_pending_uses(true)?;
        let span = source.span();
        if target.is_recorded() || span.is_recorded() {
            if !(target.is_recorded() && span.is_recorded() && target.stream() == span.stream()) {
                let text = "memory of a capture is used with memory of the same capture only";
                return Err(Error::invalid(text.to_owned()));
            }
            let (span, ()) = source.into_parts();
            return self.call(operation, Some(span), Some(target), count, None);
        }
        let (span, binding) = source.read_on(target.stream())?.into_parts();
        self.call(operation, Some(span), Some(target), count, Some(binding))
    }

    /// A call on one piece of memory, which it writes.
    fn call_in_place<'a, T: Element>(
        &'a self,
        operation: Operation,
        memory: &'a mut impl DeviceMemoryMut<Element = T>,
    ) -> Result<Option<Call<'a>>> {
        let span = memory.as_mut_slice().into_span();
        span.wait_for_pending_uses(true)?;
        let count = span.len();
        let from = (!matches!(operation, Operation::Receive { .. })).then_some(span);
        self.call(operation, from, Some(span), count, None)
    }

    pub(super) fn all_reduce_call<'a, T: Element>(
        &'a self,
        from: &'a impl DeviceMemory<Element = T>,
        to: &'a mut impl DeviceMemoryMut<Element = T>,
        op: ReduceOp,
    ) -> Result<Option<Call<'a>>> {
        self.call_between(Operation::AllReduce(op.raw()), from, to, |have, room| {
            (have == room).then_some(have)
        })
    }

    pub(super) fn all_reduce_in_place_call<'a, T: Element>(
        &'a self,
        memory: &'a mut impl DeviceMemoryMut<Element = T>,
        op: ReduceOp,
    ) -> Result<Option<Call<'a>>> {
        self.call_in_place(Operation::AllReduce(op.raw()), memory)
    }

    pub(super) fn reduce_scatter_call<'a, T: Element>(
        &'a self,
        from: &'a impl DeviceMemory<Element = T>,
        to: &'a mut impl DeviceMemoryMut<Element = T>,
        op: ReduceOp,
    ) -> Result<Option<Call<'a>>> {
        let ranks = self.ranks();
        self.call_between(
            Operation::ReduceScatter(op.raw()),
            from,
            to,
            |have, room| (room.checked_mul(ranks) == Some(have)).then_some(room),
        )
    }

    pub(super) fn all_gather_call<'a, T: Element>(
        &'a self,
        from: &'a impl DeviceMemory<Element = T>,
        to: &'a mut impl DeviceMemoryMut<Element = T>,
    ) -> Result<Option<Call<'a>>> {
        let ranks = self.ranks();
        self.call_between(Operation::AllGather, from, to, |have, room| {
            (have.checked_mul(ranks) == Some(room)).then_some(have)
        })
    }

    pub(super) fn broadcast_call<'a, T: Element>(
        &'a self,
        memory: &'a mut impl DeviceMemoryMut<Element = T>,
        root: usize,
    ) -> Result<Option<Call<'a>>> {
        let root = self.peer(root, "send to all")?;
        self.call_in_place(Operation::Broadcast { root }, memory)
    }

    pub(super) fn send_call<'a, T: Element>(
        &'a self,
        from: &'a impl DeviceMemory<Element = T>,
        to: usize,
    ) -> Result<Option<Call<'a>>> {
        let to = self.peer(to, "receive")?;
        let slice = from.as_slice();
        let count = slice.len();
        let (span, ()) = slice.into_parts();
        span.wait_for_pending_uses(false)?;
        self.call(Operation::Send { to }, Some(span), None, count, None)
    }

    pub(super) fn receive_call<'a, T: Element>(
        &'a self,
        to: &'a mut impl DeviceMemoryMut<Element = T>,
        from: usize,
    ) -> Result<Option<Call<'a>>> {
        let from = self.peer(from, "send")?;
        self.call_in_place(Operation::Receive { from }, to)
    }

    /// Combines the elements of all ranks' `from`, and writes the result to all ranks' `to`, in the order of its stream. Both have
    /// as many elements, on all ranks. Memory of other streams is bound to that one, as by
    /// [`read_on`](crate::DeviceBuffer::read_on).
    ///
    /// Does not wait for the operation. Zero elements are no operation.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the lengths differ here, or the stream is of another context;
    /// [`TimedOut`](crate::ErrorKind::TimedOut) if NCCL could not start the operation in [time](super::CommunicatorBuilder::timeout);
    /// otherwise any error that NCCL reports. That another rank has other lengths is not found by NCCL: results are then
    /// unspecified, or the operation never ends.
    #[doc(alias = "ncclAllReduce")]
    pub fn all_reduce<T: Element>(
        &self,
        from: &impl DeviceMemory<Element = T>,
        to: &mut impl DeviceMemoryMut<Element = T>,
        op: ReduceOp,
    ) -> Result<()> {
        Group::run_one(self.all_reduce_call(from, to, op)?)
    }

    /// As [`all_reduce`](Self::all_reduce), from and to the same memory.
    ///
    /// # Errors
    ///
    /// As for that.
    #[doc(alias = "ncclAllReduce")]
    pub fn all_reduce_in_place<T: Element>(
        &self,
        memory: &mut impl DeviceMemoryMut<Element = T>,
        op: ReduceOp,
    ) -> Result<()> {
        Group::run_one(self.all_reduce_in_place_call(memory, op)?)
    }

    /// Combines the elements of all ranks' `from`, and writes the n-th part of the result to rank n's `to`. `from` has as many
    /// elements as all ranks' `to` together.
    ///
    /// # Errors
    ///
    /// As for [`all_reduce`](Self::all_reduce).
    #[doc(alias = "ncclReduceScatter")]
    pub fn reduce_scatter<T: Element>(
        &self,
        from: &impl DeviceMemory<Element = T>,
        to: &mut impl DeviceMemoryMut<Element = T>,
        op: ReduceOp,
    ) -> Result<()> {
        Group::run_one(self.reduce_scatter_call(from, to, op)?)
    }

    /// Writes the elements of all ranks' `from`, in the order of the ranks, to all ranks' `to`, which has as many as all `from`
    /// together.
    ///
    /// # Errors
    ///
    /// As for [`all_reduce`](Self::all_reduce).
    #[doc(alias = "ncclAllGather")]
    pub fn all_gather<T: Element>(
        &self,
        from: &impl DeviceMemory<Element = T>,
        to: &mut impl DeviceMemoryMut<Element = T>,
    ) -> Result<()> {
        Group::run_one(self.all_gather_call(from, to)?)
    }

    /// Writes the elements of `root`'s memory to that of all other ranks.
    ///
    /// # Errors
    ///
    /// As for [`all_reduce`](Self::all_reduce); also [`InvalidValue`](crate::ErrorKind::InvalidValue) if there is no such rank.
    #[doc(alias = "ncclBroadcast")]
    pub fn broadcast<T: Element>(
        &self,
        memory: &mut impl DeviceMemoryMut<Element = T>,
        root: usize,
    ) -> Result<()> {
        Group::run_one(self.broadcast_call(memory, root)?)
    }

    /// Sends the elements to rank `to`, which must [receive](Self::receive) as many, in the order of the memory's stream. Two ranks
    /// that send to each other must do so in a [`Group`].
    ///
    /// # Errors
    ///
    /// As for [`broadcast`](Self::broadcast).
    #[doc(alias = "ncclSend")]
    pub fn send<T: Element>(&self, from: &impl DeviceMemory<Element = T>, to: usize) -> Result<()> {
        Group::run_one(self.send_call(from, to)?)
    }

    /// Receives the elements that rank `from` sends.
    ///
    /// # Errors
    ///
    /// As for [`broadcast`](Self::broadcast).
    #[doc(alias = "ncclRecv")]
    pub fn receive<T: Element>(
        &self,
        to: &mut impl DeviceMemoryMut<Element = T>,
        from: usize,
    ) -> Result<()> {
        Group::run_one(self.receive_call(to, from)?)
    }
}

/// So that a test can compare.
impl std::fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ncclDataType_t(data_type) = self.transfer.data_type;
        f.debug_struct("Call")
            .field("operation", &self.operation)
            .field("count", &self.transfer.count)
            .field("data_type", &data_type)
            .field("stream", self.stream)
            .finish_non_exhaustive()
    }
}

//! Operations on buffers.

use bytemuck::Pod;
use cuda_driver_sys::CU_STREAM_PER_THREAD;
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
    /// The stream of the source, if that is another one: it waits for this one.
    pub(super) source_stream: Option<&'a Stream>,
    pub(super) is_recorded: bool,
    pub(super) operation: Operation,
    pub(super) transfer: Transfer,
    /// The bytes at `from` and `to`.
    pub(super) bytes: (usize, usize),
    /// Dropped once the operation is in the stream.
    _binding: Option<OnStream<'a>>,
}

impl Call<'_> {
    /// Whether it moves nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.transfer.count == 0
    }
}

/// How NCCL counts elements.
#[derive(Clone, Copy)]
struct Unit {
    data_type: ncclDataType_t,
    per_element: usize,
}

impl Unit {
    /// One by one, to be combined.
    fn of<T: Element>() -> Self {
        Self {
            data_type: T::DATA_TYPE,
            per_element: 1,
        }
    }

    /// As bytes, only to be moved.
    fn bytes_of<T: Pod>() -> Self {
        Self {
            data_type: ncclDataType_t::ncclUint8,
            per_element: size_of::<T>(),
        }
    }
}

/// The memory of a call.
struct Ends<'a, T> {
    from: Option<Span<'a, T>>,
    to: Option<Span<'a, T>>,
    source_stream: Option<&'a Stream>,
    binding: Option<OnStream<'a>>,
}

impl Communicator {
    fn peer(&self, rank: usize, what: &str) -> Result<i32> {
        let ranks = self.rank_count();
        match i32::try_from(rank) {
            Ok(number) if rank < ranks => Ok(number),
            _ => Err(Error::invalid(format!(
                "rank {rank} is to {what}, and there are {ranks} ranks, which count from 0"
            ))),
        }
    }

    /// A call on memory of this rank's device.
    fn call<'a, T: Pod>(
        &'a self,
        operation: Operation,
        unit: Unit,
        ends: Ends<'a, T>,
        count: usize,
    ) -> Result<Call<'a>> {
        let Ends {
            from,
            to,
            source_stream,
            binding,
        } = ends;
        let Some(first) = to.or(from) else {
            return Err(Error::invalid("no memory".to_owned()));
        };
        let stream = first.stream();
        if stream.context() != self.context() {
            return Err(Error::invalid(format!(
                "{operation} is of {self}, and the memory is used in {stream}; use a stream of the communicator's context",
                operation = operation.function(),
            )));
        }
        if stream.as_ref().as_raw() == CU_STREAM_PER_THREAD && !self.0.waiting.is_blocking {
            return Err(Error::not_supported(format!(
                "{operation} is of {self}, and the memory is used in the thread's own default stream: NCCL starts the operations of \
                 a communicator that does not block in a thread of its own, whose default stream is another; use a stream that you \
                 made, or a blocking communicator",
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
        Ok(Call {
            communicator: self,
            stream,
            source_stream,
            is_recorded: first.is_recorded(),
            operation,
            transfer: Transfer {
                from,
                to,
                count: count * unit.per_element,
                data_type: unit.data_type,
            },
            bytes: (from_bytes, to_bytes),
            _binding: binding,
        })
    }

    /// A call from one piece of memory to another, in the order of the second one's stream. `count` is given both lengths, and says
    /// what is wrong with them.
    fn call_between<'a, T: Pod>(
        &'a self,
        operation: Operation,
        unit: Unit,
        from: &'a impl DeviceMemory<Element = T>,
        to: &'a mut impl DeviceMemoryMut<Element = T>,
        count: impl FnOnce(usize, usize) -> std::result::Result<usize, String>,
    ) -> Result<Call<'a>> {
        let (source, target) = (from.as_slice(), to.as_mut_slice());
        let (have, room) = (source.len(), target.len());
        let count = count(have, room).map_err(|wrong| {
            let (name, ranks) = (operation.function(), self.rank_count());
            Error::invalid(format!(
                "{name} of {ranks} ranks from {have} elements to {room}; {wrong}"
            ))
        })?;
        let target = target.into_span();
        target.wait_for_pending_uses(true)?;
        let span = source.span();
        let mut ends = Ends {
            from: None,
            to: Some(target),
            source_stream: None,
            binding: None,
        };
        if target.is_recorded() || span.is_recorded() {
            if !(target.is_recorded() && span.is_recorded() && target.stream() == span.stream()) {
                let text = "memory of a capture is used with memory of the same capture only";
                return Err(Error::invalid(text.to_owned()));
            }
            ends.from = Some(source.into_parts().0);
            return self.call(operation, unit, ends, count);
        }
        let source_stream = from.as_slice().into_parts().0.stream();
        ends.source_stream = (source_stream != target.stream()).then_some(source_stream);
        let (span, binding) = source.read_on(target.stream())?.into_parts();
        (ends.from, ends.binding) = (Some(span), Some(binding));
        self.call(operation, unit, ends, count)
    }

    /// A call on one piece of memory, which it writes.
    fn call_in_place<'a, T: Pod>(
        &'a self,
        operation: Operation,
        unit: Unit,
        memory: &'a mut impl DeviceMemoryMut<Element = T>,
    ) -> Result<Call<'a>> {
        let span = memory.as_mut_slice().into_span();
        span.wait_for_pending_uses(true)?;
        let ends = Ends {
            from: (!matches!(operation, Operation::Receive { .. })).then_some(span),
            to: Some(span),
            source_stream: None,
            binding: None,
        };
        self.call(operation, unit, ends, span.len())
    }

    pub(super) fn all_reduce_call<'a, T: Element>(
        &'a self,
        from: &'a impl DeviceMemory<Element = T>,
        to: &'a mut impl DeviceMemoryMut<Element = T>,
        op: ReduceOp,
    ) -> Result<Call<'a>> {
        let operation = Operation::AllReduce(op.raw());
        self.call_between(operation, Unit::of::<T>(), from, to, |have, room| {
            if have == room {
                return Ok(have);
            }
            Err("both must have as many".to_owned())
        })
    }

    pub(super) fn all_reduce_in_place_call<'a, T: Element>(
        &'a self,
        memory: &'a mut impl DeviceMemoryMut<Element = T>,
        op: ReduceOp,
    ) -> Result<Call<'a>> {
        self.call_in_place(Operation::AllReduce(op.raw()), Unit::of::<T>(), memory)
    }

    pub(super) fn reduce_scatter_call<'a, T: Element>(
        &'a self,
        from: &'a impl DeviceMemory<Element = T>,
        to: &'a mut impl DeviceMemoryMut<Element = T>,
        op: ReduceOp,
    ) -> Result<Call<'a>> {
        let ranks = self.rank_count();
        let operation = Operation::ReduceScatter(op.raw());
        self.call_between(operation, Unit::of::<T>(), from, to, |have, room| {
            let needed = room.saturating_mul(ranks);
            if have == needed {
                return Ok(room);
            }
            Err(format!("the source must have {needed}"))
        })
    }

    pub(super) fn all_gather_call<'a, T: Pod>(
        &'a self,
        from: &'a impl DeviceMemory<Element = T>,
        to: &'a mut impl DeviceMemoryMut<Element = T>,
    ) -> Result<Call<'a>> {
        let ranks = self.rank_count();
        self.call_between(
            Operation::AllGather,
            Unit::bytes_of::<T>(),
            from,
            to,
            |have, room| {
                let needed = have.saturating_mul(ranks);
                if room == needed {
                    return Ok(have);
                }
                Err(format!("the target must have {needed}"))
            },
        )
    }

    pub(super) fn broadcast_call<'a, T: Pod>(
        &'a self,
        memory: &'a mut impl DeviceMemoryMut<Element = T>,
        root: usize,
    ) -> Result<Call<'a>> {
        let root = self.peer(root, "send to all")?;
        self.call_in_place(Operation::Broadcast { root }, Unit::bytes_of::<T>(), memory)
    }

    pub(super) fn send_call<'a, T: Pod>(
        &'a self,
        from: &'a impl DeviceMemory<Element = T>,
        to: usize,
    ) -> Result<Call<'a>> {
        let to = self.peer(to, "receive")?;
        let slice = from.as_slice();
        let count = slice.len();
        let (span, ()) = slice.into_parts();
        span.wait_for_pending_uses(false)?;
        let ends = Ends {
            from: Some(span),
            to: None,
            source_stream: None,
            binding: None,
        };
        self.call(Operation::Send { to }, Unit::bytes_of::<T>(), ends, count)
    }

    pub(super) fn receive_call<'a, T: Pod>(
        &'a self,
        to: &'a mut impl DeviceMemoryMut<Element = T>,
        from: usize,
    ) -> Result<Call<'a>> {
        let from = self.peer(from, "send")?;
        self.call_in_place(Operation::Receive { from }, Unit::bytes_of::<T>(), to)
    }

    /// Combines the elements of all ranks' `from`, and writes the result to all ranks' `to`, in the order of its stream. Both have
    /// as many elements, on all ranks. Memory of other streams is bound to that one, as by
    /// [`read_on`](crate::DeviceBuffer::read_on).
    ///
    /// Does not wait for the operation. Zero elements are no operation, but an error if the communicator has failed.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the lengths differ here, or the stream is of another context;
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for a [thread's own stream](crate::Context::per_thread_stream), unless the
    /// communicator is [blocking](super::CommunicatorBuilder::blocking): NCCL starts operations in a thread of its own;
    /// [`TimedOut`](crate::ErrorKind::TimedOut) if NCCL could not start the operation in [time](super::CommunicatorBuilder::timeout);
    /// [`Aborted`](crate::ErrorKind::Aborted) if another thread aborts meanwhile; otherwise any error that NCCL reports. If NCCL had begun
    /// and did not come to an end, **the communicator has been [aborted](Self::abort)**, so that nothing uses the memory later. That
    /// another rank has other lengths is not found by NCCL: results are then
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
    /// together. They are moved as bytes, so they may be of any type.
    ///
    /// # Errors
    ///
    /// As for [`all_reduce`](Self::all_reduce).
    #[doc(alias = "ncclAllGather")]
    pub fn all_gather<T: Pod>(
        &self,
        from: &impl DeviceMemory<Element = T>,
        to: &mut impl DeviceMemoryMut<Element = T>,
    ) -> Result<()> {
        Group::run_one(self.all_gather_call(from, to)?)
    }

    /// Writes the elements of `root`'s memory to that of all other ranks. They may be of any type.
    ///
    /// # Errors
    ///
    /// As for [`all_reduce`](Self::all_reduce); also [`InvalidValue`](crate::ErrorKind::InvalidValue) if there is no such rank.
    #[doc(alias = "ncclBroadcast")]
    pub fn broadcast<T: Pod>(
        &self,
        memory: &mut impl DeviceMemoryMut<Element = T>,
        root: usize,
    ) -> Result<()> {
        Group::run_one(self.broadcast_call(memory, root)?)
    }

    /// Sends the elements, of any type, to rank `to`, which must [receive](Self::receive) as many, in the order of the memory's stream. Two ranks
    /// that send to each other must do so in a [`Group`].
    ///
    /// # Errors
    ///
    /// As for [`broadcast`](Self::broadcast).
    #[doc(alias = "ncclSend")]
    pub fn send<T: Pod>(&self, from: &impl DeviceMemory<Element = T>, to: usize) -> Result<()> {
        Group::run_one(self.send_call(from, to)?)
    }

    /// Receives the elements that rank `from` sends.
    ///
    /// # Errors
    ///
    /// As for [`broadcast`](Self::broadcast).
    #[doc(alias = "ncclRecv")]
    pub fn receive<T: Pod>(
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

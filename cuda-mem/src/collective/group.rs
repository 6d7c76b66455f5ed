//! Operations that are started together.

use std::fmt;

use super::communicator::{Communicator, Inner, State};
use super::element::{Element, ReduceOp};
use super::library::Nccl;
use super::operation::Call;
use crate::base::error::{Error, Result};
use crate::driver::raw;
use crate::driver::raw::nccl::Progress;
use crate::memory::slice::{DeviceMemory, DeviceMemoryMut};
use crate::stream::{Submission, recording};

/// Operations that NCCL starts together: those of several ranks that one thread drives, or sends and receives that need each other.
/// From [`Nccl::group`].
///
/// The memory is borrowed until [`run`](Self::run), and other streams' memory is bound until then. Nothing is started by a group that is
/// dropped.
///
/// ```
/// # use cuda_mem::Driver;
/// # use cuda_mem::collective::{Nccl, ReduceOp};
/// # cuda_sim::use_if_no_driver();
/// # nccl_sim::use_if_no_nccl();
/// # let device = Driver::load()?.device(0)?;
/// # let context = device.primary_context()?;
/// # let stream = context.stream()?;
/// # let pool = device.default_pool()?;
/// let nccl = Nccl::load()?;
/// let communicators = nccl.communicators(&[context])?;
/// let mut buffers = vec![pool.alloc_from(&stream, &[1u32, 2])?]; // one for each rank
///
/// let mut group = nccl.group();
/// for (communicator, buffer) in communicators.iter().zip(&mut buffers) {
///     group.all_reduce_in_place(communicator, buffer, ReduceOp::Max)?;
/// }
/// group.run()?;
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[must_use = "nothing is started before `run`"]
pub struct Group<'a> {
    nccl: Nccl,
    calls: Vec<Call<'a>>,
}

impl<'a> Group<'a> {
    pub(super) fn new(nccl: Nccl) -> Self {
        Self {
            nccl,
            calls: Vec::new(),
        }
    }

    fn push(&mut self, call: Option<Call<'a>>) -> Result<()> {
        if let Some(call) = call {
            if call.communicator.nccl() != self.nccl {
                let text = "the communicator and the group are of two libraries";
                return Err(Error::invalid(text.to_owned()));
            }
            self.calls.push(call);
        }
        Ok(())
    }

    /// Adds an [all-reduce](Communicator::all_reduce).
    ///
    /// # Errors
    ///
    /// As for that, but for what NCCL reports: that is an error of [`run`](Self::run). The same holds for the others.
    pub fn all_reduce<T: Element>(
        &mut self,
        communicator: &'a Communicator,
        from: &'a impl DeviceMemory<Element = T>,
        to: &'a mut impl DeviceMemoryMut<Element = T>,
        op: ReduceOp,
    ) -> Result<()> {
        self.push(communicator.all_reduce_call(from, to, op)?)
    }

    /// Adds an [all-reduce in place](Communicator::all_reduce_in_place).
    ///
    /// # Errors
    ///
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn all_reduce_in_place<T: Element>(
        &mut self,
        communicator: &'a Communicator,
        memory: &'a mut impl DeviceMemoryMut<Element = T>,
        op: ReduceOp,
    ) -> Result<()> {
        self.push(communicator.all_reduce_in_place_call(memory, op)?)
    }

    /// Adds a [reduce-scatter](Communicator::reduce_scatter).
    ///
    /// # Errors
    ///
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter<T: Element>(
        &mut self,
        communicator: &'a Communicator,
        from: &'a impl DeviceMemory<Element = T>,
        to: &'a mut impl DeviceMemoryMut<Element = T>,
        op: ReduceOp,
    ) -> Result<()> {
        self.push(communicator.reduce_scatter_call(from, to, op)?)
    }

    /// Adds an [all-gather](Communicator::all_gather).
    ///
    /// # Errors
    ///
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn all_gather<T: Element>(
        &mut self,
        communicator: &'a Communicator,
        from: &'a impl DeviceMemory<Element = T>,
        to: &'a mut impl DeviceMemoryMut<Element = T>,
    ) -> Result<()> {
        self.push(communicator.all_gather_call(from, to)?)
    }

    /// Adds a [broadcast](Communicator::broadcast).
    ///
    /// # Errors
    ///
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn broadcast<T: Element>(
        &mut self,
        communicator: &'a Communicator,
        memory: &'a mut impl DeviceMemoryMut<Element = T>,
        root: usize,
    ) -> Result<()> {
        self.push(communicator.broadcast_call(memory, root)?)
    }

    /// Adds a [send](Communicator::send).
    ///
    /// # Errors
    ///
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn send<T: Element>(
        &mut self,
        communicator: &'a Communicator,
        from: &'a impl DeviceMemory<Element = T>,
        to: usize,
    ) -> Result<()> {
        self.push(communicator.send_call(from, to)?)
    }

    /// Adds a [receive](Communicator::receive).
    ///
    /// # Errors
    ///
    /// As for [`all_reduce`](Self::all_reduce).
    pub fn receive<T: Element>(
        &mut self,
        communicator: &'a Communicator,
        to: &'a mut impl DeviceMemoryMut<Element = T>,
        from: usize,
    ) -> Result<()> {
        self.push(communicator.receive_call(to, from)?)
    }

    /// Starts all of them. Does not wait for the operations.
    ///
    /// # Errors
    ///
    /// [`TimedOut`](crate::ErrorKind::TimedOut) if NCCL could not start them in time; otherwise any error that NCCL reports. Some may
    /// have been started then.
    #[doc(alias("ncclGroupStart", "ncclGroupEnd"))]
    pub fn run(self) -> Result<()> {
        run(&self.calls)
    }

    /// Starts one operation.
    pub(super) fn run_one(call: Option<Call<'_>>) -> Result<()> {
        call.map_or(Ok(()), |call| run(std::slice::from_ref(&call)))
    }
}

/// A communicator of the calls, and its state, locked.
struct Locked<'a> {
    communicator: &'a Communicator,
    state: std::sync::MutexGuard<'a, State>,
}

fn address(communicator: &Communicator) -> *const Inner {
    std::sync::Arc::as_ptr(&communicator.0)
}

/// Locks every communicator once, always in the same order.
fn lock_all<'a>(calls: &[Call<'a>]) -> Result<Vec<Locked<'a>>> {
    let mut all: Vec<&Communicator> = calls.iter().map(|call| call.communicator).collect();
    all.sort_by_key(|communicator| address(communicator));
    all.dedup_by_key(|communicator| address(communicator));
    let lock = |communicator: &'a Communicator| {
        Ok(Locked {
            communicator,
            state: communicator.0.state()?,
        })
    };
    all.into_iter().map(lock).collect()
}

/// Streams that are open together.
struct Open<'a>(Vec<Submission<'a>>);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // The contexts that were current come back in the reverse order.
        while let Some(last) = self.0.pop() {
            drop(last);
        }
    }
}

fn run(calls: &[Call<'_>]) -> Result<()> {
    let Some(first) = calls.first() else {
        return Ok(());
    };
    let table = first.communicator.nccl().table();
    let mut locked = lock_all(calls)?;
    for one in &locked {
        one.state.usable()?;
    }
    // All streams are open until NCCL has put its work into them, which may be at the end of the group.
    let mut open = Open(Vec::with_capacity(calls.len()));
    for call in calls {
        let stream = call.stream.as_ref();
        open.0.push(if call.is_recorded {
            stream.submit_recorded()?
        } else {
            stream.submit_bound()?
        });
    }
    let is_group = calls.len() > 1;
    if is_group {
        // SAFETY: what is started in the group is valid at its end: `calls` borrows it.
        unsafe { raw::nccl::group_start(table) }?;
    }
    let mut progress = Ok(Progress::Done);
    for (call, open) in calls.iter().zip(&open.0) {
        let communicator = call.communicator;
        let mut of_this = locked.iter_mut().filter(|one| {
            let one = address(one.communicator);
            one == address(communicator)
        });
        let Some(one) = of_this.next() else {
            continue;
        };
        if call.is_recorded {
            let on = std::sync::Arc::clone(&communicator.0);
            recording::depend(open.queue().table(), open.queue().stream(), on);
        }
        let transfer = one.state.windows.translate(call.transfer, call.bytes);
        let started = one.state.usable().and_then(|raw| {
            // SAFETY: both spans are valid in the order of the stream, and have as many elements as the operation uses; the
            // stream is of the communicator's context.
            unsafe { raw::nccl::start(table, raw, open.queue(), call.operation, transfer) }
        });
        match started {
            Ok(Progress::Done) => {}
            Ok(Progress::Pending) => progress = Ok(Progress::Pending),
            Err(error) => {
                progress = Err(error);
                break;
            }
        }
    }
    if is_group {
        // SAFETY: the group was started above, on this thread.
        let ended = unsafe { raw::nccl::group_end(table) };
        progress = progress.and(ended);
    }
    let function = if is_group {
        "ncclGroupEnd"
    } else {
        first.operation.function()
    };
    let mut answer = Ok(());
    let mut progress = Some(progress);
    for one in &mut locked {
        // The failure belongs to the first; the others may still be about to start.
        let own = progress.take().unwrap_or(Ok(Progress::Pending));
        let settled = one.communicator.0.settle(&mut one.state, function, own);
        answer = answer.and(settled);
    }
    answer
}

impl fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.calls).finish()
    }
}

//! Operations that are started together.

use std::fmt;
use std::sync::{Arc, MutexGuard};

use bytemuck::Pod;
use cuda_driver_sys::nccl::NcclTable;

use super::communicator::{Communicator, Inner};
use super::element::{Element, ReduceOp};
use super::library::Nccl;
use super::operation::Call;
use super::state::State;
use super::wait::Wait;
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
/// let communicators = nccl.communicators(&[context]).join()?;
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

    fn push(&mut self, call: Call<'a>) -> Result<()> {
        if call.communicator.nccl() != self.nccl {
            let text = "the communicator and the group are of two libraries";
            return Err(Error::invalid(text.to_owned()));
        }
        self.calls.push(call);
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
    pub fn all_gather<T: Pod>(
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
    pub fn broadcast<T: Pod>(
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
    pub fn send<T: Pod>(
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
    pub fn receive<T: Pod>(
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
    /// [`TimedOut`](crate::ErrorKind::TimedOut) if NCCL could not start them in time;
    /// [`Aborted`](crate::ErrorKind::Aborted) if a communicator was aborted; otherwise any error that NCCL reports. It names the rank
    /// that failed, or all if NCCL does not say which. [`Capturing`](crate::ErrorKind::Capturing), and nothing has been started, if this
    /// crate captures one of the streams, or any stream while the group uses 16 or more. After any other error, some may have been
    /// started. If NCCL had begun and did not come to an end, **all communicators of the group have been
    /// [aborted](Communicator::abort)**, so that nothing uses the memory later; that waits for launches of graphs on other threads,
    /// without a limit.
    #[doc(alias("ncclGroupStart", "ncclGroupEnd"))]
    pub fn run(self) -> Result<()> {
        run(&self.calls)
    }

    /// Starts one operation.
    pub(super) fn run_one(call: Call<'_>) -> Result<()> {
        run(std::slice::from_ref(&call))
    }
}

/// A communicator of the calls, and its state, locked.
struct Locked<'a> {
    communicator: &'a Communicator,
    state: MutexGuard<'a, State>,
}

impl Locked<'_> {
    fn is_of(&self, communicator: &Communicator) -> bool {
        self.communicator.is_same(communicator)
    }
}

fn address(communicator: &Communicator) -> *const Inner {
    Arc::as_ptr(&communicator.0)
}

/// Locks every communicator once, always in the same order. All are usable.
fn lock_all<'a>(calls: &[Call<'a>]) -> Result<Vec<Locked<'a>>> {
    let mut all: Vec<&Communicator> = calls.iter().map(|call| call.communicator).collect();
    all.sort_by_key(|communicator| address(communicator));
    all.dedup_by_key(|communicator| address(communicator));
    let lock = |communicator: &'a Communicator| {
        let state = communicator.0.state()?;
        state.usable()?;
        Ok(Locked {
            communicator,
            state,
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
    let mut locked = lock_all(calls)?;
    let calls: Vec<&Call<'_>> = calls.iter().filter(|call| !call.is_empty()).collect();
    locked.retain(|one| calls.iter().any(|call| one.is_of(call.communicator)));
    let Some(first) = calls.first() else {
        return Ok(());
    };
    let table = first.communicator.nccl().table();
    // All streams are open until NCCL has put its work into them, which may be at the end of the group.
    let mut open = Open(Vec::with_capacity(calls.len()));
    for call in &calls {
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
    let mut failed = None;
    let mut progress = Ok(Progress::Done);
    for (call, open) in calls.iter().zip(&open.0) {
        let Some(one) = locked.iter_mut().find(|one| one.is_of(call.communicator)) else {
            continue;
        };
        match start(table, call, open, one) {
            Ok(Progress::Done) => {}
            Ok(Progress::Pending) => progress = Ok(Progress::Pending),
            Err(error) => {
                failed = Some(call.communicator.0.refused(&mut one.state, error));
                break;
            }
        }
    }
    let mut function = first.operation.function();
    if is_group {
        function = "ncclGroupEnd";
        // SAFETY: the group was started above, on this thread.
        progress = unsafe { raw::nccl::group_end(table) };
    }
    match (failed, progress) {
        // The others may still be about to start.
        (Some(error), ended) => {
            if is_group {
                // NCCL starts nothing of a group whose end fails, so those that failed before need not be asked.
                locked.retain(|one| ended.is_ok() || !one.state.has_failed());
                let _ = settle_all(locked, function);
            }
            Err(error)
        }
        (None, Ok(Progress::Done)) => Ok(()),
        (None, Ok(Progress::Pending)) => settle_all(locked, function),
        (None, Err(error)) => Err(blame(&mut locked, error)),
    }
}

fn start(
    table: &NcclTable,
    call: &Call<'_>,
    open: &Submission<'_>,
    one: &mut Locked<'_>,
) -> Result<Progress> {
    if call.is_recorded {
        let on = Arc::clone(&call.communicator.0);
        let context = call.stream.context().as_raw();
        recording::depend(open.queue().table(), context, open.queue().stream(), on);
    }
    let transfer = one.state.windows.translate(call.transfer, call.bytes);
    let raw = one.state.usable()?;
    // SAFETY: both spans are valid in the order of the stream, and have as many elements as the operation uses; the stream is of
    // the communicator's context.
    let started = unsafe { raw::nccl::start(table, raw, open.queue(), call.operation, transfer) };
    if !call.is_recorded {
        // Also if it failed: some of it may be in the stream.
        one.state.note_operation(call.stream);
        if let Some(source) = call.source_stream {
            one.state.note_operation(source);
        }
    }
    started
}

/// Waits until all have been started. Each is unlocked as soon as it is, or when another thread aborts it. The first error is returned;
/// all are aborted then, and nothing is put into the streams any more.
fn settle_all(locked: Vec<Locked<'_>>, function: &'static str) -> Result<()> {
    let all: Vec<&Communicator> = locked.iter().map(|one| one.communicator).collect();
    let settled = settle_each(locked, function);
    if settled.is_err() {
        // NCCL's own thread may still be at it (N1), and the caller may free the memory as soon as it has the error. Where another thread
        // aborts, this waits for that.
        for communicator in all {
            communicator.0.stop();
        }
    }
    settled
}

fn settle_each(mut locked: Vec<Locked<'_>>, function: &'static str) -> Result<()> {
    let waits = |one: &Locked<'_>| Wait::new(function, one.communicator.timeout());
    let waits: Vec<Wait> = locked.iter().map(waits).collect();
    let mut left: Vec<_> = locked.drain(..).zip(&waits).collect();
    let mut answer = Ok(());
    loop {
        left.retain_mut(|(one, wait)| {
            let Some(settled) = one.communicator.0.poll(&mut one.state, wait, || true) else {
                return true;
            };
            if answer.is_ok() {
                answer = settled;
            }
            false
        });
        let Some((_, wait)) = left.first() else {
            return answer;
        };
        wait.rest();
    }
}

/// The group's end failed, which does not say whose operation it was: asks each, and if none knows, all have failed.
fn blame(locked: &mut [Locked<'_>], error: Error) -> Error {
    let mut own = None;
    for one in &mut *locked {
        if let Err(error) = one.communicator.0.check_in(&mut one.state) {
            own.get_or_insert(error);
        }
    }
    if let Some(error) = own {
        return error;
    }
    let names: Vec<String> = locked
        .iter()
        .map(|one| one.communicator.to_string())
        .collect();
    let error = error.asked(|| names.join("; "));
    for one in locked {
        one.communicator.0.note_refusal(&mut one.state, &error);
    }
    error
}

impl fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.calls).finish()
    }
}

//! The work queue of one stream, run in order by its own thread.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use cuda_driver_sys::CUresult;

use crate::callback;
use crate::export::Answer;
use crate::ipc::Signal;
use crate::logs;
use crate::memory::bytes;
use crate::module::{BuiltIn, ModelRun};
use crate::pieces::stay;
use crate::plane::{FilledRows, Rows};
use crate::system_allocated::{Accessed, ProgramMemory};
use crate::vmm;

/// A worker exits after this idle time; the next task starts another.
const IDLE: Duration = Duration::from_millis(100);

/// A task.
#[derive(Debug)]
pub(crate) enum Task {
    /// Copies memory; the ranges may overlap.
    Copy(Rows),
    /// Writes bytes read from the host when the copy was submitted.
    Write { to: u64, bytes: Box<[u8]> },
    /// Repeats a pattern in rows.
    FillRows(FilledRows),
    /// Runs a built-in kernel.
    Kernel(BuiltIn),
    /// Runs a kernel of the program's own.
    Model(Box<ModelRun>),
    /// Calls a host function.
    Host(HostCall),
    /// Waits for a position in another stream.
    Wait(Mark),
    /// Tells other processes that the stream has reached this point.
    Signal(Signal),
    /// Records the time.
    Stamp(Arc<OnceLock<Instant>>),
}

/// The value of a memset.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pattern {
    D8(u8),
    D16(u16),
    D32(u32),
}

impl Pattern {
    /// Size of one element.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::D8(_) => 1,
            Self::D16(_) => 2,
            Self::D32(_) => 4,
        }
    }

    /// Writes the pattern. The address was checked at submission.
    pub(crate) fn fill(self, to: u64, count: usize) {
        match self {
            Self::D8(value) => bytes::fill(to, value, count),
            Self::D16(value) => bytes::fill(to, value, count),
            Self::D32(value) => bytes::fill(to, value, count),
        }
    }
}

/// A function of the program and its argument.
#[derive(Clone, Debug)]
pub(crate) struct HostCall {
    pub(crate) function: unsafe extern "C" fn(*mut std::ffi::c_void),
    pub(crate) argument: *mut std::ffi::c_void,
    /// Measured: the host functions of one context run one at a time, whatever their streams.
    pub(crate) turn: Arc<Mutex<()>>,
}

// SAFETY: cuLaunchHostFunc calls the function on a driver thread; its contract requires an argument that may be sent
// there.
unsafe impl Send for HostCall {}

/// The queue of a stream.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Inner {
    tasks: VecDeque<(Task, ProgramMemory)>,
    /// Number of tasks ever pushed and ever done.
    pushed: u64,
    done: u64,
    /// Bytes read from the host and not written yet.
    staged: usize,
    has_worker: bool,
}

/// A position in a queue, reached when all tasks before it are done.
#[derive(Clone, Debug)]
pub(crate) struct Mark(Place);

#[derive(Clone, Debug)]
enum Place {
    Queue {
        queue: Arc<Queue>,
        position: u64,
    },
    /// In a stream of any process.
    Shared(Signal),
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits a task.
    pub(crate) fn push(self: &Arc<Self>, task: Task) -> Answer {
        let program = ProgramMemory::among(|| task.accessed());
        let mut inner = self.lock();
        if !inner.has_worker {
            let queue = Arc::clone(self);
            std::thread::Builder::new()
                .name("cuda-sim stream".into())
                .spawn(move || queue.work())
                .map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
            inner.has_worker = true;
        }
        inner.staged += task.staged();
        inner.tasks.push_back((task, program));
        inner.pushed += 1;
        drop(inner);
        self.changed.notify_all();
        Ok(())
    }

    /// The position after everything pushed so far.
    pub(crate) fn mark(self: &Arc<Self>) -> Mark {
        Mark(Place::Queue {
            position: self.lock().pushed,
            queue: Arc::clone(self),
        })
    }

    /// A position that needs one more task.
    #[cfg(test)]
    pub(crate) fn mark_ahead(self: &Arc<Self>) -> Mark {
        Mark(Place::Queue {
            position: self.lock().pushed + 1,
            queue: Arc::clone(self),
        })
    }

    /// Bytes read from the host and not written yet.
    pub(crate) fn staged(&self) -> usize {
        self.lock().staged
    }

    pub(crate) fn is_idle(&self) -> bool {
        let inner = self.lock();
        inner.done == inner.pushed
    }

    fn work(&self) {
        let mut inner = self.lock();
        loop {
            let Some((task, program)) = inner.tasks.pop_front() else {
                let (guard, timeout) = self
                    .changed
                    .wait_timeout(inner, IDLE)
                    .unwrap_or_else(PoisonError::into_inner);
                inner = guard;
                if timeout.timed_out() && inner.tasks.is_empty() {
                    inner.has_worker = false;
                    return;
                }
                continue;
            };
            drop(inner);
            let staged = task.staged();
            // Others wait for this position, whatever happens.
            if catch_unwind(AssertUnwindSafe(|| task.run(&program))).is_err() {
                logs::say("work of a stream panicked");
            }
            inner = self.lock();
            inner.staged -= staged;
            inner.done += 1;
            self.changed.notify_all();
        }
    }
}

impl Mark {
    /// The position of a record shared with other processes.
    pub(crate) fn shared(signal: Signal) -> Self {
        Self(Place::Shared(signal))
    }

    pub(crate) fn is_reached(&self) -> bool {
        match &self.0 {
            Place::Queue { queue, position } => queue.lock().done >= *position,
            Place::Shared(signal) => signal.is_reached(),
        }
    }

    /// Blocks until the position is reached. The caller must not hold the state lock.
    pub(crate) fn wait(&self) {
        let (queue, position) = match &self.0 {
            Place::Queue { queue, position } => (queue, *position),
            Place::Shared(signal) => return signal.wait(),
        };
        let mut inner = queue.lock();
        while inner.done < position {
            inner = queue
                .changed
                .wait(inner)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Task {
    fn staged(&self) -> usize {
        match self {
            Self::Write { bytes, .. } => bytes.len(),
            _ => 0,
        }
    }

    /// The ranges it reads and writes.
    fn ranges(&self) -> [(u64, usize); 3] {
        match self {
            Self::Copy(rows) => rows.ranges(),
            Self::FillRows(rows) => [(rows.to, rows.span().unwrap_or_default()), (0, 0), (0, 0)],
            Self::Write { to, bytes } => [(*to, bytes.len()), (0, 0), (0, 0)],
            Self::Kernel(work) => work.ranges(),
            _ => [(0, 0); 3],
        }
    }

    /// As [`ranges`](Self::ranges), and which of them it writes.
    fn accessed(&self) -> Vec<Accessed> {
        if let Self::Kernel(work) = self {
            return work.accessed();
        }
        let ranges = self.ranges().into_iter().enumerate();
        // What is written comes first.
        let accessed = ranges.map(|(at, (address, len))| Accessed {
            address,
            len,
            writes: at == 0,
        });
        accessed.collect()
    }

    fn run(self, program: &ProgramMemory) {
        if let Some(missing) = self.run_where_memory_is(program) {
            // Without the locks of running work: who has that of the state waits for it.
            missing.report_missing();
        }
    }

    /// Runs it, unless the program has taken memory back: what, if so.
    fn run_where_memory_is(self, program: &ProgramMemory) -> Option<Accessed> {
        // Prevents unmapping of the memory until the work is done.
        let ranges = self.ranges();
        let is_work = ranges.iter().any(|(_, len)| *len > 0);
        let _hold = match is_work.then(|| vmm::hold(&ranges)) {
            None => None,
            Some(Ok(hold)) => hold,
            Some(Err(address)) => {
                vmm::report_unmapped(address);
                return None;
            }
        };
        // Also prevents it from moving.
        let _stay = is_work.then(stay);
        let missing = program.missing();
        if missing.is_some() {
            return missing;
        }
        match self {
            Self::Copy(rows) => rows.run(),
            Self::FillRows(rows) => rows.run(),
            Self::Write { to, bytes } => bytes::write(to, &bytes),
            Self::Kernel(work) => work.run(),
            // Its accesses are not known beforehand, so each keeps its memory in place by itself.
            Self::Model(run) => run.run(),
            Self::Host(call) => call.run(),
            Self::Wait(mark) => mark.wait(),
            Self::Signal(signal) => signal.reach(),
            Self::Stamp(slot) => {
                // A slot is written once, by its own task.
                let _ = slot.set(Instant::now());
            }
        }
        None
    }
}

impl HostCall {
    fn run(self) {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let _inside = callback::Inside::begin();
        // SAFETY: the program gave this function with this argument to cuLaunchHostFunc.
        unsafe { (self.function)(self.argument) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_queue_is_idle_and_its_mark_reached() {
        let queue = Arc::new(Queue::default());
        assert!(queue.is_idle());
        assert!(queue.mark().is_reached());
        queue.mark().wait();
    }

    #[test]
    fn one_queue_waits_for_another() {
        let (first, second) = (Arc::new(Queue::default()), Arc::new(Queue::default()));
        // Not reached yet, because its task has not been pushed.
        let ahead = first.mark_ahead();
        second.push(Task::Wait(ahead)).expect("pushed");
        assert!(!second.is_idle());
        first
            .push(Task::Stamp(Arc::new(OnceLock::new())))
            .expect("pushed");
        second.mark().wait();
        assert!(second.is_idle() && first.is_idle());
    }

    #[test]
    fn an_idle_worker_ends_and_the_next_task_starts_another() {
        let queue = Arc::new(Queue::default());
        let push = || {
            queue
                .push(Task::Stamp(Arc::new(OnceLock::new())))
                .expect("pushed");
            queue.mark().wait();
        };
        push();
        std::thread::sleep(IDLE * 3);
        assert!(!queue.lock().has_worker);
        push();
    }
}

//! The least that runs futures: one on the calling thread, or many on a few threads.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future, and sleeps while it is pending.
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Numbers of the tasks to be polled, and how many are not done.
#[derive(Default)]
struct Ready {
    queue: Mutex<(VecDeque<usize>, usize)>,
    changed: Condvar,
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, (VecDeque<usize>, usize)> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct TaskWaker {
    ready: Arc<Ready>,
    number: usize,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.ready.lock().0.push_back(self.number);
        self.ready.changed.notify_one();
    }
}

/// Runs all tasks on so many threads, and returns their outputs in order.
pub fn run_all<'a, T: Send>(
    threads: usize,
    tasks: impl IntoIterator<Item = impl Future<Output = T> + Send + 'a>,
) -> Vec<T> {
    let tasks: Vec<Mutex<Option<Boxed<'a, T>>>> = tasks
        .into_iter()
        .map(|task| Mutex::new(Some(Box::pin(task) as Boxed<'a, T>)))
        .collect();
    let outputs: Vec<Mutex<Option<T>>> = tasks.iter().map(|_| Mutex::new(None)).collect();
    let ready = Arc::new(Ready::default());
    *ready.lock() = ((0..tasks.len()).collect(), tasks.len());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let open = |it: &mut (VecDeque<usize>, usize)| it.0.is_empty() && it.1 > 0;
                    let next = ready.changed.wait_while(ready.lock(), open);
                    let mut next = next.unwrap_or_else(PoisonError::into_inner);
                    let Some(number) = next.0.pop_front() else {
                        return;
                    };
                    drop(next);
                    // Held while the task is polled: it may be woken meanwhile, and then the next thread waits here.
                    let mut task = tasks[number].lock().unwrap_or_else(PoisonError::into_inner);
                    let waker = Waker::from(Arc::new(TaskWaker {
                        ready: Arc::clone(&ready),
                        number,
                    }));
                    let polled = task
                        .as_mut()
                        .map(|task| task.as_mut().poll(&mut Context::from_waker(&waker)));
                    if let Some(Poll::Ready(output)) = polled {
                        *task = None;
                        let place = &outputs[number];
                        *place.lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
                        ready.lock().1 -= 1;
                        ready.changed.notify_all();
                    }
                }
            });
        }
    });
    let outputs = outputs.into_iter();
    let outputs = outputs.map(|output| output.into_inner().unwrap_or_else(PoisonError::into_inner));
    outputs.flatten().collect()
}

/// Longer than any wake-up takes.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// A waker that counts.
#[derive(Default)]
pub(crate) struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Wakes {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    /// Waits until there were so many.
    pub(crate) fn wait(&self, wakes: usize) -> Result<()> {
        let begun = Instant::now();
        while self.count() < wakes {
            ensure!(begun.elapsed() < LONG, "it was not woken");
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Polls once.
pub(crate) fn poll<F: Future>(future: Pin<&mut F>, wakes: &Arc<Wakes>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(wakes))))
}

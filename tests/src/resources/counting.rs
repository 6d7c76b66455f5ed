//! Adaptors that count, while memory goes back through them: a statistic never exceeds the limit beside it.

use std::alloc::Layout;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Result, bail, ensure};
use cuda_mem::memory::{LimitAdaptor, MemoryProperties, StatisticsAdaptor, TrackingAdaptor};
use cuda_mem::{Error, ErrorKind, MemoryResource, Resource, Stream};

use crate::environment::Environment;

const LIMIT: usize = 1000;

/// One layer of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Limit,
    Statistics,
    Tracking,
    /// Stops in `deallocate`, before its upstream has the memory back or after.
    Stop(When),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Before,
    After,
}

/// Tells that `deallocate` has come to its stop, then waits until the test lets it go on.
#[derive(Debug)]
struct Stop {
    reached: Sender<()>,
    /// Ends with an error if the test has given up, which lets the thread go on too.
    go_on: Receiver<()>,
}

#[derive(Debug)]
struct Stopping {
    upstream: Resource,
    when: When,
    /// Taken by the first `deallocate`.
    stop: Mutex<Option<Stop>>,
}

impl Stopping {
    fn stop(&self, when: When) {
        if when != self.when {
            return;
        }
        let stop = self
            .stop
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(stop) = stop {
            let _ = stop.reached.send(());
            let _ = stop.go_on.recv();
        }
    }
}

// SAFETY: all memory comes from upstream and goes back there.
unsafe impl MemoryResource for Stopping {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        self.upstream.allocate(layout, stream)
    }

    unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem::Result<()> {
        self.stop(When::Before);
        // SAFETY: the caller's.
        let freed = unsafe { self.upstream.deallocate(address, layout, stream) };
        self.stop(When::After);
        freed
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.upstream.memory_properties()
    }
}

/// A stack of adaptors over a pool, and those of them that count.
struct Stack {
    top: Resource,
    statistics: Vec<Arc<StatisticsAdaptor<Resource>>>,
    tracking: Vec<Arc<TrackingAdaptor<Resource>>>,
    reached: Receiver<()>,
    go_on: Sender<()>,
}

impl Stack {
    /// `layers` are the topmost first.
    fn new(env: &Environment, layers: &[Layer]) -> Result<Self> {
        let (reached, wait_reached) = channel();
        let (go_on, wait_go_on) = channel();
        let mut stop = Some(Stop {
            reached,
            go_on: wait_go_on,
        });
        let (mut statistics, mut tracking) = (Vec::new(), Vec::new());
        let mut top = Resource::from(env.pool()?);
        for layer in layers.iter().rev() {
            top = match layer {
                Layer::Limit => Resource::new(LimitAdaptor::new(top, LIMIT as u64)),
                Layer::Statistics => {
                    let adaptor = Arc::new(StatisticsAdaptor::new(top));
                    statistics.push(Arc::clone(&adaptor));
                    Resource::from(adaptor)
                }
                Layer::Tracking => {
                    let adaptor = Arc::new(TrackingAdaptor::new(top));
                    tracking.push(Arc::clone(&adaptor));
                    Resource::from(adaptor)
                }
                Layer::Stop(when) => Resource::new(Stopping {
                    upstream: top,
                    when: *when,
                    stop: Mutex::new(stop.take()),
                }),
            };
        }
        Ok(Self {
            top,
            statistics,
            tracking,
            reached: wait_reached,
            go_on,
        })
    }

    fn check(&self) -> Result<()> {
        for adaptor in &self.statistics {
            let now = adaptor.statistics();
            ensure!(now.bytes.peak <= LIMIT as i64, "{now}");
            ensure!(now.bytes.current >= 0, "{now}");
        }
        for adaptor in &self.tracking {
            let live: usize = adaptor.live().iter().map(|live| live.bytes).sum();
            ensure!(live <= LIMIT, "{:?}", adaptor.live());
        }
        Ok(())
    }
}

/// While one thread is stopped on its way through `deallocate`, another one allocates as much as the limit
/// lets it.
#[apply(case)]
fn a_statistic_never_exceeds_a_limit(env: &Environment) -> Result<()> {
    use Layer::{Limit, Statistics, Stop, Tracking};
    use When::{After, Before};

    let stacks: &[&[Layer]] = &[
        &[Statistics, Stop(After), Limit],
        &[Statistics, Stop(Before), Limit],
        &[Stop(After), Statistics, Limit],
        &[Limit, Stop(After), Statistics],
        &[Limit, Stop(Before), Statistics],
        &[Limit, Statistics, Stop(After)],
        &[Tracking, Stop(After), Limit],
        &[Limit, Stop(After), Tracking],
        &[Limit, Stop(Before), Tracking],
        &[Statistics, Tracking, Stop(After), Limit, Statistics],
        &[Statistics, Limit, Stop(After), Tracking, Statistics],
        &[Statistics, Limit, Statistics, Stop(After), Limit, Tracking],
    ];
    for layers in stacks {
        let stack = Stack::new(env, layers)?;
        let (mine, theirs) = (env.stream()?, env.stream()?);
        let buffer = stack.top.alloc::<u8>(&theirs, LIMIT)?;
        let outcome = thread::scope(|scope| {
            let freeing = scope.spawn(move || buffer.free().map_err(Error::from));
            stack.reached.recv()?;
            let second = stack.top.alloc::<u8>(&mine, LIMIT);
            let counted = stack.check();
            // Whatever was found, the other thread goes on.
            stack.go_on.send(())?;
            match freeing.join() {
                Ok(freed) => freed?,
                Err(_) => bail!("the thread panicked"),
            }
            counted?;
            // The memory counts against a limit until its upstream has the memory back.
            let above = layers.split(|layer| matches!(layer, Stop(_))).next();
            let is_taken = above.is_some_and(|above| above.contains(&Limit));
            let is_free = !is_taken && layers.contains(&Stop(After));
            match second {
                Ok(_) => ensure!(!is_taken, "the limit was exceeded"),
                Err(error) => ensure!(!is_free, "{error}"),
            }
            stack.check()
        });
        if let Err(error) = outcome {
            bail!("{layers:?}: {error}");
        }
        for adaptor in &stack.statistics {
            ensure!(adaptor.statistics().bytes.current == 0);
        }
    }
    Ok(())
}

/// The same of threads that nobody stops.
#[apply(case)]
fn statistics_of_many_threads_never_exceed_a_limit(env: &Environment) -> Result<()> {
    use Layer::{Limit, Statistics, Tracking};

    let stack = Stack::new(env, &[Statistics, Tracking, Limit, Statistics, Tracking])?;
    thread::scope(|scope| {
        let work = || -> Result<()> {
            let stream = env.stream()?;
            for round in 0..500 {
                match stack.top.alloc::<u8>(&stream, 200 + round % 200) {
                    Ok(buffer) => buffer.free()?,
                    Err(error) => ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}"),
                }
            }
            Ok(())
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| {
            let done = thread.join();
            done.unwrap_or_else(|_| bail!("a thread panicked"))
        })
    })?;
    stack.check()?;
    for adaptor in &stack.statistics {
        let now = adaptor.statistics();
        ensure!(now.bytes.current == 0 && now.bytes.peak >= 200, "{now}");
    }
    Ok(())
}

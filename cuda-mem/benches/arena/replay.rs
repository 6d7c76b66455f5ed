//! Workloads replayed over each resource.

use std::alloc::Layout;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cuda_mem::{Device, Stream};
use cuda_mem_trace::Op;
use serde_json::{Value, json};

use crate::common::middle;
use crate::is_asked_for;
use crate::subjects::{Subject, layout};
use crate::workloads::{Workload, all};

pub(crate) const METHOD: &str = "nanoseconds an operation through MemoryResource, on one thread, without \
     kernels: the first pass on a new resource, then the median of 11 more; what is left alive is freed between \
     passes, untimed, and streams are not synchronised within a pass. peak: bytes reserved at most over \
     bytes asked for at most, over all passes. calls: driver calls of the arena an operation of the warm passes, \
     queries of idle streams and moves among them. thread: an arena with a thread of its own, and \
     the processor time of that thread an operation. worst: the longest allocation of a warm pass, the median of \
     5 more passes. paced: the same of 3 passes where an operation begins 5 us after the one before at the earliest, as in a program \
     that launches kernels";

const SUBJECTS: [&str; 3] = ["pool", "arena", "thread"];

const WARM_PASSES: usize = 11;
/// Warm passes with each allocation timed.
const TIMED_PASSES: usize = 5;
/// Warm passes with paced operations.
const PACED_PASSES: usize = 3;
/// About the time of a kernel launch.
const PACE: Duration = Duration::from_micros(5);

pub(crate) struct Run {
    workload: String,
    subject: &'static str,
    operations: usize,
    first_ns: f64,
    warm_ns: f64,
    /// Driver calls of the arena per operation, in the warm passes.
    warm_calls: Option<f64>,
    /// Processor time of the arena's own thread per operation of these passes, in nanoseconds.
    thread_ns: Option<f64>,
    /// Microseconds of the longest allocation in a warm pass.
    worst_us: f64,
    /// The same with at least [`PACE`] between the starts of operations.
    paced_us: f64,
    peak_asked: u64,
    peak_reserved: u64,
}

pub(crate) fn measure(device: &Device) -> Result<Vec<Run>> {
    let context = device.primary_context()?;
    let mut runs = Vec::new();
    for workload in all()? {
        let asked = |subject: &&str| is_asked_for(&format!("{}, {subject}", workload.name));
        let subjects: Vec<_> = SUBJECTS.into_iter().filter(asked).collect();
        if subjects.is_empty() {
            continue;
        }
        let streams: cuda_mem::Result<Vec<Stream>> =
            (0..workload.streams).map(|_| context.stream()).collect();
        let streams = streams?;
        let steps = steps(&workload)?;
        for subject in subjects {
            let resource = Subject::new(subject, device)?;
            let first_ns = pass(&resource, &streams, &steps, workload.slots)?;
            let calls_before = driver_calls(&resource);
            let ran_before = ran();
            let warm: Result<Vec<f64>> = (0..WARM_PASSES)
                .map(|_| pass(&resource, &streams, &steps, workload.slots))
                .collect();
            let warm = warm?;
            let ran = ran().zip(ran_before).map(|(after, before)| after - before);
            let calls = driver_calls(&resource).zip(calls_before);
            let operations = (WARM_PASSES * steps.len()) as f64;
            let worst = |count: usize, pace| {
                let passes = (0..count).map(|_| {
                    let mut longest = Longest::new(pace);
                    replay(&resource, &streams, &steps, workload.slots, &mut longest)?;
                    Ok(longest.longest.as_nanos() as f64 / 1e3)
                });
                Ok(middle(passes.collect::<Result<_>>()?))
            };
            let (worst_us, paced_us): (Result<f64>, Result<f64>) =
                (worst(TIMED_PASSES, None), worst(PACED_PASSES, Some(PACE)));
            runs.push(Run {
                workload: workload.name.clone(),
                subject,
                operations: workload.ops.len(),
                first_ns,
                warm_ns: middle(warm),
                warm_calls: calls.map(|(after, before)| (after - before) as f64 / operations),
                thread_ns: ran.map(|ran| ran as f64 / operations),
                worst_us: worst_us?,
                paced_us: paced_us?,
                peak_asked: workload.peak,
                peak_reserved: resource.peak_reserved()?,
            });
            drop(resource);
            context.synchronize()?;
        }
    }
    Ok(runs)
}

/// Number of driver calls that an arena has made.
fn driver_calls(subject: &Subject) -> Option<u64> {
    match subject {
        Subject::Pool(_) => None,
        Subject::Arena(arena) => Some(arena.stats().driver_calls),
    }
}

/// Processor time of an arena's own thread in nanoseconds, if it has one.
fn ran() -> Option<u64> {
    let threads = fs::read_dir("/proc/self/task").ok()?;
    threads.flatten().find_map(|thread| {
        let read = |name: &str| fs::read_to_string(thread.path().join(name));
        let is_arenas = read("comm").is_ok_and(|name| name.trim_end() == "cuda-mem-arena");
        let times = read("schedstat").ok().filter(|_| is_arenas)?;
        times.split_whitespace().next()?.parse().ok()
    })
}

/// An operation with everything precomputed, so that the loop adds as little as possible.
pub(crate) enum Step {
    Allocate(usize, Layout, usize),
    Free(usize, usize),
}

pub(crate) fn steps(workload: &Workload) -> Result<Vec<Step>> {
    let step = |op: &Op| -> Result<Step> {
        Ok(match *op {
            Op::Allocate {
                slot,
                bytes,
                stream,
            } => Step::Allocate(slot, layout(bytes)?, stream),
            Op::Free { slot, stream } => Step::Free(slot, stream),
        })
    };
    workload.ops.iter().map(step).collect()
}

/// Nanoseconds per operation.
pub(crate) fn pass(
    resource: &Subject,
    streams: &[Stream],
    steps: &[Step],
    slots: usize,
) -> Result<f64> {
    let elapsed = replay(resource, streams, steps, slots, &mut ())?;
    Ok(elapsed.as_nanos() as f64 / steps.len() as f64)
}

/// Observes each allocation.
trait Watch {
    fn allocation<T>(&mut self, call: impl FnOnce() -> T) -> T;

    /// Called before each operation.
    fn operation(&mut self) {}
}

impl Watch for () {
    #[inline]
    fn allocation<T>(&mut self, call: impl FnOnce() -> T) -> T {
        call()
    }
}

/// The longest allocation, and the minimum time per operation.
struct Longest {
    longest: Duration,
    pace: Option<Duration>,
    next: Instant,
}

impl Longest {
    fn new(pace: Option<Duration>) -> Self {
        Self {
            longest: Duration::ZERO,
            pace,
            next: Instant::now(),
        }
    }
}

impl Watch for Longest {
    fn allocation<T>(&mut self, call: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let got = call();
        self.longest = start.elapsed().max(self.longest);
        got
    }

    fn operation(&mut self) {
        if let Some(pace) = self.pace {
            while Instant::now() < self.next {
                std::hint::spin_loop();
            }
            self.next = Instant::now() + pace;
        }
    }
}

fn replay(
    resource: &Subject,
    streams: &[Stream],
    steps: &[Step],
    slots: usize,
    watch: &mut impl Watch,
) -> Result<Duration> {
    let mut live = vec![(0_u64, layout(0)?, 0_usize); slots];
    let elapsed = run(resource, streams, steps, &mut live, watch);
    for (address, layout, stream) in live {
        // SAFETY: allocated with this layout, and nothing uses it.
        unsafe { resource.deallocate(address, layout, &streams[stream]) }?;
    }
    let context = streams.first().context("no stream")?.context();
    context.synchronize()?;
    elapsed
}

/// `live` holds the blocks that are live at the end, or at a failure.
fn run(
    resource: &Subject,
    streams: &[Stream],
    steps: &[Step],
    live: &mut [(u64, Layout, usize)],
    watch: &mut impl Watch,
) -> Result<Duration> {
    let start = Instant::now();
    for step in steps {
        watch.operation();
        match *step {
            Step::Allocate(slot, layout, stream) => {
                let address = watch.allocation(|| resource.allocate(layout, &streams[stream]))?;
                live[slot] = (address, layout, stream);
            }
            Step::Free(slot, stream) => {
                let (address, layout, _) = live[slot];
                live[slot].0 = 0;
                // SAFETY: allocated with this layout, and forgotten; nothing uses it.
                unsafe { resource.deallocate(address, layout, &streams[stream]) }?;
            }
        }
    }
    Ok(start.elapsed())
}

pub(crate) fn json(runs: &[Run]) -> Value {
    runs.iter()
        .map(|run| {
            json!({
                "workload": run.workload,
                "subject": run.subject,
                "operations": run.operations,
                "first_ns": run.first_ns,
                "warm_ns": run.warm_ns,
                "warm_calls": run.warm_calls,
                "thread_ns": run.thread_ns,
                "worst_us": run.worst_us,
                "paced_us": run.paced_us,
                "peak_asked": run.peak_asked,
                "peak_reserved": run.peak_reserved,
            })
        })
        .collect()
}

pub(crate) fn show(runs: &[Run]) {
    println!("\ntraces: {METHOD}\n");
    println!(
        "{:<30} {:<8} {:>10} {:>12} {:>12} {:>8} {:>10} {:>12} {:>12} {:>14} {:>8}",
        "workload",
        "subject",
        "operations",
        "first",
        "warm",
        "calls",
        "thread",
        "worst",
        "paced",
        "reserved, MB",
        "peak"
    );
    for run in runs {
        let calls = run.warm_calls.map(|calls| format!("{calls:.3}"));
        let calls = calls.unwrap_or_default();
        let thread = run.thread_ns.map(|ns| format!("{ns:.1} ns"));
        let thread = thread.unwrap_or_default();
        println!(
            "{:<30} {:<8} {:>10} {:>9.1} ns {:>9.1} ns {:>8} {:>10} {:>9.1} us {:>9.1} us {:>14.0} {:>8.4}",
            run.workload,
            run.subject,
            run.operations,
            run.first_ns,
            run.warm_ns,
            calls,
            thread,
            run.worst_us,
            run.paced_us,
            run.peak_reserved as f64 / 1e6,
            run.peak_reserved as f64 / run.peak_asked as f64,
        );
    }
}

//! What is measured, and in which passes.
//!
//! Reading the clock and counting calls take time. Each figure therefore comes from its own sequence of passes on its
//! own resource: one for the mean and the peaks, one for the time of each operation, one for the driver calls.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::{Device, Resource, Stream};
use indicatif::ProgressBar;

use crate::adaptors::{Adaptor, stack};
use crate::counting::Counted;
use crate::pass::{Stage, Watch};
use crate::plan::Plan;
use crate::resources::{Kind, Levels, Made};

/// The method, in words.
pub(crate) const METHOD: &str = "host time of an operation, without kernels. Mean: passes that read the clock \
     once in up to 4096 operations, and where a thread hands over. Median, p99, worst: passes that read it \
     after every operation, less the clock's own cost. Driver calls: passes that count and are not timed. \
     Each of the three starts with a new resource; pass 0 is its first. What the log leaves alive is freed \
     between passes, untimed";

/// The cost of a pass.
pub(crate) struct Figures {
    pub(crate) ns_per_op: f64,
    pub(crate) median_ns: u64,
    pub(crate) p99_ns: u64,
    pub(crate) worst_ns: u64,
    pub(crate) peak_used: u64,
    pub(crate) peak_reserved: u64,
    /// Whether the resource reports its peaks; otherwise they are computed from the requests.
    pub(crate) peaks_known: bool,
    pub(crate) driver_calls: u64,
}

pub(crate) struct Bench<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) device: Device,
    pub(crate) counted: &'a Counted,
    pub(crate) adaptors: &'a [Adaptor],
    pub(crate) passes: usize,
    /// The cost of a clock read.
    pub(crate) clock: Duration,
}

/// Number of sequences of passes over the log, for each resource.
pub(crate) const SEQUENCES: usize = 3;

impl Bench<'_> {
    /// One set of figures for each pass.
    pub(crate) fn measure(&self, kind: &Kind, bar: &ProgressBar) -> Result<Vec<Figures>> {
        let means = self.means(kind, bar)?;
        let times = self.single_operations(kind, bar)?;
        let calls = self.driver_calls(kind, bar)?;
        let all = means.into_iter().zip(times).zip(calls);
        Ok(all
            .map(|((mean, times), driver_calls)| {
                let asked = self.plan.peak_asked;
                let peaks = mean.peaks;
                Figures {
                    ns_per_op: mean.spent.as_nanos() as f64 / self.plan.steps.len() as f64,
                    median_ns: times.median,
                    p99_ns: times.p99,
                    worst_ns: times.worst,
                    peak_used: peaks.and_then(|peaks| peaks.used_high).unwrap_or(asked),
                    peak_reserved: peaks.map_or(asked, |peaks| peaks.reserved.high),
                    peaks_known: peaks.is_some(),
                    driver_calls,
                }
            })
            .collect())
    }

    fn make(&self, kind: &Kind, device: Device) -> Result<Made> {
        kind.make(device)?
            .over(|resource| stack(self.adaptors, resource))
    }

    fn stage<'a>(
        &'a self,
        resource: &'a Resource,
        streams: &'a [Stream],
        bar: &'a ProgressBar,
    ) -> Stage<'a> {
        Stage {
            plan: self.plan,
            resource,
            streams,
            bar,
        }
    }

    fn streams(&self, device: Device) -> Result<Vec<Stream>> {
        let context = device.primary_context()?;
        (0..self.plan.streams)
            .map(|_| Ok(context.stream()?))
            .collect()
    }

    fn means(&self, kind: &Kind, bar: &ProgressBar) -> Result<Vec<Mean>> {
        let made = self.make(kind, self.device)?;
        let streams = self.streams(self.device)?;
        let mut means = Vec::new();
        self.stage(&made.resource, &streams, bar).passes(
            self.passes,
            || {
                made.reset_high_marks()?;
                Ok(Stopwatch::new(self.clock))
            },
            |watch| {
                means.push(Mean {
                    spent: watch.spent,
                    peaks: made.levels()?,
                });
                Ok(())
            },
        )?;
        Ok(means)
    }

    fn single_operations(&self, kind: &Kind, bar: &ProgressBar) -> Result<Vec<Times>> {
        let made = self.make(kind, self.device)?;
        let streams = self.streams(self.device)?;
        let mut all = Vec::new();
        self.stage(&made.resource, &streams, bar).passes(
            self.passes,
            || Ok(Laps::new(self.plan.steps.len(), self.clock)),
            |laps| {
                all.push(Times::of(laps.times).context("no operation was timed")?);
                Ok(())
            },
        )?;
        Ok(all)
    }

    fn driver_calls(&self, kind: &Kind, bar: &ProgressBar) -> Result<Vec<u64>> {
        let device = self.counted.device(self.device)?;
        let made = self.make(kind, device)?;
        let streams = self.streams(device)?;
        let mut all = Vec::new();
        self.stage(&made.resource, &streams, bar).passes(
            self.passes,
            || Ok(Calls::new(self.counted)),
            |calls| {
                let simulator = calls.simulator.unwrap_or(calls.ours);
                ensure!(
                    simulator == calls.ours,
                    "{} driver calls were counted, and the simulated driver had {simulator}",
                    calls.ours,
                );
                all.push(calls.ours);
                Ok(())
            },
        )?;
        Ok(all)
    }

    /// The bytes reserved after each operation of a first pass; `None` if the resource does not count them.
    pub(crate) fn reserved(&self, kind: &Kind, bar: &ProgressBar) -> Result<Option<Vec<u64>>> {
        let made = self.make(kind, self.device)?;
        if made.levels()?.is_none() {
            return Ok(None);
        }
        let streams = self.streams(self.device)?;
        let mut reserved = Vec::new();
        self.stage(&made.resource, &streams, bar).passes(
            1,
            || {
                Ok(Sampler {
                    made: &made,
                    reserved: Vec::with_capacity(self.plan.steps.len()),
                })
            },
            |sampler| {
                reserved = sampler.reserved;
                Ok(())
            },
        )?;
        Ok(Some(reserved))
    }
}

struct Mean {
    spent: Duration,
    peaks: Option<Levels>,
}

/// The median time between two consecutive clock reads.
pub(crate) fn clock_cost() -> Duration {
    let mut times: Vec<Duration> = (0..10_001)
        .map(|_| {
            let start = Instant::now();
            start.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// Reads the clock at the ends of a turn.
struct Stopwatch {
    start: Instant,
    spent: Duration,
    clock: Duration,
}

impl Stopwatch {
    fn new(clock: Duration) -> Self {
        Self {
            start: Instant::now(),
            spent: Duration::ZERO,
            clock,
        }
    }
}

impl Watch for Stopwatch {
    fn turn_begins(&mut self) {
        self.start = Instant::now();
    }

    fn turn_ends(&mut self) {
        self.spent += self.start.elapsed().saturating_sub(self.clock);
    }
}

/// Reads the clock after each operation.
struct Laps {
    last: Instant,
    clock: Duration,
    times: Vec<u64>,
}

impl Laps {
    fn new(operations: usize, clock: Duration) -> Self {
        // Written once, so that no operation pays for its page faults.
        let mut times = vec![1; operations];
        times.clear();
        Self {
            last: Instant::now(),
            clock,
            times,
        }
    }
}

impl Watch for Laps {
    fn turn_begins(&mut self) {
        self.last = Instant::now();
    }

    fn done(&mut self, _: usize) -> Result<()> {
        let now = Instant::now();
        let time = (now - self.last).saturating_sub(self.clock);
        self.times.push(time.as_nanos() as u64);
        // Not `now`, because the lines above are not part of the next operation.
        self.last = Instant::now();
        Ok(())
    }
}

/// Nanoseconds.
struct Times {
    median: u64,
    p99: u64,
    worst: u64,
}

impl Times {
    /// `None` without samples.
    fn of(mut times: Vec<u64>) -> Option<Self> {
        times.sort_unstable();
        let worst = *times.last()?;
        // The smallest time that `percent` percent of all times do not exceed.
        let percentile = |percent: usize| times[(times.len() * percent).div_ceil(100).max(1) - 1];
        Some(Self {
            median: percentile(50),
            p99: percentile(99),
            worst,
        })
    }
}

/// Counts driver calls within turns only.
struct Calls<'a> {
    counted: &'a Counted,
    ours: u64,
    simulator: Option<u64>,
    at_start: (u64, Option<u64>),
}

impl<'a> Calls<'a> {
    fn new(counted: &'a Counted) -> Self {
        Self {
            counted,
            ours: 0,
            simulator: counted.of_simulator().map(|_| 0),
            at_start: (0, None),
        }
    }
}

impl Watch for Calls<'_> {
    fn turn_begins(&mut self) {
        self.at_start = (self.counted.calls(), self.counted.of_simulator());
    }

    fn turn_ends(&mut self) {
        self.ours += self.counted.calls() - self.at_start.0;
        let now = self.counted.of_simulator();
        if let (Some(sum), Some(start), Some(now)) = (&mut self.simulator, self.at_start.1, now) {
            *sum += now - start;
        }
    }
}

/// Queries the resource after each operation.
struct Sampler<'a> {
    made: &'a Made,
    reserved: Vec<u64>,
}

impl Watch for Sampler<'_> {
    fn done(&mut self, _: usize) -> Result<()> {
        let levels = self.made.levels()?;
        self.reserved
            .extend(levels.map(|levels| levels.reserved.current));
        Ok(())
    }
}

//! Repetition and timing of measurements.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::figures::quantile;

/// Length of one batch of short calls in nanoseconds, so long that the clock's own time does not matter.
const BATCH_NS: f64 = 100_000.0;

/// How often each measurement is repeated.
pub(crate) struct Plan {
    time: Duration,
    least: usize,
    most: usize,
    /// The cost of a clock read, in nanoseconds.
    pub(crate) clock_ns: f64,
}

impl Plan {
    pub(crate) fn new(quick: bool, count: Option<u32>) -> Self {
        let (time, least, most) = if quick { (0, 3, 3) } else { (30, 5, 2000) };
        let exactly = count.map(|count| count as usize);
        Self {
            time: Duration::from_millis(time),
            least: exactly.unwrap_or(least),
            most: exactly.unwrap_or(most),
            clock_ns: clock_ns(),
        }
    }

    /// The repetition, in words.
    pub(crate) fn words(&self) -> String {
        if self.least == self.most {
            return format!("{} repeats", self.least);
        }
        let (time, least, most) = (self.time, self.least, self.most);
        format!("repeats for {time:?}, {least} to {most} of them")
    }

    /// Nanoseconds per call, from batches of consecutive calls.
    pub(crate) fn batches(&self, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
        let mut shortest = f64::INFINITY;
        // The first one pays for page faults and code loading.
        for _ in 0..3 {
            let ((), taken) = self.timed(&mut work)?;
            shortest = shortest.min(taken);
        }
        let batch = (BATCH_NS / shortest.max(1.0)).clamp(1.0, BATCH_NS) as usize;
        let [mut means] = self.repeat(|| {
            let start = Instant::now();
            (0..batch).try_for_each(|_| work())?;
            Ok([start.elapsed().as_nanos() as f64 / batch as f64])
        })?;
        Ok(quantile(&mut means, 0.5))
    }

    /// Nanoseconds of each call; `prepare` is not counted.
    pub(crate) fn singles(
        &self,
        mut work: impl FnMut() -> Result<()>,
        mut prepare: impl FnMut(),
    ) -> Result<Vec<f64>> {
        let [all] = self.repeat(|| {
            prepare();
            let ((), taken) = self.timed(&mut work)?;
            Ok([taken])
        })?;
        Ok(all)
    }

    /// Collects the results of all rounds but the first.
    pub(crate) fn repeat<const N: usize>(
        &self,
        mut round: impl FnMut() -> Result<[f64; N]>,
    ) -> Result<[Vec<f64>; N]> {
        round()?;
        let (start, mut all) = (Instant::now(), [const { Vec::new() }; N]);
        let mut rounds = 0;
        while rounds < self.least || (rounds < self.most && start.elapsed() < self.time) {
            for (all, one) in all.iter_mut().zip(round()?) {
                all.push(one);
            }
            rounds += 1;
        }
        Ok(all)
    }

    /// The result of a call, and its nanoseconds less the cost of the clock.
    pub(crate) fn timed<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, f64)> {
        let start = Instant::now();
        let value = work()?;
        let taken = start.elapsed().as_nanos() as f64;
        Ok((value, (taken - self.clock_ns).max(0.0)))
    }
}

fn clock_ns() -> f64 {
    let mut all: Vec<f64> = (0..1000)
        .map(|_| Instant::now().elapsed().as_nanos() as f64)
        .collect();
    quantile(&mut all, 0.5)
}

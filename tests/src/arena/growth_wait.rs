//! A program that submits its work long before the device does it, as training does: memory can move only if a growth
//! may wait.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::{Arena, DeviceBuffer, ReusePolicy};
use cuda_mem_trace::{Op, Trace, recorded};

use crate::environment::Environment;
use crate::hold::{Held, hold, hold_for};

const MIB: usize = 1 << 20;

/// How many operations of the log come between two holds of the stream, and how many holds it is behind. A request that
/// waits waits for all of these.
const BETWEEN: usize = 100;
const BEHIND: usize = 15;
const HOLD: Duration = Duration::from_millis(3);

/// Replays the recorded training run in a stream that is behind. Returns the peak of what the arena held, as a multiple of
/// what the log asked for at most.
fn train(env: &Environment, trace: &Trace, growth_wait: Duration) -> Result<f64> {
    let stream = env.stream()?;
    let builder = Arena::builder(&env.device()?).slack(1.02);
    let arena = builder.growth_wait(growth_wait).build()?;
    let mut slots: Vec<Option<DeviceBuffer<u8>>> = (0..trace.slots).map(|_| None).collect();
    let mut behind: VecDeque<Held> = VecDeque::new();
    for (number, op) in trace.ops.iter().enumerate() {
        if number % BETWEEN == 0 {
            behind.push_back(hold_for(&stream, HOLD)?);
            if behind.len() > BEHIND {
                drop(behind.pop_front());
            }
        }
        match *op {
            Op::Allocate { slot, bytes, .. } => {
                let block = arena.alloc(&stream, bytes);
                slots[slot] = Some(block.with_context(|| format!("operation {number}"))?);
            }
            Op::Free { slot, .. } => slots[slot] = None,
        }
    }
    drop((behind, slots));
    stream.synchronize()?;
    let reserved = arena.stats().reserved_peak;
    Ok(reserved as f64 / trace.peak_bytes as f64)
}

#[apply(case_alone)]
fn growth_that_waits_moves_memory_instead(env: &Environment) -> Result<()> {
    let trace = Trace::read(&recorded())?;
    let without = train(env, &trace, Duration::ZERO)?;
    let with = train(env, &trace, Duration::from_secs(10))?;
    println!("reserved {with:.3} times what was asked for with waits, {without:.3} without");
    ensure!(
        with <= 1.03 && without > 1.05,
        "{with}, and {without} without waits"
    );
    Ok(())
}

/// The stream waits for what the thread does next, which must not wait for ever.
#[apply(case)]
fn growth_waits_no_longer_than_it_may(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let limit = Duration::from_millis(30);
    let builder = Arena::builder(&env.device()?).slack(1.0);
    let arena = builder.growth_wait(limit).build()?;
    let [first, between, last] = [48, 2, 48].map(|mib| arena.alloc::<u8>(&stream, mib * MIB));
    let held = hold(&stream)?;
    drop((first?, last?));
    let begin = Instant::now();
    let large = arena.alloc::<u8>(&stream, 90 * MIB)?;
    let waited = begin.elapsed();
    drop(held);
    ensure!(waited >= limit, "{waited:?}");
    drop((between?, large));
    Ok(())
}

/// Under a policy without queries, and over another resource.
#[apply(case)]
fn growth_does_not_wait_where_memory_cannot_move(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let stream = env.stream()?;
    for is_over in [false, true] {
        let mut calls = Vec::new();
        for wait in [Duration::ZERO, Duration::from_millis(30)] {
            let builder = if is_over {
                Arena::builder_over(env.pool()?)
            } else {
                Arena::builder(&env.device()?).reuse(ReusePolicy::DETERMINISTIC)
            };
            let arena = builder.slack(1.0).growth_wait(wait).build()?;
            let [first, between, last] =
                [48, 2, 48].map(|mib| arena.alloc::<u8>(&stream, mib * MIB));
            let held = hold(&stream)?;
            drop((first?, last?));
            let before = arena.stats().driver_calls;
            let large = arena.alloc::<u8>(&stream, 90 * MIB)?;
            calls.push(arena.stats().driver_calls - before);
            drop(held);
            drop((between?, large));
        }
        ensure!(calls[0] == calls[1], "over a pool: {is_over}; {calls:?}");
    }
    Ok(())
}

//! Random sequences of operations on pools, streams and buffers, held against a model.
//!
//! The model knows which frees each stream and the host have seen, and says after every step what
//! the numbers of each pool may be and which memory a stream may have got. It follows the rules that
//! every driver keeps; where a driver is free, it allows whatever is sound. So the same sequences run
//! on the simulator and on a GPU.

mod model;
mod order;
mod step;
mod world;

use std::cell::Cell;

use anyhow::{Result, bail, ensure};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::environment::{Backend, Environment};
use crate::settings::{SEED, is_loud, number};
use model::Reuses;
use step::Step;
use world::{Ground, Options, World};

/// How many sequences run.
const SEQUENCES: &str = "CUDA_MEM_TEST_SEQUENCES";

const DEFAULT_SEED: u64 = 20_250_101;

/// So many sequences take every way of reuse.
const ENOUGH: u32 = 1000;

/// The longest sequence has so many steps, some of which stand for up to five.
const LONGEST: usize = 30;

fn options() -> Options {
    Options { loud: is_loud() }
}

/// Runs random sequences; a failing one is made as short as it can be and told step by step.
///
/// # Errors
///
/// The broken rule, with the steps that lead to it.
#[apply(case)]
fn sequences(env: &Environment) -> Result<()> {
    env.need(12, 2)?;
    let default = match env.backend {
        Backend::Sim => 5000,
        Backend::Gpu => 1000,
    };
    let count = u32::try_from(number(SEQUENCES)?.unwrap_or(default))?;
    let seed = number(SEED)?.unwrap_or(DEFAULT_SEED);
    println!("{count} random sequences, {SEED}={seed}");
    let ground = Ground::new(env, options())?;
    let (steps, reuses) = (Cell::new(0_u64), Cell::new(Reuses::default()));
    let start = std::time::Instant::now();
    let config = Config {
        cases: count,
        failure_persistence: None,
        max_shrink_iters: 5000,
        ..Config::default()
    };
    let mut runner = TestRunner::new_with_rng(config, rng(seed));
    let outcome = runner.run(&step::sequence(LONGEST), |sequence| {
        steps.set(steps.get() + sequence.len() as u64);
        let seen = run(env, &ground, &sequence).map_err(TestCaseError::fail)?;
        let mut all = reuses.get();
        all += seen;
        reuses.set(all);
        Ok(())
    });
    match outcome {
        Ok(()) => {}
        Err(TestError::Fail(reason, _)) => bail!("{SEED}={seed}: {reason}"),
        Err(TestError::Abort(reason)) => bail!("{SEED}={seed}: given up, {reason}"),
    }
    let reuses = reuses.get();
    println!(
        "{count} sequences, {} steps, {:.1} s; memory that was freed and not seen was handed out to \
         its own stream {} times, behind a wait {}, because the driver saw it done {}, behind the \
         driver's own wait {}",
        steps.get(),
        start.elapsed().as_secs_f64(),
        reuses.own,
        reuses.followed,
        reuses.seen,
        reuses.waited
    );
    // Sequences that never get there show nothing. What the driver sees done depends on its speed.
    ensure!(
        count < ENOUGH || (reuses.own > 0 && reuses.followed > 0 && reuses.waited > 0),
        "some way of reuse was never taken: {reuses:?}"
    );
    Ok(())
}

/// The generator that costs least in a build without optimisation.
fn rng(seed: u64) -> TestRng {
    let mut bytes = [0x5a; 16];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::XorShift, &bytes)
}

/// One sequence. The error tells its steps, whatever becomes of them.
fn run(env: &Environment, ground: &Ground, sequence: &[Step]) -> Result<Reuses, String> {
    let mut world = World::new(ground).map_err(|error| format!("{error:#}"))?;
    let done = sequence.iter().try_for_each(|step| world.step(step));
    let (story, reuses) = (std::mem::take(&mut world.story), world.reuses());
    let outcome = match done {
        Ok(()) => world.finish(),
        Err(error) => Err(error),
    };
    outcome
        .and_then(|()| in_order(env))
        .map(|()| reuses)
        .map_err(|error| format!("{error:#}, after\n    {}", story.join("\n    ")))
}

/// The simulator's order sanitizer has seen nothing wrong.
fn in_order(env: &Environment) -> Result<()> {
    if let Ok(control) = env.control()
        && control.report_count() > 0
    {
        let reports = control.reports();
        control.reset();
        ensure!(reports.is_empty(), "out of order: {reports:#?}");
    }
    Ok(())
}

//! Random programs over the public interface: resources and adaptors, buffers and containers, loans, moves, streams
//! that come and go, captures and graphs, on several threads, with work in the streams.
//!
//! The model knows the contents of every value and the bytes allocated from each resource. It holds on every driver, so
//! the same programs run on the simulator and on a GPU. On the simulator the order sanitizer checks them too, and
//! nothing may be left over.
//!
//! A file uses only files of the rows above its own:
//!
//! | files | what they have |
//! |---|---|
//! | `step`, `content`, `count`, `eventually` | operations, contents of memory, counts of bytes |
//! | `draw`, `tally`, `freed`, `value` | how programs are drawn, statistics, checks of freed memory, values |
//! | `fixture`, `resource`, `graph_value` | what programs share, models of resources and graphs |
//! | `state` | a running program |
//! | `streams`, `contents`, `resources` | operations, as methods of the state |
//! | `loans`, `moves`, `blocks`, `graphs` | operations that use those |
//! | `operations`, `workers`, `execution` | the choice of the method, threads, a whole program |

mod blocks;
mod content;
mod contents;
mod count;
mod draw;
mod eventually;
mod execution;
mod findings;
mod fixture;
mod freed;
mod graph_value;
mod graphs;
mod loans;
mod moves;
mod operations;
mod resource;
mod resources;
mod state;
mod step;
mod streams;
mod tally;
mod value;
mod workers;

use std::cell::{Cell, RefCell};

use anyhow::{Context as _, Result, bail, ensure};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::environment::{Backend, Environment};
use crate::settings::{self, PROGRAMS, SEED};
use crate::watchdog;
use draw::Shape;
use execution::{Mode, execute};
use fixture::{Fixture, Mistake};
use step::Program;
use tally::Tally;

/// Upper bounds of most programs.
const USUAL: Shape = Shape {
    bursts: 14,
    threads: 3,
};
/// Bursts of programs whose threads run freely: a barrier follows a burst of each thread.
const FREE: usize = 40;
/// And of long ones.
const LONG: usize = 150;

/// How often a failing program is run again to shrink it.
const SHRINKS: u32 = 3000;
/// And for how long.
const SHRINKING_MS: u32 = 60_000;

/// The cheapest generator in a build without optimisation. Neighbouring seeds give unrelated numbers.
fn rng(seed: u64) -> TestRng {
    let mix = |mut word: u64| {
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    };
    let step = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = [0; 16];
    for (turn, half) in (0x5a..).zip(bytes.chunks_mut(8)) {
        let word = mix(seed
            .wrapping_mul(step)
            .wrapping_add(step.wrapping_mul(turn)));
        half.copy_from_slice(&word.to_le_bytes());
    }
    TestRng::from_seed(RngAlgorithm::XorShift, &bytes)
}

/// Runs the program of this number. If it fails, the error has the steps of the shortest program that fails.
fn run_one(
    fixture: &Fixture,
    programs: &impl Strategy<Value = Program>,
    (mode, threads): (Mode, usize),
    seed: u64,
) -> Result<Tally> {
    let config = Config {
        cases: 1,
        failure_persistence: None,
        max_shrink_iters: SHRINKS,
        max_shrink_time: SHRINKING_MS,
        ..Config::default()
    };
    let tally = RefCell::new(Tally::default());
    let runs = Cell::new(0_u32);
    let mut runner = TestRunner::new_with_rng(config, rng(seed));
    let outcome = runner.run(programs, |program| {
        runs.set(runs.get() + 1);
        // Each run of a failing program may take long.
        watchdog::next_part();
        match execute(fixture, &program, mode, threads) {
            Ok(done) => *tally.borrow_mut() = done,
            Err(reason) => {
                if runs.get() == 1 && fixture.mistake.is_none() {
                    // The shortest one may fail for another reason.
                    eprintln!("program {seed} fails: {reason}");
                }
                return Err(TestCaseError::fail(reason));
            }
        }
        Ok(())
    });
    match outcome {
        Ok(()) => Ok(tally.into_inner()),
        Err(TestError::Fail(reason, program)) => {
            let steps: usize = program.bursts.iter().map(|burst| burst.steps.len()).sum();
            bail!(
                "program {SEED}={seed} {PROGRAMS}=1{} failed; made shorter in {} runs, to {steps} steps: {reason}",
                settings::said_threads(),
                runs.get()
            )
        }
        Err(TestError::Abort(reason)) => bail!("program {SEED}={seed}: given up, {reason}"),
    }
}

fn run(mode: Mode, default: u64) -> Result<()> {
    let env = Environment::get()?;
    env.need(12, 2)?;
    let long = settings::threads()?;
    let threads = long.unwrap_or(u64::from(USUAL.threads)).clamp(1, 64) as u8;
    let shape = Shape {
        bursts: match (long, mode) {
            (Some(_), _) => LONG,
            (None, Mode::InTurns) => USUAL.bursts,
            (None, Mode::Freely) => FREE,
        },
        threads,
    };
    let (programs, threads) = (draw::program(shape), usize::from(threads));
    let fixture = Fixture::new(env, threads, None)?;
    let mut sum = Tally::default();
    let ran = settings::each(default, |seed| {
        sum.add(&run_one(&fixture, &programs, (mode, threads), seed)?);
        Ok(())
    })?;
    println!(
        "{} random programs, {:.1} s: {sum}",
        ran.programs, ran.seconds
    );
    if ran.programs >= 200 {
        sum.check()?;
        ensure!(sum.sleeps > 0 || mode == Mode::Freely, "nothing slept");
    }
    Ok(())
}

fn default_count(env: &Environment, sim: u64, gpu: u64) -> u64 {
    match env.backend {
        Backend::Sim => sim,
        Backend::Gpu => gpu,
    }
}

/// Programs whose threads take turns: a failing one nearly always fails again, and can be shrunk.
///
/// # Errors
///
/// What went wrong, with the number and the steps of the program.
#[apply(case)]
pub fn programs_in_turns_hold_what_they_wrote(env: &Environment) -> Result<()> {
    run(Mode::InTurns, default_count(env, 600, 400))
}

/// Programs whose threads run concurrently between barriers.
///
/// # Errors
///
/// As for those in turns.
#[apply(case)]
pub fn programs_of_free_threads_hold_what_they_wrote(env: &Environment) -> Result<()> {
    run(Mode::Freely, default_count(env, 300, 200))
}

/// Runs programs with a mistake until one fails, and checks that it was shrunk.
fn find(env: &Environment, mistake: Mistake, words: &[&str], most: usize) -> Result<()> {
    env.control()?;
    let fixture = Fixture::new(Environment::get()?, 1, Some(mistake))?;
    let shape = Shape {
        threads: 1,
        ..USUAL
    };
    let programs = draw::program(shape);
    let failed = (1..=100).filter_map(|seed| {
        watchdog::next_part();
        let outcome = run_one(&fixture, &programs, (Mode::InTurns, 1), seed);
        outcome.err().map(|error| format!("{error:#}"))
    });
    // Steps that a shorter program needs too may lie where shrinking does not get to.
    let shortest = failed.take(3).min_by_key(|text| text.lines().count());
    let text = shortest.context("the mistake was not found in a hundred programs")?;
    for word in words {
        ensure!(text.contains(word), "it does not say {word:?}: {text}");
    }
    let steps = text.lines().count();
    ensure!(steps <= most, "it was not made short: {text}");
    Ok(())
}

/// # Errors
///
/// If it is not.
#[apply(case_of_sim)]
pub fn a_word_that_is_overwritten_is_found(env: &Environment) -> Result<()> {
    find(env, Mistake::Byte, &["0xbad", SEED, "made shorter"], 12)
}

/// # Errors
///
/// If it is not.
#[apply(case_of_sim)]
pub fn a_wait_that_is_left_out_is_found(env: &Environment) -> Result<()> {
    find(env, Mistake::Order, &["out of order", SEED, "lend"], 14)
}

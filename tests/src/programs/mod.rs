//! Random programs over the public interface: resources and adaptors, buffers and containers, loans, moves, streams
//! that come and go, captures and graphs, on several threads, with work in the streams.
//!
//! The model is what every value holds and how many bytes each resource has given; what it allows is sound on every
//! driver, so the same programs run on the simulator and on a GPU. On the simulator the order sanitizer looks on, and
//! nothing may be left over.

mod blocks;
mod content;
mod contents;
mod draw;
mod findings;
mod graphs;
mod play;
mod site;
mod step;
mod streams;
mod tally;
mod team;
mod value;
mod witness;
mod world;

use std::cell::{Cell, RefCell};

use anyhow::{Context as _, Result, bail, ensure};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::environment::{Backend, Environment};
use crate::settings::{self, PROGRAMS, SEED};
use crate::watchdog;
use draw::Shape;
use play::{Mode, play};
use step::Program;
use tally::Tally;
use world::Ground;

/// Upper bounds of most programs.
const USUAL: Shape = Shape {
    phrases: 14,
    threads: 3,
};
/// Phrases of programs whose threads run freely: they meet after a phrase of each.
const FREE: usize = 40;
/// And of long ones.
const LONG: usize = 150;

/// How often a failing program is run again, to make it shorter.
const SHRINKS: u32 = 3000;
/// And for how long.
const SHRINKING_MS: u32 = 60_000;

/// A mistake that programs make on purpose, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    /// A word of memory is overwritten.
    Byte,
    /// A stream uses memory without waiting for it.
    Order,
}

/// The generator that costs least in a build without optimisation. Neighbouring seeds have nothing in common.
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

/// The program of this number; if it fails, the shortest one that does, step by step.
fn run_one(
    ground: &Ground,
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
        // Each run of a program that fails may take long.
        watchdog::next_part();
        match play(ground, &program, mode, threads) {
            Ok(done) => *tally.borrow_mut() = done,
            Err(reason) => {
                if runs.get() == 1 && ground.sabotage.is_none() {
                    // A shorter one may fail for another reason.
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
            let steps: usize = program
                .phrases
                .iter()
                .map(|phrase| phrase.steps.len())
                .sum();
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
        phrases: match (long, mode) {
            (Some(_), _) => LONG,
            (None, Mode::InTurns) => USUAL.phrases,
            (None, Mode::Freely) => FREE,
        },
        threads,
    };
    let (programs, threads) = (draw::program(shape), usize::from(threads));
    let ground = Ground::new(env, threads, None)?;
    let mut sum = Tally::default();
    let ran = settings::each(default, |seed| {
        sum.add(&run_one(&ground, &programs, (mode, threads), seed)?);
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

/// Programs whose threads take turns: one that fails nearly always fails again, and is made shorter.
///
/// # Errors
///
/// What went wrong, with the number and the steps of the program.
#[apply(case)]
pub fn programs_in_turns_hold_what_they_wrote(env: &Environment) -> Result<()> {
    run(Mode::InTurns, default_count(env, 600, 400))
}

/// Programs whose threads run concurrently, and meet now and then.
///
/// # Errors
///
/// As for those in turns.
#[apply(case)]
pub fn programs_of_free_threads_hold_what_they_wrote(env: &Environment) -> Result<()> {
    run(Mode::Freely, default_count(env, 300, 200))
}

/// Runs programs with a mistake until one fails, and looks whether it was made short.
fn find(env: &Environment, sabotage: Sabotage, words: &[&str], most: usize) -> Result<()> {
    env.control()?;
    let ground = Ground::new(Environment::get()?, 1, Some(sabotage))?;
    let shape = Shape {
        threads: 1,
        ..USUAL
    };
    let programs = draw::program(shape);
    let failed = (1..=100).find_map(|seed| {
        watchdog::next_part();
        let outcome = run_one(&ground, &programs, (Mode::InTurns, 1), seed);
        outcome.err().map(|error| format!("{error:#}"))
    });
    let text = failed.context("the mistake was not found in a hundred programs")?;
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
    find(env, Sabotage::Byte, &["0xbad", SEED, "made shorter"], 12)
}

/// # Errors
///
/// If it is not.
#[apply(case_of_sim)]
pub fn a_wait_that_is_left_out_is_found(env: &Environment) -> Result<()> {
    find(env, Sabotage::Order, &["out of order", SEED, "lend"], 14)
}

//! Two failures in one run of a scenario.
//!
//! What the second one means depends on the answer to the first, so less is checked than in a sweep: nothing panics,
//! nothing is left without a report, the order is kept, and a run without failures then succeeds and leaves nothing.

use anyhow::{Context as _, Result, ensure};

use super::{
    CODES, Scenario, clear_current_context, deferred_after_retries, has_reported_since,
    is_refused_free, load_and_run, logged, only, run_with,
};
use crate::environment::Environment;
use crate::own_process::{self, Part};
use crate::watchdog;

/// The stride: every N-th pair is tried.
const EVERY: &str = "CUDA_MEM_TEST_PAIRS";

/// If this fails at the end of a buffer and again at the end of its stream, the memory stays queued until its context is
/// synchronised through the driver that the scenario loaded, which does not happen here.
const CAPTURE_MODE: &str = "cuThreadExchangeStreamCaptureMode";

/// The stride of a run of all tests.
const FEW: usize = 97;

/// The stride that was asked for.
fn every() -> Result<usize> {
    let Ok(text) = std::env::var(EVERY) else {
        return Ok(FEW);
    };
    let every = text.parse().ok().filter(|every| *every > 0);
    every.with_context(|| format!("{EVERY} is {text:?}; it must be a number from 1 on"))
}

/// Two of the scenario's calls fail, each pair in turn, with codes that change from pair to pair.
///
/// # Errors
///
/// The first pair for which something else happens.
pub fn every_pair_fails(env: &Environment, scenario: Scenario) -> Result<()> {
    let every = every()?;
    own_process::in_parts(|| some_fail(env, scenario, every))
}

fn some_fail(env: &Environment, scenario: Scenario, every: usize) -> Result<()> {
    let part = Part::own();
    let control = env.control()?;
    let log = logged(env, scenario)?;
    let mut left = control.live();
    let calls = log.len();
    let pairs = (0..calls).flat_map(|first| (first + 1..calls).map(move |second| (first, second)));
    let only = only()?;
    let is_wanted = |number: usize, (first, second): (usize, usize)| match &only {
        Some(only) => *only == [first + 1, second + 1],
        None => number.is_multiple_of(every),
    };
    let chosen = pairs
        .enumerate()
        .filter(|(number, pair)| is_wanted(*number, *pair));
    let (mut tried, mut waiting) = (0, 0);
    for (_, (number, (first, second))) in chosen.enumerate().filter(|(index, _)| part.has(*index)) {
        watchdog::next_part();
        let codes = [number % CODES.len(), number / CODES.len() % CODES.len()];
        let [one, two] = codes.map(|index| CODES[index]);
        let what = format!(
            "call {} ({}) answering {one} and call {} ({}) answering {two}",
            first + 1,
            log[first],
            second + 1,
            log[second]
        );
        let before = cuda_mem::base::drop_counts();
        let outcome = run_with(control, scenario, &log, &[(first, one), (second, two)]);
        let outcome = outcome.with_context(|| what.clone())?;
        let made = control.call_log();
        let may_wait = [first, second]
            .iter()
            .all(|index| made.get(*index).is_some_and(|call| call == CAPTURE_MODE));
        if let Err(error) = &outcome {
            ensure!(
                !error.to_string().is_empty(),
                "{what}: an error without words"
            );
        }
        clear_current_context(env)?;
        // A block that could not be freed keeps its pool, which waits for it.
        let waits = deferred_after_retries(env, waiting)?;
        let reported = has_reported_since(before);
        let live = control.live();
        ensure!(
            reported || may_wait && waits == waiting + 1 || (live, waits) == (left, waiting),
            "{what}: {live:?} is left, {waits} things wait, and nobody said so"
        );
        waiting = waits;
        // After the first failure, the second one may have met such a free, which it let take effect.
        let has_freed = !is_refused_free(&log[second], two)
            && made
                .get(second)
                .is_some_and(|call| is_refused_free(call, two));
        let reports = control.reports();
        ensure!(has_freed || reports.is_empty(), "{what}: {reports:?}");
        // As if nothing had been.
        control.reset();
        load_and_run(scenario).with_context(|| format!("after {what}"))?;
        clear_current_context(env)?;
        let waits = deferred_after_retries(env, waiting)?;
        ensure!(waits == waiting, "after {what}: {waits} things wait");
        left = control.live();
        ensure!(
            left == live,
            "after {what}: {left:?} is left, and {live:?} was there"
        );
        tried += 1;
    }
    println!("{tried} pairs of {calls} calls");
    Ok(())
}

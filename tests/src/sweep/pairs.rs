//! Two failures in one tour.
//!
//! What the second one means depends on what the first one was answered with, so less is known than in a sweep: nothing
//! panics, nothing is left without a report, the order is kept, and the same tour without failures does well afterwards
//! and leaves nothing.

use anyhow::{Context as _, Result, bail, ensure};

use super::{CODES, Tour, leave_no_context, load_and_walk, logged, waiting_at_last};
use crate::lab::Lab;
use crate::run::{self, Part};
use crate::watchdog;

/// Names how many of the pairs are tried: each, or each so many-th.
const EVERY: &str = "CUDA_MEM_TEST_PAIRS";

/// Of those that a run of all tests tries.
const FEW: usize = 97;

/// The pair of each of these numbers of pairs.
fn every() -> Result<usize> {
    let Ok(text) = std::env::var(EVERY) else {
        return Ok(FEW);
    };
    let every = text.parse().ok().filter(|every| *every > 0);
    every.with_context(|| format!("{EVERY} is {text:?}; it must be a number from 1 on"))
}

/// Two of the tour's calls fail, each pair in turn, with codes that change from pair to pair.
///
/// # Errors
///
/// The first pair for which something else happens.
pub fn every_pair_fails(lab: &Lab, tour: Tour) -> Result<()> {
    let every = every()?;
    run::in_parts(|| some_fail(lab, tour, every))
}

fn some_fail(lab: &Lab, tour: Tour, every: usize) -> Result<()> {
    let part = Part::own();
    let control = lab.control()?;
    let log = logged(lab, tour)?;
    let mut left = control.live();
    let calls = log.len();
    let pairs = (0..calls).flat_map(|first| (first + 1..calls).map(move |second| (first, second)));
    let chosen = pairs.enumerate().step_by(every);
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
        control.reset();
        control.fail_call(first as u64 + 1, one);
        control.fail_call(second as u64 + 1, two);
        let before = cuda_mem::drop_counts();
        let outcome = std::panic::catch_unwind(|| load_and_walk(tour));
        control.clear_faults();
        let Ok(outcome) = outcome else {
            bail!("{what}: a panic");
        };
        if let Err(error) = &outcome {
            ensure!(
                !error.to_string().is_empty(),
                "{what}: an error without words"
            );
        }
        leave_no_context(lab)?;
        // A block that could not be freed keeps its pool, which waits for it.
        let waits = waiting_at_last(lab, waiting)?;
        let after = cuda_mem::drop_counts();
        let reported = after.failures > before.failures || after.too_late > before.too_late;
        let live = control.live();
        ensure!(
            reported || (live, waits) == (left, waiting),
            "{what}: {live:?} is left, {waits} things wait, and nobody said so"
        );
        waiting = waits;
        let reports = control.reports();
        ensure!(reports.is_empty(), "{what}: {reports:?}");
        // As if nothing had been.
        control.reset();
        load_and_walk(tour).with_context(|| format!("after {what}"))?;
        leave_no_context(lab)?;
        let waits = waiting_at_last(lab, waiting)?;
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

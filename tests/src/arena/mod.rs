//! The arena: random programs of several streams and threads whose every block is checked, and what a
//! user can count on, step by step.

mod annotated;
mod log;
mod program;
mod rules;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::lab::{Backend, Lab};
use crate::run::Test;
use crate::tests;

/// What a user can count on.
#[must_use]
pub fn all() -> Vec<Test> {
    tests! {
        rules: memory_is_reused_at_once_on_its_stream,
            what_is_busy_is_not_given_to_others,
            a_stream_waits_rather_than_that_the_arena_grows,
            without_leave_streams_keep_to_themselves,
            what_is_done_goes_to_other_streams,
            blocks_may_come_back_on_other_streams,
            a_stream_that_ended_leaves_its_memory_to_the_next,
            an_arena_is_no_larger_than_it_may_be,
            trimming_gives_back_what_is_done,
            a_full_arena_gives_back_before_it_fails,
            the_arena_ends_when_its_last_block_does,
            numbers_add_up,
            misuse_is_an_error;
    }
}

/// How many random programs run.
const PROGRAMS: &str = "CUDA_MEM_TEST_PROGRAMS";
/// Instead: for how many seconds they run.
const SECONDS: &str = "CUDA_MEM_TEST_SECONDS";
/// If it is set, every program is told before it runs: for a driver that crashes or hangs.
const LOUD: &str = "CUDA_MEM_TEST_LOUD";
/// The number of the first one.
const SEED: &str = "CUDA_MEM_TEST_SEED";

fn number(variable: &str) -> Result<Option<u64>> {
    std::env::var(variable)
        .ok()
        .map(|text| {
            text.parse()
                .with_context(|| format!("{variable} is {text:?}; it must be a number"))
        })
        .transpose()
}

/// Random programs, each of some streams and threads over an arena of its own. Every block is written when
/// it is allocated and looked at before it is freed.
///
/// # Errors
///
/// What went wrong, and the number of the program.
pub fn random_programs(lab: &Lab) -> Result<()> {
    let first = number(SEED)?.unwrap_or(1);
    let seconds = number(SECONDS)?.map(Duration::from_secs);
    let default = match lab.backend {
        Backend::Sim => 400,
        // One takes 0.2 s there.
        Backend::Gpu => 60,
    };
    let count = match seconds {
        Some(_) => u64::MAX - first,
        None => number(PROGRAMS)?.unwrap_or(default),
    };
    let loud = std::env::var_os(LOUD).is_some();
    let start = Instant::now();
    let mut sum = program::Tally::default();
    let mut ran = 0;
    for seed in first..first + count {
        if seconds.is_some_and(|seconds| start.elapsed() >= seconds) {
            break;
        }
        let tally =
            program::run(Lab::get()?, seed).with_context(|| format!("program {SEED}={seed}"))?;
        sum.add(&tally);
        ran += 1;
        if ran % 5000 == 0 {
            println!("{ran} programs, {:.0} s", start.elapsed().as_secs_f64());
        }
        if let Ok(control) = lab.control()
            && control.report_count() > 0
        {
            let reports = control.reports();
            control.reset();
            ensure!(
                reports.is_empty(),
                "program {SEED}={seed} was out of order: {reports:#?}"
            );
        }
        if let Ok(control) = lab.control() {
            let live = control.live();
            let left = (live.mappings, live.reservations, live.annotated);
            ensure!(left == (0, 0, 0), "program {SEED}={seed} left {left:?}");
        }
    }
    println!(
        "{ran} random programs, {:.1} s: {sum}",
        start.elapsed().as_secs_f64()
    );
    // Programs that never get there show nothing.
    ensure!(
        ran < 400 || (sum.taken_over > 0 && sum.waits > 0 && sum.foreign > 0 && sum.refused > 0),
        "some way was never taken: {sum}"
    );
    Ok(())
}

//! The arena: random programs of several streams and threads whose every block is checked, and what a
//! user can count on, step by step.

mod annotated;
mod background;
mod capture_pool;
mod captures;
mod ends;
mod footprint;
mod limits;
mod log;
mod medium;
mod moves;
mod parked;
mod program;
mod rules;
mod sleep;
mod slow_upstream;
mod streams;
mod threads;
mod upstream;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::lab::{Backend, Lab};
use crate::watchdog;

/// How many random programs run.
const PROGRAMS: &str = "CUDA_MEM_TEST_PROGRAMS";
/// Instead: for how many seconds they run.
const SECONDS: &str = "CUDA_MEM_TEST_SECONDS";
/// If it is set, all programs are long, and on so many threads.
const THREADS: &str = "CUDA_MEM_TEST_THREADS";
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

/// Many moves of free memory beside a busy stream, between blocks whose bytes are looked at.
#[apply(case_long)]
fn many_moves(lab: &Lab) -> Result<()> {
    moves::many_moves(lab)
}

/// Random programs, each of some streams and threads over an arena of its own. Every block is written when
/// it is allocated and looked at before it is freed.
#[apply(case_long)]
fn random_programs(lab: &Lab) -> Result<()> {
    let first = number(SEED)?.unwrap_or(1);
    let seconds = number(SECONDS)?.map(Duration::from_secs);
    let default = match lab.backend {
        Backend::Sim => 200,
        Backend::Gpu => 500,
    };
    let count = match seconds {
        Some(_) => u64::MAX - first,
        None => number(PROGRAMS)?.unwrap_or(default),
    };
    let threads = number(THREADS)?;
    let loud = std::env::var_os(LOUD).is_some();
    // The primary context ends with its last handle, and takes 0.15 s to be made again on a GPU.
    let _context = lab.context()?;
    let start = Instant::now();
    let mut sum = program::Tally::default();
    let mut ran = 0;
    for seed in first..first + count {
        if seconds.is_some_and(|seconds| start.elapsed() >= seconds) {
            break;
        }
        watchdog::next_part();
        if loud {
            println!("program {seed}, {:.3} s", start.elapsed().as_secs_f64());
        }
        let tally = program::run(Lab::get()?, seed, threads)
            .with_context(|| format!("program {SEED}={seed}"))?;
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
    let some = sum.taken_over > 0 && sum.waits > 0 && sum.foreign > 0 && sum.refused > 0;
    // A few programs may miss what depends on how threads meet, and on what is done when.
    let rare = sum.moved > 0 && sum.kept > 0;
    ensure!(
        (some || ran < 200) && (rare || ran < 5000),
        "some way was never taken: {sum}"
    );
    Ok(())
}

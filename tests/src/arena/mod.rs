//! The arena: random programs of several streams and threads whose every block is checked, and what a
//! user can count on, step by step.

mod adapted;
mod background;
mod capture_pool;
mod captures;
mod deterministic;
mod ends;
mod external_captures;
mod footprint;
mod growth_wait;
mod growths;
mod late_upstream;
mod limits;
mod log;
mod marks;
pub mod medium;
pub mod moody;
mod moves;
mod moves_back;
mod numbers;
mod panics;
mod parked;
mod pins;
pub mod places;
mod program;
mod requests;
mod rules;
mod sleep;
mod slow_upstream;
mod spots;
mod streams;
mod threads;
mod trims;
mod upstream;
mod upstream_blocks;

use anyhow::{Context as _, Result, ensure};

use crate::environment::{Backend, Environment};
use crate::settings::{self, SEED};

/// Many moves of free memory beside a busy stream, between blocks whose bytes are looked at.
#[apply(case_long)]
fn many_moves(env: &Environment) -> Result<()> {
    moves::many_moves(env)
}

/// Random programs, each of some streams and threads over an arena of its own. Every block is written when
/// it is allocated and looked at before it is freed.
#[apply(case_long)]
fn random_programs(env: &Environment) -> Result<()> {
    let default = match env.backend {
        Backend::Sim => 200,
        Backend::Gpu => 500,
    };
    let threads = settings::threads()?;
    // The primary context ends with its last handle, and takes 0.15 s to be made again on a GPU.
    let _context = env.context()?;
    let mut sum = program::Tally::default();
    let ran = settings::each(default, |seed| {
        let tally = program::run(Environment::get()?, seed, threads)
            .with_context(|| format!("program {SEED}={seed}"))?;
        sum.add(&tally);
        if let Ok(control) = env.control()
            && control.report_count() > 0
        {
            let reports = control.reports();
            control.reset();
            ensure!(
                reports.is_empty(),
                "program {SEED}={seed} was out of order: {reports:#?}"
            );
        }
        if let Ok(control) = env.control() {
            let live = control.live();
            let left = (live.mappings, live.reservations, live.annotated);
            ensure!(left == (0, 0, 0), "program {SEED}={seed} left {left:?}");
        }
        Ok(())
    })?;
    println!(
        "{} random programs, {:.1} s: {sum}",
        ran.programs, ran.seconds
    );
    let ran = ran.programs;
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

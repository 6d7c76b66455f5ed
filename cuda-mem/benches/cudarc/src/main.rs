//! cudarc's stream-ordered allocations, timed by the same loops as `cuda-mem`: pairs of allocate and free by size, by
//! many threads, and a recorded training run.
//!
//! `cargo run --release --manifest-path cuda-mem/benches/cudarc/Cargo.toml [-- --json] [--quick]`. Needs a
//! driver and no toolkit. `--quick` makes fewer rounds.
//!
//! `-- --rivals [--subject NAME] [--workload NAME] [--quick]` runs the workloads of `benches/rivals/README.md` instead.

#[path = "../../common/draws.rs"]
mod draws;
#[path = "../../common/gpt2.rs"]
mod gpt2;
#[path = "../../common/mix.rs"]
mod mix;
#[path = "../../common/workloads/mod.rs"]
mod workloads;

mod machine;
mod pairs;
mod replay;
mod rivals;
mod threads;

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use serde_json::json;

use machine::Machine;

const METHOD: &str = "host time, no kernels, no synchronisation in a timed loop. A pair is CudaStream::alloc::<u8> and \
     dropping the CudaSlice: the device's default pool with its own settings. Tracking: cudarc's event \
     tracking, which it has on unless it is turned off";

/// How much to run.
#[derive(Clone, Copy)]
struct Effort {
    rounds: usize,
    pairs: usize,
    warm_up: usize,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    if std::env::args().nth(1).as_deref() == Some("--rivals") {
        return rivals::run();
    }
    let mut effort = Effort {
        rounds: 101,
        pairs: 1000,
        warm_up: 100,
    };
    let mut json = false;
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--json" => json = true,
            "--quick" => effort.rounds = 5,
            // Passed by `cargo bench`.
            "--bench" => {}
            other => anyhow::bail!(
                "there is no option {other}; there are --json, --quick, and --rivals in the first place"
            ),
        }
    }
    let trace = gpt2::read()?;
    machine::require_driver()?;
    let context = CudaContext::new(0).context("the first device")?;
    ensure!(
        context.has_async_alloc(),
        "the device has no memory pools: these would be other allocations than cuda-mem's"
    );
    let machine = Machine::of(&context)?;

    let mut reports = Vec::new();
    for tracking in [true, false] {
        set_tracking(&context, tracking);
        let by_size = pairs::measure(&context, effort)?;
        let by_threads = threads::measure(&context, effort)?;
        let replayed = replay::measure(&context, &trace)?;
        context.check_err()?;
        reports.push((tracking, by_size, by_threads, replayed));
    }
    if json {
        let runs: Vec<_> = reports
            .iter()
            .map(|(tracking, by_size, by_threads, replayed)| {
                json!({
                    "event_tracking": tracking,
                    "pairs": by_size.iter().map(pairs::Row::json).collect::<Vec<_>>(),
                    "threads": by_threads.iter().map(threads::Row::json).collect::<Vec<_>>(),
                    "replay": replayed.json(),
                })
            })
            .collect();
        let report = json!({
            "benchmark": "cudarc",
            "machine": machine.json(),
            "method": methods(effort),
            "runs": runs,
        });
        println!("{report}");
        return Ok(());
    }
    println!("{machine}");
    println!("method: {}", methods(effort));
    for (tracking, by_size, by_threads, replayed) in &reports {
        let state = if *tracking { "on" } else { "off" };
        println!("\nevent tracking {state}");
        pairs::show(by_size);
        threads::show(by_threads);
        replayed.show();
    }
    Ok(())
}

fn methods(effort: Effort) -> String {
    let (pairs, threads, replay) = (
        pairs::method(effort),
        threads::method(effort),
        replay::METHOD,
    );
    format!("{METHOD}. Sizes: {pairs}. Threads: {threads}. Replay: {replay}")
}

/// All earlier allocations must be freed.
fn set_tracking(context: &Arc<CudaContext>, on: bool) {
    if on {
        // SAFETY: no memory with untracked uses is live.
        unsafe { context.enable_event_tracking() };
    } else {
        // SAFETY: memory here is used only on its own stream.
        unsafe { context.disable_event_tracking() };
    }
}

/// One allocation; it is freed on its stream when dropped.
#[inline]
fn allocate(stream: &Arc<CudaStream>, bytes: usize) -> Result<CudaSlice<u8>> {
    // SAFETY: the memory is never read, so it need not be initialised.
    Ok(unsafe { stream.alloc::<u8>(bytes) }?)
}

/// The median.
fn middle(mut rounds: Vec<f64>) -> f64 {
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or(f64::NAN)
}

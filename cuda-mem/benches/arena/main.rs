//! The arena compared with the driver's pool: one pair, many threads, traces of one and of several streams.
//!
//! `cargo bench -p cuda-mem --bench arena [-- --json] [--pairs] [--threads] [--traces]`; without a selection, all three
//! parts run. `CUDA_MEM_BENCH_ONLY` selects the workloads and kinds of threads whose name, with the subject (`server, 8
//! streams, a, arena`; `arena, mixed`), contains it. On the simulated driver the arena's figures are those of its
//! bookkeeping, because warm operations make no driver calls; the pool's say nothing.
//!
//! `-- --footprint [--first CELL] [--last CELL]` measures what both hold when streams are busy, in about 60 kinds of
//! programs; with `--slack RATIO`, where an arena of that slack holds more than that. `-- --growth [--operations N]`
//! measures whether this grows with the operations, and `-- --calls [--operations N]` the driver calls of a warm arena
//! by the number of streams. `-- --caps` finds the smallest `max_bytes` under which each workload runs.

#[path = "../common/busy/mod.rs"]
mod busy;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/draws.rs"]
mod draws;
#[path = "../common/gpt2.rs"]
mod gpt2;
#[path = "../common/mix.rs"]
mod mix;
#[path = "../common/subjects.rs"]
mod subjects;

mod calls;
mod caps;
mod footprint;
mod pairs;
mod replay;
mod threads;
mod workloads;

use anyhow::{Context as _, Result};
use serde_json::json;

use common::{cpu, open};

const SUBJECTS: [&str; 2] = ["pool", "arena"];

/// Whether a row is measured: all are, unless `CUDA_MEM_BENCH_ONLY` selects some by a part of their name.
fn is_asked_for(name: &str) -> bool {
    std::env::var("CUDA_MEM_BENCH_ONLY").map_or(true, |only| name.contains(&only))
}

/// The value of `--slack`.
fn slack() -> Result<Option<f64>> {
    let value = std::env::args()
        .skip_while(|other| other != "--slack")
        .nth(1);
    value
        .map(|value| value.parse().context("--slack wants a number"))
        .transpose()
}

/// The value of an option.
fn number(option: &str) -> Result<Option<usize>> {
    let value = std::env::args().skip_while(|other| other != option).nth(1);
    value
        .map(|value| {
            value
                .parse()
                .with_context(|| format!("{option} is {value:?}; it must be a number"))
        })
        .transpose()
}

fn main() -> Result<()> {
    let has = |option: &str| std::env::args().any(|argument| argument == option);
    let json = has("--json");
    let (driver, backend) = open()?;
    let device = driver.device(0)?;
    let stream = device.primary_context()?.stream()?;
    let cores = std::thread::available_parallelism()?.get();
    if ["--footprint", "--growth", "--calls", "--caps"]
        .into_iter()
        .any(has)
    {
        println!("{backend}, {}, {}, {cores} cores", device.name()?, cpu());
        if has("--footprint") {
            let first = number("--first")?.unwrap_or(0);
            let last = number("--last")?.unwrap_or(busy::CELLS);
            match slack()? {
                Some(slack) => footprint::slack(&device, slack, first..=last)?,
                None => footprint::measure(&device, first..=last)?,
            }
        }
        if has("--growth") {
            footprint::growth(&device, number("--operations")?.unwrap_or(20_000))?;
        }
        if has("--calls") {
            calls::measure(&device, number("--operations")?.unwrap_or(20_000))?;
        }
        if has("--caps") {
            caps::measure(&device)?;
        }
        return Ok(());
    }

    let parts = ["--pairs", "--threads", "--traces"];
    let all = !parts.into_iter().any(has);
    let pairs = if all || has("--pairs") {
        pairs::measure(&device, &stream)?
    } else {
        Vec::new()
    };
    let threads = if all || has("--threads") {
        threads::measure(&device, cores)?
    } else {
        Vec::new()
    };
    let runs = if all || has("--traces") {
        replay::measure(&device)?
    } else {
        Vec::new()
    };
    if json {
        let report = json!({
            "benchmark": "arena",
            "backend": backend,
            "device": device.name()?,
            "driver": driver.version().to_string(),
            "cpu": cpu(),
            "cores": cores,
            "pairs": { "method": pairs::METHOD, "rows": pairs::json(&pairs) },
            "threads": { "method": threads::METHOD, "rows": threads::json(&threads) },
            "traces": { "method": replay::METHOD, "rows": replay::json(&runs) },
        });
        println!("{report}");
        return Ok(());
    }
    println!(
        "back end: {backend}, {}, CUDA {}, {}, {cores} cores",
        device.name()?,
        driver.version(),
        cpu()
    );
    pairs::show(&pairs);
    threads::show(&threads);
    replay::show(&runs);
    Ok(())
}

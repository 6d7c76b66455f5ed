//! Cost of watching an arena: recording it, and telling tools about its blocks.

use std::alloc::Layout;
use std::hint::black_box;
use std::time::Instant;

#[cfg(target_os = "linux")]
use anyhow::Context as _;
use anyhow::{Result, ensure};
use cuda_mem::ledger::{Ledger, Recorder};
use cuda_mem::{Arena, Device, MemoryResource, Stream};
use serde_json::{Value, json};

use crate::common::middle;

pub(crate) const METHOD: &str = "nanoseconds for one allocate + free of 1 KiB from an arena, one thread: medians of \
     201 rounds of 10,000 pairs after 10 rounds of warm-up; all arenas take turns; the cost is the median of the \
     rounds' own differences from the arena that nothing watches. An arena under the simulated tool of NVTX is in a \
     process of its own, with a tenth of the rounds; its cost is the difference of the medians";

const ROUNDS: usize = 201;
const WARM_UP: usize = 10;
const PAIRS: usize = 10_000;

pub(crate) struct Row {
    name: &'static str,
    pair_ns: f64,
    cost_ns: f64,
}

/// The option of the process under the tool. It prints the median.
pub(crate) const UNDER_TOOL: &str = "--under-tool";

fn round(arena: &Arena, stream: &Stream, layout: Layout) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..PAIRS {
        let address = black_box(arena).allocate(layout, stream)?;
        // SAFETY: allocated just now, with this layout.
        unsafe { arena.deallocate(address, layout, stream) }?;
    }
    Ok(start.elapsed().as_nanos() as f64 / PAIRS as f64)
}

pub(crate) fn measure(device: &Device, stream: &Stream) -> Result<Vec<Row>> {
    let layout = Layout::from_size_align(1024, 256)?;
    let ring = Recorder::ring(1 << 16);
    let written = Recorder::to_writer(std::io::sink());
    let arenas = [
        ("arena", Arena::builder(device).build()?),
        ("arena, again", Arena::builder(device).build()?),
        (
            "recorded in a ring",
            Arena::builder(device).record(&ring).build()?,
        ),
        (
            "recorded to a writer",
            Arena::builder(device).record(&written).build()?,
        ),
    ];
    let mut pairs = arenas.each_ref().map(|_| Vec::new());
    let mut costs = arenas.each_ref().map(|_| Vec::new());
    for turn in 0..WARM_UP + ROUNDS {
        let mut plain = 0.0;
        for (nth, (_, arena)) in arenas.iter().enumerate() {
            let ns = round(arena, stream, layout)?;
            if nth == 0 {
                plain = ns;
            }
            if turn >= WARM_UP {
                pairs[nth].push(ns);
                costs[nth].push(ns - plain);
            }
        }
    }
    let rows = arenas.iter().zip(pairs).zip(costs);
    let mut rows: Vec<Row> = rows
        .map(|(((name, _), pairs), costs)| Row {
            name,
            pair_ns: middle(pairs),
            cost_ns: middle(costs),
        })
        .collect();
    let plain = rows.first().map_or(f64::NAN, |row| row.pair_ns);
    if let Some(pair_ns) = under_tool()? {
        rows.push(Row {
            name: "under a tool",
            pair_ns,
            cost_ns: pair_ns - plain,
        });
    }
    Ok(rows)
}

/// What a pair costs in a process under the simulated tool; `None` if that was not built.
#[cfg(target_os = "linux")]
fn under_tool() -> Result<Option<f64>> {
    let Some(tool) = nvtx_sim::library_path() else {
        return Ok(None);
    };
    let output = std::process::Command::new(std::env::current_exe()?)
        .arg(UNDER_TOOL)
        .env(cuda_mem::sys::nvtx::NVTX_INJECTION_VARIABLE, tool)
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    Ok(Some(last.parse().with_context(|| {
        format!("{text}{}", String::from_utf8_lossy(&output.stderr))
    })?))
}

/// There is no simulated tool elsewhere.
#[cfg(not(target_os = "linux"))]
fn under_tool() -> Result<Option<f64>> {
    Ok(None)
}

/// The part of the process under the tool.
pub(crate) fn told(device: &Device, stream: &Stream) -> Result<f64> {
    let layout = Layout::from_size_align(1024, 256)?;
    let arena = Arena::builder(device).build()?;
    let mut pairs = Vec::new();
    for turn in 0..(WARM_UP + ROUNDS) / 10 {
        let ns = round(&arena, stream, layout)?;
        if turn >= WARM_UP / 10 {
            pairs.push(ns);
        }
    }
    ensure!(Ledger::nvtx_tool()?.is_some(), "no tool is attached");
    Ok(middle(pairs))
}

pub(crate) fn json(rows: &[Row]) -> Value {
    rows.iter()
        .map(|row| json!({ "arena": row.name, "cost_ns": row.cost_ns, "pair_ns": row.pair_ns }))
        .collect()
}

pub(crate) fn show(rows: &[Row]) {
    println!("\nwatched: {METHOD}\n");
    println!(
        "{:<24} {:>13} {:>13} {:>7}",
        "arena", "pair", "cost", "ratio"
    );
    let plain = rows.first().map_or(f64::NAN, |row| row.pair_ns);
    for row in rows {
        println!(
            "{:<24} {:>10.1} ns {:>10.1} ns {:>7.2}",
            row.name,
            row.pair_ns,
            row.cost_ns,
            row.pair_ns / plain
        );
    }
}

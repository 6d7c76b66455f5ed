//! Cost of the feature `tracing`: what a subscriber costs an arena's usual pair, and its growth.

use std::alloc::Layout;
use std::hint::black_box;
use std::time::Instant;

use anyhow::Result;
use cuda_mem::{Arena, Device, MemoryResource, Stream};
use serde_json::{Value, json};
use tracing::subscriber::with_default;
use tracing_subscriber::fmt;

use crate::common::middle;

pub(crate) const METHOD: &str = "nanoseconds for one allocate + free of 1 KiB from an arena, and for an arena that \
     allocates 32 MiB, frees them and is trimmed to nothing: medians of 101 rounds of 10,000 and of 20 such, after 5 \
     rounds of warm-up; rounds with a subscriber, which formats every event into a sink, and without take turns; the \
     ratio is the median of the rounds' own";

const ROUNDS: usize = 101;
const WARM_UP: usize = 5;

pub(crate) struct Row {
    name: &'static str,
    silent_ns: f64,
    traced_ns: f64,
    ratio: f64,
}

/// Nanoseconds for each of `times` times.
fn round(times: usize, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..times {
        run()?;
    }
    Ok(start.elapsed().as_nanos() as f64 / times as f64)
}

fn row(name: &'static str, times: usize, mut run: impl FnMut() -> Result<()>) -> Result<Row> {
    let (mut silent, mut traced, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..WARM_UP + ROUNDS {
        let without = round(times, &mut run)?;
        let subscriber = fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(std::io::sink)
            .finish();
        let with = with_default(subscriber, || round(times, &mut run))?;
        if turn >= WARM_UP {
            silent.push(without);
            traced.push(with);
            ratios.push(with / without);
        }
    }
    Ok(Row {
        name,
        silent_ns: middle(silent),
        traced_ns: middle(traced),
        ratio: middle(ratios),
    })
}

pub(crate) fn measure(device: &Device, stream: &Stream) -> Result<Vec<Row>> {
    let arena = Arena::builder(device).build()?;
    let pair = |bytes: usize| {
        let layout = Layout::from_size_align(bytes, 256)?;
        let address = black_box(&arena).allocate(layout, stream)?;
        // SAFETY: allocated just now, with this layout.
        Ok(unsafe { arena.deallocate(address, layout, stream) }?)
    };
    let usual = row("pair", 10_000, || pair(1024))?;
    let growth = row("growth and trim", 20, || {
        pair(32 << 20)?;
        stream.synchronize()?;
        Ok(arena.trim_to(0)?)
    })?;
    Ok(vec![usual, growth])
}

/// Whether the library that is measured has the feature. It depends on what is built together.
fn feature() -> &'static str {
    if cfg!(feature = "tracing") {
        "built in"
    } else {
        "not built in: nobody is told anything"
    }
}

pub(crate) fn json(rows: &[Row]) -> Value {
    rows.iter()
        .map(|row| {
            json!({
                "operation": row.name, "silent_ns": row.silent_ns,
                "traced_ns": row.traced_ns, "ratio": row.ratio,
            })
        })
        .collect()
}

pub(crate) fn show(rows: &[Row]) {
    println!("\ntraced: {METHOD}. The feature is {}\n", feature());
    println!(
        "{:<24} {:>16} {:>16} {:>7}",
        "operation", "no subscriber", "subscriber", "ratio"
    );
    for row in rows {
        println!(
            "{:<24} {:>13.1} ns {:>13.1} ns {:>7.2}",
            row.name, row.silent_ns, row.traced_ns, row.ratio
        );
    }
}

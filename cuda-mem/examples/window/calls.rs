//! The cost of each call on a CPU mapping.

use anyhow::{Context as _, Result};
use cuda_mem::cpu_mapping::{CpuMapping, CpuMappingKind};
use cuda_mem_console::{bytes as scaled, nanoseconds, table};
use serde_json::{Value, json};

use crate::bench::Bench;
use crate::figures::quantile;
use crate::report::Outcome;
use crate::size_from;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Size of the memory, such as 64K
    #[arg(long, default_value = "64K", value_name = "SIZE", value_parser = |text: &str| size_from(8192, text))]
    size: u64,
}

struct Row {
    window: String,
    call: &'static str,
    median: f64,
    p99: f64,
    samples: usize,
}

pub(crate) fn run(bench: &Bench, args: &Args) -> Result<Outcome> {
    let words = usize::try_from(args.size)? / size_of::<u32>();
    let mut rows = Vec::new();
    for kind in bench.had() {
        of_kind(bench, kind, words, &mut rows).with_context(|| kind.to_string())?;
    }
    let mut left_out = Vec::new();
    if let Err(error) = of_dma_bufs(bench, words, &mut rows) {
        left_out.push(format!("export_dma_buf: {error:#}"));
    }
    let header = ["window", "call", "median", "p99", "samples"];
    let mut table = table(header);
    for row in &rows {
        let (median, p99) = (nanoseconds(row.median), nanoseconds(row.p99));
        let (call, samples) = (row.call.to_owned(), row.samples.to_string());
        table.add_row([row.window.clone(), call, median, p99, samples]);
    }
    let mut title = format!("windows on {}", scaled((words * size_of::<u32>()) as u64));
    for line in &left_out {
        title += &format!("\nleft out: {line}");
    }
    Ok(Outcome {
        method: format!(
            "one thread of the host, everything warm. Medians: opening, closing and exporting by themselves, other calls \
             as means of batches of about 100 µs; p99: of single calls, less {:.0} ns for the clock; {}",
            bench.plan.clock_ns,
            bench.plan.words(),
        ),
        fields: vec![
            ("bytes", (words * size_of::<u32>()).into()),
            ("rows", rows.iter().map(Row::json).collect()),
            ("left_out", left_out.into()),
        ],
        tables: vec![(title, table)],
    })
}

impl Row {
    fn json(&self) -> Value {
        json!({
            "window": self.window,
            "call": self.call,
            "median_ns": self.median,
            "p99_ns": self.p99,
            "samples": self.samples,
        })
    }

    /// The row of a call that takes long.
    fn of_singles(window: String, call: &'static str, mut all: Vec<f64>) -> Self {
        Self {
            window,
            call,
            median: quantile(&mut all, 0.5),
            p99: quantile(&mut all, 0.99),
            samples: all.len(),
        }
    }
}

fn of_kind(bench: &Bench, kind: CpuMappingKind, words: usize, rows: &mut Vec<Row>) -> Result<()> {
    let mut buffer = bench.memory::<u32>(kind, words)?;
    buffer.zero()?;
    let plan = &bench.plan;
    let [opened, closed] = plan.repeat(|| {
        let (window, opened) = plan.timed(|| Ok(bench.window(&mut buffer, words, kind)?))?;
        let ((), closed) = plan.timed(|| Ok(window.close()?))?;
        Ok([opened, closed])
    })?;
    rows.push(Row::of_singles(kind.to_string(), "open", opened));

    let mut calls = Calls {
        bench,
        kind,
        window: bench.window(&mut buffer, words, kind)?,
        rows,
    };
    calls.time("store 4 B", |window| window.store(1, 7))?;
    calls.time("load 4 B", |window| window.load(1).map(drop))?;
    calls.time("flush", |window| window.flush())?;
    calls.time("store 4 B, flush", |window| {
        window.store(1, 7)?;
        window.flush()
    })?;
    calls.time("write 8 B", |window| window.write(2, &[7; 2]))?;
    calls.time("write 64 B", |window| window.write(16, &[7; 16]))?;
    calls.time("write 4 KiB", |window| window.write(0, &[7; 1024]))?;
    calls.time("read 8 B", |window| window.read(2, &mut [0; 2]))?;
    calls.time("read 64 B", |window| window.read(16, &mut [0; 16]))?;
    calls.time("read 4 KiB", |window| window.read(0, &mut [0; 1024]))?;
    if kind == CpuMappingKind::Gdrcopy {
        calls.time("gdr_info", |window| window.gdr_info().map(drop))?;
        calls.time("is_revoked", |window| window.is_revoked().map(drop))?;
    }
    rows.push(Row::of_singles(kind.to_string(), "close", closed));
    Ok(())
}

/// An open mapping, and its results.
struct Calls<'a, 'w> {
    bench: &'a Bench,
    kind: CpuMappingKind,
    window: CpuMapping<'w, u32>,
    rows: &'a mut Vec<Row>,
}

impl<'w> Calls<'_, 'w> {
    fn time(
        &mut self,
        call: &'static str,
        work: impl Fn(&mut CpuMapping<'w, u32>) -> cuda_mem::Result<()>,
    ) -> Result<()> {
        let mut once = || Ok(work(&mut self.window)?);
        let median = self.bench.plan.batches(&mut once)?;
        let mut all = self.bench.plan.singles(&mut once, || ())?;
        self.rows.push(Row {
            window: self.kind.to_string(),
            call,
            median,
            p99: quantile(&mut all, 0.99),
            samples: all.len(),
        });
        Ok(())
    }
}

/// Descriptors of device memory for network cards.
#[cfg(target_os = "linux")]
fn of_dma_bufs(bench: &Bench, words: usize, rows: &mut Vec<Row>) -> Result<()> {
    let buffer = bench.memory::<u32>(CpuMappingKind::Copies, words)?;
    let plan = &bench.plan;
    let [exported, dropped] = plan.repeat(|| {
        let (shown, exported) = plan.timed(|| Ok(buffer.export_dma_buf()?))?;
        let ((), dropped) = plan.timed(|| {
            drop(shown);
            Ok(())
        })?;
        Ok([exported, dropped])
    })?;
    let device = || "(device)".to_owned();
    rows.push(Row::of_singles(device(), "export_dma_buf", exported));
    rows.push(Row::of_singles(device(), "drop of the dma-buf", dropped));
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn of_dma_bufs(_: &Bench, _: usize, _: &mut Vec<Row>) -> Result<()> {
    anyhow::bail!("dma-bufs are Linux's")
}

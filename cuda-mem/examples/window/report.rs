//! What is shown: tables for people, one JSON object for programs.

use std::io::{self, Write as _};

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

use crate::Args;
use crate::bench::Bench;

/// What a tool found.
pub(crate) struct Outcome {
    /// How it was measured.
    pub(crate) method: String,
    /// For programs.
    pub(crate) fields: Vec<(&'static str, Value)>,
    /// For people, each with its title.
    pub(crate) tables: Vec<(String, Table)>,
}

pub(crate) fn show(args: &Args, bench: &Bench, outcome: Outcome) -> Result<()> {
    let machine = machine(bench)?;
    let text = if args.json {
        let mut object = Map::new();
        object.insert("tool".to_owned(), args.tool.name().into());
        object.extend(machine);
        object.insert("method".to_owned(), outcome.method.into());
        let fields = outcome.fields.into_iter();
        object.extend(fields.map(|(key, value)| (key.to_owned(), value)));
        format!("{}\n", Value::Object(object))
    } else {
        pages(args, bench, &machine, &outcome)
    };
    // Not `println!`, which panics when nobody reads.
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// Where it was measured, and what kinds of windows there are.
fn machine(bench: &Bench) -> Result<Map<String, Value>> {
    let kinds: Vec<Value> = bench
        .kinds
        .iter()
        .map(|kind| {
            json!({
                "kind": kind.kind.to_string(),
                "available": kind.missing.is_none(),
                "mapping": kind.mapping.map(|mapping| mapping.to_string()),
                "reason": kind.missing,
            })
        })
        .collect();
    let machine = json!({
        "backend": if bench.backend.simulated { "simulated" } else { "gpu" },
        "device": bench.device.name()?,
        "driver": bench.backend.driver.version().to_string(),
        "cpu": line_of("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
        "cores": std::thread::available_parallelism()?.get(),
        "host": system(),
        "clock_ns": bench.plan.clock_ns,
        "usual_window": bench.usual,
        "usual_window_on_device": bench.usual_on_device,
        "windows": kinds,
    });
    match machine {
        Value::Object(machine) => Ok(machine),
        _ => Ok(Map::new()),
    }
}

fn pages(args: &Args, bench: &Bench, machine: &Map<String, Value>, outcome: &Outcome) -> String {
    let text = |key: &str| {
        machine
            .get(key)
            .and_then(Value::as_str)
            .unwrap_or("unknown")
    };
    let mut all = format!(
        "{}: {}, CUDA {}, {}\nhost: {}, {} cores, {}\n",
        args.tool.name(),
        text("device"),
        text("driver"),
        text("backend"),
        text("cpu"),
        machine.get("cores").unwrap_or(&Value::Null),
        text("host"),
    );
    if bench.backend.simulated {
        all += "SIMULATED DRIVER: no figure here says anything about a GPU\n";
    }
    all += &format!("method: {}\n", outcome.method);
    all += &format!("without wishes a window is: {}\n", bench.usual);
    for kind in &bench.kinds {
        let mapping = kind.mapping.map(|mapping| format!(", {mapping}"));
        let here = format!("here{}", mapping.unwrap_or_default());
        let missing = kind.missing.as_ref().map(|why| format!("not here: {why}"));
        all += &format!("  {}: {}\n", kind.kind, missing.unwrap_or(here));
    }
    for (title, table) in &outcome.tables {
        all += &format!("\n{title}\n{table}\n");
    }
    all
}

/// The value of the first line of a system's file that begins so.
fn line_of(file: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| name.trim_end() == key)?;
    Some(value.trim().to_owned())
}

/// The system and its version, without a name of the machine.
fn system() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (system, kind) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("{system} {} {kind}", release.trim())
}

/// A table of text.
pub(crate) fn table(header: impl IntoIterator<Item = String>) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::UTF8_FULL_CONDENSED)
        .set_header(header);
    table
}

/// The same with figures in all other columns.
pub(crate) fn figures(header: impl IntoIterator<Item = String>) -> Table {
    let mut table = table(header);
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

pub(crate) fn size(bytes: usize) -> String {
    const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 {
        return format!("{value} {}", UNITS[unit]);
    }
    format!("{value:.1} {}", UNITS[unit])
}

pub(crate) fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        ns if ns < 10.0 => format!("{ns:.2} ns"),
        ns if ns < 1000.0 => format!("{ns:.0} ns"),
        ns if ns < 10_000.0 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 1e6 => format!("{:.1} µs", ns / 1e3),
        ns => format!("{:.2} ms", ns / 1e6),
    }
}

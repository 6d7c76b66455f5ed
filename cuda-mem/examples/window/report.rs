//! Output: tables for people, one JSON object for programs.

use anyhow::Result;
use comfy_table::Table;
use cuda_mem_console::{print, wrapped};
use serde_json::{Map, Value, json};

use crate::Args;
use crate::bench::Bench;

/// The results of a tool.
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
    Ok(print(&text)?)
}

/// The machine, and its kinds of CPU mapping.
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
        "backend": bench.backend.name(),
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
    let mut paragraph = |mark: &str, text: &str| {
        all += &wrapped(mark, text);
        all.push('\n');
    };
    paragraph("method: ", &outcome.method);
    paragraph("default window: ", &bench.usual);
    for kind in &bench.kinds {
        let here = match (&kind.missing, kind.mapping) {
            (Some(why), _) => format!("not here: {why}"),
            (None, Some(mapping)) => format!("here, {mapping}"),
            (None, None) => "here".to_owned(),
        };
        paragraph(&format!("  {}: ", kind.kind), &here);
    }
    for (title, table) in &outcome.tables {
        all += &format!("\n{title}\n{table}\n");
    }
    all
}

/// The value of the first line in a system file that starts with `key`.
fn line_of(file: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| name.trim_end() == key)?;
    Some(value.trim().to_owned())
}

/// The system and its version, without the machine's name.
fn system() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let (system, kind) = (std::env::consts::OS, std::env::consts::ARCH);
    format!("{system} {} {kind}", release.trim())
}

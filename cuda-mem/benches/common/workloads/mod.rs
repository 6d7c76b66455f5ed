//! The workloads of `benches/rivals/README.md`, over any allocator.

mod busy;
mod mixed;
mod pairs;
mod replay;

use std::io::Write;

use anyhow::{Context as _, Result, bail};
use cuda_mem_trace::Trace;
use serde_json::{Value, json};

use crate::mix::Allocator;

/// An allocator, with what the workloads need besides.
pub(crate) trait Rival: Allocator<Stream: Send + Sync> + Sync {
    fn stream(&self) -> Result<Self::Stream>;

    /// Submits a fill of the whole block with zeros.
    fn fill(&self, stream: &Self::Stream, block: &mut Self::Block) -> Result<()>;

    fn synchronize(&self, stream: &Self::Stream) -> Result<()>;

    /// The peak of bytes held since the allocator was created.
    fn reserved_peak(&self) -> Result<u64>;
}

/// The amount of work.
#[derive(Clone, Copy)]
pub(crate) struct Effort {
    pair_rounds: usize,
    pairs: usize,
    mixed_pairs: usize,
    mixed_runs: usize,
    /// For each thread.
    busy_operations: [usize; 2],
}

impl Effort {
    pub(crate) const FULL: Self = Self {
        pair_rounds: 101,
        pairs: 1000,
        mixed_pairs: 160_000,
        mixed_runs: 3,
        busy_operations: [2000, 20_000],
    };

    /// Checks that everything runs.
    pub(crate) const QUICK: Self = Self {
        pair_rounds: 3,
        pairs: 50,
        mixed_pairs: 3200,
        mixed_runs: 1,
        busy_operations: [64, 200],
    };
}

pub(crate) const WORKLOADS: [&str; 4] = ["pairs", "mixed", "busy", "gpt2"];

/// One line of output. Figures that a workload does not measure are `None`.
#[derive(Default)]
pub(crate) struct Row {
    workload: &'static str,
    threads: usize,
    /// Size of a block, if all have the same.
    bytes: Option<usize>,
    /// Over all threads.
    operations: usize,
    /// The number of operations if nothing stops them.
    planned: usize,
    /// Time of one operation on its thread.
    ns: Option<f64>,
    /// The part of `ns` spent in the allocator.
    call_ns: Option<f64>,
    /// In the first pass, on a new allocator.
    first_ns: Option<f64>,
    million_pairs_per_second: Option<f64>,
    asked: Option<u64>,
    reserved: Option<u64>,
    /// Why the workload ended early.
    stopped: Option<String>,
}

impl Row {
    fn json(&self, subject: &str) -> Value {
        let ratio = match (self.reserved, self.asked) {
            (Some(reserved), Some(asked)) if asked > 0 => Some(reserved as f64 / asked as f64),
            _ => None,
        };
        json!({
            "subject": subject,
            "workload": self.workload,
            "threads": self.threads,
            "bytes": self.bytes,
            "operations": self.operations,
            "planned": self.planned,
            "ns": self.ns,
            "call_ns": self.call_ns,
            "first_ns": self.first_ns,
            "million_pairs_per_second": self.million_pairs_per_second,
            "asked": self.asked,
            "reserved": self.reserved,
            "ratio": ratio,
            "stopped": self.stopped,
        })
    }
}

/// Runs the selected workloads of a subject, each on a new allocator, and prints every row as one line of JSON as soon
/// as it is known. A failed workload prints its error, and the rest still runs.
pub(crate) fn run_all<R: Rival>(
    subject: &str,
    options: &Options,
    trace: &Trace,
    new: &dyn Fn() -> Result<R>,
) -> Result<()> {
    let effort = options.effort;
    for workload in WORKLOADS {
        let only = options.workload.as_deref();
        if only.is_some_and(|only| only != workload) {
            continue;
        }
        let mut show = |row: Row| print(&row.json(subject));
        let outcome = match workload {
            "pairs" => pairs::run(new, effort, &mut show),
            "mixed" => mixed::run(new, effort, &mut show),
            "busy" => busy::run(new, effort, &mut show),
            _ => replay::run(new, trace, &mut show),
        };
        if let Err(error) = outcome {
            let error = format!("{error:#}");
            print(&json!({ "subject": subject, "workload": workload, "error": error }))?;
        }
    }
    Ok(())
}

fn print(value: &Value) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{value}")?;
    Ok(out.flush()?)
}

/// The options of a comparison program.
pub(crate) struct Options {
    /// One subject, or all.
    pub(crate) subjects: Vec<String>,
    pub(crate) workload: Option<String>,
    pub(crate) effort: Effort,
}

impl Options {
    /// Reads `[--subject NAME] [--workload NAME] [--quick]`.
    pub(crate) fn read(
        mut arguments: impl Iterator<Item = String>,
        known: &[&str],
    ) -> Result<Self> {
        let mut subjects = known.iter().map(|name| (*name).to_owned()).collect();
        let (mut workload, mut effort) = (None, Effort::FULL);
        let one_of = |name: Option<String>, names: &[&str]| {
            name.filter(|name| names.contains(&name.as_str()))
                .with_context(|| format!("one of {} is missing", names.join(", ")))
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--subject" => subjects = vec![one_of(arguments.next(), known)?],
                "--workload" => workload = Some(one_of(arguments.next(), &WORKLOADS)?),
                "--quick" => effort = Effort::QUICK,
                // Passed by `cargo bench`, and the option that selected this mode.
                "--bench" | "--rivals" => {}
                other => bail!("there is no option {other}"),
            }
        }
        Ok(Self {
            subjects,
            workload,
            effort,
        })
    }
}

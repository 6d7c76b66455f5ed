//! Writes a page about an allocation log: one HTML file that needs no network.
//!
//! ```sh
//! cargo run --release --example report -- run.csv.gz -o report.html
//! cargo run --release --example report -- --diff before.csv.gz after.csv.gz -o diff.html
//! ```
//!
//! It needs neither a GPU nor a driver.

mod columns;
mod layout;
mod page;
mod run;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use cuda_mem_console::{EXIT_CODES, Misuse, OutputFile, bytes, count, say, wrapped};
use cuda_mem_trace::Events;

use columns::Columns;
use run::Run;

/// Writes a page about an allocation log: memory over time, blocks, addresses, fragmentation
#[derive(Debug, Parser)]
#[command(name = "report", after_help = EXIT_CODES)]
struct Args {
    /// Allocation log in RMM's CSV format or the extended one, plain or packed with gzip or zstd [default: a
    /// recorded training run]
    #[arg(value_name = "LOG", default_value_os_t = cuda_mem_trace::recorded(), hide_default_value = true, conflicts_with = "diff")]
    log: PathBuf,
    /// Show two logs side by side
    #[arg(long, num_args = 2, value_names = ["LOG", "LOG"])]
    diff: Vec<PathBuf>,
    /// Where to write the page
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

fn main() -> ExitCode {
    cuda_mem_console::main(run)
}

fn run(args: &Args) -> Result<()> {
    let logs = match args.diff.as_slice() {
        [] => std::slice::from_ref(&args.log),
        two => two,
    };
    let mut columns = Columns::default();
    let mut runs = Vec::new();
    for log in logs {
        runs.push(read(log, &mut columns)?);
    }
    // After the logs, which may be wrong, and before the packing, which takes longest.
    let file = OutputFile::open(&args.output)?;
    let page = page::page(&runs, &columns)?;
    file.write(page.as_bytes())?;
    for run in &runs {
        tell(run)?;
    }
    let size = bytes(u64::try_from(page.len())?);
    say!("page: {}, {size}", args.output.display())
}

fn read(log: &Path, columns: &mut Columns) -> Result<Run> {
    let events = Events::read(log).map_err(|error| Misuse(error.to_string()))?;
    let name = log.file_name().unwrap_or(log.as_os_str());
    let run = Run::new(&name.to_string_lossy(), events, columns);
    Ok(run.map_err(|problem| Misuse(format!("{}: {problem}", log.display())))?)
}

/// The same numbers as at the top of the page.
fn tell(run: &Run) -> Result<()> {
    let timeline = &run.timeline;
    let seconds = run.duration as f64 / 1e9;
    let events = count(u64::try_from(run.events)?);
    let reserved = match timeline.reserved {
        Some(peak) => format!("{} reserved", bytes(peak.bytes)),
        None => "reserved is not in the log".to_owned(),
    };
    let text = format!(
        "{}: {events} events in {seconds:.3} s, at most {} asked, {} used, {reserved}",
        run.name,
        bytes(timeline.asked.bytes),
        bytes(timeline.used.bytes),
    );
    say!("{}", wrapped("log: ", &text))?;
    for problem in run.problems() {
        say!("{}", wrapped("incomplete: ", &problem))?;
    }
    Ok(())
}

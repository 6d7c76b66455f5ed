//! Runs every program of a bundle and writes down what came of it.
//!
//! `cargo xtask bundle` puts this program beside the tests; `run.sh` calls it on the machine with
//! the GPUs. It fails when a test failed, a program did not end in time, or a program ended
//! without saying what came of it.

mod host;
mod libtest;
mod plan;
mod process;
mod record;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use clap::Parser;

use plan::{Expect, Job};
use process::Outcome;
use record::{ProgramRun, Report, TestRun, Totals};

/// Run the programs of a bundle and write a report.
#[derive(Debug, Parser)]
#[command(name = "report")]
struct Args {
    /// The folder with the programs.
    #[arg(long, value_name = "DIR")]
    bin_dir: PathBuf,
    /// The folder with their data.
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// The report to write; the logs go beside it.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// How long one program may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    time_limit: u64,
    /// Run only the programs whose name contains this; may be given again.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Whether everything went well.
fn run(args: &Args) -> Result<bool> {
    // A child started from another folder would not find a relative path.
    let bin = absolute(&args.bin_dir)?;
    let data = absolute(&args.data_dir)?;
    let logs = args.out.parent().unwrap_or(Path::new("."));
    let logs = if logs.as_os_str().is_empty() {
        Path::new(".")
    } else {
        logs
    };
    fs::create_dir_all(logs).with_context(|| format!("could not make {}", logs.display()))?;

    let names = programs(&bin)?;
    let plan = plan::plan(&names, &data, &args.only);
    if plan.jobs.is_empty() {
        bail!("nothing in {} fits --only", bin.display());
    }
    let date = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let mut report = Report {
        format: record::FORMAT,
        date,
        command: std::env::args().map(|arg| record::shorten(&arg)).collect(),
        host: host::host(),
        gpus: host::gpus(logs),
        tests: Vec::new(),
        programs: Vec::new(),
        not_run: plan.not_run,
        totals: Totals::default(),
    };
    let limit = Duration::from_secs(args.time_limit);
    for job in &plan.jobs {
        let outcome = process::run(&bin.join(&job.program), job, &logs.join(&job.log), limit);
        record_outcome(&mut report, job, &outcome);
    }
    report.totals = Totals::of(&report.tests, &report.programs);
    let mut text = serde_json::to_string_pretty(&report)?;
    text.push('\n');
    fs::write(&args.out, text)
        .with_context(|| format!("could not write {}", args.out.display()))?;
    println!("{}", report.totals);
    println!("report: {}", args.out.display());
    Ok(report.totals.good())
}

fn record_outcome(report: &mut Report, job: &Job, outcome: &Outcome) {
    if job.expect == Expect::TestResult {
        let run = TestRun::new(job, outcome);
        println!("{run}");
        report.tests.push(run);
    } else {
        let run = ProgramRun::new(job, outcome);
        println!("{run}");
        report.programs.push(run);
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("{} is no path", path.display()))
}

/// The names of the files in `folder`, sorted.
fn programs(folder: &Path) -> Result<Vec<String>> {
    let unreadable = || format!("could not read {}", folder.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(unreadable)? {
        names.extend(entry.with_context(unreadable)?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
cuda_mem_watchdog::watch_program!();

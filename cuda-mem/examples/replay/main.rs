//! An allocation log, served by any resource: how long it takes, and how much memory.
//!
//! `cargo run --release -p cuda-mem --example replay -- [TRACE] [--resource pool] [--adaptor limit=16G]`, or
//! with `--compare` over all resources. On the GPU if there is one, else on the simulated driver.

mod adaptors;
#[path = "../quickstart/backend.rs"]
mod backend;
mod chart;
mod counting;
mod measure;
mod pass;
mod plan;
mod resources;
mod show;

use std::fmt;
use std::io::{ErrorKind as IoErrorKind, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use cuda_mem::{Device, Driver, ErrorKind};
use cuda_mem_chart::reserved::Curves;
use cuda_mem_trace::Trace;
use indicatif::{ProgressBar, ProgressStyle};

use adaptors::Adaptor;
use counting::Counted;
use measure::Bench;
use plan::Plan;
use resources::{KINDS, Kind};
use show::Show;

#[derive(Debug, Parser)]
#[command(about = "Replays an allocation log over a memory resource, and says what it costs")]
struct Args {
    /// Allocation log in RMM's CSV format, also packed with gzip or zstd. Without one, a recorded training
    /// run.
    trace: Option<PathBuf>,
    /// Where the memory comes from. May be given several times.
    #[arg(long, default_value = "pool", value_parser = PossibleValuesParser::new(KINDS.iter().map(|kind| kind.name)))]
    resource: Vec<String>,
    /// What is put over it: aligned=BYTES, limit=BYTES, logging[=FILE], prefetch, recovery, statistics,
    /// tracking. May be given several times, the innermost first.
    #[arg(long)]
    adaptor: Vec<Adaptor>,
    /// All resources in turn.
    #[arg(long, conflicts_with = "resource")]
    compare: bool,
    /// How often the log is replayed on one resource; pass 0 finds it cold.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    passes: u32,
    /// Only so many operations from the start of the log.
    #[arg(long, value_name = "OPERATIONS", value_parser = clap::value_parser!(u64).range(1..))]
    first: Option<u64>,
    /// Ordinal of the device, among those that CUDA_VISIBLE_DEVICES leaves.
    #[arg(long, default_value_t = 0)]
    device: usize,
    /// Print a JSON object for each resource and pass instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    chart: chart::Output,
}

/// What the caller got wrong, as opposed to what went wrong. Ends the program with code 2.
#[derive(Debug)]
struct Misuse(String);

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough.
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(if error.is::<Misuse>() { 2 } else { 1 })
        }
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<std::io::Error>();
    error.is_some_and(|error| error.kind() == IoErrorKind::BrokenPipe)
}

fn run(args: &Args) -> Result<()> {
    // Read first and as a whole: a bad log costs nothing, and nothing is half done.
    let path = args.trace.clone().unwrap_or_else(recorded);
    let trace = Trace::read(&path).map_err(|error| Misuse(error.to_string()))?;
    let most = args.first.map_or(Ok(usize::MAX), usize::try_from)?;
    let plan = Plan::new(&trace, most)?;

    let backend = backend::open()?;
    let device = device(backend.driver, args.device)?;
    let simulator = backend.driver.library_path().filter(|_| backend.simulated);
    let counted = Counted::new(backend.driver, simulator)?;
    let bench = Bench {
        plan: &plan,
        device,
        counted: &counted,
        adaptors: &args.adaptor,
        passes: usize::try_from(args.passes)?,
        clock: measure::clock_cost(),
    };
    let mut show = Show::new(args.json, &backend, &args.adaptor, &plan);
    show.head(device, &path.display().to_string(), bench.clock)?;
    let mut curves = chart::curves(&plan, &path, &backend, device)?;
    let outcome = replay(args, &bench, &mut show, &mut curves);
    let drawn = args.chart.write(&curves);
    show.finish()?;
    outcome.and(drawn)
}

fn replay(args: &Args, bench: &Bench<'_>, show: &mut Show<'_>, curves: &mut Curves) -> Result<()> {
    let kinds: Vec<&Kind> = if args.compare {
        KINDS.iter().collect()
    } else {
        let names = args.resource.iter();
        names.filter_map(|name| Kind::named(name)).collect()
    };
    let (mut ran, mut failed) = (0, 0);
    for kind in &kinds {
        let bar = progress(kind.name, bench, args.chart.is_wanted())?;
        let measured = bench.measure(kind, &bar).and_then(|figures| {
            let wanted = args.chart.is_wanted();
            let reserved = wanted.then(|| bench.reserved(kind, &bar)).transpose()?;
            Ok((figures, reserved))
        });
        bar.finish_and_clear();
        match measured {
            Ok((figures, reserved)) => {
                ran += 1;
                show.figures(kind.name, &figures)?;
                let curve = reserved.map(|bytes| chart::curve(kind.name, &args.adaptor, bytes));
                curves.resources.extend(curve);
            }
            // The others still have something to say.
            Err(error) if kinds.len() > 1 => {
                failed += usize::from(!is_of_the_device(&error));
                show.not_run(kind.name, format!("{error:#}"));
            }
            Err(error) => return Err(error.context(kind.name)),
        }
    }
    if ran == 0 || failed > 0 {
        bail!("{ran} resources were replayed over, and {failed} failed");
    }
    Ok(())
}

/// The device or its driver does not have it, or not enough of it: an answer, and no failure.
fn is_of_the_device(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref().map(cuda_mem::Error::kind);
    matches!(
        kind,
        Some(ErrorKind::NotSupported | ErrorKind::SymbolMissing | ErrorKind::OutOfMemory)
    )
}

/// The log that ships with the repository: where the bundle for other machines has it, or in the source.
fn recorded() -> PathBuf {
    const NAME: &str = "gpt2-train-varlen.csv.gz";
    let bundled = std::env::current_exe().ok().and_then(|program| {
        let data = program.parent()?.parent()?.join("data");
        Some(data.join(NAME)).filter(|path| path.is_file())
    });
    bundled.unwrap_or_else(|| {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data");
        data.join(NAME)
    })
}

fn device(driver: Driver, ordinal: usize) -> Result<Device> {
    driver.device(ordinal).map_err(|error| match error.kind() {
        ErrorKind::InvalidDevice => Misuse(format!("--device {ordinal}: {error}")).into(),
        _ => error.into(),
    })
}

fn progress(name: &'static str, bench: &Bench<'_>, curve: bool) -> Result<ProgressBar> {
    if !std::io::stderr().is_terminal() {
        return Ok(ProgressBar::hidden());
    }
    let passes = bench.passes * measure::SEQUENCES + usize::from(curve);
    let style = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len} operations, {elapsed}")?;
    let length = u64::try_from(passes * bench.plan.steps.len())?;
    Ok(ProgressBar::new(length)
        .with_style(style)
        .with_message(name))
}

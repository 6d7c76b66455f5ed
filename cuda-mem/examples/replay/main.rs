//! Replays an allocation log on any resource, and measures its time and memory.
//!
//! Runs on the GPU if there is one, otherwise on the simulated driver.
//!
//! ```sh
//! cargo run --release --example replay                              # a recorded training run, over a pool
//! cargo run --release --example replay -- my.csv --resource arena
//! cargo run --release --example replay -- --compare --svg run.svg   # over all resources, with a picture
//! ```

mod adaptors;
mod chart;
mod counting;
mod measure;
mod pass;
mod plan;
mod resources;
mod show;

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use clap::builder::PossibleValuesParser;
use cuda_mem::ErrorKind;
use cuda_mem_chart::reserved::Curves;
use cuda_mem_console::{DeviceOption, EXIT_CODES, Misuse};
use cuda_mem_trace::Trace;
use indicatif::{ProgressBar, ProgressStyle};

use adaptors::Adaptor;
use counting::Counted;
use measure::Bench;
use plan::Plan;
use resources::{KINDS, Kind};
use show::Show;

/// Replays an allocation log over a memory resource, and says what it costs
#[derive(Debug, Parser)]
#[command(name = "replay", after_help = EXIT_CODES)]
struct Args {
    /// Allocation log in RMM's CSV format, plain or packed with gzip or zstd [default: a recorded training
    /// run]
    #[arg(value_name = "LOG", default_value_os_t = cuda_mem_trace::recorded(), hide_default_value = true)]
    trace: PathBuf,
    #[command(flatten)]
    device: DeviceOption,
    /// Where the memory comes from; may be given several times
    #[arg(long, value_name = "NAME", default_value = "pool", value_parser = PossibleValuesParser::new(KINDS.iter().map(|kind| kind.name)))]
    resource: Vec<String>,
    /// An adaptor over the resource: aligned=SIZE, limit=SIZE, logging[=FILE], prefetch, recovery, statistics
    /// or tracking; may be given several times, the innermost first
    #[arg(long, value_name = "NAME[=VALUE]")]
    adaptor: Vec<Adaptor>,
    /// Replay over all resources in turn
    #[arg(long, conflicts_with = "resource")]
    compare: bool,
    /// How often the log is replayed on one resource; pass 0 starts with an empty one
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    passes: u32,
    /// Replay only the first N operations of the log
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    first: Option<u64>,
    /// Print a JSON object for each resource and pass instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    chart: chart::Output,
}

fn main() -> ExitCode {
    cuda_mem_console::main(run)
}

fn run(args: &Args) -> Result<()> {
    // Read first and completely, so that a bad log fails before any work.
    let trace = Trace::read(&args.trace).map_err(|error| Misuse(error.to_string()))?;
    let most = args.first.map_or(Ok(usize::MAX), usize::try_from)?;
    let plan = Plan::new(&trace, most)?;
    // Also before the work, so that an unwritable picture fails early.
    let files = args.chart.open()?;

    let backend = cuda_mem_console::open()?;
    let device = args.device.of(&backend)?;
    let counted = Counted::new(backend.driver, backend.simulator())?;
    let bench = Bench {
        plan: &plan,
        device,
        counted: &counted,
        adaptors: &args.adaptor,
        passes: usize::try_from(args.passes)?,
        clock: measure::clock_cost(),
    };
    let mut show = Show::new(args.json, &backend, &args.adaptor, &plan);
    show.head(device, &args.trace, bench.clock)?;
    let mut curves = chart::curves(&plan, &args.trace, &backend, device)?;
    let outcome = replay(args, &bench, &mut show, &mut curves);
    let drawn = files.write(&curves);
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
            // The other resources can still be measured.
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

/// Whether the device or its driver lacks support or memory: a result, not a failure.
fn is_of_the_device(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref().map(cuda_mem::Error::kind);
    matches!(
        kind,
        Some(ErrorKind::NotSupported | ErrorKind::SymbolMissing | ErrorKind::OutOfMemory)
    )
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

//! An allocation log, served by any resource: how long it takes, and how much memory.
//!
//! On the GPU if there is one, else on the simulated driver.
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
use cuda_mem_console::{DeviceOption, EXIT_CODES, Misuse, OutputFile};
use cuda_mem_trace::Trace;
use indicatif::{ProgressBar, ProgressStyle};

use adaptors::Adaptor;
use chart::Panel;
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
    /// Draw the bytes asked for and reserved over time, in a pass of its own on a new resource
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn main() -> ExitCode {
    cuda_mem_console::main(run)
}

fn run(args: &Args) -> Result<()> {
    // Read first and as a whole: a bad log costs nothing, and nothing is half done.
    let trace = Trace::read(&args.trace).map_err(|error| Misuse(error.to_string()))?;
    let most = args.first.map_or(Ok(usize::MAX), usize::try_from)?;
    let plan = Plan::new(&trace, most)?;
    // Before the work, too: a picture that cannot be written is no reason to wait for it.
    let picture = args.svg.as_deref().map(OutputFile::open).transpose()?;

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
    let outcome = replay(args, &bench, picture, &mut show);
    show.finish()?;
    outcome
}

fn replay(
    args: &Args,
    bench: &Bench<'_>,
    picture: Option<OutputFile>,
    show: &mut Show<'_>,
) -> Result<()> {
    let kinds: Vec<&Kind> = if args.compare {
        KINDS.iter().collect()
    } else {
        let names = args.resource.iter();
        names.filter_map(|name| Kind::named(name)).collect()
    };
    let mut panels = Vec::new();
    let (mut ran, mut failed) = (0, 0);
    for kind in &kinds {
        let bar = progress(kind.name, bench, args.svg.is_some())?;
        let measured = bench.measure(kind, &bar).and_then(|figures| {
            let curve = args.svg.as_ref().map(|_| bench.curve(kind, &bar));
            Ok((figures, curve.transpose()?))
        });
        bar.finish_and_clear();
        match measured {
            Ok((figures, curve)) => {
                ran += 1;
                show.figures(kind.name, &figures)?;
                let known = figures.iter().all(|figures| figures.peaks_known);
                panels.extend(curve.map(|curve| Panel {
                    title: title(kind.name, known, &args.adaptor),
                    curve,
                }));
            }
            // The others still have something to say.
            Err(error) if kinds.len() > 1 => {
                failed += usize::from(!is_of_the_device(&error));
                show.not_run(kind.name, format!("{error:#}"));
            }
            Err(error) => return Err(error.context(kind.name)),
        }
    }
    if let Some(file) = picture.filter(|_| ran > 0) {
        file.write(chart::draw(&bench.plan.asked, &panels)?.as_bytes())?;
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

fn title(name: &str, known: bool, adaptors: &[Adaptor]) -> String {
    let mut title = name.to_owned();
    for adaptor in adaptors {
        title += &format!(" + {adaptor}");
    }
    if !known {
        title += " (used and reserved computed from the operations)";
    }
    title + ", pass 0"
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

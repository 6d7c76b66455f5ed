//! All-reduce over GPUs: contents checked, latency and bandwidth by size, from memory of several kinds.
//!
//! ```sh
//! cargo run --release --example allreduce                       # a thread for each GPU of this machine
//! cargo run --release --example allreduce -- --processes        # a process for each
//! cargo run --release --example allreduce -- --ranks 2 --rank 0 --at 10.0.0.1:5000   # on one machine …
//! cargo run --release --example allreduce -- --ranks 2 --rank 1 --at 10.0.0.1:5000   # … and on another
//! CUDA_SIM_DEVICES=2 cargo run --example allreduce              # without GPUs, over a simulated NCCL
//! ```

#[path = "../common/mod.rs"]
mod common;
mod measure;
mod memory;
mod show;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use clap::Parser;
use cuda_mem_console::{EXIT_CODES, OutputFile, say, size};

use common::{Heading, RankOptions, open_nccl};
use measure::Plan;
use memory::Kind;

/// Sums memory over all GPUs, checks the result, and measures how long that takes
#[derive(Clone, Debug, Parser)]
#[command(name = "allreduce", after_help = EXIT_CODES)]
struct Args {
    #[command(flatten)]
    ranks: RankOptions,
    /// The smallest size of a rank's memory
    #[arg(long, value_name = "SIZE", default_value = "8", value_parser = size)]
    from: u64,
    /// The largest size
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size)]
    to: u64,
    /// Each size is this many times the one before
    #[arg(long, value_name = "TIMES", default_value_t = 8)]
    factor: u64,
    /// Kinds of memory, all if not given
    #[arg(long, value_enum)]
    memory: Vec<Kind>,
    /// Rounds of each measurement, of which the median counts
    #[arg(long, value_name = "N", default_value_t = 15)]
    rounds: usize,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Draw the bandwidth by size
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

fn main() -> ExitCode {
    cuda_mem_console::main(run)
}

fn run(args: &Args) -> Result<()> {
    let backend = cuda_mem_console::open()?;
    let nccl = open_nccl(&backend)?;
    // Other ranks print and draw nothing.
    let svg = args.svg.as_deref().filter(|_| args.ranks.has_first());
    let svg = svg.map(OutputFile::open).transpose()?;
    let plan = Plan {
        sizes: sizes(args)?,
        kinds: Kind::wanted(&args.memory),
        rounds: args.rounds.max(1),
    };
    let work = |communicator: &_| measure::rank(communicator, &plan);
    let Some(rows) = args.ranks.run(nccl, backend.driver, work)? else {
        return Ok(());
    };
    let method = show::method(&plan, args.ranks.is_blocking());
    let heading = Heading::new(&backend, nccl, args.ranks.count(backend.driver)?, method)?;
    if args.json {
        say!("{}", show::json(&heading, &rows))?;
    } else {
        say!("{}", show::table(&heading, &rows))?;
    }
    if let Some(svg) = svg {
        svg.write(show::chart(&rows).svg()?.as_bytes())?;
    }
    Ok(())
}

fn sizes(args: &Args) -> Result<Vec<u64>> {
    ensure!(args.factor > 1, "--factor is at least 2");
    ensure!(args.from >= 4, "--from is at least 4 bytes, one element");
    let next = |bytes: &u64| bytes.checked_mul(args.factor);
    let sizes = std::iter::successors(Some(args.from), next);
    Ok(sizes.take_while(|bytes| *bytes <= args.to).collect())
}

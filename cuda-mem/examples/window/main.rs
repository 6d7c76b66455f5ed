//! How fast the host accesses a GPU's memory through each kind of CPU mapping, compared with driver copies. Modelled on
//! gdrcopy's four tools.
//!
//! ```sh
//! cargo run --release --example window -- latency       # by size, and where copies become faster
//! cargo run --release --example window -- bandwidth     # by size
//! cargo run --release --example window -- calls         # what each call costs
//! cargo run --release --example window -- ping-pong     # a word to a running kernel and back
//! ```
//!
//! Without a GPU it runs on the simulated driver, whose figures say nothing about a GPU.

mod bandwidth;
mod bench;
mod calls;
mod cold;
mod figures;
mod latency;
mod ping_pong;
mod report;
mod timing;
mod transfer;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use cuda_mem::cpu_mapping::CpuMappingKind;
use cuda_mem_console::{self as console, DeviceOption, EXIT_CODES, size};

use bench::Bench;

/// Measures how fast the host reaches a GPU's memory, through windows and by copies
#[derive(Debug, Parser)]
#[command(name = "window", after_help = EXIT_CODES)]
struct Args {
    #[command(subcommand)]
    tool: Tool,
    #[command(flatten)]
    device: DeviceOption,
    /// Only windows of this kind: host-mapped, dma-buf, gdrcopy or copies; may be given several times
    #[arg(long = "kind", value_name = "KIND", global = true, value_parser = kind)]
    kinds: Vec<CpuMappingKind>,
    /// Repeat every measurement N times instead of for some time
    #[arg(long, value_name = "N", global = true, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: Option<u32>,
    /// Take a few short measurements only, to see that it works
    #[arg(long, global = true)]
    quick: bool,
    /// Print one JSON object instead of tables
    #[arg(long, global = true)]
    json: bool,
}

/// The measurements.
#[derive(Debug, Subcommand)]
enum Tool {
    /// Bytes a second by size, written and read
    Bandwidth(bandwidth::Args),
    /// Time of a write or read by size, with warm and cold caches, and where copies become faster
    Latency(latency::Args),
    /// Time of each call on a window
    Calls(calls::Args),
    /// Time of a word to a running kernel and its answer
    PingPong,
}

impl Tool {
    fn name(&self) -> &'static str {
        match self {
            Self::Bandwidth(_) => "bandwidth",
            Self::Latency(_) => "latency",
            Self::Calls(_) => "calls",
            Self::PingPong => "ping-pong",
        }
    }
}

fn kind(name: &str) -> Result<CpuMappingKind, String> {
    let found = CpuMappingKind::ALL.into_iter();
    let mut found = found.filter(|kind| kind.to_string() == name);
    found.next().ok_or_else(|| {
        format!(
            "the kinds are {}",
            CpuMappingKind::ALL.map(|kind| kind.to_string()).join(", ")
        )
    })
}

/// Parses a size for a measurement, within limits.
fn size_from(least: u64, text: &str) -> Result<u64, String> {
    match size(text)? {
        bytes if (least..=1 << 32).contains(&bytes) => Ok(bytes),
        _ => Err(format!(
            "the size must be {} to 4 GiB",
            console::bytes(least)
        )),
    }
}

fn main() -> ExitCode {
    console::main(run)
}

fn run(args: &Args) -> Result<()> {
    let bench = Bench::open(args)?;
    let outcome = match &args.tool {
        Tool::Bandwidth(own) => bandwidth::run(&bench, own),
        Tool::Latency(own) => latency::run(&bench, own),
        Tool::Calls(own) => calls::run(&bench, own),
        Tool::PingPong => ping_pong::run(&bench),
    }?;
    report::show(args, &bench, outcome)
}

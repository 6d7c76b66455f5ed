//! How fast this machine's host reaches a GPU's memory, after the four tools of gdrcopy: each kind of window that can be
//! had here, next to copies by the driver.
//!
//! ```sh
//! cargo run --release --example window -- latency       # by size, and up to which sizes a window is better than a copy
//! cargo run --release --example window -- bandwidth     # by size
//! cargo run --release --example window -- calls         # what each call costs
//! cargo run --release --example window -- ping-pong     # a word to a running kernel and back
//! ```
//!
//! Without a GPU it runs on the simulated driver, and says so: the figures mean nothing then.

#[path = "../quickstart/backend.rs"]
mod backend;
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
use cuda_mem::WindowKind;

use bench::Bench;

#[derive(Debug, Parser)]
#[command(
    name = "window",
    about = "How fast the host reaches a GPU's memory, through windows and by copies"
)]
struct Args {
    #[command(subcommand)]
    tool: Tool,
    /// Ordinal of the device, among those that CUDA_VISIBLE_DEVICES leaves.
    #[arg(long, global = true, default_value_t = 0)]
    device: usize,
    /// Only windows of this kind: host-mapped, dma-buf, gdrcopy or copies. Can be given more than once.
    #[arg(long = "kind", global = true, value_parser = kind)]
    kinds: Vec<WindowKind>,
    /// Repeat every measurement this often, instead of for some time.
    #[arg(long, global = true, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    count: Option<u32>,
    /// A few short measurements only, to see that it works.
    #[arg(long, global = true)]
    quick: bool,
    /// Print one JSON object instead of tables.
    #[arg(long, global = true)]
    json: bool,
}

/// What is measured.
#[derive(Debug, Subcommand)]
enum Tool {
    /// Bytes a second, written and read, by size.
    Bandwidth(bandwidth::Args),
    /// The time of one write or read by size, with the host's caches warm and cold, and the sizes from which on a copy
    /// by the driver is faster.
    Latency(latency::Args),
    /// What each call on a window costs.
    Calls(calls::Args),
    /// A word to a running kernel and its answer back.
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

/// What the caller got wrong, as opposed to what went wrong. Ends the program with code 2.
#[derive(Debug)]
struct Misuse(String);

impl std::fmt::Display for Misuse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

fn kind(name: &str) -> Result<WindowKind, String> {
    let found = WindowKind::ALL.into_iter();
    let mut found = found.filter(|kind| kind.to_string() == name);
    found.next().ok_or_else(|| {
        format!(
            "the kinds are {}",
            WindowKind::ALL.map(|kind| kind.to_string()).join(", ")
        )
    })
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(if error.is::<Misuse>() { 2 } else { 1 })
        }
    }
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

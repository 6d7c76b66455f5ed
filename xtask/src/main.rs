//! Chores of the workspace: `cargo xtask <command>`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod baseline;
mod bundle;
mod c_header;
mod coverage;
mod outside;
mod regen;
mod release;
mod tidy;
mod workspace;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Chores of the cuda-mem workspace")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Regenerate the driver bindings from a cuda.h.
    RegenBindings(regen::Args),
    /// Check the rules of this repository that no compiler checks.
    Tidy(tidy::Args),
    /// Write down which functions of the driver are wrapped and tested.
    Coverage(coverage::Args),
    /// Build and run the README's program outside of the workspace, from what is committed.
    Outside(outside::Args),
    /// Measure ratios on the simulated driver, or say which one a change has moved.
    Baseline(baseline::Args),
    /// Write the header of the C interface.
    CHeader(c_header::Args),
    /// Put tests, examples and benchmarks into a folder that runs without Rust.
    Bundle(bundle::Args),
    /// Pack the crates for a registry, and test what is in the archives alone.
    Release(release::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::RegenBindings(args) => regen::run(&args),
        Command::Tidy(args) => tidy::run(&args),
        Command::Coverage(args) => coverage::run(&args),
        Command::Outside(args) => outside::run(&args),
        Command::Baseline(args) => baseline::run(&args),
        Command::CHeader(args) => c_header::run(&args),
        Command::Bundle(args) => bundle::run(&args),
        Command::Release(args) => release::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // The causes, and not the backtrace: what failed is a step, not this program.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
cuda_mem_watchdog::watch_program!();

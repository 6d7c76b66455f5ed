//! Chores of the workspace: `cargo xtask <command>`.

use clap::{Parser, Subcommand};

mod regen;
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
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::RegenBindings(args) => regen::run(&args),
    }
}

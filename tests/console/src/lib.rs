//! What the examples share on a terminal, so that each answers the same mistake in the same way.
//!
//! ```no_run
//! use cuda_mem_console::{DeviceOption, EXIT_CODES, bytes, say};
//!
//! /// Prints how much memory a device has.
//! #[derive(clap::Parser)]
//! #[command(after_help = EXIT_CODES)]
//! struct Args {
//!     #[command(flatten)]
//!     device: DeviceOption,
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     cuda_mem_console::main(|args: &Args| {
//!         let backend = cuda_mem_console::open()?;
//!         let device = args.device.of(&backend)?;
//!         say!("{}", bytes(device.total_memory()?))
//!     })
//! }
//! ```

mod backend;
mod exit;
mod options;
mod output;
mod scale;
mod table;

pub use backend::{Backend, open};
pub use exit::{EXIT_CODES, Misuse, complain, main};
pub use options::{DeviceOption, OneDeviceOption, size};
pub use output::{OutputFile, Unwritable, print, write_line};
pub use scale::{bytes, count, nanoseconds};
pub use table::{WIDTH, figures, table, wrapped};

#[cfg(test)]
cuda_mem_watchdog::watch_program!();

//! Reports what this machine offers for GPU memory pools, what is missing and why, and what to do about it.
//!
//! ```sh
//! cargo run --example doctor                  # this machine, as tables
//! cargo run --example doctor -- --json        # the same for programs
//! cargo run --example doctor -- --measure     # also times the allocators, which makes a context
//! cargo run --example doctor -- --simulate    # the simulated driver instead
//! ```

mod advice;
mod facts;
mod json;
mod measure;
mod opened;
mod tables;
mod verdict;

use std::process::ExitCode;

use clap::Parser;
use cuda_mem_console::OneDeviceOption;

use facts::Facts;
use opened::{Opened, Unopened};
use verdict::{Diagnosis, Verdict};

const EXIT_CODES: &str = "\
Exit codes:
  0  every device is ready
  1  a device is limited, slow or does not work, and at least one can be used
  2  there is no usable driver or device, or the arguments are wrong
  3  the output could not be written";

/// Examines every device that this process sees, and says whether memory pools work there
///
/// Reports this machine, and the simulated driver only with --simulate. Creates no context on any device
/// unless it is told to measure.
#[derive(Debug, Parser)]
#[command(name = "doctor", after_help = EXIT_CODES)]
struct Args {
    #[command(flatten)]
    device: OneDeviceOption,
    /// Print one JSON document instead of tables
    #[arg(long)]
    json: bool,
    /// Also time allocations, which creates a context on each device
    #[arg(long)]
    measure: bool,
    /// Examine the simulated driver instead of this machine
    #[arg(long)]
    simulate: bool,
}

/// All findings.
struct Report {
    opened: Result<Opened, Box<Unopened>>,
    devices: Vec<Patient>,
    /// Improvements that no device needs but some programs benefit from.
    hints: Vec<String>,
}

/// One device and its diagnosis.
struct Patient {
    ordinal: u32,
    /// The driver's error if it could not be queried.
    facts: Result<Facts, String>,
    diagnosis: Diagnosis,
}

impl Report {
    fn make(args: &Args) -> Self {
        let opened = opened::open(args.simulate, args.device);
        let mut devices = Vec::new();
        if let Ok(opened) = &opened {
            for device in &opened.devices {
                let facts = facts::gather(*device, &opened.devices, args.measure)
                    .map_err(|error| error.to_string());
                devices.push(Patient {
                    ordinal: device.ordinal(),
                    diagnosis: verdict::judge(&facts),
                    facts,
                });
            }
        }
        let hints = advice::hints(&devices);
        Self {
            opened,
            devices,
            hints,
        }
    }

    /// The worst verdict, in the report's words.
    fn summary(&self) -> &'static str {
        match &self.opened {
            Err(unopened) => unopened.words(),
            Ok(_) => self.verdicts().max().map_or("no device", Verdict::words),
        }
    }

    fn exit_code(&self) -> u8 {
        let usable = self.verdicts().any(|verdict| verdict != Verdict::Unusable);
        match self.verdicts().max() {
            Some(Verdict::Ready) => 0,
            Some(_) if usable => 1,
            _ => 2,
        }
    }

    fn verdicts(&self) -> impl Iterator<Item = Verdict> + '_ {
        self.devices.iter().map(|patient| patient.diagnosis.verdict)
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let report = Report::make(&args);
    let text = if args.json {
        json::document(&report)
    } else {
        tables::pages(&report)
    };
    match cuda_mem_console::print(&text) {
        // The reader has closed the pipe, as `head` does.
        Err(error) if !error.is_broken_pipe() => {
            cuda_mem_console::complain(&error);
            ExitCode::from(3)
        }
        _ => ExitCode::from(report.exit_code()),
    }
}

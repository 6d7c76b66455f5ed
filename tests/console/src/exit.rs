//! How an example ends.

use std::fmt;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use cuda_mem::ErrorKind;

use crate::output::Unwritable;

/// The last lines of every `--help`.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the work failed
  2  nothing was done: the arguments, an input file, or the devices of this machine do not allow it
  3  the output could not be written";

/// A mistake of the caller, found before anything was done.
#[derive(Debug)]
pub struct Misuse(pub String);

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misuse {}

/// Parses the arguments, runs the example, and prints its error if it fails.
///
/// Bad arguments end the program with code 2, `--help` with 0; see [`EXIT_CODES`] for the others.
pub fn main<A: Parser>(run: impl FnOnce(&A) -> Result<()>) -> ExitCode {
    let Err(error) = run(&A::parse()) else {
        return ExitCode::SUCCESS;
    };
    if is_broken_pipe(&error) {
        // The reader has seen enough, as `head` does.
        return ExitCode::SUCCESS;
    }
    complain(&format_args!("{error:#}"));
    ExitCode::from(code(&error))
}

/// Prints an error to standard error.
pub fn complain(error: &dyn fmt::Display) {
    // If this cannot be written either, the exit code has to do.
    let _ = writeln!(io::stderr(), "error: {error}");
}

fn code(error: &anyhow::Error) -> u8 {
    let no_device = |kind| matches!(kind, ErrorKind::DriverMissing | ErrorKind::InvalidDevice);
    for cause in error.chain() {
        if cause.is::<Unwritable>() {
            return 3;
        }
        let driver = cause.downcast_ref::<cuda_mem::Error>();
        if cause.is::<Misuse>() || driver.is_some_and(|error| no_device(error.kind())) {
            return 2;
        }
    }
    1
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let mut causes = error.chain();
    causes.any(|cause| {
        cause
            .downcast_ref::<Unwritable>()
            .is_some_and(Unwritable::is_broken_pipe)
    })
}

#[cfg(test)]
mod tests {
    use anyhow::{Context as _, anyhow};

    use super::*;

    #[test]
    fn each_kind_of_failure_has_its_code() {
        let misuse: anyhow::Error = Misuse("device 99".to_owned()).into();
        let hidden = cuda_mem::Error::new(ErrorKind::InvalidDevice, "no device");
        let full = Unwritable::new("standard output", io::ErrorKind::StorageFull.into());
        assert_eq!(code(&anyhow!("the copy came back wrong")), 1);
        assert_eq!(code(&misuse), 2);
        assert_eq!(code(&anyhow::Error::from(hidden).context("opening")), 2);
        assert_eq!(code(&full.into()), 3);
    }

    #[test]
    fn a_reader_that_left_is_no_failure() {
        let gone = Unwritable::new("standard output", io::ErrorKind::BrokenPipe.into());
        let error = Err::<(), _>(gone).context("the table").expect_err("it is");
        assert!(is_broken_pipe(&error));
        assert!(!is_broken_pipe(&anyhow!(io::Error::from(
            io::ErrorKind::BrokenPipe
        ))));
    }
}

//! Suites: tests that run in one process, and how. A test program has several, and runs each in a process of its own.

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::OnceLock;

use anyhow::{Context as _, Result};
use libtest_mimic::Arguments;

use crate::case::{self, Kind, Test};
use crate::run;

/// Names the suite that a process runs. Without it, it runs all that are asked for.
pub const SUITE: &str = "CUDA_MEM_TEST_SUITE";

/// Tests that run in one process.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// Its name, which is that of its module unless it says otherwise.
    pub name: &'static str,
    holds: Option<fn(&Test) -> bool>,
    is_staged: bool,
    pub(crate) variable: Option<(&'static str, &'static str)>,
    pub(crate) serial: bool,
    pub(crate) drops_fail: bool,
    pub(crate) sim_only: bool,
    pub(crate) untouched: bool,
    pub(crate) devices: u32,
}

impl Suite {
    /// The tests of the module of this name.
    #[must_use]
    pub const fn of(name: &'static str) -> Self {
        Self {
            name,
            holds: None,
            is_staged: false,
            variable: None,
            serial: false,
            drops_fail: false,
            sim_only: false,
            untouched: false,
            devices: 1,
        }
    }

    /// The tests for which `holds` is true.
    #[must_use]
    pub const fn made_of(name: &'static str, holds: fn(&Test) -> bool) -> Self {
        Self {
            holds: Some(holds),
            ..Self::of(name)
        }
    }

    /// It runs only where a test starts a process for it.
    #[must_use]
    pub const fn staged(self) -> Self {
        Self {
            is_staged: true,
            ..self
        }
    }

    /// It runs with this variable set.
    #[must_use]
    pub const fn with(self, name: &'static str, value: &'static str) -> Self {
        Self {
            variable: Some((name, value)),
            ..self
        }
    }

    /// One test at a time: they look at what the whole process does, or would wait for each other.
    #[must_use]
    pub const fn serial(self) -> Self {
        Self {
            serial: true,
            ..self
        }
    }

    /// Destructors are made to fail, so that one that did is no finding.
    #[must_use]
    pub const fn drops_fail(self) -> Self {
        Self {
            drops_fail: true,
            ..self
        }
    }

    /// On the simulator, whatever `CUDA_MEM_TEST_BACKEND` says: nothing else can show it.
    #[must_use]
    pub const fn sim_only(self) -> Self {
        Self {
            sim_only: true,
            ..self
        }
    }

    /// After each test, no other device may have been touched.
    #[must_use]
    pub const fn untouched(self) -> Self {
        Self {
            untouched: true,
            ..self
        }
    }

    /// Where there are fewer devices it says so, and runs nothing.
    #[must_use]
    pub const fn devices(self, least: u32) -> Self {
        Self {
            devices: least,
            ..self
        }
    }

    /// Its tests.
    #[must_use]
    pub fn tests(&self) -> Vec<Test> {
        let mut all = case::all();
        all.retain(|test| match self.holds {
            Some(holds) => holds(test),
            None => test.is_in(self.name) && matches!(test.kind, Kind::Any | Kind::Simulator),
        });
        all
    }

    fn is_asked_for(&self, arguments: &Arguments) -> bool {
        let matches = |name: &str, filter: &str| {
            if arguments.exact {
                name == filter
            } else {
                name.contains(filter)
            }
        };
        !self.is_staged
            && self.tests().iter().any(|test| {
                let name = test.name();
                let filter = arguments.filter.as_deref();
                filter.is_none_or(|filter| matches(name, filter))
                    && !arguments.skip.iter().any(|skip| matches(name, skip))
            })
    }
}

/// Of this process.
static OWN: OnceLock<&str> = OnceLock::new();

/// This program once more, to run the suite of this name.
///
/// # Errors
///
/// If the program does not know where it lies.
pub fn command(name: &str) -> Result<Command> {
    let program = std::env::current_exe().context("where this program lies")?;
    let mut command = Command::new(program);
    command.env(SUITE, name);
    Ok(command)
}

/// This program once more, for tests of the suite that it runs.
pub(crate) fn again() -> Result<Command> {
    command(OWN.get().copied().unwrap_or_default())
}

/// The example of this name, as cargo leaves it, or as it lies beside this program in a bundle.
///
/// # Errors
///
/// If there is none.
pub fn example(name: &str) -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let folder = here.parent().context("the program lies nowhere")?;
    let places = [
        folder.join(format!("example-{name}")),
        folder.join("../examples").join(name),
    ];
    let found = places.into_iter().find(|path| path.is_file());
    found.with_context(|| {
        format!("the example {name} was not built; `cargo test --workspace` builds it")
    })
}

/// Runs the suites of a program that the command line asks for, each in a process of its own if there are several.
#[must_use]
pub fn main(suites: &[Suite]) -> ExitCode {
    if let Ok(name) = std::env::var(SUITE) {
        return match suites.iter().find(|suite| suite.name == name) {
            Some(suite) => own(suite),
            None => {
                eprintln!("{SUITE} is {name:?}, which is no suite of this program");
                ExitCode::FAILURE
            }
        };
    }
    let arguments = Arguments::from_args();
    let asked: Vec<_> = suites
        .iter()
        .filter(|suite| suite.is_asked_for(&arguments))
        .collect();
    match asked[..] {
        // Says that there is nothing to do.
        [] => suites.first().map_or(ExitCode::SUCCESS, own),
        [suite] if suite.variable.is_none() => own(suite),
        _ => each(&asked),
    }
}

/// The exit code of a process that played a part for another one.
#[must_use]
pub fn ended(played: Result<()>) -> ExitCode {
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn own(suite: &Suite) -> ExitCode {
    let _ = OWN.set(suite.name);
    run::main(suite)
}

fn each(suites: &[&Suite]) -> ExitCode {
    let failed: Vec<_> = suites
        .iter()
        .filter_map(|suite| match process(suite) {
            Ok(true) => None,
            Ok(false) => Some(suite.name.to_owned()),
            Err(error) => Some(format!("{}: {error:#}", suite.name)),
        })
        .collect();
    if failed.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!(
        "{} of {} suites failed: {}",
        failed.len(),
        suites.len(),
        failed.join(", ")
    );
    ExitCode::FAILURE
}

/// Whether it succeeds in a process of its own.
fn process(suite: &Suite) -> Result<bool> {
    let mut command = command(suite.name)?;
    command
        .args(std::env::args_os().skip(1))
        .envs(suite.variable);
    let status = command.status().context("could not be started")?;
    Ok(status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(suite: Suite, arguments: &[&str]) -> bool {
        let program = ["program"].iter();
        let arguments = Arguments::from_iter(program.chain(arguments));
        suite.is_asked_for(&arguments)
    }

    #[test]
    fn a_suite_runs_if_one_of_its_tests_is_asked_for() {
        let suite = Suite::of("vmm");
        assert!(asked(suite, &[]) && asked(suite, &["vmm::moves"]));
        assert!(asked(
            suite,
            &[
                "--exact",
                "vmm::forks::a_forked_child_leaves_mapped_memory_alone"
            ]
        ));
        assert!(!asked(suite, &["--exact", "vmm::forks"]) && !asked(suite, &["arena::"]));
        assert!(!asked(suite, &["--skip", "vmm"]));
        assert!(!asked(suite.staged(), &[]));
    }

    #[test]
    fn a_suite_is_a_module_unless_it_says_otherwise() {
        let own = Suite::of("vmm").tests();
        assert!(!own.is_empty());
        assert!(own.iter().all(|test| test.kind != Kind::TwoDevices));
        let pairs = Suite::made_of("devices", |test| test.kind == Kind::TwoDevices).tests();
        assert!(pairs.iter().any(|test| test.is_in("vmm")));
    }
}

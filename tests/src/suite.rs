//! Suites: tests that run in one process, and how.

use libtest_mimic::Arguments;

use crate::case::{self, Kind, Test};

/// Tests that run in one process.
#[derive(Clone, Copy, Debug)]
pub struct Suite {
    /// Its name, usually that of its module.
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

    /// It runs only if a test starts a process for it.
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

    /// One test at a time: the tests look at the whole process, or would wait for each other.
    #[must_use]
    pub const fn serial(self) -> Self {
        Self {
            serial: true,
            ..self
        }
    }

    /// Destructors are made to fail, so their failures are ignored.
    #[must_use]
    pub const fn drops_fail(self) -> Self {
        Self {
            drops_fail: true,
            ..self
        }
    }

    /// It runs on the simulator, whatever `CUDA_MEM_TEST_BACKEND` says.
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

    /// With fewer devices it runs nothing, and says so.
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

    pub(crate) fn is_asked_for(&self, arguments: &Arguments) -> bool {
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

mod tests {
    use anyhow::Result;

    use super::*;
    use crate::environment::Environment;

    fn asked(suite: Suite, arguments: &[&str]) -> bool {
        let program = ["program"].iter();
        let arguments = Arguments::from_iter(program.chain(arguments));
        suite.is_asked_for(&arguments)
    }

    #[apply(case_of_harness)]
    fn a_suite_runs_if_one_of_its_tests_is_asked_for(_: &Environment) -> Result<()> {
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
        Ok(())
    }

    #[apply(case_of_harness)]
    fn a_suite_is_a_module_unless_it_says_otherwise(_: &Environment) -> Result<()> {
        let own = Suite::of("vmm").tests();
        assert!(!own.is_empty());
        assert!(own.iter().all(|test| test.kind != Kind::TwoDevices));
        let pairs = Suite::made_of("devices", |test| test.kind == Kind::TwoDevices).tests();
        assert!(pairs.iter().any(|test| test.is_in("vmm")));
        Ok(())
    }
}

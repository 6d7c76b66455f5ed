//! Test bodies register themselves: an attribute before the function is all.
//!
//! ```text
//! #[apply(case)]
//! fn a_buffer_keeps_its_bytes(env: &Environment) -> Result<()> { … }
//! ```
//!
//! The body's modules are its name, and a [`Suite`](crate::suite::Suite) takes the bodies of its modules.

use anyhow::Result;

use crate::environment::Environment;

/// What a body needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A device.
    Any,
    /// Two devices.
    TwoDevices,
    /// All memory of a device: on a GPU, no other test of any process may run beside it.
    WholeCard,
    /// The simulated driver.
    Simulator,
    /// Time: it runs for as long as the environment asks.
    Long,
    /// A machine, or a process, that another body makes for it.
    Staged,
    /// Nothing: it checks the tests' own helpers and models.
    Harness,
}

/// A registered body. It holds on every driver or says why it cannot run.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// The path of the function, with its crate.
    #[doc(hidden)]
    pub path: &'static str,
    /// What is run.
    pub body: fn(&Environment) -> Result<()>,
    /// Whether it needs a process of its own: it looks at what the whole process has done.
    pub alone: bool,
    /// What it needs.
    pub kind: Kind,
}

inventory::collect!(Test);

impl Test {
    /// Its modules and a sentence: `arena::moves::memory_in_use_does_not_move`. That of a test program begins with the
    /// program.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let own = concat!(env!("CARGO_CRATE_NAME"), "::");
        self.path.strip_prefix(own).unwrap_or(self.path)
    }

    /// With its own module alone, as pages cite it: `moves::memory_in_use_does_not_move`.
    #[must_use]
    pub fn short_name(&self) -> &'static str {
        let name = self.name();
        let starts = name.rmatch_indices("::").nth(1).map_or(0, |(at, _)| at + 2);
        &name[starts..]
    }

    /// Whether it is one of this module, or of a module in it.
    #[must_use]
    pub fn is_in(&self, module: &str) -> bool {
        let rest = self.name().strip_prefix(module);
        rest.is_some_and(|rest| rest.starts_with("::"))
    }
}

/// All bodies of this program, by name.
#[must_use]
pub fn all() -> Vec<Test> {
    let mut all: Vec<Test> = inventory::iter::<Test>().copied().collect();
    all.sort_by_key(Test::name);
    all
}

/// Registers a function with what it needs.
#[doc(hidden)]
#[macro_export]
macro_rules! register {
    ($kind:ident, $alone:literal, $(#[$meta:meta])* $visibility:vis fn $name:ident $($rest:tt)*) => {
        $(#[$meta])* $visibility fn $name $($rest)*

        $crate::inventory::submit! {
            $crate::case::Test {
                path: concat!(module_path!(), "::", stringify!($name)),
                body: $name,
                alone: $alone,
                kind: $crate::case::Kind::$kind,
            }
        }
    };
}

/// A test that any device can run.
#[macro_export]
macro_rules! case {
    ($($function:tt)*) => { $crate::register! { Any, false, $($function)* } };
}

/// The same in a process of its own.
#[macro_export]
macro_rules! case_alone {
    ($($function:tt)*) => { $crate::register! { Any, true, $($function)* } };
}

/// A test of two devices.
#[macro_export]
macro_rules! case_of_two {
    ($($function:tt)*) => { $crate::register! { TwoDevices, false, $($function)* } };
}

/// The same in a process of its own.
#[macro_export]
macro_rules! case_of_two_alone {
    ($($function:tt)*) => { $crate::register! { TwoDevices, true, $($function)* } };
}

/// A test that takes all memory of a device.
#[macro_export]
macro_rules! case_of_full_card {
    ($($function:tt)*) => { $crate::register! { WholeCard, true, $($function)* } };
}

/// A test that only the simulated driver can show.
#[macro_export]
macro_rules! case_of_sim {
    ($($function:tt)*) => { $crate::register! { Simulator, false, $($function)* } };
}

/// The same in a process of its own.
#[macro_export]
macro_rules! case_of_sim_alone {
    ($($function:tt)*) => { $crate::register! { Simulator, true, $($function)* } };
}

/// A test that runs for as long as the environment asks.
#[macro_export]
macro_rules! case_long {
    ($($function:tt)*) => { $crate::register! { Long, false, $($function)* } };
}

/// A test on a machine, or in a process, that another one makes for it.
#[macro_export]
macro_rules! case_staged {
    ($($function:tt)*) => { $crate::register! { Staged, false, $($function)* } };
}

/// A test of the tests' own helpers and models. As a unit test, it would make cargo build this library a second time.
#[macro_export]
macro_rules! case_of_harness {
    ($($function:tt)*) => { $crate::register! { Harness, false, $($function)* } };
}

mod tests {
    use super::*;

    fn test(path: &'static str) -> Test {
        Test {
            path,
            body: |_| Ok(()),
            alone: false,
            kind: Kind::Any,
        }
    }

    #[apply(case_of_harness)]
    fn a_name_is_the_path_without_this_crate(_: &Environment) -> Result<()> {
        let deep = test("cuda_mem_tests::arena::moves::it_moves");
        assert_eq!(deep.name(), "arena::moves::it_moves");
        assert_eq!(deep.short_name(), "moves::it_moves");
        assert!(deep.is_in("arena") && deep.is_in("arena::moves"));
        assert!(
            !deep.is_in("aren") && !deep.is_in("moves") && !deep.is_in("arena::moves::it_moves")
        );
        let flat = test("hardware::it_is_there");
        assert_eq!(flat.name(), flat.short_name());
        Ok(())
    }

    #[apply(case_of_harness)]
    fn all_bodies_are_found_and_differ_in_name(_: &Environment) -> Result<()> {
        let all = all();
        assert!(all.len() > 300, "{}", all.len());
        assert!(all.iter().any(|test| test.is_in("contract") && test.alone));
        let mut names: Vec<_> = all.iter().map(Test::name).collect();
        names.dedup();
        assert_eq!(names.len(), all.len(), "two of one name");
        Ok(())
    }
}

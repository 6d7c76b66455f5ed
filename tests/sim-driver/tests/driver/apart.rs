//! Asking in another process: the settings of a simulation are read once, when the library is loaded.
//!
//! A test that does so is parent and child: the parent runs its own test again with other variables,
//! and there the body does its work.

use std::process::{Command, Output};

use cuda_driver_sys::*;
use cuda_sim::library_path;

/// Set in a child: the name of its test.
const CHILD: &str = "CUDA_SIM_TEST_CHILD";

/// In the parent, runs the test of this name in this module again with these variables, and answers
/// what came out. In that child, runs `body`, and answers nothing.
pub(crate) fn child_of(
    module: &str,
    name: &str,
    variables: &[(&str, &str)],
    body: impl FnOnce(),
) -> Option<Output> {
    if std::env::var_os(CHILD).is_some_and(|wanted| wanted == name) {
        body();
        return None;
    }
    let program = std::env::current_exe().expect("known");
    let mut command = Command::new(program);
    command
        .args(["--exact", &format!("{module}::{name}"), "--nocapture"])
        .arg("--test-threads=1")
        .env(CHILD, name)
        .envs(variables.iter().copied());
    let output = command.output().expect("the test program runs again");
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("1 passed"), "{text}{errors}");
    Some(output)
}

/// The library without the harness, which would set settings of its own.
pub(crate) fn load() -> &'static DriverTable {
    let path = library_path().expect("built");
    // SAFETY: the simulator's functions have the signatures of the driver.
    let library = unsafe { load_from(path) }.expect("opens");
    library.table()
}

/// Calls a function of a loaded table.
macro_rules! call {
    ($table:ident.$name:ident($($arg:expr),* $(,)?)) => {{
        let call = $table.$name.expect("exported");
        // SAFETY: pointers in the arguments are to live locals.
        unsafe { call($($arg),*) }
    }};
}

pub(crate) use call;

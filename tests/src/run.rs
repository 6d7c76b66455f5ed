//! Runs the suites of a program, and says on which driver, how many tests ran, which were skipped and why.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{self, Seek as _, Write as _};
use std::process::{Command, ExitCode, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use cuda_mem::sys::CudaVersion;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::case::{Kind, Test};
use crate::environment::{Backend, Environment, Skip};
use crate::own_process::{self, SUITE};
use crate::suite::Suite;
use crate::{two, untouched, watchdog};

/// Names a file. Each test then runs in a process of its own on the simulator, and adds a line with the driver
/// functions that it called. `cargo xtask coverage` reads it.
const CALLS: &str = "CUDA_MEM_TEST_CALLS";

/// Tests that run concurrently on a GPU. With many streams, creating another one may wait for those that tests hold,
/// and block all calls of the driver meanwhile (R176).
const MAX_GPU_TESTS: usize = 8;

/// A test on a GPU that takes longer is named with its time.
const SLOW: Duration = Duration::from_secs(2);

/// Runs the suites of a program that the command line asks for, each in a process of its own if there are several.
#[must_use]
pub fn main(suites: &[Suite]) -> ExitCode {
    if let Ok(name) = std::env::var(SUITE) {
        return match suites.iter().find(|suite| suite.name == name) {
            Some(suite) => here(suite),
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
        // It prints that there is nothing to run.
        [] => suites.first().map_or(ExitCode::SUCCESS, here),
        [suite] if suite.variable.is_none() => here(suite),
        _ => in_processes(&asked),
    }
}

/// The exit code for the outcome of a child process.
#[must_use]
pub fn exit_code(outcome: Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the suite in this process.
fn here(wanted: &Suite) -> ExitCode {
    own_process::set_suite(wanted.name);
    suite(wanted)
}

fn in_processes(suites: &[&Suite]) -> ExitCode {
    let failed = if are_simulated(suites) {
        side_by_side(suites)
    } else {
        let ends = suites.iter().map(|suite| (suite, in_process(suite)));
        ends.filter_map(|(suite, end)| failure(suite, end))
            .collect()
    };
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

/// Whether all suites run on the simulator. On a GPU they would wait for each other's work.
fn are_simulated(suites: &[&Suite]) -> bool {
    suites.iter().all(|suite| suite.sim_only)
        || Environment::get().is_ok_and(|env| env.backend == Backend::Sim)
}

/// Runs as many suites at a time as there are processors, on the simulator. The output of each comes when it has ended.
fn side_by_side(suites: &[&Suite]) -> Vec<String> {
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some(suite) = suites.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Some(text) = failure(suite, in_simulated_process(suite)) {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                failed.push(text);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..cores().min(suites.len()) {
            scope.spawn(work);
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// What to say of a suite that did not succeed.
fn failure(suite: &Suite, end: Result<ExitStatus>) -> Option<String> {
    match end {
        Ok(status) if status.success() => None,
        Ok(status) => Some(format!("{} ({status})", suite.name)),
        Err(error) => Some(format!("{} ({error:#})", suite.name)),
    }
}

/// The suite in a process of its own.
fn command(suite: &Suite) -> Result<Command> {
    let mut command = own_process::command(suite.name)?;
    command
        .args(std::env::args_os().skip(1))
        .envs(suite.variable);
    Ok(command)
}

fn in_process(suite: &Suite) -> Result<ExitStatus> {
    command(suite)?.status().context("could not be started")
}

/// The output goes to a file: what a suite that crashed leaves behind could hold a pipe open for ever.
fn in_simulated_process(suite: &Suite) -> Result<ExitStatus> {
    eprintln!("{} begins", suite.name);
    let mut output = tempfile::tempfile()?;
    let status = command(suite)?
        .env("CUDA_MEM_TEST_BACKEND", Backend::Sim.name())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .status()
        .context("could not be started")?;
    output.rewind()?;
    io::copy(&mut output, &mut io::stdout().lock())?;
    Ok(status)
}

/// Runs the tests of a suite that the command line asks for.
#[must_use]
pub fn suite(suite: &Suite) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let asked_threads = arguments.test_threads;
    let calls = std::env::var_os(CALLS);
    if calls.is_some() {
        // Each test has a process of its own then.
        arguments.test_threads = Some(own_process::max_processes());
    } else if suite.serial {
        arguments.test_threads = Some(1);
    }
    let chosen = if suite.sim_only || calls.is_some() {
        Environment::get_sim()
    } else {
        Environment::get()
    };
    let env = match chosen {
        Ok(env) => env,
        Err(error) => {
            eprintln!("no driver to test on: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    if env.backend == Backend::Gpu {
        // A number on the command line is obeyed.
        arguments.test_threads = Some(arguments.test_threads.unwrap_or_else(most_gpu_tests));
    }
    let (tests, is_enough) = chosen_tests(suite, env);
    // This calls the driver, and is no call of a test.
    if !arguments.list && calls.is_none() {
        announce(suite, env);
    }
    if !is_enough {
        println!(
            "{}: not tested, because it needs {} devices",
            suite.name, suite.devices
        );
    }
    let kept = if arguments.list {
        Ok(None)
    } else {
        kept_context(suite, env, &tests)
    };
    let _kept = match kept {
        Ok(kept) => kept,
        Err(error) => {
            eprintln!("no context to test in: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let is_watched = suite.untouched && is_enough;
    if is_watched && let Err(error) = untouched::start(env) {
        eprintln!("{error:#}");
        return ExitCode::FAILURE;
    }
    let end = run_tests(suite, env, &tests, &arguments, asked_threads);
    let drops = cuda_mem::base::drop_counts();
    if drops.failures > 0 && !suite.drops_fail {
        eprintln!("{} destructors failed", drops.failures);
        return ExitCode::FAILURE;
    }
    // Before 11.3, a driver does not say when a pool can be destroyed.
    if let Ok(control) = env.control()
        && env.driver.version() >= CudaVersion::new(11, 3)
        && control.report_count() > 0
    {
        eprintln!("the simulated driver reports {:#?}", control.reports());
        return ExitCode::FAILURE;
    }
    if is_watched && let Err(error) = untouched::note_calls(env) {
        eprintln!("{error:#}");
        return ExitCode::FAILURE;
    }
    end
}

/// The tests of the suite that run on this driver, and whether it has enough devices.
fn chosen_tests(suite: &Suite, env: &Environment) -> (Vec<Test>, bool) {
    // The other process of a test, which may have been started by another suite.
    if let Some(test) = two::other() {
        return (vec![test], true);
    }
    let mut tests = suite.tests();
    if env.backend == Backend::Gpu {
        tests.retain(|test| test.kind != Kind::Simulator);
    }
    if suite.devices > 1 && env.driver.device_count().unwrap_or(0) < suite.devices as usize {
        return (Vec::new(), false);
    }
    (tests, true)
}

/// The primary context, kept on a GPU, where making it anew takes longer than most tests do. The simulator makes it at
/// once, and tests there show what ends with it. Not kept for suites of several devices, nor for a test alone: they check
/// when it ends.
fn kept_context(
    suite: &Suite,
    env: &Environment,
    tests: &[Test],
) -> Result<Option<cuda_mem::Context>> {
    let is_kept = env.backend == Backend::Gpu
        && suite.devices == 1
        && !own_process::is_alone()
        && tests.iter().any(|test| !test.alone);
    is_kept.then(|| env.context()).transpose()
}

/// Runs these tests. On a GPU, those of a serial suite that have processes of their own run concurrently: starting a
/// process there takes longer than the test.
fn run_tests(
    suite: &Suite,
    env: &'static Environment,
    tests: &[Test],
    arguments: &Arguments,
    asked_threads: Option<usize>,
) -> ExitCode {
    let trials = |tests: &[Test]| {
        let trials = tests.iter().map(|test| trial(env, *test, suite.untouched));
        trials.collect()
    };
    if env.backend != Backend::Gpu || !suite.serial || suite.devices > 1 || own_process::is_alone()
    {
        return libtest_mimic::run(arguments, trials(tests)).exit_code();
    }
    let (apart, here): (Vec<_>, Vec<_>) = tests
        .iter()
        .partition(|test| test.alone && test.kind != Kind::WholeCard);
    let concurrent = Arguments {
        test_threads: Some(asked_threads.unwrap_or_else(most_gpu_tests)),
        ..arguments.clone()
    };
    let ends = [
        libtest_mimic::run(&concurrent, trials(&apart)),
        libtest_mimic::run(arguments, trials(&here)),
    ];
    let failed = ends.iter().find(|end| end.has_failed());
    failed.map_or(ExitCode::SUCCESS, libtest_mimic::Conclusion::exit_code)
}

fn most_gpu_tests() -> usize {
    cores().min(MAX_GPU_TESTS)
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

fn announce(suite: &Suite, env: &Environment) {
    let name = env.device().and_then(|device| Ok(device.name()?));
    println!(
        "{}: back end: {:?}, CUDA {}, {}",
        suite.name,
        env.backend,
        env.driver.version(),
        name.unwrap_or_else(|error| format!("no device name: {error}")),
    );
}

fn trial(env: &'static Environment, test: Test, untouched: bool) -> Trial {
    let name = test.name();
    Trial::ignorable_test(name, move || {
        let calls = std::env::var_os(CALLS);
        let is_child = own_process::is_alone();
        if !is_child
            && own_process::is_claimed(name).map_err(|error| Failed::from(error.to_string()))?
        {
            return Ok(Completion::ignored_with("another program runs it"));
        }
        let begun = Instant::now();
        let _watched = watchdog::watch(name, own_process::patience());
        let outcome = match calls {
            _ if cfg!(windows) && test.kind == Kind::WholeCard && env.backend == Backend::Sim => {
                Err(Skip(
                    "Windows commits memory at once: the host needs as much as the device".into(),
                )
                .into())
            }
            _ if !is_child && (test.alone || calls.is_some()) => {
                own_process::run_alone(name, None).map(drop)
            }
            _ if !is_child && own_process::are_apart() => own_process::run_apart(name).map(drop),
            Some(file) => {
                (test.body)(env).and_then(|()| write_calls(env, test.short_name(), &file))
            }
            None => (test.body)(env),
        };
        let outcome = match outcome {
            Ok(()) if untouched => untouched::check(env),
            outcome => outcome,
        };
        // At once, because a run on a machine that is lent may be ended before its summary.
        if env.backend == Backend::Gpu {
            if begun.elapsed() > SLOW {
                eprintln!("{name}: {} s", begun.elapsed().as_secs());
            }
            if let Err(error) = &outcome {
                eprintln!("{name}: {error:#}");
            }
        }
        match outcome {
            Ok(()) => Ok(Completion::Completed),
            Err(error) => match error.downcast_ref::<Skip>() {
                Some(skip) if env.backend == Backend::Gpu && gpu_required() => Err(Failed::from(
                    format!("skipped although a GPU is required: {skip}"),
                )),
                Some(skip) => Ok(Completion::ignored_with(skip)),
                None => Err(Failed::from(format!("{error:#}"))),
            },
        }
    })
}

/// Adds a line to `file`: the test, and every driver function that this process has called.
fn write_calls(env: &Environment, name: &str, file: &OsStr) -> Result<()> {
    let control = env.control()?;
    let mut line = format!("{name}:");
    for symbol in &cuda_mem::sys::SYMBOLS {
        if control.calls(symbol.name()) > 0 {
            line.push(' ');
            line.push_str(symbol.name());
        }
    }
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    line.push('\n');
    file.write_all(line.as_bytes())?;
    Ok(())
}

/// `CUDA_MEM_TEST_REQUIRE_GPU=1` turns every skip on a GPU into a failure.
fn gpu_required() -> bool {
    std::env::var_os("CUDA_MEM_TEST_REQUIRE_GPU").is_some_and(|value| value == "1")
}

//! Runs a scenario once for each driver call in it, and lets that call fail.

pub mod meaning;
mod pairs;

use std::panic::catch_unwind;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cuda_mem::base::DropCounts;
use cuda_mem::sys::CUresult;
use cuda_mem::{Driver, Error, MemoryPool};
use cuda_sim::control::Control;

use crate::environment::{Environment, sim_path};
use crate::own_process::{self, Part};
use crate::watchdog;
use meaning::FREED_AGAIN;
pub use meaning::{Answer, Leftover, When};
pub use pairs::every_pair_fails;

/// The codes that each call answers in turn. Some say that nothing was done, some that an earlier fault was
/// found, and one is of no driver.
pub const CODES: [CUresult; 9] = {
    let codes = [1, 2, 3, 201, 600, 719, 801, 999, 54_321];
    let mut all = [CUresult(0); 9];
    let mut index = 0;
    while index < codes.len() {
        all[index] = CUresult(codes[index]);
        index += 1;
    }
    all
};

const FREE: &str = "cuMemFreeAsync";

/// Only this call fails, or this pair of calls: their numbers as in an error, separated by a comma.
const FAULTS: &str = "CUDA_MEM_TEST_FAULTS";

/// The calls that are to fail, if not each in turn.
fn only() -> Result<Option<Vec<usize>>> {
    let Ok(text) = std::env::var(FAULTS) else {
        return Ok(None);
    };
    let numbers = text.split(',').map(str::parse);
    let numbers: Vec<usize> = numbers
        .collect::<Result<_, _>>()
        .with_context(|| format!("{FAULTS} is {text:?}; it must be one number or two"))?;
    Ok(Some(numbers))
}

/// Calls of the public interface, and what is known about their failures.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The calls under test. Objects are dropped, in the usual order.
    pub run: fn(Driver) -> Result<(), Error>,
    /// With fewer calls, the scenario does not do what it should.
    pub at_least: usize,
    /// Failures that are neither returned nor reported.
    pub answers: &'static [Answer],
    /// What a reported failure may leave behind.
    pub leftovers: &'static [Leftover],
}

/// Each call of the scenario fails once with each of [`CODES`]: the caller gets a typed error that names
/// function and code, or a destructor reports; nothing is left over, nothing panics, and the order is
/// kept. Returns the number of calls.
///
/// # Errors
///
/// The first call for which that is not so.
pub fn every_call_fails_once(env: &Environment, scenario: Scenario) -> Result<usize> {
    let part = Part::own();
    let control = env.control()?;
    let log = logged(env, scenario)?;
    let mut left = control.live();
    let only = only()?;
    let is_wanted = |index: usize| only.as_ref().is_none_or(|only| *only == [index + 1]);
    let calls = log.iter().enumerate();
    for (index, function) in calls.filter(|(index, _)| part.has(*index) && is_wanted(*index)) {
        watchdog::next_part();
        for code in CODES {
            let what = format!("call {} {function} answering {code}", index + 1);
            let reported =
                fail(control, scenario, (index, &log), code).with_context(|| what.clone())?;
            clear_current_context(env)?;
            release_deferred(env).with_context(|| what.clone())?;
            let live = control.live();
            let may_be_left = |row: &Leftover| row.matches(function, left, live);
            if reported && scenario.leftovers.iter().any(may_be_left) {
                left = live;
            }
            ensure!(live == left, "{what}: {live:?} is left");
            let reports = control.reports();
            ensure!(reports.is_empty(), "{what}: {reports:?}");
        }
    }
    println!("{} calls, {} codes each", log.len(), CODES.len());
    Ok(log.len())
}

/// The same in several processes, each of which fails a part of the calls.
///
/// # Errors
///
/// As [`every_call_fails_once`].
pub fn in_parts(env: &Environment, scenario: Scenario) -> Result<()> {
    own_process::in_parts(|| every_call_fails_once(env, scenario).map(drop))
}

/// The calls of a run without failures.
fn logged(env: &Environment, scenario: Scenario) -> Result<Vec<String>> {
    let control = env.control()?;
    control.reset();
    control.start_call_log();
    load_and_run(scenario)?;
    let log = control.call_log();
    ensure!(
        log.len() >= scenario.at_least,
        "only {} calls were logged",
        log.len()
    );
    clear_current_context(env)?;
    release_deferred(env)?;
    // Parts that log other calls do not fit together.
    own_process::print_whole(&log);
    Ok(log)
}

/// Returns whether a destructor reported.
fn fail(
    control: &Control,
    scenario: Scenario,
    (index, log): (usize, &[String]),
    code: CUresult,
) -> Result<bool> {
    let before = cuda_mem::base::drop_counts();
    let outcome = run_with(control, scenario, log, &[(index, code)])?;
    let function = log[index].as_str();
    let is_answered = || {
        let mut answers = scenario.answers.iter().chain([&FREED_AGAIN]);
        answers.any(|answer| answer.matches(index, function, code))
    };
    let reported = has_reported_since(before);
    match outcome {
        Err(error) if error.code() == Some(code) => {
            ensure!(error.function() == Some(function), "{error}");
        }
        Err(error) => ensure!(is_answered(), "{error}"),
        Ok(()) if reported || is_answered() => {}
        Ok(()) => bail!("the failure was neither returned nor reported"),
    }
    Ok(reported)
}

/// Runs the scenario with calls that fail, by their index in the log of a run without failures, and logs the calls. A
/// panic is an error.
fn run_with(
    control: &Control,
    scenario: Scenario,
    log: &[String],
    faults: &[(usize, CUresult)],
) -> Result<Result<(), Error>> {
    control.reset();
    control.start_call_log();
    for (index, code) in faults {
        if is_refused_free(&log[*index], *code) {
            let frees = log[..=*index].iter().filter(|call| *call == FREE);
            control.fail_without_effect(FREE, frees.count() as u64, *code);
        } else {
            control.fail_call(*index as u64 + 1, *code);
        }
    }
    let outcome = catch_unwind(|| load_and_run(scenario));
    control.clear_faults();
    outcome.map_err(|_| anyhow!("a panic"))
}

/// Such a free has no effect (R68), and is tried again.
fn is_refused_free(function: &str, code: CUresult) -> bool {
    function == FREE && code == CUresult::CUDA_ERROR_INVALID_VALUE
}

/// Whether a destructor has reported. A context that is already gone is no failure, but counts here.
fn has_reported_since(before: DropCounts) -> bool {
    let now = cuda_mem::base::drop_counts();
    now.failures > before.failures || now.too_late > before.too_late
}

/// Loads the driver anew, so that its first calls are among those that fail.
fn load_and_run(scenario: Scenario) -> Result<(), Error> {
    let path = sim_path().expect("found before");
    // SAFETY: the simulated driver behaves as a CUDA driver does, also when it fails.
    (scenario.run)(unsafe { Driver::load_from(path) }?)
}

/// Releases what was deferred.
fn release_deferred(env: &Environment) -> Result<()> {
    let waiting = deferred_after_retries(env, 0)?;
    ensure!(waiting == 0, "{waiting} things are still to be released");
    Ok(())
}

/// The number of deferred releases after a while, or as soon as it is `few`.
fn deferred_after_retries(env: &Environment, few: u64) -> Result<u64> {
    let context = env.context()?;
    // Old entries of the queue are not checked every time.
    for _ in 0..100 {
        context.synchronize()?;
        if cuda_mem::base::drop_counts().waiting <= few {
            break;
        }
    }
    // Spare pools are no leaks, and would save the next run the calls that create pools.
    // SAFETY: the scenario is over, and its threads have ended.
    unsafe { MemoryPool::destroy_spares() }?;
    Ok(cuda_mem::base::drop_counts().waiting)
}

/// A destructor may have failed to restore the current context.
fn clear_current_context(env: &Environment) -> Result<()> {
    let set = env.driver.table().cuCtxSetCurrent;
    let set = set.context("no cuCtxSetCurrent")?;
    // SAFETY: null leaves the thread without a context.
    let code = unsafe { set(std::ptr::null_mut()) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    Ok(())
}

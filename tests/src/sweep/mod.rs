//! A tour through the API, over and over, with another driver call failing each time.

pub mod meaning;
mod pairs;

use std::panic::catch_unwind;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cuda_mem::sys::CUresult;
use cuda_mem::{Driver, DropCounts, Error, MemoryPool};
use cuda_sim::control::Control;

use crate::environment::{Environment, sim_path};
use crate::run::{self, Part};
use crate::watchdog;
pub use meaning::{Answer, Left, When};
pub use pairs::every_pair_fails;

/// The codes that each call answers in turn. Some of them say that nothing was done, some that an
/// earlier fault was found, and one is none that any driver has.
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

/// Only this call fails, or this pair of calls: their numbers, as an error has them, with a comma between.
const FAULTS: &str = "CUDA_MEM_TEST_FAULTS";

/// The calls that are to fail, if not all do in turn.
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

/// A tour, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct Tour {
    /// Everything that is to be tested, in one go. Objects end by being dropped, in the usual order.
    pub walk: fn(Driver) -> Result<(), Error>,
    /// Fewer calls than this, and the tour does not do what it should.
    pub at_least: usize,
    /// Failures that are answered in another way than by an error or a report.
    pub answers: &'static [Answer],
    /// What a failure that was reported may leave behind.
    pub left: &'static [Left],
}

/// Each call of the tour fails once with each of [`CODES`]: the caller gets a typed error that names
/// function and code, or a destructor reports; nothing is left over, nothing panics, and the order is
/// kept. Returns the number of calls.
///
/// # Errors
///
/// The first call for which that is not so.
pub fn every_call_fails_once(env: &Environment, tour: Tour) -> Result<usize> {
    let part = Part::own();
    let control = env.control()?;
    let log = logged(env, tour)?;
    let mut left = control.live();
    let only = only()?;
    let is_wanted = |index: usize| only.as_ref().is_none_or(|only| *only == [index + 1]);
    let calls = log.iter().enumerate();
    for (index, function) in calls.filter(|(index, _)| part.has(*index) && is_wanted(*index)) {
        watchdog::next_part();
        for code in CODES {
            let what = format!("call {} {function} answering {code}", index + 1);
            let reported =
                fail(control, tour, (index, function), code).with_context(|| what.clone())?;
            leave_no_context(env)?;
            let_go(env).with_context(|| what.clone())?;
            let live = control.live();
            let may_be_left = |row: &Left| row.is_of(function, left, live);
            if reported && tour.left.iter().any(may_be_left) {
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

/// The same in several processes, of which each fails a part of the calls.
///
/// # Errors
///
/// As [`every_call_fails_once`].
pub fn in_parts(env: &Environment, tour: Tour) -> Result<()> {
    run::in_parts(|| every_call_fails_once(env, tour).map(drop))
}

/// The calls of the tour when none fails.
fn logged(env: &Environment, tour: Tour) -> Result<Vec<String>> {
    let control = env.control()?;
    control.reset();
    control.start_call_log();
    load_and_walk(tour)?;
    let log = control.call_log();
    ensure!(
        log.len() >= tour.at_least,
        "only {} calls were logged",
        log.len()
    );
    leave_no_context(env)?;
    let_go(env)?;
    // A call that only one process makes would shift those of the others.
    run::divides(&log);
    Ok(log)
}

/// Returns whether a destructor reported.
fn fail(
    control: &Control,
    tour: Tour,
    (index, function): (usize, &str),
    code: CUresult,
) -> Result<bool> {
    let before = cuda_mem::drop_counts();
    let outcome = walk_with(control, tour, &[(index, code)])?;
    let is_answered = || {
        let mut answers = tour.answers.iter();
        answers.any(|answer| answer.is_of(index, function, code))
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

/// The tour with calls that fail, by their index. The control logs the calls that were made. An error if it panics.
fn walk_with(
    control: &Control,
    tour: Tour,
    faults: &[(usize, CUresult)],
) -> Result<Result<(), Error>> {
    control.reset();
    control.start_call_log();
    for (index, code) in faults {
        control.fail_call(*index as u64 + 1, *code);
    }
    let outcome = catch_unwind(|| load_and_walk(tour));
    control.clear_faults();
    outcome.map_err(|_| anyhow!("a panic"))
}

/// Whether a destructor has reported. A context that is gone already is no failure, and counted all the same.
fn has_reported_since(before: DropCounts) -> bool {
    let now = cuda_mem::drop_counts();
    now.failures > before.failures || now.too_late > before.too_late
}

/// Loads the driver anew, so that its first calls are among those that fail.
fn load_and_walk(tour: Tour) -> Result<(), Error> {
    let path = sim_path().expect("found before");
    // SAFETY: the simulated driver behaves as a CUDA driver does, also when it fails.
    (tour.walk)(unsafe { Driver::load_from(path) }?)
}

/// What could only be released later has its time now.
fn let_go(env: &Environment) -> Result<()> {
    let waiting = waiting_at_last(env, 0)?;
    ensure!(waiting == 0, "{waiting} things are still to be released");
    Ok(())
}

/// How many things are still to be released after a while, unless there are so few before.
fn waiting_at_last(env: &Environment, few: u64) -> Result<u64> {
    let context = env.context()?;
    // What has waited for long is not looked at every time.
    for _ in 0..100 {
        context.synchronize()?;
        if cuda_mem::drop_counts().waiting <= few {
            break;
        }
    }
    // Pools that ended are no leaks, and would spare the next walk the calls that make them.
    // SAFETY: the tour is over, and its threads have ended.
    unsafe { MemoryPool::destroy_spares() }?;
    Ok(cuda_mem::drop_counts().waiting)
}

/// A destructor may have failed to put back the context that was current.
fn leave_no_context(env: &Environment) -> Result<()> {
    let set = env.driver.table().cuCtxSetCurrent;
    let set = set.context("no cuCtxSetCurrent")?;
    // SAFETY: null leaves the thread without a context.
    let code = unsafe { set(std::ptr::null_mut()) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    Ok(())
}

//! A tour through the API, over and over, with another driver call failing each time.

use std::panic::catch_unwind;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::sys::CUresult;
use cuda_mem::{Driver, Error};
use cuda_sim::Live;
use cuda_sim::control::Control;

use crate::lab::{Lab, sim_path};
use crate::run::{self, Part};
use crate::watchdog;

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

/// A tour, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub struct Tour {
    /// Everything that is to be tested, in one go. Objects end by being dropped, in the usual order.
    pub walk: fn(Driver) -> Result<(), Error>,
    /// Fewer calls than this, and the tour does not do what it should.
    pub at_least: usize,
    /// Whether the failure of a call (its index in the tour, its name, the code) is answered in another
    /// way than by an error or a report. What it is instead, the tour asserts itself.
    pub second_way: fn(usize, &str, CUresult) -> bool,
    /// Whether a failure that was reported may leave this behind: what there is now, and what there was
    /// before.
    pub may_leave: fn(&str, Live, Live) -> bool,
}

/// Each call of the tour fails once with each of [`CODES`]: the caller gets a typed error that names
/// function and code, or a destructor reports; nothing is left over, nothing panics, and the order is
/// kept. Returns the number of calls.
///
/// # Errors
///
/// The first call for which that is not so.
pub fn every_call_fails_once(lab: &Lab, tour: Tour) -> Result<usize> {
    let part = Part::own();
    let control = lab.control()?;
    control.reset();
    control.start_call_log();
    load_and_walk(tour)?;
    let log = control.call_log();
    ensure!(
        log.len() >= tour.at_least,
        "only {} calls were logged",
        log.len()
    );
    leave_no_context(lab)?;
    let_go(lab)?;
    let mut left = control.live();
    let calls = log.iter().enumerate();
    for (index, function) in calls.filter(|(index, _)| part.has(*index)) {
        watchdog::next_part();
        for code in CODES {
            let what = format!("call {} {function} answering {code}", index + 1);
            let reported =
                fail(control, tour, (index, function), code).with_context(|| what.clone())?;
            leave_no_context(lab)?;
            let_go(lab).with_context(|| what.clone())?;
            let live = control.live();
            if reported && (tour.may_leave)(function, live, left) {
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
pub fn in_parts(lab: &Lab, tour: Tour) -> Result<()> {
    run::in_parts(|| every_call_fails_once(lab, tour).map(drop))
}

/// Returns whether a destructor reported.
fn fail(
    control: &Control,
    tour: Tour,
    (index, function): (usize, &str),
    code: CUresult,
) -> Result<bool> {
    control.reset();
    control.fail_call(index as u64 + 1, code);
    let before = cuda_mem::drop_counts();
    let outcome = catch_unwind(|| load_and_walk(tour));
    control.clear_faults();
    let after = cuda_mem::drop_counts();
    // A context that is gone already is no failure, and counted all the same.
    let reported = after.failures > before.failures || after.too_late > before.too_late;
    match outcome {
        Err(_) => bail!("a panic"),
        Ok(Err(error)) if error.code() == Some(code) => {
            ensure!(error.function() == Some(function), "{error}");
        }
        Ok(Err(error)) => ensure!((tour.second_way)(index, function, code), "{error}"),
        Ok(Ok(())) if reported || (tour.second_way)(index, function, code) => {}
        Ok(Ok(())) => bail!("nobody noticed"),
    }
    Ok(reported)
}

/// Loads the driver anew, so that its first calls are among those that fail.
fn load_and_walk(tour: Tour) -> Result<(), Error> {
    let path = sim_path().expect("found before");
    // SAFETY: the simulated driver behaves as a CUDA driver does, also when it fails.
    (tour.walk)(unsafe { Driver::load_from(path) }?)
}

/// What could only be released later has its time now.
fn let_go(lab: &Lab) -> Result<()> {
    let context = lab.context()?;
    // What has waited for long is not looked at every time.
    for _ in 0..100 {
        context.synchronize()?;
        if cuda_mem::drop_counts().waiting == 0 {
            return Ok(());
        }
    }
    bail!(
        "{} things are still to be released",
        cuda_mem::drop_counts().waiting
    )
}

/// A destructor may have failed to put back the context that was current.
fn leave_no_context(lab: &Lab) -> Result<()> {
    let set = lab.driver.table().cuCtxSetCurrent;
    let set = set.context("no cuCtxSetCurrent")?;
    // SAFETY: null leaves the thread without a context.
    let code = unsafe { set(std::ptr::null_mut()) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    Ok(())
}

//! A test that hangs ends its program, which says where every thread was.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::own_process;
use cuda_mem_tests::own_process::output_within;
use cuda_mem_tests::suite::Suite;
use cuda_mem_tests::watchdog;

/// One test hangs.
pub(crate) const HUNG: Suite =
    Suite::made_of("hung", |test| test.is_in("sim_machines::watchdog::hung"))
        .staged()
        .sim_only();

/// One has parts.
pub(crate) const PATIENT: Suite = Suite::made_of("patient", |test| {
    test.is_in("sim_machines::watchdog::patient")
})
.staged()
.sim_only();

/// Their stacks are more than fits into a pipe that nobody reads.
const THREADS: usize = 200;
const PIPE: usize = 65_536;

mod hung {
    use super::*;

    #[inline(never)]
    fn waits_for_what_never_comes() -> ! {
        loop {
            thread::park();
        }
    }

    #[apply(case_staged)]
    fn a_test_hangs(_: &Environment) -> Result<()> {
        let sleeper = Command::new("sleep").arg("1000").spawn()?;
        println!("sleeper {}", sleeper.id());
        for _ in 0..THREADS {
            thread::spawn(waits_for_what_never_comes);
        }
        waits_for_what_never_comes()
    }

    #[apply(case_staged)]
    fn another_ends(_: &Environment) -> Result<()> {
        Ok(())
    }
}

mod patient {
    use super::*;

    /// Longer than the patience in all.
    #[apply(case_staged)]
    fn a_test_of_parts_goes_on(_: &Environment) -> Result<()> {
        for _ in 0..8 {
            watchdog::next_part();
            thread::sleep(Duration::from_millis(400));
        }
        Ok(())
    }
}

fn child(what: &Suite) -> Result<(bool, String)> {
    let mut command = own_process::command(what.name)?;
    command
        .args(["--test-threads", "2", "--nocapture"])
        .env(watchdog::PATIENCE, "2");
    let output = output_within(&mut command, Duration::from_secs(60))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok((output.status.success(), text))
}

#[apply(case)]
fn what_hangs_is_named_with_all_stacks(env: &Environment) -> Result<()> {
    env.not_on_windows("the program that it leaves behind, `sleep`, is not there")?;
    let began = Instant::now();
    let (success, text) = child(&HUNG)?;
    ensure!(
        !success && began.elapsed() < Duration::from_secs(50),
        "{text}"
    );
    ensure!(
        text.contains("no end after 2 s: sim_machines::watchdog::hung::a_test_hangs\n"),
        "{text}"
    );
    ensure!(text.contains("waits_for_what_never_comes"), "{text}");
    let stacks = text.matches("-- thread").count();
    ensure!(
        text.contains("another_ends") && stacks > THREADS && text.len() > PIPE,
        "{text}"
    );
    // What the test had started is gone too.
    let sleeper = text.split_once("sleeper ").context("no sleeper")?.1;
    let sleeper: u32 = sleeper
        .split_whitespace()
        .next()
        .context("no number")?
        .parse()?;
    let began = Instant::now();
    while is_there(sleeper) {
        ensure!(began.elapsed() < Duration::from_secs(10), "it still sleeps");
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[apply(case)]
fn each_part_of_a_test_has_the_patience(_: &Environment) -> Result<()> {
    let (success, text) = child(&PATIENT)?;
    ensure!(success && text.contains("1 passed"), "{text}");
    Ok(())
}

/// Not as a process that has ended and that nobody has asked about.
fn is_there(process: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let rest = status.rsplit_once(')').map_or("", |(_, rest)| rest);
    !matches!(rest.split_whitespace().next(), None | Some("Z"))
}

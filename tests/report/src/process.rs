//! Running a program with a time limit.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::plan::Job;

/// How often a running program is looked at.
const PAUSE: Duration = Duration::from_millis(10);

/// What came of a program.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// `None` when it ended by a signal, was stopped or did not start.
    pub(crate) exit_code: Option<i32>,
    pub(crate) seconds: f64,
    /// What it wrote to its standard output.
    pub(crate) stdout: String,
    /// Why this counts as a failure.
    pub(crate) problem: Option<String>,
}

/// Runs `program`; its standard output goes to `log`, its standard error beside it.
///
/// Both go to files and not through pipes: a grandchild that outlives the program would keep a
/// pipe open, and the reader would wait for it without end.
pub(crate) fn run(program: &Path, job: &Job, log: &Path, limit: Duration) -> Outcome {
    let mut command = Command::new(program);
    command.args(&job.arguments);
    if job.simulated {
        command
            .env("CUDA_MEM_TEST_BACKEND", "sim")
            .env_remove("CUDA_MEM_TEST_REQUIRE_GPU");
    }
    run_command(&mut command, log, limit)
}

/// Like [`run`], for a command that is no part of the bundle.
pub(crate) fn run_command(command: &mut Command, log: &Path, limit: Duration) -> Outcome {
    let start = Instant::now();
    let ended = start_and_wait(command, log, limit);
    let (exit_code, problem) = match ended {
        Ok(Some(status)) => (status.code(), describe(status)),
        Ok(None) => {
            let seconds = limit.as_secs_f64();
            (None, Some(format!("not done after {seconds} s, stopped")))
        }
        Err(error) => (None, Some(format!("could not be run: {error}"))),
    };
    Outcome {
        exit_code,
        seconds: (start.elapsed().as_secs_f64() * 1000.0).round() / 1000.0,
        stdout: fs::read(log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default(),
        problem,
    }
}

/// `None` when the time was up.
fn start_and_wait(
    command: &mut Command,
    log: &Path,
    limit: Duration,
) -> io::Result<Option<ExitStatus>> {
    let errors = log.with_extension("stderr.log");
    command
        .stdin(Stdio::null())
        .stdout(File::create(log)?)
        .stderr(File::create(&errors)?);
    own_group(command);
    let child = command.spawn();
    let ended = child.and_then(|mut child| wait(&mut child, limit));
    // Most programs write no errors, and empty files hide the others.
    if fs::metadata(&errors).is_ok_and(|metadata| metadata.len() == 0) {
        fs::remove_file(&errors)?;
    }
    ended
}

fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() >= limit {
            stop(child)?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(PAUSE);
    }
}

fn describe(status: ExitStatus) -> Option<String> {
    if status.success() {
        return None;
    }
    // "exit status: 101", "signal: 11 (SIGSEGV) (core dumped)"
    Some(format!("ended with {status}"))
}

/// Tests start processes of their own; in a group they can be stopped together.
#[cfg(unix)]
fn own_group(command: &mut Command) {
    use std::os::unix::process::CommandExt;
    command.process_group(0);
}

#[cfg(not(unix))]
fn own_group(_: &mut Command) {}

#[cfg(unix)]
fn stop(child: &mut Child) -> io::Result<()> {
    use rustix::process::{Pid, Signal, kill_process_group};
    kill_process_group(Pid::from_child(child), Signal::KILL)?;
    Ok(())
}

#[cfg(not(unix))]
fn stop(child: &mut Child) -> io::Result<()> {
    child.kill()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> (Outcome, tempfile::TempDir) {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let outcome = run_command(&mut command, &scratch.path().join("x.log"), limit);
        (outcome, scratch)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn output_goes_to_the_log_and_errors_beside_it() {
        let (outcome, scratch) = shell("echo out; echo err >&2", LONG);
        assert_eq!(outcome.exit_code, Some(0));
        assert_eq!(outcome.problem, None);
        assert_eq!(outcome.stdout, "out\n");
        let errors = fs::read_to_string(scratch.path().join("x.stderr.log"));
        assert_eq!(errors.expect("the errors"), "err\n");
    }

    #[test]
    fn a_silent_program_leaves_one_log() {
        let (_, scratch) = shell("exit 0", LONG);
        assert!(!scratch.path().join("x.stderr.log").exists());
    }

    #[test]
    fn the_exit_code_and_the_signal_are_told() {
        let (outcome, _) = shell("exit 101", LONG);
        assert_eq!(outcome.exit_code, Some(101));
        let (outcome, _) = shell("kill -SEGV $$", LONG);
        assert_eq!(outcome.exit_code, None);
        assert!(
            outcome
                .problem
                .is_some_and(|why| why.contains("signal: 11"))
        );
    }

    #[test]
    fn a_program_that_does_not_end_is_stopped_with_its_children() {
        let started = Instant::now();
        let (outcome, scratch) = shell("sleep 600 & echo $!; wait", Duration::from_millis(300));
        assert!(started.elapsed() < Duration::from_secs(30));
        assert!(outcome.problem.is_some_and(|why| why.contains("not done")));
        drop(scratch);
        let child = format!("/proc/{}/stat", outcome.stdout.trim());
        let gone = (0..500).any(|_| {
            thread::sleep(PAUSE);
            // A killed process that nobody has waited for yet is in state Z.
            fs::read_to_string(&child).map_or(true, |stat| stat.contains(") Z "))
        });
        assert!(gone, "the child of the program still runs");
    }

    #[test]
    fn an_absent_program_is_a_problem() {
        let scratch = tempfile::tempdir().expect("a scratch folder");
        let mut command = Command::new(scratch.path().join("absent"));
        let outcome = run_command(&mut command, &scratch.path().join("x.log"), LONG);
        assert!(
            outcome
                .problem
                .is_some_and(|why| why.contains("could not be run"))
        );
    }
}

//! Running test bodies: on which driver, how many, which were skipped and why.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, ExitCode, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cuda_mem::sys::CudaVersion;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

use crate::case::{Kind, Test};
use crate::environment::{Backend, Environment, Skip};
use crate::suite::{self, Suite};
use crate::{two, untouched, watchdog};

/// Set in the process that runs one test alone.
const ALONE: &str = "CUDA_MEM_TEST_ALONE";

/// Names a file: each test then runs in a process of its own on the simulator, and a line of the file
/// says which driver functions it called. `cargo xtask coverage` reads it.
const CALLS: &str = "CUDA_MEM_TEST_CALLS";

/// So many tests run at a time on a GPU. Where there are many streams, making another one may wait for those that
/// tests hold, and keep everybody from the driver meanwhile (R176).
const AT_A_TIME: usize = 8;

/// Runs the tests of a suite as the command line asks, and says on what.
#[must_use]
pub fn main(suite: &Suite) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let calls = std::env::var_os(CALLS);
    if calls.is_some() {
        // Each test has a process of its own then.
        arguments.test_threads = Some(at_a_time());
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
        let most = arguments.test_threads.unwrap_or_else(cores);
        arguments.test_threads = Some(most.min(AT_A_TIME));
    }
    let (tests, is_enough) = chosen_tests(suite, env);
    // It asks the driver, which the tests did not.
    if !arguments.list && calls.is_none() {
        announce(suite, env);
    }
    if !is_enough {
        println!(
            "{}: not tested, because it needs {} devices",
            suite.name, suite.devices
        );
    }
    let is_watched = suite.untouched && is_enough;
    if is_watched && let Err(error) = untouched::start(env) {
        eprintln!("{error:#}");
        return ExitCode::FAILURE;
    }
    let trials = tests.iter().map(|test| trial(env, *test, suite.untouched));
    let conclusion = libtest_mimic::run(&arguments, trials.collect());
    let drops = cuda_mem::drop_counts();
    if drops.failures > 0 && !suite.drops_fail {
        eprintln!("{} destructors failed", drops.failures);
        return ExitCode::FAILURE;
    }
    // A real driver would not say anything. Before 11.3 none tells when a pool can end.
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
    conclusion.exit_code()
}

/// Those of the suite that run on this driver, and whether it has the devices that they need.
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
        let is_child = std::env::var_os(ALONE).is_some();
        if !is_child && is_claimed(name).map_err(|error| Failed::from(error.to_string()))? {
            return Ok(Completion::ignored_with("another program runs it"));
        }
        let share = if is_child { SAYS } else { 1.0 };
        let _watched = watchdog::watch(name, watchdog::patience().mul_f64(share));
        let outcome = match calls {
            _ if !is_child && (test.alone || calls.is_some()) => spawn(name, None).map(drop),
            Some(file) => {
                (test.body)(env).and_then(|()| write_calls(env, test.short_name(), &file))
            }
            None => (test.body)(env),
        };
        let outcome = match outcome {
            Ok(()) if untouched => untouched::check(env),
            outcome => outcome,
        };
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

/// Set by bodies whose calls depend on how threads meet.
static IS_BY_CHANCE: AtomicBool = AtomicBool::new(false);

/// For a body of several threads: what it calls depends on how they meet, so it does not count as a test of a function.
pub(crate) fn calls_by_chance() {
    IS_BY_CHANCE.store(true, Ordering::Relaxed);
}

/// Adds a line to `file`: the test, and every driver function that this process has called.
fn write_calls(env: &Environment, name: &str, file: &OsStr) -> Result<()> {
    if IS_BY_CHANCE.load(Ordering::Relaxed) {
        return Ok(());
    }
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

/// The reason for which a program of one test skipped it, from what it printed.
pub(crate) fn skip_in(text: &str) -> Option<Skip> {
    let reason = text
        .lines()
        .find_map(|line| line.split_once("... ignored"))?;
    let reason = reason.1.trim_start_matches([',', ' ', '(']);
    Some(Skip(reason.trim_end_matches(')').to_owned()))
}

/// A program of one test says itself what hangs in it, after so much of the patience.
const SAYS: f64 = 0.6;
/// If it does not, its parent ends it.
const ENDED: f64 = 0.8;

/// What a process printed and how it ended. One that takes longer is ended, with those that it started.
///
/// # Errors
///
/// If it cannot be started, or takes longer.
pub fn output_within(command: &mut Command, patience: Duration) -> Result<Output> {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    // Read at once: what hangs may have more to say than fits into the system's pipe.
    let stdout = child.stdout.take().map(reader);
    let stderr = child.stderr.take().map(reader);
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if began.elapsed() > patience {
            watchdog::end_children(child.id());
            child.kill()?;
            child.wait()?;
            break None;
        }
        thread::sleep(Duration::from_millis(2));
    };
    let (stdout, stderr) = (text(stdout)?, text(stderr)?);
    let Some(status) = status else {
        let said = String::from_utf8_lossy(&stdout);
        let errors = String::from_utf8_lossy(&stderr);
        bail!("no end after {} s:\n{said}\n{errors}", patience.as_secs());
    };
    Ok(Output {
        status,
        stdout,
        stderr,
    })
}

type Reader = thread::JoinHandle<io::Result<Vec<u8>>>;

fn reader(mut pipe: impl io::Read + Send + 'static) -> Reader {
    thread::spawn(move || {
        let mut text = Vec::new();
        pipe.read_to_end(&mut text)?;
        Ok(text)
    })
}

fn text(reader: Option<Reader>) -> Result<Vec<u8>> {
    let Some(reader) = reader else {
        return Ok(Vec::new());
    };
    let text = reader.join();
    Ok(text.map_err(|_| anyhow!("a thread panicked"))??)
}

/// The part of a long test that a process runs, as `1/4`.
const PART: &str = "CUDA_MEM_TEST_PART";

/// Parts of a long test, and the one that this process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    number: usize,
    of: usize,
}

impl Part {
    /// All there is.
    const WHOLE: Self = Self { number: 0, of: 1 };

    /// Of this process.
    #[must_use]
    pub fn own() -> Self {
        let part = std::env::var(PART).ok();
        part.and_then(|text| {
            let (number, of) = text.split_once('/')?;
            let (number, of) = (number.parse().ok()?, of.parse().ok()?);
            (number < of).then_some(Self { number, of })
        })
        .unwrap_or(Self::WHOLE)
    }

    /// Whether the item of this index belongs to the part.
    #[must_use]
    pub fn has(self, index: usize) -> bool {
        index % self.of == self.number
    }

    /// As many as there are to be.
    fn all() -> impl Iterator<Item = Self> {
        let of = at_a_time();
        (0..of).map(move |number| Self { number, of })
    }
}

/// Processes that share a long test: one for each processor, and four at most.
#[must_use]
pub fn at_a_time() -> usize {
    cores().min(4)
}

/// Names a folder, for programs that share the same tests: each runs those that no other one has claimed there.
pub const CLAIMS: &str = "CUDA_MEM_TEST_CLAIMS";

/// Whether another program runs the test.
fn is_claimed(name: &str) -> Result<bool> {
    let Some(folder) = std::env::var_os(CLAIMS) else {
        return Ok(false);
    };
    let claim = Path::new(&folder).join(name);
    match OpenOptions::new().write(true).create_new(true).open(claim) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Runs the parts of the one test that runs in this program now, each in a process of its own and all at a time; `part` is
/// run where this is such a process already.
///
/// # Errors
///
/// Those of the parts.
pub fn in_parts(part: impl FnOnce() -> Result<()>) -> Result<()> {
    if std::env::var_os(ALONE).is_some() {
        return part();
    }
    let name = watchdog::only_one().context("several tests at a time")?;
    thread::scope(|scope| {
        let parts: Vec<_> = Part::all()
            .map(|part| scope.spawn(move || spawn(name, Some(part))))
            .collect();
        let ends = parts.into_iter().map(|part| {
            let end = part.join();
            end.map_err(|_| anyhow!("a thread panicked"))?
        });
        let (mut texts, mut failed) = (Vec::new(), Vec::new());
        for end in ends {
            match end {
                Ok(text) => texts.push(text),
                Err(error) => failed.push(error),
            }
        }
        // A part that failed says more than one that was skipped.
        failed.sort_by_key(|error| error.is::<Skip>());
        if let Some(error) = failed.into_iter().next() {
            return Err(error);
        }
        let whole: BTreeSet<_> = texts.iter().filter_map(|text| parted(text)).collect();
        ensure!(
            whole.len() <= 1,
            "the parts are not of one whole: {whole:?}"
        );
        Ok(())
    })
}

/// Begins what a part says of the whole.
const WHOLE: &str = "a part of ";

/// For a body in parts: what it divides, which must be the same in all of them.
pub(crate) fn divides(whole: &impl Hash) {
    let mut hasher = DefaultHasher::new();
    whole.hash(&mut hasher);
    println!("{WHOLE}{:016x}", hasher.finish());
}

fn parted(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once(WHOLE)?;
    rest.lines().next()
}

/// Runs one test of this program, or a part of it, in a process of its own, and returns what it printed. One that hangs is
/// ended.
fn spawn(name: &str, part: Option<Part>) -> Result<String> {
    let mut command = suite::again()?;
    command
        .args(["--exact", name, "--nocapture"])
        .env(ALONE, "1");
    if let Some(part) = part {
        command.env(PART, format!("{}/{}", part.number, part.of));
    }
    let patience = watchdog::patience().mul_f64(ENDED);
    let output = output_within(&mut command, patience).context("in its own process")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if let Some(skip) = skip_in(&text) {
        return Err(skip.into());
    }
    ensure!(
        output.status.success() && text.contains("1 passed"),
        "in its own process, {}:\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(text.into_owned())
}

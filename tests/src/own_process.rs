//! Processes that tests start: this program again, for a suite, a test or a part of it, and examples.

use std::collections::BTreeSet;
use std::env::consts::EXE_SUFFIX;
use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};

use crate::environment::Skip;
use crate::watchdog;

/// Names the suite that a process runs. Without it, the process runs all suites that the command line asks for.
pub const SUITE: &str = "CUDA_MEM_TEST_SUITE";

/// Set in a process that runs one test alone.
const ALONE: &str = "CUDA_MEM_TEST_ALONE";

/// The part of a long test that a process runs, as `1/4`.
const PART: &str = "CUDA_MEM_TEST_PART";

/// Names a folder, for programs that share the same tests: each runs the tests that it is first to claim there.
pub const CLAIMS: &str = "CUDA_MEM_TEST_CLAIMS";

/// A test alone in its process counts as hung after this share of the patience, so that its process can print stacks.
const HUNG: f64 = 0.6;
/// The process is killed by its parent after this share.
const KILLED: f64 = 0.8;

/// The suite of this process.
static OWN_SUITE: OnceLock<&str> = OnceLock::new();

/// Sets the suite of this process.
pub(crate) fn set_suite(name: &'static str) {
    let _ = OWN_SUITE.set(name);
}

/// This program again, to run the suite of this name.
///
/// # Errors
///
/// If the path of the program is unknown.
pub fn command(name: &str) -> Result<Command> {
    let program = std::env::current_exe().context("the path of this program")?;
    let mut command = Command::new(program);
    command.env(SUITE, name);
    Ok(command)
}

/// This program again, for tests of the suite of this process.
pub(crate) fn again() -> Result<Command> {
    command(OWN_SUITE.get().copied().unwrap_or_default())
}

/// The same, to run one test alone.
pub(crate) fn again_alone() -> Result<Command> {
    let mut command = again()?;
    command.arg("--nocapture").env(ALONE, "1");
    Ok(command)
}

/// The example of this name: as cargo builds it, or beside this program in a bundle.
///
/// # Errors
///
/// If there is none.
pub fn example(name: &str) -> Result<PathBuf> {
    let here = std::env::current_exe()?;
    let folder = here.parent().context("the program has no folder")?;
    let places = [
        folder.join(format!("example-{name}{EXE_SUFFIX}")),
        folder.join(format!("../examples/{name}{EXE_SUFFIX}")),
    ];
    let found = places.into_iter().find(|path| path.is_file());
    found.with_context(|| {
        format!("the example {name} was not built; `cargo test --workspace` builds it")
    })
}

/// Set where every test shall have a process of its own.
const APART: &str = "CUDA_MEM_TEST_APART";

/// Whether every test has a process of its own, also one that needs none.
pub(crate) fn are_apart() -> bool {
    std::env::var_os(APART).is_some()
}

/// Whether this process runs one test alone.
pub(crate) fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// How long a test of this process may take.
pub(crate) fn patience() -> Duration {
    let share = if is_alone() { HUNG } else { 1.0 };
    watchdog::patience().mul_f64(share)
}

/// Processes that share a long test: one per processor, and at most four.
#[must_use]
pub fn max_processes() -> usize {
    thread::available_parallelism()
        .map_or(1, usize::from)
        .min(4)
}

/// One of several parts of a long test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    number: usize,
    of: usize,
}

impl Part {
    const WHOLE: Self = Self { number: 0, of: 1 };

    /// The part that this process runs.
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

    fn all() -> impl Iterator<Item = Self> {
        let of = max_processes();
        (0..of).map(move |number| Self { number, of })
    }
}

/// Runs the parts of the only running test concurrently, each in a process of its own. In such a process it runs
/// `part`.
///
/// # Errors
///
/// Those of the parts.
pub fn in_parts(part: impl FnOnce() -> Result<()>) -> Result<()> {
    if is_alone() {
        return part();
    }
    let name = watchdog::only_one().context("several tests at a time")?;
    thread::scope(|scope| {
        let parts: Vec<_> = Part::all()
            .map(|part| scope.spawn(move || run_alone(name, Some(part))))
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
        // A failed part matters more than a skipped one.
        failed.sort_by_key(|error| error.is::<Skip>());
        if let Some(error) = failed.into_iter().next() {
            return Err(error);
        }
        let whole: BTreeSet<_> = texts.iter().filter_map(|text| whole_in(text)).collect();
        ensure!(
            whole.len() <= 1,
            "the parts are not of one whole: {whole:?}"
        );
        Ok(())
    })
}

/// Precedes the hash of the whole in the output of a part.
const WHOLE: &str = "a part of ";

/// For a body in parts: prints a hash of what it divides, which must be the same in all parts.
pub(crate) fn print_whole(whole: &impl Hash) {
    let mut hasher = DefaultHasher::new();
    whole.hash(&mut hasher);
    println!("{WHOLE}{:016x}", hasher.finish());
}

fn whole_in(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once(WHOLE)?;
    rest.lines().next()
}

/// Runs one test of this program, or a part of it, in a process of its own, and returns what it printed. A process that
/// hangs is killed.
pub(crate) fn run_alone(name: &str, part: Option<Part>) -> Result<String> {
    let mut command = again_alone()?;
    if let Some(part) = part {
        command.env(PART, format!("{}/{}", part.number, part.of));
    }
    run_in(command, name)
}

/// As [`run_alone`], for a test that needs no process of its own: there it may start others for its parts or suites, as it
/// may here.
pub(crate) fn run_apart(name: &str) -> Result<String> {
    let mut command = again()?;
    command
        .arg("--nocapture")
        .env_remove(APART)
        .env_remove(CLAIMS);
    run_in(command, name)
}

fn run_in(mut command: Command, name: &str) -> Result<String> {
    command.args(["--exact", name]);
    let patience = watchdog::patience().mul_f64(KILLED);
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

/// The reason why a program of one test skipped it, from its output.
pub(crate) fn skip_in(text: &str) -> Option<Skip> {
    let reason = text
        .lines()
        .find_map(|line| line.split_once("... ignored"))?;
    let reason = reason.1.trim_start_matches([',', ' ', '(']);
    Some(Skip(reason.trim_end_matches(')').to_owned()))
}

/// Starts a process. Under Wine a start was seen to fail with `ERROR_INTERNAL_ERROR`, once in more than a thousand; then
/// no program has run, and it is started again.
///
/// # Errors
///
/// Those of `start`.
pub fn started<T>(mut start: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    const INTERNAL_ERROR: i32 = 1359;
    const ATTEMPTS: u32 = 3;
    for _ in 1..ATTEMPTS {
        match start() {
            Err(error) if cfg!(windows) && error.raw_os_error() == Some(INTERNAL_ERROR) => {
                eprintln!("started again after: {error}");
            }
            outcome => return outcome,
        }
    }
    start()
}

/// Set where an emulator runs the tests. Now and then a fork of qemu's beside other threads waits forever for a lock of
/// qemu's: the child stays a copy of this process, and never comes to its program.
const EMULATED: &str = "CUDA_MEM_TEST_EMULATED";

/// Starts a process. In an emulator it is started again if it does not come to its program.
///
/// # Errors
///
/// If it cannot be started.
pub(crate) fn spawned(command: &mut Command) -> Result<Child> {
    const ATTEMPTS: u32 = 3;
    const COMING: Duration = Duration::from_secs(20);
    if !cfg!(target_os = "linux") || std::env::var_os(EMULATED).is_none() {
        return Ok(started(|| command.spawn())?);
    }
    for _ in 0..ATTEMPTS {
        let mut child = command.spawn()?;
        if comes_to_its_program(child.id(), COMING)? {
            return Ok(child);
        }
        eprintln!("started again, because the process did not come to its program");
        child.kill()?;
        child.wait()?;
    }
    bail!("none of {ATTEMPTS} processes came to its program");
}

/// Whether the process gets another command line or environment than this one in time. One that has ended has been there.
fn comes_to_its_program(process: u32, patience: Duration) -> Result<bool> {
    let (own, own_variables) = (
        fs::read("/proc/self/cmdline")?,
        fs::read("/proc/self/environ")?,
    );
    let began = Instant::now();
    while began.elapsed() < patience {
        // The emulator's own name may come first.
        if !fs::read(format!("/proc/{process}/cmdline"))?.ends_with(&own)
            || fs::read(format!("/proc/{process}/environ"))? != own_variables
        {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(false)
}

/// The output and status of a process. If it takes longer, it is killed with its children.
///
/// # Errors
///
/// If it cannot be started, or takes longer.
pub fn output_within(command: &mut Command, patience: Duration) -> Result<Output> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawned(command)?;
    // Read at once: a process that hangs may print more than fits into a pipe.
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
        let stdout = String::from_utf8_lossy(&stdout);
        let stderr = String::from_utf8_lossy(&stderr);
        bail!("no end after {} s:\n{stdout}\n{stderr}", patience.as_secs());
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

/// Whether another program has claimed the test.
pub(crate) fn is_claimed(name: &str) -> Result<bool> {
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

#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use crate::environment::Environment;
    use crate::forks::{end_child, ends_well, fork};

    #[apply(case_of_harness)]
    fn a_fork_that_stays_what_it_was_does_not_come_to_a_program(_: &Environment) -> Result<()> {
        const PATIENCE: Duration = Duration::from_millis(50);
        let (theirs, ours) = io::pipe()?;
        // SAFETY: the child only waits, and ends.
        let child = unsafe { fork()? };
        if child == 0 {
            drop(ours);
            end_child(io::Read::read(&mut &theirs, &mut [0]).is_ok());
        }
        let process = u32::try_from(child)?;
        ensure!(!comes_to_its_program(process, PATIENCE)?, "it is a copy");
        drop(ours);
        ends_well(child)?;
        let mut other = Command::new("sleep").arg("60").spawn()?;
        ensure!(comes_to_its_program(other.id(), Duration::from_secs(10))?);
        other.kill()?;
        other.wait()?;
        Ok(())
    }
}

//! Tests of two processes: the test program starts itself once more for the other one.

use std::cell::{Cell, RefCell};
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::Channel;

use crate::case::{self, Test};
use crate::environment::{Environment, Skip};
use crate::run::skip_in;
use crate::suite;

/// Set in the other process.
const OTHER: &str = "CUDA_MEM_TEST_OTHER";

/// A process that takes longer is given up, as hung.
const LIMIT: Duration = Duration::from_secs(60);

/// The other process of a test, as the first one sees it.
#[derive(Debug)]
pub struct Other {
    /// To its [`Channel`].
    pub channel: Channel,
    child: RefCell<Child>,
    is_gone: Cell<bool>,
}

impl Other {
    /// Waits until it says so.
    ///
    /// # Errors
    ///
    /// If it fails instead.
    pub fn wait(&self) -> Result<()> {
        wait(&self.channel)
    }

    /// Lets it go on.
    ///
    /// # Errors
    ///
    /// If it is gone.
    pub fn go(&self) -> Result<()> {
        go(&self.channel)
    }

    /// Kills it where it is, and waits until it is gone.
    ///
    /// # Errors
    ///
    /// If it cannot be killed.
    pub fn kill(&self) -> Result<()> {
        let mut child = self.child.borrow_mut();
        child.kill()?;
        child.wait()?;
        self.is_gone.set(true);
        Ok(())
    }

    /// Its end, which must be a good one.
    fn finish(&self) -> Result<()> {
        if self.is_gone.get() {
            return Ok(());
        }
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.borrow_mut().try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                self.kill()?;
                bail!("the other process hung");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        self.is_gone.set(true);
        let mut child = self.child.borrow_mut();
        let mut text = String::new();
        if let Some(output) = &mut child.stdout {
            output.read_to_string(&mut text)?;
        }
        if let Some(output) = &mut child.stderr {
            output.read_to_string(&mut text)?;
        }
        if let Some(skip) = skip_in(&text) {
            return Err(skip.into());
        }
        ensure!(
            status.success() && text.contains("1 passed"),
            "the other process ({status}):\n{text}"
        );
        Ok(())
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        if !self.is_gone.get() {
            // The test has failed already; nothing may stay behind.
            let _ = self.kill();
        }
    }
}

/// The test whose other process this is.
pub(crate) fn other() -> Option<Test> {
    named(&std::env::var(OTHER).ok()?)
}

fn named(name: &str) -> Option<Test> {
    let mut all = case::all().into_iter();
    all.find(|test| test.short_name() == name)
}

/// Waits until the process at the other end says so.
///
/// # Errors
///
/// If it is gone, or sent something else.
pub fn wait(channel: &Channel) -> Result<()> {
    ensure!(channel.receive()?.bytes == b"go", "something else came");
    Ok(())
}

/// Lets the process at the other end go on.
///
/// # Errors
///
/// If it is gone.
pub fn go(channel: &Channel) -> Result<()> {
    Ok(channel.send(b"go", &[])?)
}

/// Runs `first` here and `second` in another process, with a channel between the two. `name` is the short one
/// of the test which calls this, and calls nothing else.
///
/// # Errors
///
/// If one of them fails.
pub fn two_processes(
    env: &Environment,
    name: &str,
    first: impl FnOnce(&Environment, &Other) -> Result<()>,
    second: impl FnOnce(&Environment, &Channel) -> Result<()>,
) -> Result<()> {
    if std::env::var(OTHER).is_ok_and(|other| other == name) {
        let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
        return second(env, &Channel::from_fd(socket)?);
    }
    let (channel, theirs) = Channel::pair()?;
    let mut child = command(name)?
        .stdin(OwnedFd::from(theirs))
        .spawn()
        .context("could not start the other process")?;
    // What it prints is little, and fits into the pipes until it is read.
    let _ = child.stdin.take();
    let mut other = Other {
        channel,
        child: RefCell::new(child),
        is_gone: Cell::new(false),
    };
    let outcome = first(env, &other);
    // The other end of its channel is closed: it does not wait any more.
    let (closed, _) = Channel::pair()?;
    drop(std::mem::replace(&mut other.channel, closed));
    let end = other.finish();
    match (outcome, end) {
        (Ok(()), end) => end,
        (Err(error), Ok(())) => Err(error),
        (Err(_), Err(end)) if end.is::<Skip>() => Err(end),
        (Err(error), Err(end)) => Err(error.context(format!("{end:#}"))),
    }
}

/// This program once more, for one test in the role of the other process.
fn command(name: &str) -> Result<Command> {
    named(name).with_context(|| format!("no test is called {name}"))?;
    let mut command = suite::again()?;
    command
        .arg("--nocapture")
        .env(OTHER, name)
        .env("CUDA_MEM_TEST_ALONE", "1")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Ok(command)
}

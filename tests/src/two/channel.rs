//! Two processes with a channel between them.

use std::cell::{Cell, RefCell};
use std::io::Read as _;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::interop::Channel;

use super::{command, is_other};
use crate::environment::{Environment, Skip};
use crate::own_process::{skip_in, spawned};

/// A process that takes longer counts as hung, and is killed.
const LIMIT: Duration = Duration::from_secs(60);

/// The second process of a test, as seen from the first.
#[derive(Debug)]
pub struct Other {
    /// The channel to it.
    pub channel: Channel,
    child: RefCell<Child>,
    is_gone: Cell<bool>,
}

impl Other {
    /// Waits for its [`go`].
    ///
    /// # Errors
    ///
    /// If it fails instead.
    pub fn wait(&self) -> Result<()> {
        wait(&self.channel)
    }

    /// Ends its [`wait`].
    ///
    /// # Errors
    ///
    /// If it has ended.
    pub fn go(&self) -> Result<()> {
        go(&self.channel)
    }

    /// Kills it, and waits for its end.
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

    /// Waits for its end, which must be a success.
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
            // The test has already failed; the process must not outlive it.
            let _ = self.kill();
        }
    }
}

/// Waits for [`go`] at the other end of the channel.
///
/// # Errors
///
/// If the other process has ended, or sent something else.
pub fn wait(channel: &Channel) -> Result<()> {
    ensure!(channel.receive()?.bytes == b"go", "something else came");
    Ok(())
}

/// Ends the [`wait`] at the other end of the channel.
///
/// # Errors
///
/// If the other process has ended.
pub fn go(channel: &Channel) -> Result<()> {
    Ok(channel.send(b"go", &[])?)
}

/// Runs `first` here and `second` in another process, with a channel between them. `name` is the short name of the
/// calling test, which must do nothing else.
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
    if is_other(name) {
        let socket = std::io::stdin().as_fd().try_clone_to_owned()?;
        return second(env, &Channel::from_fd(socket)?);
    }
    let (channel, theirs) = Channel::pair()?;
    let mut command = command(name)?;
    command.stdin(OwnedFd::from(theirs));
    let mut child = spawned(&mut command).context("could not start the other process")?;
    // This process's copy of the other end.
    drop(command);
    // Its output is short, and fits into the pipes until it is read.
    let _ = child.stdin.take();
    let mut other = Other {
        channel,
        child: RefCell::new(child),
        is_gone: Cell::new(false),
    };
    let outcome = first(env, &other);
    // This closes the channel, so that the other process stops waiting.
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

//! What is tried.

use std::fmt;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// What goes on beside the threads that write and read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Beside {
    All,
    Streams,
    Threads,
    None,
}

/// Which events are used again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Events {
    /// All.
    Kept,
    /// None.
    Fresh,
    /// Those that were not recorded in a thread's own stream.
    OwnFresh,
}

/// Which pools there are, and when they are destroyed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pools {
    /// One, at the end.
    Kept,
    /// One for each use, as soon as the driver says that nothing of it is outstanding.
    Quiet,
    /// As `Quiet`, but not while another thread waits for a stream.
    Gated,
    /// As `Quiet`, but not while another thread is in a call that names a stream.
    GatedAll,
    /// One for each use, when in addition the whole context was waited for.
    Synced,
    /// One for each use, never.
    Never,
    /// One for each use, never: once nothing of it is outstanding it serves another.
    Again,
}

/// Where graphs are launched beside the threads that write and read.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Graphs {
    Nowhere,
    /// In the three streams.
    Shared,
    /// In a stream that nobody else uses.
    Own,
    /// In the three streams, but uploaded only.
    Uploaded,
}

/// What other threads do not do while a graph is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Apart {
    Nothing,
    /// Making streams wait.
    Orders,
    /// The first half of that: recording an event.
    Records,
    /// The second half.
    Waits,
    /// Any call that names a stream.
    Calls,
}

#[derive(Debug)]
pub(crate) struct Options {
    /// As they were given.
    text: String,
    pub(crate) duration: Duration,
    pub(crate) beside: Beside,
    pub(crate) events: Events,
    pub(crate) pools: Pools,
    pub(crate) graphs: Graphs,
    pub(crate) apart: Apart,
    pub(crate) pool: bool,
    pub(crate) pool_beside: bool,
    pub(crate) reuse: bool,
    /// Each thread that writes and reads does so in streams that no other thread uses.
    pub(crate) own_streams: bool,
    pub(crate) thread_waits: bool,
}

impl Options {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Self {
            text: String::new(),
            duration: Duration::from_secs(20),
            beside: Beside::All,
            events: Events::Kept,
            pools: Pools::Kept,
            graphs: Graphs::Nowhere,
            apart: Apart::Nothing,
            pool: true,
            pool_beside: true,
            reuse: true,
            own_streams: false,
            thread_waits: false,
        };
        for word in words {
            match word.split_once('=') {
                Some(("seconds", seconds)) => {
                    let seconds = seconds.parse().with_context(|| word.clone())?;
                    options.duration = Duration::from_secs(seconds);
                }
                Some(("memory", kind @ ("pool" | "plain"))) => options.pool = kind == "pool",
                Some(("beside-memory", kind @ ("pool" | "plain"))) => {
                    options.pool_beside = kind == "pool";
                }
                Some(("beside", "all")) => options.beside = Beside::All,
                Some(("beside", "streams")) => options.beside = Beside::Streams,
                Some(("beside", "threads")) => options.beside = Beside::Threads,
                Some(("beside", "none")) => options.beside = Beside::None,
                Some(("events", "kept")) => options.events = Events::Kept,
                Some(("events", "fresh")) => options.events = Events::Fresh,
                Some(("events", "own-fresh")) => options.events = Events::OwnFresh,
                Some(("pools", "kept")) => options.pools = Pools::Kept,
                Some(("pools", "quiet")) => options.pools = Pools::Quiet,
                Some(("pools", "gated")) => options.pools = Pools::Gated,
                Some(("pools", "gated-all")) => options.pools = Pools::GatedAll,
                Some(("pools", "synced")) => options.pools = Pools::Synced,
                Some(("pools", "never")) => options.pools = Pools::Never,
                Some(("pools", "again")) => options.pools = Pools::Again,
                Some(("graphs", "none")) => options.graphs = Graphs::Nowhere,
                Some(("graphs", "shared")) => options.graphs = Graphs::Shared,
                Some(("graphs", "own")) => options.graphs = Graphs::Own,
                Some(("graphs", "uploaded")) => options.graphs = Graphs::Uploaded,
                Some(("apart", "nothing")) => options.apart = Apart::Nothing,
                Some(("apart", "orders")) => options.apart = Apart::Orders,
                Some(("apart", "records")) => options.apart = Apart::Records,
                Some(("apart", "waits")) => options.apart = Apart::Waits,
                Some(("apart", "calls")) => options.apart = Apart::Calls,
                Some(("reuse", kind @ ("on" | "off"))) => options.reuse = kind == "on",
                Some(("streams", kind @ ("shared" | "own"))) => options.own_streams = kind == "own",
                Some(("end", kind @ ("at-once" | "waits"))) => {
                    options.thread_waits = kind == "waits";
                }
                _ => bail!("'{word}' is not known; the options are in the program's documentation"),
            }
            options.text += &word;
            options.text.push(' ');
        }
        Ok(options)
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text.trim_end() {
            "" => f.write_str("defaults"),
            text => f.write_str(text),
        }
    }
}

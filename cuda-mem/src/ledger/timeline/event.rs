//! An event of Chrome's JSON.

#![forbid(unsafe_code)]

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

/// The process that has the counters and the threads. Streams are the ones after it, because viewers show processes as
/// groups.
pub(super) const PROCESS: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Phase {
    #[serde(rename = "M")]
    Metadata,
    #[serde(rename = "C")]
    Counter,
    #[serde(rename = "b")]
    Begin,
    #[serde(rename = "e")]
    End,
    #[serde(rename = "i")]
    Instant,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct ChromeEvent<'a> {
    ph: Phase,
    pid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tid: Option<u64>,
    name: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    /// Microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    /// How far an instant reaches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) s: Option<&'static str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) args: BTreeMap<&'static str, Value>,
}

impl<'a> ChromeEvent<'a> {
    /// `time` is in nanoseconds.
    pub(super) fn new(ph: Phase, pid: u64, name: impl Into<Cow<'a, str>>, time: u64) -> Self {
        Self {
            ts: Some(time as f64 / 1000.0),
            ..Self::untimed(ph, pid, name.into())
        }
    }

    fn untimed(ph: Phase, pid: u64, name: Cow<'a, str>) -> Self {
        Self {
            ph,
            pid,
            tid: None,
            name,
            cat: None,
            id: None,
            ts: None,
            s: None,
            args: BTreeMap::new(),
        }
    }

    pub(super) fn process_name(pid: u64, name: String) -> Self {
        let mut event = Self::untimed(Phase::Metadata, pid, "process_name".into());
        event.args.insert("name", name.into());
        event
    }

    pub(super) fn thread_name(thread: u64) -> Self {
        let mut event = Self::untimed(Phase::Metadata, PROCESS, "thread_name".into());
        event.tid = Some(thread);
        event.args.insert("name", format!("thread {thread}").into());
        event
    }

    pub(super) fn counter(name: &'static str, time: u64, bytes: u64) -> Self {
        let mut event = Self::new(Phase::Counter, PROCESS, name, time);
        event.args.insert("bytes", bytes.into());
        event
    }

    /// The beginning or the end of a block with this number.
    pub(super) fn of_block(
        ph: Phase,
        group: u64,
        number: u64,
        name: impl Into<Cow<'a, str>>,
        time: u64,
    ) -> Self {
        let mut event = Self::new(ph, group, name, time);
        // Blocks overlap, so they are on no thread.
        event.tid = Some(0);
        event.cat = Some("block");
        event.id = Some(format!("{number:#x}"));
        event
    }
}

//! Recorded events, as a value.

use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::TraceEntry;
use super::sink::{fields, line_of};
use crate::ledger::csv::{self, Fraction};

/// Events in order of time. From [`Recorder::recording`](super::Recorder::recording).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    entries: Vec<TraceEntry>,
    dropped: u64,
    /// Nanoseconds since 1970.
    began: u64,
}

impl Recording {
    pub(in crate::ledger) fn new(entries: Vec<TraceEntry>, dropped: u64, began: u64) -> Self {
        Self {
            entries,
            dropped,
            began,
        }
    }

    pub(super) fn empty(began: u64) -> Self {
        Self::new(Vec::new(), 0, began)
    }

    /// The events.
    #[must_use]
    pub fn entries(&self) -> &[TraceEntry] {
        &self.entries
    }

    /// How many older events there were. None are missing in between.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// As [`began`](Self::began), in nanoseconds since 1970.
    #[cfg(feature = "export")]
    pub(in crate::ledger) fn began_nanos(&self) -> u64 {
        self.began
    }

    /// When the recorder was created. The times of the entries count from there.
    #[must_use]
    pub fn began(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.began)
    }

    /// Writes the events as a log: RMM's columns and `Origin`, and the actions of
    /// [`TraceAction`](super::TraceAction). If events were dropped, the first line says how many.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    ///
    /// ```
    /// # use cuda_mem::ledger::Recorder;
    /// let mut log = Vec::new();
    /// Recorder::ring(1000).recording().write_csv(&mut log)?;
    /// assert_eq!(log, b"Thread,Time,Action,Pointer,Size,Stream,Origin\n");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn write_csv(&self, mut out: impl Write) -> io::Result<()> {
        let mut lines = csv::HEADER.to_vec();
        if self.dropped > 0 {
            let first = self.entries.first().map_or(0, |entry| entry.time);
            let line = csv::Line {
                thread: 0,
                time: self.began + first,
                action: "dropped",
                address: 0,
                bytes: self.dropped,
                stream: 0,
            };
            line.write(&mut lines, Fraction::Nanos);
            lines.extend_from_slice(b",\n");
        }
        for entry in &self.entries {
            line_of(entry, self.began, &mut lines);
        }
        out.write_all(&lines)?;
        out.flush()
    }

    /// Writes the allocations, frees and failures as RMM's logging resource does, for tools that read its logs.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    #[doc(alias = "logging_resource_adaptor")]
    pub fn write_rmm_csv(&self, mut out: impl Write) -> io::Result<()> {
        let mut lines = csv::RMM_HEADER.to_vec();
        for entry in &self.entries {
            if let Some(action) = entry.action.rmm_name() {
                fields(entry, action, self.began).write(&mut lines, Fraction::Micros);
                lines.push(b'\n');
            }
        }
        out.write_all(&lines)?;
        out.flush()
    }
}

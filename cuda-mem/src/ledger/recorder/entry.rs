//! One event of a recording.

#![forbid(unsafe_code)]

use std::fmt;
use std::panic::Location;
use std::sync::Arc;

/// What happened to memory. The names are those of the log's column `Action`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TraceAction {
    /// A block was allocated; [`bytes`](TraceEntry::bytes) are those asked for.
    Allocate,
    /// A block was freed. From here on its stream may reuse it.
    Free,
    /// A block that several streams used was freed. It is pending until they are done.
    FreeRequested,
    /// The other streams are done with such a block.
    FreeCompleted,
    /// A request failed; nearly always for want of memory.
    AllocateFailure,
    /// An arena has gained memory at this address.
    Map,
    /// An arena no longer has memory at this address. If memory moves, a [`Map`](Self::Map) of the same thread follows.
    Unmap,
    /// How many bytes a pool of the driver holds, in [`bytes`](TraceEntry::bytes), after an allocation or a trim that changed
    /// them. The address is the pool's handle.
    Reserved,
    /// A request to release memory; [`bytes`](TraceEntry::bytes) may stay.
    Trim,
    /// How many driver calls the arena has made since it was created, in [`bytes`](TraceEntry::bytes).
    DriverCalls,
}

impl TraceAction {
    /// All actions.
    pub const ALL: [Self; 10] = [
        Self::Allocate,
        Self::Free,
        Self::FreeRequested,
        Self::FreeCompleted,
        Self::AllocateFailure,
        Self::Map,
        Self::Unmap,
        Self::Reserved,
        Self::Trim,
        Self::DriverCalls,
    ];

    /// Its name in a log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocate => "allocate",
            Self::Free => "free",
            Self::FreeRequested => "free requested",
            Self::FreeCompleted => "free completed",
            Self::AllocateFailure => "allocate failure",
            Self::Map => "map",
            Self::Unmap => "unmap",
            Self::Reserved => "reserved",
            Self::Trim => "trim",
            Self::DriverCalls => "driver calls",
        }
    }

    /// Its name in RMM's logs, if they have it.
    pub(super) const fn rmm_name(self) -> Option<&'static str> {
        match self {
            Self::Allocate => Some("allocate"),
            Self::Free | Self::FreeRequested => Some("free"),
            Self::AllocateFailure => Some("allocate failure"),
            _ => None,
        }
    }
}

impl fmt::Display for TraceAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Where a request came from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The line of the program that allocated.
    Line(&'static Location<'static>),
    /// Frames, innermost first and separated by `;`, each `FILE:LINE` or `FILE:LINE NAME`. From
    /// [`Recorder::with_frames`](super::Recorder::with_frames).
    Frames(Arc<str>),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "{}:{}", line.file(), line.line()),
            Self::Frames(frames) => f.write_str(frames),
        }
    }
}

/// One event of a [`Recording`](super::Recording).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TraceEntry {
    /// Nanoseconds since the recorder was created.
    pub time: u64,
    /// The number of the thread, counted from 1 in order of first use.
    pub thread: u64,
    /// What happened.
    pub action: TraceAction,
    /// Its address; 0 if it has none.
    pub address: u64,
    /// A number of bytes, or what [`action`](Self::action) says.
    pub bytes: u64,
    /// The driver's handle of the stream; 0 if there is none, or the legacy default stream.
    pub stream: u64,
    /// The origin of an allocation or of a failed one.
    pub origin: Option<Origin>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_known_by_their_numbers() {
        for (number, action) in TraceAction::ALL.into_iter().enumerate() {
            assert_eq!(action as usize, number, "{action}");
        }
    }
}

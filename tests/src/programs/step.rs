//! The operations of a program.
//!
//! An operation names streams, resources and values by any small number; what it means is that number modulo what is
//! there, counted from the newest. So every part of a program is a program too, and a failing one can be shrunk:
//! to fewer operations, on fewer threads, with smaller sizes.

use std::fmt;

use cuda_mem::{CaptureMode, ReleaseThreshold, ReusePolicy, SleepContents};

/// What a resource is made of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Base {
    DefaultPool,
    Pool {
        policy: ReusePolicy,
        threshold: ReleaseThreshold,
        max: Option<u64>,
    },
    Arena(ArenaSpec),
    ArenaOverPool,
    ArenaOverDefault,
    Direct,
    Pinned,
    Managed,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ArenaSpec {
    pub(super) policy: ReusePolicy,
    pub(super) slack: f64,
    pub(super) max: Option<u64>,
    pub(super) threshold: ReleaseThreshold,
    pub(super) initial: u64,
    pub(super) background: bool,
    /// The order sanitizer is told of the blocks. Else the arena may sleep, and give memory to graphs: there the
    /// sanitizer would take physical memory that goes, and graphs' use of addresses, for errors.
    pub(super) annotated: bool,
}

/// One adaptor of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Adaptor {
    Statistics,
    Tracking,
    Limit(u64),
    Aligned(usize),
    Logging,
    FailureCallback,
    Recovery,
    Prefetch,
}

/// A resource: adaptors, the outermost first, over a base.
#[derive(Clone, Debug)]
pub(super) struct SiteSpec {
    pub(super) base: Base,
    pub(super) adaptors: Vec<Adaptor>,
}

/// What is allocated.
#[derive(Clone, Copy, Debug)]
pub(super) enum Make {
    Uninit,
    Zeroed,
    From,
    /// From the pool itself, so that the address can be taken out of the buffer; else as `Uninit`.
    Plain,
    /// A vector, from the resource that is current on the thread if `true`.
    Vec(bool),
    Scalar,
    /// With an alignment that only some resources know.
    Raw(usize),
    /// Of the current pool of the device, whatever the resource.
    Current,
    /// Managed memory for host and device, whatever the resource.
    Managed,
    /// Mapped memory that grows in place, whatever the resource.
    Growable,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Lend {
    Guard,
    Leak,
    Read,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    SetStream,
    /// Out of the buffer and into a new one.
    Raw,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Resize {
    Value,
    Zeroed,
    Uninit,
    Extend,
    ExtendFromBuffer(u8),
    Truncate,
    Shrink,
    Reserve,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Drop,
    Free,
    FreeOn(u8),
    /// After work in another stream that the buffer's own does not wait for.
    FreeAfter(u8),
    FreeSync,
}

/// Where the memory within a graph comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scratch {
    Graph,
    /// Of an arena's capture pool: shared with other graphs, or alone.
    Pool(u8),
    PoolAlone(u8),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) stream: u8,
    pub(super) mode: CaptureMode,
    pub(super) scratch: Scratch,
    /// Up to two buffers are given to the graph.
    pub(super) adopt: [Option<u8>; 2],
    /// The graph is launched at once.
    pub(super) launch: bool,
    /// The scratch memory gets the first one's content instead of a pattern.
    pub(super) copy_in: bool,
    /// Through a second piece of scratch memory.
    pub(super) through: bool,
    pub(super) leave: bool,
    pub(super) auto_free: bool,
    /// A value is dropped while the stream is captured.
    pub(super) drop: Option<u8>,
    /// The captured stream is used in ways that are refused.
    pub(super) provoke: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum GraphStep {
    Launch(u8),
    Upload(u8),
    Read,
    Write,
    ReadLeft,
    FreeLeft,
    TakeApart,
    Drop,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum NewStream {
    Own,
    Legacy,
    PerThread,
}

#[derive(Clone, Debug)]
pub(super) enum Step {
    Alloc {
        site: u8,
        stream: u8,
        words: usize,
        make: Make,
    },
    End(u8, End),
    Fill(u8),
    Write(u8),
    Read(u8),
    Copy {
        to: u8,
        from: u8,
    },
    Clone {
        from: u8,
        site: u8,
        stream: u8,
    },
    Lend(u8, u8, Lend),
    Move(u8, u8, Move),
    Resize(u8, usize, Resize),
    /// Copies a value into pinned memory that is lent to a stream.
    LendHost(u8, u8),
    TakeHost(u8),
    Hold(u8),
    LetGo,
    Wait(u8, u8),
    RecordEvent(u8, u8),
    WaitEvent(u8, u8),
    Query(u8),
    Synchronise(u8),
    SynchroniseAll,
    NewStream(NewStream),
    DropStream(u8),
    NewSite(SiteSpec),
    DropSite(u8),
    Trim(u8, u64),
    Tune(u8, ReusePolicy, ReleaseThreshold),
    /// Asleep, a value may be freed.
    Sleep(u8, SleepContents, Option<u8>),
    /// The resource is current on the thread from now on.
    Scope(u8),
    EndScope,
    Record(Record),
    Graph(u8, GraphStep),
}

impl Step {
    /// What kind of operation it is, in a word or two.
    pub(super) fn kind(&self) -> String {
        fn word(name: &dyn fmt::Debug) -> String {
            let text = format!("{name:?}");
            let end = text.find(|c: char| !c.is_alphanumeric());
            text[..end.unwrap_or(text.len())].to_owned()
        }
        let way: Option<&dyn fmt::Debug> = match self {
            Self::Alloc { make, .. } => Some(make),
            Self::End(_, end) => Some(end),
            Self::Lend(_, _, lend) => Some(lend),
            Self::Move(_, _, how) => Some(how),
            Self::Resize(_, _, how) => Some(how),
            Self::NewStream(kind) => Some(kind),
            Self::NewSite(spec) => Some(&spec.base),
            Self::Sleep(_, contents, _) => Some(contents),
            Self::Record(record) => Some(&record.scratch),
            Self::Graph(_, step) => Some(step),
            _ => None,
        };
        match way {
            Some(way) => format!("{} {}", word(self), word(way)),
            None => word(self),
        }
    }
}

/// Operations of one thread, one after the other.
#[derive(Clone, Debug)]
pub(super) struct Phrase {
    pub(super) thread: u8,
    pub(super) steps: Vec<Step>,
}

/// A program: the resources that it begins with, and what its threads do.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) sites: Vec<SiteSpec>,
    pub(super) phrases: Vec<Phrase>,
}

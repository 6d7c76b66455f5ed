//! The operations of a program.
//!
//! An operation names streams, resources and values by any small number, modulo their count, from the newest on. So
//! every part of a program is a program too, and a failing one can be shrunk: to fewer operations, on fewer threads,
//! with smaller sizes.

use std::fmt;

use cuda_mem::arena::SleepContents;
use cuda_mem::interop::CaptureMode;
use cuda_mem::{ReleaseThreshold, ReusePolicy};

/// The base of a resource.
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
    /// The order sanitizer knows the blocks. Otherwise the arena may sleep and give memory to graphs, which the
    /// sanitizer would report: physical memory disappears, and graphs use addresses.
    pub(super) annotated: bool,
    pub(super) recorded: bool,
}

/// One adaptor of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Adaptor {
    Statistics,
    Tracking,
    Limit(u64),
    Aligned(usize),
    Logging,
    Recording,
    FailureCallback,
    Recovery,
    Prefetch,
}

/// A resource: adaptors over a base, the outermost first.
#[derive(Clone, Debug)]
pub(super) struct ResourceSpec {
    pub(super) base: Base,
    pub(super) adaptors: Vec<Adaptor>,
}

/// What is allocated.
#[derive(Clone, Copy, Debug)]
pub(super) enum Make {
    Uninit,
    Zeroed,
    From,
    /// From a pool without adaptors, so that the buffer can be turned into an address; otherwise as `Uninit`.
    Plain,
    /// A vector; if `true`, from the current resource of the thread.
    Vec(bool),
    Scalar,
    /// With an alignment that only some resources support.
    Raw(usize),
    /// From the current pool of the device, whatever the resource.
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
    /// One half on the other stream, the other half at home meanwhile.
    Halves,
    /// Half of it, by a slice that is leaked.
    LeakHalf,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Move {
    SetStream,
    /// Through the address, into a new buffer.
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
    /// After work in another stream, without a wait of the buffer's own stream.
    FreeAfter(u8),
    FreeSync,
}

/// Where the memory within a graph comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scratch {
    Graph,
    /// From an arena's capture pool: shared with other graphs, or not.
    Pool(u8),
    PoolAlone(u8),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) stream: u8,
    pub(super) mode: CaptureMode,
    pub(super) scratch: Scratch,
    /// The graph adopts up to two buffers.
    pub(super) adopt: [Option<u8>; 2],
    /// The graph is launched at once.
    pub(super) launch: bool,
    /// The scratch memory gets the contents of the first buffer instead of a pattern.
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
        resource: u8,
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
        resource: u8,
        stream: u8,
    },
    Lend(u8, u8, Lend),
    Move(u8, u8, Move),
    Resize(u8, usize, Resize),
    /// Copies a value into pinned memory that is lent to a stream.
    LendHost(u8, u8),
    TakeHost(u8),
    Hold(u8),
    ReleaseHeld,
    Wait(u8, u8),
    RecordEvent(u8, u8),
    WaitEvent(u8, u8),
    Query(u8),
    Synchronise(u8),
    SynchroniseAll,
    NewStream(NewStream),
    DropStream(u8),
    NewResource(ResourceSpec),
    DropResource(u8),
    Trim(u8, u64),
    Tune(u8, ReusePolicy, ReleaseThreshold),
    /// A value may be freed while the arena sleeps.
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
            Self::NewResource(spec) => Some(&spec.base),
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

/// Consecutive operations of one thread.
#[derive(Clone, Debug)]
pub(super) struct Burst {
    pub(super) thread: u8,
    pub(super) steps: Vec<Step>,
}

/// A program: its first resources, and the operations of its threads.
#[derive(Clone, Debug)]
pub(super) struct Program {
    pub(super) resources: Vec<ResourceSpec>,
    pub(super) bursts: Vec<Burst>,
}

//! Recording what happens to memory.

#![forbid(unsafe_code)]

mod entry;
mod frames;
mod recording;
mod sink;

pub use entry::{Origin, TraceAction, TraceEntry};
pub use recording::Recording;

use std::fmt;
use std::fs::File;
use std::io::Write;
use std::panic::Location;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use quanta::Clock;

use crate::base::biased::thread;
use crate::base::error::{Error, Result};
use crate::base::lock::{Lock, UsualThreadLock};
use crate::base::report;
use frames::Frames;
use sink::{Ring, Sink, Writer};

/// Records allocations, frees, and what an arena does to serve them, with time, thread, stream and origin.
///
/// A recorder keeps the newest events in memory ([`ring`](Self::ring)) or writes all of them to a file
/// ([`to_file`](Self::to_file)). It records what is given to it: an arena or a pool with
/// [`ArenaBuilder::record`](crate::arena::ArenaBuilder::record) or [`PoolBuilder::record`](crate::PoolBuilder::record),
/// and any resource in a [`RecordingAdaptor`](crate::memory::RecordingAdaptor). Several of them may share one recorder.
///
/// **Cost**: each event takes one of 64 locks, which few threads share, and a reading of the processor's time stamp counter. Once in 256 events a second lock is taken; lines are written some thousand at a time, and at
/// once when an allocation fails. Nothing is recorded in a fork; one that was made before the driver was initialised records
/// in memory only.
///
/// **Time** is that of the processor's counter where it runs at a constant rate, and of the system's monotonic clock
/// elsewhere. Short differences are exact to tens of nanoseconds; over seconds the counter's rate matters, which is measured to about
/// a millionth. An allocation has the time at which it was answered, a free
/// the time at which it was asked for.
///
/// A handle that can be cloned; all methods may be called from any thread.
///
/// ```
/// use cuda_mem::{Arena, Driver};
/// use cuda_mem::ledger::{Recorder, TraceAction};
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
///
/// let recorder = Recorder::ring(100_000);
/// let arena = Arena::builder(&device).record(&recorder).build()?;
/// drop(arena.alloc::<f32>(&stream, 1000)?); // this line
///
/// let recording = recorder.recording();
/// let allocated = recording.entries().iter().find(|entry| entry.action == TraceAction::Allocate);
/// let allocated = allocated.expect("it was recorded");
/// assert_eq!(allocated.bytes, 4000);
/// println!("{} at {}", allocated.action, allocated.origin.as_ref().expect("a line of this program"));
/// assert_eq!(recording.dropped(), 0);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct Recorder(Arc<Inner>);

/// Threads share one of these if their numbers are equal modulo this.
const SHARDS: usize = 64;

/// Events that a shard collects before the sink is locked.
const CHUNK: usize = 256;

/// Events that are written together. All shards are looked at then, which disturbs the threads that use them.
const BATCH: usize = 8192;

struct Inner {
    clock: Clock,
    /// The counter's value when the recorder was created, and the time then, in nanoseconds since 1970.
    start: u64,
    began: u64,
    shards: [Shard; SHARDS],
    /// Locked before any shard.
    sink: Lock<Sink>,
    dropped: AtomicU64,
    frames: Frames,
}

/// On its own cache lines. The events of a shard stay where they are until they are copied elsewhere together: a write to memory
/// that is not in the processor's cache takes longer than all else.
#[derive(Default)]
#[repr(align(128))]
struct Shard(UsualThreadLock<Vec<Event>>);

/// An event as it is collected. In a shard they are in order of time, because each is stamped under the lock.
#[derive(Clone, Copy)]
struct Event {
    ticks: u64,
    address: u64,
    bytes: u64,
    stream: u64,
    line: Option<&'static Location<'static>>,
    /// A list of frames, by its number from 1; 0 if there is none.
    frames: u32,
    /// The lower 24 bits of the thread's number, and the action above.
    thread_and_action: u32,
}

const _: () = assert!(size_of::<Event>() == 48);

const THREAD_BITS: u32 = 24;

/// Nanoseconds after which no processor is about to add an event with an earlier stamp.
const SETTLED: u64 = 2000;

impl Event {
    fn thread(self) -> u64 {
        u64::from(self.thread_and_action & ((1 << THREAD_BITS) - 1))
    }

    fn action(self) -> TraceAction {
        TraceAction::ALL[(self.thread_and_action >> THREAD_BITS) as usize]
    }
}

/// What a new event has: its action; address, bytes and stream; its line or its frames.
type New = (
    TraceAction,
    (u64, u64, u64),
    Option<&'static Location<'static>>,
    u32,
);

impl Recorder {
    /// Keeps the newest `entries` events in memory; up to 16,384 more may be kept. If threads record at different rates,
    /// there may be up to 255 fewer for each: what is kept has no gap. Older ones are dropped and
    /// [counted](Recording::dropped). Takes 48 bytes an event.
    #[must_use]
    pub fn ring(entries: usize) -> Self {
        Self::new(Sink::Ring(Ring::new(entries.div_ceil(CHUNK).max(1))))
    }

    /// Writes every event to `out` as a line of a log. `out` need not be buffered. It is called under a lock, by the
    /// thread whose event made it necessary, and must not use memory that is recorded here. What it locks must not be
    /// locked by a thread while that uses recorded memory.
    ///
    /// The log has RMM's columns and one more, `Origin`, and the actions of [`TraceAction`]. Call
    /// [`flush`](Self::flush) at the end of the program, or drop all handles, including those of arenas and pools.
    #[must_use]
    pub fn to_writer(out: impl Write + Send + 'static) -> Self {
        Self::new(Sink::Writer(Writer::new(Box::new(out))))
    }

    /// As [`to_writer`](Self::to_writer), to a new file. An existing file is replaced.
    ///
    /// # Errors
    ///
    /// [`System`](crate::ErrorKind::System) if the file cannot be created.
    ///
    /// ```
    /// use cuda_mem::{Driver, MemoryPool};
    /// use cuda_mem::ledger::Recorder;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// # let path = std::env::temp_dir().join(format!("cuda-mem-doc-{}.csv", std::process::id()));
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let recorder = Recorder::to_file(&path)?;
    /// let pool = MemoryPool::builder(&device).record(&recorder).build()?;
    /// drop(pool.alloc::<u8>(&stream, 1000)?);
    /// recorder.flush()?;
    /// let log = std::fs::read_to_string(&path)?;
    /// assert!(log.contains(",allocate,") && log.contains(",free,"));
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_file(path: impl AsRef<Path>) -> Result<Self> {
        let file = File::create(path)
            .map_err(|error| Error::system("creating the log of a recorder", error))?;
        Ok(Self::to_writer(file))
    }

    fn new(sink: Sink) -> Self {
        let clock = Clock::new();
        let began = SystemTime::now().duration_since(UNIX_EPOCH);
        Self(Arc::new(Inner {
            start: clock.raw(),
            clock,
            began: began.map_or(0, |began| began.as_nanos() as u64),
            shards: std::array::from_fn(|_| Shard::default()),
            sink: Lock::new(sink),
            dropped: AtomicU64::new(0),
            frames: Frames::default(),
        }))
    }

    /// Asks `source` for the origin of each allocation, instead of taking the line of the Rust program. It appends the
    /// frames of the calling thread, innermost first and separated by `;`, each `FILE:LINE` or `FILE:LINE NAME`. For
    /// programs in other languages; if it appends nothing, the origin is not known. A recorder keeps 100,000 different
    /// lists, and no origin beyond them. The time of an allocation is that after the call. It is called without a lock,
    /// and must not use memory that is recorded here. If a recorder has a source already, that one stays.
    #[must_use]
    pub fn with_frames(self, source: impl Fn(&mut String) + Send + Sync + 'static) -> Self {
        self.0.frames.set_source(Box::new(source));
        self
    }

    /// The events that are in memory, in order of time: for [`ring`](Self::ring) the newest ones, without a gap. A
    /// recorder that writes has none. Empty in a fork.
    #[must_use]
    pub fn recording(&self) -> Recording {
        let inner = &*self.0;
        let Some(mut sink) = inner.sink.lock_unless_forked() else {
            return Recording::empty(inner.began);
        };
        let Sink::Ring(ring) = &mut *sink else {
            return Recording::empty(inner.began);
        };
        let cut = inner.cut();
        let mut newest = Vec::new();
        inner.each_shard(|events| {
            newest.extend(events.iter().filter(|event| event.ticks <= cut));
        });
        let (chunks, complete_from) = (ring.chunks(), ring.complete_from());
        // Later ones may be of the events that are copied here.
        let dropped = inner.dropped.load(Ordering::Relaxed);
        drop(sink);
        let events = chunks.iter().flat_map(|chunk| chunk.iter());
        let mut events: Vec<Event> = events.chain(&newest).copied().collect();
        let before = events.len();
        // A thread that records little may have events that are older than some that were dropped.
        events.retain(|event| event.ticks >= complete_from);
        let incomplete = (before - events.len()) as u64;
        events.sort_by_key(|event| event.ticks);
        let dropped = dropped + incomplete;
        let entries = events.iter().map(|event| inner.entry(event)).collect();
        Recording::new(entries, dropped, inner.began)
    }

    /// How many events are lost: those that the ring has no space for, or that could not be written.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Writes what is collected. Does nothing for a [`ring`](Self::ring).
    ///
    /// # Errors
    ///
    /// [`System`](crate::ErrorKind::System) if this or an earlier write failed; later events are
    /// [dropped](Self::dropped). The error is returned once.
    pub fn flush(&self) -> Result<()> {
        self.0.flush()
    }

    /// Nanoseconds since it was created.
    pub(crate) fn now(&self) -> u64 {
        let inner = &*self.0;
        inner.clock.delta_as_nanos(inner.start, inner.clock.raw())
    }

    /// Writes what is collected, and then nothing more: later events are [dropped](Self::dropped). Does nothing for a
    /// [`ring`](Self::ring).
    ///
    /// # Errors
    ///
    /// Same as [`flush`](Self::flush).
    pub fn close(&self) -> Result<()> {
        self.0.flush()?;
        if let Sink::Writer(writer) = &mut *self.0.sink.lock()? {
            writer.log.close();
        }
        Ok(())
    }

    /// Whether two handles refer to the same recorder.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Records an event of the calling thread.
    #[inline]
    pub(crate) fn note(&self, action: TraceAction, address: u64, bytes: u64, stream: u64) {
        self.push(action, (address, bytes, stream), None, 0);
    }

    /// Records the answer to a request that came from this line; nothing for no memory.
    #[inline]
    pub(crate) fn note_answer(
        &self,
        answer: &Result<u64>,
        bytes: u64,
        stream: u64,
        line: &'static Location<'static>,
    ) {
        let (action, address) = match answer {
            Ok(0) => return,
            Ok(address) => (TraceAction::Allocate, *address),
            Err(_) => (TraceAction::AllocateFailure, 0),
        };
        let request = (address, bytes, stream);
        match self.0.frames.current() {
            None => self.push(action, request, Some(line), 0),
            Some(frames) => self.push(action, request, None, frames),
        }
        if action == TraceAction::AllocateFailure {
            self.0.write_now();
        }
    }

    /// Records that memory moved: both events have the same time, so that readers see that nothing was lost or gained.
    pub(crate) fn note_move(&self, from: u64, to: u64, bytes: u64) {
        let request = |address| (address, bytes, 0);
        self.push_all([
            (TraceAction::Unmap, request(from), None, 0),
            (TraceAction::Map, request(to), None, 0),
        ]);
    }

    #[inline]
    fn push(
        &self,
        action: TraceAction,
        request: (u64, u64, u64),
        line: Option<&'static Location<'static>>,
        frames: u32,
    ) {
        self.push_all([(action, request, line, frames)]);
    }

    #[inline]
    fn push_all<const N: usize>(&self, new: [New; N]) {
        let thread = thread::number();
        let shard = &self.0.shards[thread as usize % SHARDS];
        let Some(mut events) = shard.0.lock_unless_forked() else {
            return;
        };
        let ticks = self.0.clock.raw();
        let mut is_full = false;
        for (action, (address, bytes, stream), line, frames) in new {
            events.push(Event {
                ticks,
                address,
                bytes,
                stream,
                line,
                frames,
                thread_and_action: thread as u32 & ((1 << THREAD_BITS) - 1)
                    | (action as u32) << THREAD_BITS,
            });
            is_full |= events.len() % CHUNK == 0;
        }
        drop(events);
        if is_full {
            self.0.collect(shard);
        }
    }
}

impl Inner {
    /// Empties a full shard.
    #[cold]
    fn collect(&self, shard: &Shard) {
        let Some(mut sink) = self.sink.lock_unless_forked() else {
            return;
        };
        let empty_into = |to: &mut Vec<Event>| {
            if let Some(mut events) = shard.0.lock_unless_forked() {
                to.extend_from_slice(&events);
                events.clear();
            }
        };
        match &mut *sink {
            Sink::Ring(ring) => {
                let mut chunk = ring.spare();
                empty_into(&mut chunk);
                let dropped = ring.push(chunk);
                self.dropped.fetch_add(dropped, Ordering::Relaxed);
            }
            Sink::Writer(writer) => {
                empty_into(&mut writer.collected);
                if writer.collected.len() >= BATCH {
                    self.write(writer);
                }
            }
        }
    }

    /// An allocation has failed: the program may end soon.
    #[cold]
    fn write_now(&self) {
        if let Some(mut sink) = self.sink.lock_unless_forked()
            && let Sink::Writer(writer) = &mut *sink
        {
            self.write(writer);
        }
    }

    /// Writes what all threads have collected, so that the lines are in order of time.
    fn write(&self, writer: &mut Writer) {
        let cut = self.cut();
        let mut taken = std::mem::take(&mut writer.collected);
        self.each_shard(|events| {
            // Later events have to wait for those that other threads record meanwhile.
            let until = events.partition_point(|event| event.ticks <= cut);
            taken.extend(events.drain(..until));
        });
        taken.sort_by_key(|event| event.ticks);
        let entries = taken.iter().map(|event| self.entry(event));
        if !writer.write(entries, self.began) {
            self.dropped
                .fetch_add(taken.len() as u64, Ordering::Relaxed);
        }
    }

    fn flush(&self) -> Result<()> {
        let mut sink = self.sink.lock()?;
        let Sink::Writer(writer) = &mut *sink else {
            return Ok(());
        };
        self.write(writer);
        writer.log.finish("writing the log of a recorder")
    }

    /// A time such that every event with an earlier stamp is in its shard once that is locked. A processor may read its counter
    /// before it has the lock under which the event is stamped, by less than a microsecond.
    fn cut(&self) -> u64 {
        let cut = self.clock.raw();
        while self.clock.delta_as_nanos(cut, self.clock.raw()) < SETTLED {
            std::hint::spin_loop();
        }
        cut
    }

    fn each_shard(&self, mut call: impl FnMut(&mut Vec<Event>)) {
        for shard in &self.shards {
            if let Some(mut events) = shard.0.lock_unless_forked() {
                call(&mut events);
            }
        }
    }

    fn entry(&self, event: &Event) -> TraceEntry {
        let frames = self.frames.list(event.frames);
        let line = event.line.map(Origin::Line);
        TraceEntry {
            time: self.clock.delta_as_nanos(self.start, event.ticks),
            thread: event.thread(),
            action: event.action(),
            address: event.address,
            bytes: event.bytes,
            stream: event.stream,
            origin: frames.map(Origin::Frames).or(line),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if report::is_forked()
            && let Sink::Writer(writer) = self.sink.get_mut()
        {
            // What it has is the parent's to write.
            writer.collected.clear();
            writer.log.forget();
        }
        report::release("log of a recorder", || self.flush());
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("dropped", &self.dropped())
            .finish_non_exhaustive()
    }
}

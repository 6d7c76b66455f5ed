//! A recording as a timeline, in the JSON of Chrome's trace viewer.

#![forbid(unsafe_code)]

mod blocks;
mod event;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufWriter, Write};

use super::{Recording, TraceAction, TraceEntry};
use blocks::Blocks;
use event::{ChromeEvent, PROCESS, Phase};

impl Recording {
    /// Writes the events as a timeline in Chrome's JSON, which <https://ui.perfetto.dev> opens. Needs the feature
    /// `export`.
    ///
    /// | track | has |
    /// |---|---|
    /// | counter `asked` | bytes asked for and not freed |
    /// | counter `used` | bytes of blocks that are allocated or pending; an arena rounds them up to 256 |
    /// | counter `reserved` | bytes that arenas hold, and those that a pool holds; of several pools, the one that changed last. What arenas have from a pool counts once |
    /// | a group for each stream | its blocks, from allocation to free, with the origin as name; in a block whose free is pending, `pending free`. A block that becomes memory of an arena ends there |
    /// | a track for each thread | failed requests and trims |
    ///
    /// Times count from the creation of the recorder. What was allocated before the first event begins there; what the
    /// arena held by then is not known.
    ///
    /// # Errors
    ///
    /// Those of `out`.
    ///
    /// ```
    /// use cuda_mem::{Arena, Driver};
    /// use cuda_mem::ledger::Recorder;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let device = Driver::load()?.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let recorder = Recorder::ring(100_000);
    /// let arena = Arena::builder(&device).record(&recorder).build()?;
    /// drop(arena.alloc::<f32>(&stream, 1000)?);
    ///
    /// let mut file = Vec::new(); // or a `File`
    /// recorder.recording().write_timeline(&mut file).expect("memory for it");
    /// # assert!(file.starts_with(b"{"));
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("perfetto", "chrome tracing"))]
    pub fn write_timeline(&self, out: impl Write) -> io::Result<()> {
        let mut events = Events {
            out: BufWriter::new(out),
            is_first: true,
        };
        events
            .out
            .write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
        let streams = self.write_names(&mut events)?;
        let mut blocks = Blocks::new(streams);
        let start = self.entries().first().map_or(0, |entry| entry.time);
        let before = self.before_first();
        for entry in &before {
            blocks.allocate(entry, start, &mut |event| events.write(event))?;
        }
        for entry in self.entries() {
            let mut write = |event: &ChromeEvent<'_>| events.write(event);
            match entry.action {
                TraceAction::AllocateFailure | TraceAction::Trim => write(&instant(entry))?,
                _ => blocks.add(entry, &mut write)?,
            }
        }
        events.out.write_all(b"\n]}\n")?;
        events.out.flush()
    }

    /// Names the tracks. Returns the group of each stream.
    fn write_names<W: Write>(&self, events: &mut Events<W>) -> io::Result<BTreeMap<u64, u64>> {
        events.write(&ChromeEvent::process_name(PROCESS, "memory".into()))?;
        let threads: BTreeSet<u64> = self.entries().iter().map(|entry| entry.thread).collect();
        for thread in threads {
            events.write(&ChromeEvent::thread_name(thread))?;
        }
        let with_blocks = self.entries().iter().filter(|entry| {
            let action = entry.action;
            action == TraceAction::Allocate || action.ends_block()
        });
        let streams: BTreeSet<u64> = with_blocks.map(|entry| entry.stream).collect();
        let streams: BTreeMap<u64, u64> = streams.into_iter().zip(PROCESS + 1..).collect();
        for (stream, group) in &streams {
            events.write(&ChromeEvent::process_name(
                *group,
                format!("stream {stream:#x}"),
            ))?;
        }
        Ok(streams)
    }

    /// The first events of blocks that were allocated before all events.
    fn before_first(&self) -> Vec<TraceEntry> {
        let mut seen = BTreeSet::new();
        let entries = self.entries().iter().filter(|_| self.dropped() > 0);
        let entries = entries.filter(|entry| {
            let action = entry.action;
            (action == TraceAction::Allocate || action.ends_block()) && seen.insert(entry.address)
        });
        let ends = entries.filter(|entry| entry.action.ends_block());
        ends.cloned().collect()
    }
}

impl TraceAction {
    /// Whether it is a free, or a part of one.
    fn ends_block(self) -> bool {
        matches!(self, Self::Free | Self::FreeRequested | Self::FreeCompleted)
    }
}

/// A failed request, or a trim.
fn instant(entry: &TraceEntry) -> ChromeEvent<'_> {
    let mut event = ChromeEvent::new(Phase::Instant, PROCESS, entry.action.name(), entry.time);
    event.tid = Some(entry.thread);
    event.s = Some("t");
    event.args.insert("bytes", entry.bytes.into());
    if let Some(origin) = &entry.origin {
        event.args.insert("origin", origin.to_string().into());
    }
    event
}

struct Events<W: Write> {
    out: BufWriter<W>,
    is_first: bool,
}

impl<W: Write> Events<W> {
    fn write(&mut self, event: &ChromeEvent<'_>) -> io::Result<()> {
        let separator: &[u8] = if self.is_first { b"\n" } else { b",\n" };
        self.is_first = false;
        self.out.write_all(separator)?;
        serde_json::to_writer(&mut self.out, event)?;
        Ok(())
    }
}

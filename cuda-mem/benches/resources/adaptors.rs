//! Cost of each adaptor over an upstream that does nothing.

use std::alloc::Layout;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::Result;
use cuda_mem::ledger::Recorder;
use cuda_mem::memory::{
    AlignedAdaptor, CheckedAdaptor, FailureCallbackAdaptor, LimitAdaptor, LoggingAdaptor,
    MemoryProperties, PrefetchAdaptor, RecordingAdaptor, RecoveryAdaptor, RecoveryPolicy,
    StatisticsAdaptor, TrackingAdaptor,
};
use cuda_mem::{MemoryResource, Resource, Stream};
use serde_json::{Value, json};

use crate::common::middle;

pub(crate) const METHOD: &str = "nanoseconds for one allocate + free of 1 KiB through the adaptor over \
     an upstream that hands out made-up addresses, less the same pair of the upstream alone: medians of \
     501 rounds of 1000 pairs after 50 rounds of warm-up, one thread; the upstream's rounds and the \
     adaptor's take turns";

const ROUNDS: usize = 501;
const WARM_UP: usize = 50;
const PAIRS: usize = 1000;

/// Hands out some thousand addresses in turn, and accepts everything back.
#[derive(Debug)]
pub(crate) struct Nothing {
    next: AtomicU64,
    properties: MemoryProperties,
}

impl Nothing {
    pub(crate) fn new(stream: &Stream) -> Self {
        Self {
            next: AtomicU64::new(1),
            properties: MemoryProperties::of_device(stream.device()),
        }
    }
}

// SAFETY: the memory is never used; there is none.
unsafe impl MemoryResource for Nothing {
    #[inline]
    fn allocate(&self, _: Layout, _: &Stream) -> cuda_mem::Result<u64> {
        // Single-threaded, so no costly atomic addition is needed.
        let next = self.next.load(Ordering::Relaxed) % 4096 + 1;
        self.next.store(next, Ordering::Relaxed);
        Ok(next << 12)
    }

    #[inline]
    unsafe fn deallocate(&self, address: u64, _: Layout, _: &Stream) -> cuda_mem::Result<()> {
        black_box(address);
        Ok(())
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.properties
    }
}

/// The cost of two locked instructions here, the minimum for an exact count shared by threads.
#[derive(Debug)]
struct Atomics(Nothing, AtomicU64);

// SAFETY: as for `Nothing`.
unsafe impl MemoryResource for Atomics {
    #[inline]
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.allocate(layout, stream)
    }

    #[inline]
    unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem::Result<()> {
        self.1.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the caller's promises.
        unsafe { self.0.deallocate(address, layout, stream) }
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.0.memory_properties()
    }
}

pub(crate) struct Row {
    name: &'static str,
    pair_ns: f64,
    cost_ns: f64,
}

/// One round of allocate + free, in nanoseconds per pair.
fn round(resource: &impl MemoryResource, stream: &Stream, layout: Layout) -> Result<f64> {
    let start = Instant::now();
    for _ in 0..PAIRS {
        let address = black_box(resource).allocate(layout, stream)?;
        // SAFETY: allocated just now, with this layout.
        unsafe { resource.deallocate(address, layout, stream) }?;
    }
    Ok(start.elapsed().as_nanos() as f64 / PAIRS as f64)
}

fn row(
    name: &'static str,
    stream: &Stream,
    alignment: usize,
    resource: &impl MemoryResource,
) -> Result<Row> {
    let layout = Layout::from_size_align(1024, alignment)?;
    let nothing = Nothing::new(stream);
    let (mut pairs, mut costs) = (Vec::new(), Vec::new());
    for turn in 0..WARM_UP + ROUNDS {
        let base = round(&nothing, stream, layout)?;
        let pair = round(resource, stream, layout)?;
        if turn >= WARM_UP {
            pairs.push(pair);
            costs.push(pair - base);
        }
    }
    Ok(Row {
        name,
        pair_ns: middle(pairs),
        cost_ns: middle(costs),
    })
}

/// Buffers also carry handles of the resource and the stream.
fn buffers(name: &'static str, stream: &Stream, resource: &Resource) -> Result<Row> {
    let mut pairs = Vec::new();
    for turn in 0..WARM_UP + ROUNDS {
        let start = Instant::now();
        for _ in 0..PAIRS {
            drop(black_box(resource.alloc::<u8>(stream, 1024)?));
        }
        if turn >= WARM_UP {
            pairs.push(start.elapsed().as_nanos() as f64 / PAIRS as f64);
        }
    }
    let pair_ns = middle(pairs);
    Ok(Row {
        name,
        pair_ns,
        cost_ns: pair_ns,
    })
}

pub(crate) fn measure(stream: &Stream) -> Result<Vec<Row>> {
    let new = || Nothing::new(stream);
    let policy = RecoveryPolicy::new().retry().wait_for_stream();
    let leaked: &'static Nothing = Box::leak(Box::new(new()));
    Ok(vec![
        row(
            "(two atomic additions)",
            stream,
            256,
            &Atomics(new(), AtomicU64::new(0)),
        )?,
        row("limit", stream, 256, &LimitAdaptor::new(new(), 1 << 40))?,
        row("statistics", stream, 256, &StatisticsAdaptor::new(new()))?,
        row("tracking", stream, 256, &TrackingAdaptor::new(new()))?,
        row("checked", stream, 256, &CheckedAdaptor::new(new()))?,
        row(
            "tracking with backtraces",
            stream,
            256,
            &TrackingAdaptor::new(new()).with_backtraces(),
        )?,
        row(
            "logging",
            stream,
            256,
            &LoggingAdaptor::new(new(), std::io::sink()),
        )?,
        row(
            "recording, in a ring",
            stream,
            256,
            &RecordingAdaptor::new(new(), &Recorder::ring(1 << 16)),
        )?,
        row(
            "recording, to a writer",
            stream,
            256,
            &RecordingAdaptor::new(new(), &Recorder::to_writer(std::io::sink())),
        )?,
        row(
            "failure callback",
            stream,
            256,
            &FailureCallbackAdaptor::new(new(), |_, _| false),
        )?,
        row(
            "aligned, to the common 256",
            stream,
            256,
            &AlignedAdaptor::new(new(), 256)?,
        )?,
        row(
            "aligned, to 1 MiB",
            stream,
            256,
            &AlignedAdaptor::new(new(), 1 << 20)?,
        )?,
        row(
            "prefetch, of memory that is not managed",
            stream,
            256,
            &PrefetchAdaptor::new(new()),
        )?,
        row(
            "recovery",
            stream,
            256,
            &RecoveryAdaptor::new(new(), policy),
        )?,
        row("handle (Resource)", stream, 256, &Resource::new(new()))?,
        buffers("buffer over a shared handle", stream, &Resource::new(new()))?,
        buffers(
            "buffer over a static handle",
            stream,
            &Resource::from_static(leaked),
        )?,
    ])
}

pub(crate) fn json(rows: &[Row]) -> Value {
    rows.iter()
        .map(|row| json!({ "adaptor": row.name, "cost_ns": row.cost_ns, "pair_ns": row.pair_ns }))
        .collect()
}

pub(crate) fn show(rows: &[Row]) {
    println!("\nadaptors: {METHOD}\n");
    println!("{:<42} {:>10} {:>12}", "adaptor", "cost", "whole pair");
    for row in rows {
        println!(
            "{:<42} {:>7.1} ns {:>9.1} ns",
            row.name, row.cost_ns, row.pair_ns
        );
    }
}

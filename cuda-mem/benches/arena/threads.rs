//! Many threads at the same time.

use std::hint::black_box;
use std::sync::Barrier;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use anyhow::{Context as _, Result};
use cuda_mem::{Device, Resource, Stream};
use serde_json::{Value, json};

use crate::common::middle;
use crate::is_asked_for;
use crate::mix::{Mix, UP_TO_1_MIB, asked};
use crate::subjects::{Subject, layout};

pub(crate) const METHOD: &str = "million pairs of 4 KiB a second, all threads together, from one shared \
     resource: all threads start at a barrier after 1000 pairs of warm-up and time their pairs, 1,000,000 each \
     over the arena, 1,000,000 in all where arena threads share a stream, 20,000 in all over the pool; the slowest \
     thread counts; 5 rounds, each with every number of threads, and the median of them. 'own': a stream \
     for each thread, 'one': one stream for all, 'mixed': own streams, and sizes from 256 bytes to 1 MiB with up \
     to 32 blocks alive, 'wide': up to 16 MiB, 'buffers': own streams, and a DeviceBuffer made and dropped for each pair, through one handle \
     of the resource that all threads share, 'passed': own streams, and blocks of 4 KiB that go to the next thread in batches of \
     64 and are freed on its stream, which nothing runs on. 'host': no allocator, 10 dependent multiplications and turns in place of a pair: what \
     the host's processors give to work that shares nothing. linear: over so many times one thread's rate of the same round, median. asked: MiB, the sum of what each thread has \
     alive at most; reserved: the most that was held in any round, over that";

/// Powers of two from 256 bytes to 16 MiB.
const UP_TO_16_MIB: u64 = 17;
const WARM_UP: usize = 1000;

const COUNTS: [usize; 5] = [1, 2, 4, 8, 16];
const RUNS: usize = 5;
const BYTES: usize = 4096;

/// What is measured: the subject and the kind of streams.
const KINDS: [(&str, &str); 11] = [
    ("host", "none"),
    ("pool", "own"),
    ("pool", "one"),
    ("pool", "mixed"),
    ("pool", "wide"),
    ("arena", "own"),
    ("arena", "one"),
    ("arena", "mixed"),
    ("arena", "wide"),
    ("arena", "buffers"),
    ("arena", "passed"),
];
/// Number of blocks that a thread passes on at a time.
const PASSED: usize = 64;

pub(crate) struct Row {
    subject: &'static str,
    streams: &'static str,
    threads: usize,
    million: f64,
    linear: f64,
    /// Requested bytes, if sizes are mixed, and the most that were held.
    footprint: Option<(u64, u64)>,
}

/// The result of one run.
struct Run {
    million: f64,
    reserved: u64,
}

/// Number of sizes in a mixed kind.
fn sizes(streams: &str) -> Option<u64> {
    match streams {
        "mixed" => Some(UP_TO_1_MIB),
        "wide" => Some(UP_TO_16_MIB),
        _ => None,
    }
}

pub(crate) fn measure(device: &Device, cores: usize) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let counts: Vec<usize> = COUNTS
        .into_iter()
        .filter(|threads| *threads <= cores.max(2))
        .collect();
    for (subject, streams) in KINDS
        .into_iter()
        .filter(|kind| is_asked_for(&format!("{}, {}", kind.0, kind.1)))
    {
        let rounds: Result<Vec<Vec<Run>>> = (0..RUNS)
            .map(|_| {
                let counts = counts.iter();
                counts
                    .map(|threads| run(device, subject, streams, *threads))
                    .collect()
            })
            .collect();
        let rounds = rounds?;
        for (place, &threads) in counts.iter().enumerate() {
            let of = |value: &dyn Fn(&[Run]) -> f64| {
                middle(rounds.iter().map(|round| value(round)).collect())
            };
            let million = of(&|round| round[place].million);
            let reserved = rounds.iter().map(|round| round[place].reserved).max();
            let asked = sizes(streams)
                .map(|sizes| asked(threads, WARM_UP + pairs(subject, streams, threads), sizes));
            eprintln!(
                "{subject}, {streams}, {threads} threads: {million:.2} million pairs a second"
            );
            rows.push(Row {
                subject,
                streams,
                threads,
                million,
                linear: of(&|round| round[place].million / (round[0].million * threads as f64)),
                footprint: asked.transpose()?.zip(reserved),
            });
        }
    }
    Ok(rows)
}

fn pairs(subject: &str, streams: &str, threads: usize) -> usize {
    match (subject, streams) {
        ("pool", _) => 20_000 / threads,
        (_, "one") if threads > 1 => 1_000_000 / threads,
        _ => 1_000_000,
    }
}

fn run(device: &Device, subject: &str, streams: &str, threads: usize) -> Result<Run> {
    let resource = (subject != "host")
        .then(|| Subject::new(subject, device))
        .transpose()?;
    let context = device.primary_context()?;
    let shared = context.stream()?;
    let handle = match (&resource, streams) {
        (Some(Subject::Arena(arena)), "buffers") => Some(Resource::from(arena.clone())),
        _ => None,
    };
    let pairs = pairs(subject, streams, threads);
    let start = Barrier::new(threads);
    let mixed = sizes(streams);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..threads).map(|_| sync_channel(4)).unzip();
    let next: Vec<_> = senders
        .iter()
        .cycle()
        .skip(1)
        .take(threads)
        .cloned()
        .collect();
    drop(senders);
    let mut ends = receivers.into_iter().zip(next);
    let times: Result<Vec<f64>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (resource, handle, start) = (resource.clone(), &handle, &start);
                let stream = if streams == "one" {
                    Ok(shared.clone())
                } else {
                    context.stream()
                };
                let ends = ends.next();
                scope.spawn(move || -> Result<f64> {
                    let stream = stream?;
                    let (from, to) = ends.context("a thread without a channel")?;
                    let mut mix = Mix::new(thread as u64 + 1, mixed.unwrap_or(UP_TO_1_MIB));
                    let mut work = |pairs| match (&resource, handle) {
                        (_, Some(handle)) => buffers(handle, &stream, pairs),
                        (None, _) => {
                            multiply(pairs);
                            Ok(())
                        }
                        (Some(resource), _) if mixed.is_some() => mix.run(resource, &stream, pairs),
                        (Some(resource), _) if streams == "passed" => {
                            pass_on(resource, &stream, pairs, (&from, &to))
                        }
                        (Some(resource), _) => same(resource, &stream, pairs),
                    };
                    // A thread that fails must also reach the barrier, or the others would wait forever.
                    let ready = work(WARM_UP);
                    start.wait();
                    ready?;
                    let begin = Instant::now();
                    work(pairs)?;
                    let seconds = begin.elapsed().as_secs_f64();
                    if let Some(resource) = &resource {
                        mix.end(resource, &stream)?;
                    }
                    Ok(seconds)
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| {
                worker
                    .join()
                    .map_err(|_| anyhow::anyhow!("a thread panicked"))?
            })
            .collect()
    });
    let slowest = times?.into_iter().reduce(f64::max).context("no thread")?;
    let reserved = resource.map_or(Ok(0), |resource| resource.peak_reserved())?;
    Ok(Run {
        million: (threads * pairs) as f64 / slowest / 1e6,
        reserved,
    })
}

/// Work that shares nothing with other threads.
fn multiply(pairs: usize) {
    let mut value = 1_u64;
    for _ in 0..pairs {
        for _ in 0..10 {
            // The rotation keeps the compiler from merging the multiplications.
            value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7);
        }
        value = black_box(value);
    }
}

/// Allocates blocks for the next thread, and frees those of the previous one.
fn pass_on(
    resource: &Subject,
    stream: &Stream,
    pairs: usize,
    (from, to): (&Receiver<Vec<u64>>, &SyncSender<Vec<u64>>),
) -> Result<()> {
    let layout = layout(BYTES)?;
    for _ in 0..pairs / PASSED {
        let blocks: Result<Vec<u64>> = (0..PASSED)
            .map(|_| resource.allocate(layout, stream))
            .collect();
        to.send(blocks?)?;
        for address in from.recv()? {
            // SAFETY: allocated with this layout by the previous thread, which forgot it; nothing runs on any stream.
            unsafe { resource.deallocate(address, layout, stream) }?;
        }
    }
    Ok(())
}

fn same(resource: &Subject, stream: &Stream, pairs: usize) -> Result<()> {
    let layout = layout(BYTES)?;
    for _ in 0..pairs {
        let address = black_box(resource.allocate(black_box(layout), stream)?);
        // SAFETY: allocated just now, with this layout.
        unsafe { resource.deallocate(address, layout, stream) }?;
    }
    Ok(())
}

fn buffers(resource: &Resource, stream: &Stream, pairs: usize) -> Result<()> {
    for _ in 0..pairs {
        black_box(resource.alloc::<u8>(stream, black_box(BYTES))?);
    }
    Ok(())
}

pub(crate) fn json(rows: &[Row]) -> Value {
    rows.iter()
        .map(|row| {
            json!({
                "subject": row.subject,
                "streams": row.streams,
                "threads": row.threads,
                "million_pairs_per_second": row.million,
                "of_linear": row.linear,
                "asked": row.footprint.map(|footprint| footprint.0),
                "reserved": row.footprint.map(|footprint| footprint.1),
            })
        })
        .collect()
}

pub(crate) fn show(rows: &[Row]) {
    println!("\nthreads: {METHOD}\n");
    println!(
        "{:<8} {:<8} {:>8} {:>16} {:>10} {:>10} {:>10}",
        "subject", "streams", "threads", "million pairs/s", "linear", "asked", "reserved"
    );
    for row in rows {
        let footprint = row.footprint.map(|(asked, reserved)| {
            let ratio = reserved as f64 / asked as f64;
            format!(" {:>10} {ratio:>10.2}", asked >> 20)
        });
        println!(
            "{:<8} {:<8} {:>8} {:>16.2} {:>10.2}{}",
            row.subject,
            row.streams,
            row.threads,
            row.million,
            row.linear,
            footprint.unwrap_or_default()
        );
    }
}

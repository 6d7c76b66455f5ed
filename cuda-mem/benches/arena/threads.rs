//! Many threads at a time.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context as _, Result};
use cuda_mem::{Device, Resource, Stream};
use serde_json::{Value, json};

use crate::common::middle;
use crate::is_asked_for;
use crate::mix::Mix;
use crate::subjects::{Subject, layout};

pub(crate) const METHOD: &str = "million pairs of 4 KiB a second, all threads together, from one shared \
     resource: all threads start at a barrier after 1000 pairs of warm-up and time their pairs, 1,000,000 each \
     over the arena, 1,000,000 in all where arena threads share a stream or mix sizes, 20,000 in all over the pool; the slowest \
     thread counts; 5 rounds, each with every number of threads, and the median of them. 'own': a stream \
     for each thread, 'one': one stream for all, 'mixed': own streams, and sizes from 256 bytes to 1 MiB with up \
     to 32 blocks alive, 'buffers': own streams, and a DeviceBuffer made and dropped for each pair, through one handle \
     of the resource that all threads share. 'host': no allocator, 10 dependent multiplications and turns in place of a pair: what \
     the host's processors give to work that shares nothing. linear: over so many times one thread's rate of the same round, median";

const COUNTS: [usize; 5] = [1, 2, 4, 8, 16];
const RUNS: usize = 5;
const BYTES: usize = 4096;

/// What is measured: subject and kind of streams.
const KINDS: [(&str, &str); 8] = [
    ("host", "none"),
    ("pool", "own"),
    ("pool", "one"),
    ("pool", "mixed"),
    ("arena", "own"),
    ("arena", "one"),
    ("arena", "mixed"),
    ("arena", "buffers"),
];

pub(crate) struct Row {
    subject: &'static str,
    streams: &'static str,
    threads: usize,
    million: f64,
    linear: f64,
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
        let rounds: Result<Vec<Vec<f64>>> = (0..RUNS)
            .map(|_| {
                let counts = counts.iter();
                counts
                    .map(|threads| run(device, subject, streams, *threads))
                    .collect()
            })
            .collect();
        let rounds = rounds?;
        for (place, &threads) in counts.iter().enumerate() {
            let of = |value: &dyn Fn(&[f64]) -> f64| {
                middle(rounds.iter().map(|round| value(round)).collect())
            };
            let million = of(&|round| round[place]);
            eprintln!(
                "{subject}, {streams}, {threads} threads: {million:.2} million pairs a second"
            );
            rows.push(Row {
                subject,
                streams,
                threads,
                million,
                linear: of(&|round| round[place] / (round[0] * threads as f64)),
            });
        }
    }
    Ok(rows)
}

fn pairs(subject: &str, streams: &str, threads: usize) -> usize {
    match (subject, streams) {
        ("pool", _) => 20_000 / threads,
        (_, "one" | "mixed") if threads > 1 => 1_000_000 / threads,
        _ => 1_000_000,
    }
}

/// Million pairs a second.
fn run(device: &Device, subject: &str, streams: &str, threads: usize) -> Result<f64> {
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
    let mixed = streams == "mixed";
    let times: Result<Vec<f64>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                let (resource, handle, start) = (resource.clone(), &handle, &start);
                let stream = if streams == "one" {
                    Ok(shared.clone())
                } else {
                    context.stream()
                };
                scope.spawn(move || -> Result<f64> {
                    let stream = stream?;
                    let mut mix = Mix::new(thread as u64 + 1);
                    let mut work = |pairs| match (&resource, handle) {
                        (_, Some(handle)) => buffers(handle, &stream, pairs),
                        (None, _) => {
                            multiply(pairs);
                            Ok(())
                        }
                        (Some(resource), _) if mixed => mix.run(resource, &stream, pairs),
                        (Some(resource), _) => same(resource, &stream, pairs),
                    };
                    // Whoever fails must come to the barrier too, or the others wait for ever.
                    let ready = work(1000);
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
    Ok((threads * pairs) as f64 / slowest / 1e6)
}

/// Work of a thread that shares nothing with any other.
fn multiply(pairs: usize) {
    let mut value = 1_u64;
    for _ in 0..pairs {
        for _ in 0..10 {
            // With the turn, or the compiler would make one multiplication of all.
            value = value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7);
        }
        value = black_box(value);
    }
}

fn same(resource: &Subject, stream: &Stream, pairs: usize) -> Result<()> {
    let layout = layout(BYTES)?;
    for _ in 0..pairs {
        let address = black_box(resource.allocate(black_box(layout), stream)?);
        // SAFETY: allocated just now, as this layout.
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
            })
        })
        .collect()
}

pub(crate) fn show(rows: &[Row]) {
    println!("\nthreads: {METHOD}\n");
    println!(
        "{:<8} {:<8} {:>8} {:>16} {:>10}",
        "subject", "streams", "threads", "million pairs/s", "linear"
    );
    for row in rows {
        println!(
            "{:<8} {:<8} {:>8} {:>16.2} {:>10.2}",
            row.subject, row.streams, row.threads, row.million, row.linear
        );
    }
}

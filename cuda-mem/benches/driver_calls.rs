//! The overhead of this crate over the driver's own calls, and the cost of opening the driver.
//!
//! `cargo bench -p cuda-mem --bench driver_calls [-- --json]`. Method: rounds of raw driver calls and of the same work
//! through `MemoryPool` alternate on one pool and stream, so that both see the same clocks and caches. Times are
//! medians over the rounds; the ratio is the median of the rounds' own ratios, because a CPU's clock drifts between
//! rounds but hardly within one.

mod common;

use std::ffi::c_void;
use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::interop::{CaptureMode, Instantiate};
use cuda_mem::sys::{CUresult, DriverTable};
use cuda_mem::{Driver, MemoryPool, Stream};
use serde_json::json;

use common::{cpu, middle, open};

const ROUNDS: usize = 1001;
/// Uncounted rounds at the start, while memory is mapped and clocks rise.
const WARM_UP: usize = 200;
const PAIRS: usize = 50;
const SIZES: [usize; 5] = [256, 4 << 10, 1 << 20, 16 << 20, 256 << 20];

fn main() -> Result<()> {
    let json = std::env::args().any(|argument| argument == "--json");
    let (driver, backend) = open()?;
    let device = driver.device(0)?;
    let stream = device.primary_context()?.stream()?;
    let pool = MemoryPool::builder(&device).build()?;

    let mut pairs = Vec::new();
    for bytes in SIZES {
        pairs.push((bytes, pair(driver, &pool, &stream, bytes)?));
    }
    let other = stream.context().stream()?;
    let mut buffer = pool.alloc::<u8>(&stream, 4096)?;
    let mut lend = || {
        median(|| {
            for _ in 0..PAIRS {
                drop(black_box(buffer.on(&other)?));
            }
            Ok(())
        })
    };
    let lend_before = lend()?;
    launch_a_graph(&stream)?;
    let lend_after = lend()?;
    let stats = median(|| {
        for _ in 0..PAIRS {
            black_box(pool.stats()?);
        }
        Ok(())
    })?;
    let opening = opening(driver)?;

    if json {
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(bytes, pair)| {
                json!({ "bytes": bytes, "raw_ns": pair.raw, "crate_ns": pair.ours, "ratio": pair.ratio })
            })
            .collect();
        let report = json!({
            "benchmark": "driver_calls",
            "backend": backend,
            "device": device.name()?,
            "cpu": cpu(),
            "method": method(),
            "allocate_and_drop": pairs,
            "lend_and_return_ns": lend_before,
            "lend_and_return_after_a_graph_ns": lend_after,
            "stats_ns": stats,
            "open": { "dlopen_us": opening.dlopen, "fill_us": opening.fill, "functions": opening.functions },
        });
        println!("{report}");
        return Ok(());
    }
    println!("back end: {backend}, {}, {}", device.name()?, cpu());
    println!("method: {}\n", method());
    println!("allocate + free      raw calls     MemoryPool   ratio");
    for (bytes, pair) in &pairs {
        println!(
            "{bytes:>11} B   {:>9.1} ns   {:>9.1} ns   {:.3}",
            pair.raw, pair.ours, pair.ratio
        );
    }
    println!("\nlend to another stream and back: {lend_before:.0} ns");
    println!("the same once a graph was launched: {lend_after:.0} ns");
    println!("stats of a pool: {stats:.0} ns");
    println!(
        "opening the driver: dlopen {:.0} us, table of {} functions {:.0} us",
        opening.dlopen, opening.functions, opening.fill
    );
    Ok(())
}

fn method() -> String {
    format!(
        "medians of {ROUNDS} rounds of {PAIRS} after {WARM_UP} rounds of warm-up; raw and crate \
         rounds take turns, and the ratio is the median of the rounds' ratios"
    )
}

/// Launches a graph. After that, an event serves only one wait.
fn launch_a_graph(stream: &Stream) -> Result<()> {
    let (graph, ()) = stream.capture(CaptureMode::default(), |capture| {
        capture.alloc::<u8>(4096)?.as_mut_slice().fill(1)
    })?;
    let mut exec = graph.instantiate(Instantiate::default())?;
    exec.launch(stream)?;
    Ok(stream.synchronize()?)
}

struct Pair {
    raw: f64,
    ours: f64,
    ratio: f64,
}

/// Nanoseconds for one allocate + free, raw and through the crate.
fn pair(driver: Driver, pool: &MemoryPool, stream: &Stream, bytes: usize) -> Result<Pair> {
    let allocate = driver
        .table()
        .cuMemAllocFromPoolAsync
        .context("no cuMemAllocFromPoolAsync")?;
    let free = driver.table().cuMemFreeAsync.context("no cuMemFreeAsync")?;
    let (raw_pool, raw_stream) = (pool.as_raw(), stream.as_raw());
    let raw = || {
        for _ in 0..PAIRS {
            let mut address = 0;
            // SAFETY: pool and stream are live.
            let code = unsafe { allocate(&raw mut address, bytes, raw_pool, raw_stream) };
            ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
            // SAFETY: allocated just now, and unused.
            let code = unsafe { free(black_box(address), raw_stream) };
            ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
        }
        Ok(())
    };
    let ours = || {
        for _ in 0..PAIRS {
            black_box(pool.alloc::<u8>(stream, bytes)?);
        }
        Ok(())
    };
    let (mut raw_rounds, mut our_rounds, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..WARM_UP + ROUNDS {
        // The order alternates, so that neither always follows the other's work.
        let (raw_ns, our_ns) = if round % 2 == 0 {
            let raw_ns = timed(raw)?;
            (raw_ns, timed(ours)?)
        } else {
            let our_ns = timed(ours)?;
            (timed(raw)?, our_ns)
        };
        if round >= WARM_UP {
            raw_rounds.push(raw_ns);
            our_rounds.push(our_ns);
            ratios.push(our_ns / raw_ns);
        }
    }
    stream.synchronize()?;
    Ok(Pair {
        raw: middle(raw_rounds),
        ours: middle(our_rounds),
        ratio: middle(ratios),
    })
}

/// Nanoseconds for one of the `PAIRS` iterations of `work`.
fn timed(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_nanos() as f64 / PAIRS as f64)
}

fn median(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..WARM_UP {
        work()?;
    }
    let rounds = (0..ROUNDS)
        .map(|_| timed(&mut work))
        .collect::<Result<_>>()?;
    Ok(middle(rounds))
}

/// Microseconds.
struct Opening {
    dlopen: f64,
    fill: f64,
    functions: usize,
}

/// The library is already open, so `dlopen` is the cost of finding it again; the table is filled as on the first
/// opening.
fn opening(driver: Driver) -> Result<Opening> {
    let path = driver.library_path().context("the driver has no path")?;
    let mut dlopen = Vec::new();
    let mut fill = Vec::new();
    let mut functions = 0;
    for _ in 0..21 {
        let start = Instant::now();
        // SAFETY: this is the driver that is already open.
        let library = unsafe { libloading::Library::new(path) }?;
        dlopen.push(start.elapsed().as_nanos() as f64 / 1e3);
        let start = Instant::now();
        let address = |name: &std::ffi::CStr| {
            // SAFETY: the symbol is only read as an address here.
            unsafe { library.get::<*const c_void>(name) }.map_or(std::ptr::null(), |found| *found)
        };
        // SAFETY: the addresses are the driver's own.
        let table = unsafe { DriverTable::fill(address) };
        fill.push(start.elapsed().as_nanos() as f64 / 1e3);
        functions = black_box(table).count();
    }
    Ok(Opening {
        dlopen: middle(dlopen),
        fill: middle(fill),
        functions,
    })
}

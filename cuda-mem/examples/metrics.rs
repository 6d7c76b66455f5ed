//! Statistics of memory for Prometheus, and a line for each growth, move, trim and failed request.
//!
//! ```sh
//! cargo run --release -p cuda-mem --features metrics,tracing --example metrics -- --listen 127.0.0.1:9184
//! curl http://127.0.0.1:9184/metrics
//! ```
//!
//! A thread allocates meanwhile. In a program with a server of its own, two lines are of interest: `publish`, before the
//! numbers are collected, and the subscriber of `tracing`, which any program has.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Parser;
use cuda_mem::{Arena, MemoryPool, MemoryResource as _, Stream};
use cuda_mem_console::{DeviceOption, EXIT_CODES, say};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::fmt::time::Uptime;

/// Serves statistics of memory to Prometheus
#[derive(Debug, Parser)]
#[command(name = "metrics", after_help = EXIT_CODES)]
struct Args {
    #[command(flatten)]
    device: DeviceOption,
    /// Address and port to serve them at. Port 0 takes a free one, which is printed.
    #[arg(long, default_value = "127.0.0.1:9184")]
    listen: String,
    /// Exit after this many requests.
    #[arg(long)]
    requests: Option<usize>,
}

fn main() -> ExitCode {
    cuda_mem_console::main(run)
}

fn run(args: &Args) -> Result<()> {
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::DEBUG)
        .with_timer(Uptime::default())
        .with_writer(io::stderr)
        .init();
    let metrics = PrometheusBuilder::new().install_recorder()?;

    let backend = cuda_mem_console::open()?;
    let device = args.device.of(&backend)?;
    let stream = device.primary_context()?.stream()?;
    let arena = Arena::builder(&device).max_bytes(1 << 30).build()?;
    let pool = MemoryPool::builder(&device).build()?;
    let weights = pool.alloc::<u8>(&stream, 16 << 20)?;

    let listener =
        TcpListener::bind(&args.listen).with_context(|| format!("listening at {}", args.listen))?;
    say!("listening at http://{}/metrics", listener.local_addr()?)?;
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&arena, &stream, &is_over));
        let served = serve(&listener, args.requests, || {
            arena.stats().publish("activations");
            pool.stats()?.publish("weights");
            Ok(&metrics)
        });
        is_over.store(true, Ordering::Relaxed);
        let worked = worker.join().expect("the worker does not panic");
        served.and(worked)
    })?;
    drop(weights);
    Ok(())
}

/// Allocates and frees until `is_over` is set.
fn work(arena: &Arena, stream: &Stream, is_over: &AtomicBool) -> Result<()> {
    for round in 0.. {
        let mut blocks = Vec::new();
        for nth in 1..=8_usize {
            blocks.push(arena.alloc::<u8>(stream, (nth << 20) + round)?);
        }
        // More than the arena may hold: a warning.
        drop(arena.alloc::<u8>(stream, 2 << 30));
        drop(blocks);
        stream.synchronize()?;
        arena.trim_to(0)?;
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

/// Answers every request with the numbers.
fn serve<'a>(
    listener: &TcpListener,
    requests: Option<usize>,
    collect: impl Fn() -> Result<&'a PrometheusHandle>,
) -> Result<()> {
    for connection in listener.incoming().take(requests.unwrap_or(usize::MAX)) {
        // A client that hangs up is no reason to end.
        let _ = answer(&connection?, &collect()?.render());
    }
    Ok(())
}

fn answer(connection: &TcpStream, text: &str) -> io::Result<()> {
    let mut lines = BufReader::new(connection).lines();
    while lines
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    let mut connection = connection;
    write!(
        connection,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{text}",
        text.len()
    )
}

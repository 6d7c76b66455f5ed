//! A thousand tasks on one thread: each awaits its share of memory and its copies, and the thread never blocks.
//!
//! ```sh
//! cargo run --release -p cuda-mem --example tasks
//! ```
//!
//! The same work is done by one thread that waits for each request, and by a thread for each request. The executor is
//! the few lines at the end; any other one does.

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{self, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Parser;
use cuda_mem::memory::LimitAdaptor;
use cuda_mem::{Arena, Context, Device, Resource, Stream};
use cuda_mem_console::{EXIT_CODES, say};

/// Serves requests by tasks on one thread, by one thread that waits, and by a thread each
#[derive(Debug, Parser)]
#[command(name = "tasks", after_help = EXIT_CODES)]
struct Args {
    /// Number of requests.
    #[arg(long, default_value_t = 1000)]
    tasks: usize,
    /// Streams that the requests take turns on.
    #[arg(long, default_value_t = 16)]
    streams: usize,
    /// Bytes of a request.
    #[arg(long, default_value_t = 1 << 20)]
    bytes: usize,
    /// Requests whose memory may exist at the same time.
    #[arg(long, default_value_t = 64)]
    at_once: usize,
}

/// What all requests share.
struct Server {
    context: Context,
    streams: Vec<Stream>,
    limit: Arc<LimitAdaptor<Arena>>,
    resource: Resource,
    words: usize,
}

impl Server {
    fn new(device: Device, args: &Args) -> Result<Self> {
        let context = device.primary_context()?;
        let streams = (0..args.streams.max(1)).map(|_| context.stream());
        let streams = streams.collect::<cuda_mem::Result<Vec<_>>>()?;
        let limit = (args.at_once * args.bytes) as u64;
        let limit = LimitAdaptor::new(Arena::builder(&device).build()?, limit);
        let limit = Arc::new(limit.with_wait_timeout(Duration::from_secs(60)));
        Ok(Self {
            resource: Resource::from(Arc::clone(&limit)),
            context,
            streams,
            limit,
            words: args.bytes / 4,
        })
    }

    fn stream(&self, number: usize) -> &Stream {
        &self.streams[number % self.streams.len()]
    }

    /// One request: memory, work, and the result on the host.
    async fn serve(&self, number: usize) -> Result<()> {
        let stream = self.stream(number);
        let memory = self
            .limit
            .alloc_when_free::<u32>(&self.resource, stream, self.words);
        let mut x = memory.await?;
        x.fill(number as u32)?;
        let mut result = self.context.pinned::<u32>(16)?.lend(stream)?;
        result.copy_from(&x.slice(..16)?)?;
        let result = result.returned().await?;
        ensure!(*result == [number as u32; 16], "request {number}");
        Ok(())
    }

    /// The same, and the thread waits.
    fn serve_and_wait(&self, number: usize) -> Result<()> {
        let stream = self.stream(number);
        let mut x = self.resource.alloc::<u32>(stream, self.words)?;
        x.fill(number as u32)?;
        let mut result = self.context.pinned::<u32>(16)?.lend(stream)?;
        result.copy_from(&x.slice(..16)?)?;
        let result = result.take_back()?;
        ensure!(*result == [number as u32; 16], "request {number}");
        Ok(())
    }
}

fn main() -> ExitCode {
    cuda_mem_console::main(run)
}

fn run(args: &Args) -> Result<()> {
    let backend = cuda_mem_console::open()?;
    let device = backend.driver.device(0)?;
    let server = Server::new(device, args)?;
    say!(
        "driver: {}, CUDA {}, {}",
        backend.name(),
        backend.driver.version(),
        device.name()?
    )?;
    say!(
        "{} requests of {} bytes, {} at a time, on {} streams",
        args.tasks,
        args.bytes,
        args.at_once,
        server.streams.len()
    )?;
    server.serve_and_wait(0)?;
    show("one thread that waits", 1, || {
        (0..args.tasks).try_for_each(|number| server.serve_and_wait(number))
    })?;
    show("a thread for each request", args.tasks, || {
        let server = &server;
        std::thread::scope(|scope| {
            let serve = |number| scope.spawn(move || server.serve_and_wait(number));
            let threads: Vec<_> = (0..args.tasks).map(serve).collect();
            threads.into_iter().try_for_each(|thread| {
                let served = thread.join();
                served.map_err(|_| anyhow::anyhow!("a request panicked"))?
            })
        })
    })?;
    show("tasks on one thread", 1, || {
        let tasks = (0..args.tasks).map(|number| server.serve(number));
        run_all(tasks).into_iter().collect()
    })
}

/// Prints how long it took, and how long processors worked for it.
fn show(name: &str, threads: usize, serve: impl FnOnce() -> Result<()>) -> Result<()> {
    let (begun, worked) = (Instant::now(), processor_time());
    serve()?;
    let took = begun.elapsed();
    let worked = processor_time()
        .zip(worked)
        .map_or("unknown".to_owned(), |(now, before)| {
            format!("{:.2} s", (now - before).as_secs_f64())
        });
    println!(
        "{name:<28} {threads:>5} threads  {:>7.3} s  processors: {worked}",
        took.as_secs_f64()
    );
    Ok(())
}

/// Of all threads of this process, as Linux counts it: in hundredths of a second.
fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields = stat.rsplit_once(')')?.1.split_whitespace();
    let ticks: Option<u64> = fields
        .skip(11)
        .take(2)
        .map(|it| it.parse::<u64>().ok())
        .sum();
    Some(Duration::from_millis(10 * ticks?))
}

/// A task that was woken goes into the queue.
struct Queue {
    number: usize,
    queue: Mutex<Sender<usize>>,
}

impl Wake for Queue {
    fn wake(self: Arc<Self>) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        // The receiver is gone once all tasks are done.
        let _ = queue.send(self.number);
    }
}

/// Runs all tasks on this thread, and returns their outputs in the order in which they were done.
fn run_all<T>(tasks: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let (sender, woken) = channel();
    let mut tasks: Vec<_> = tasks
        .enumerate()
        .map(|(number, task)| {
            let _ = sender.send(number);
            let queue = Mutex::new(sender.clone());
            let waker = Waker::from(Arc::new(Queue { number, queue }));
            (waker, Some(Box::pin(task)))
        })
        .collect();
    let mut outputs = Vec::new();
    while outputs.len() < tasks.len() {
        let Ok(number) = woken.recv() else {
            break;
        };
        let (waker, place) = &mut tasks[number];
        if let Some(task) = place
            && let Poll::Ready(output) = Pin::new(task).poll(&mut task::Context::from_waker(waker))
        {
            *place = None;
            outputs.push(output);
        }
    }
    outputs
}

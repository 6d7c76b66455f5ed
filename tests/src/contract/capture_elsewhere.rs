//! What a program does elsewhere while it captures a stream. The modes forbid things to the whole process, so these
//! bodies run alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::interop::{CaptureMode, Instantiate};
use cuda_mem::memory::{DirectResource, ManagedResource, PinnedResource};
use cuda_mem::stream::Event;
use cuda_mem::sys::CUstream_flags;
use cuda_mem::{Arena, DeviceBuffer, ErrorKind, MemoryPool, Resource, Stream};

use super::context::Foreign;
use super::foreign::raw_stream;
use super::graph::MODES;
use crate::environment::Environment;
use crate::hold::hold;

/// Only to end a test that fails.
const LIMIT: Duration = Duration::from_secs(10);

/// What is not captured: all of it was there before.
struct Elsewhere {
    pool: MemoryPool,
    stream: Stream,
    /// Recorded in the stream.
    event: Event,
}

pub(super) fn by_another_thread<T: Send>(call: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| scope.spawn(call).join()).map_err(|_| anyhow!("it panicked"))?
}

/// An owner whose end waits for another thread.
struct Waits {
    begun: mpsc::Sender<()>,
    over: Mutex<mpsc::Receiver<()>>,
    in_time: Arc<AtomicBool>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        let _ = self.begun.send(());
        let over = self
            .over
            .lock()
            .map(|over| over.recv_timeout(LIMIT).is_ok());
        self.in_time.store(over.unwrap_or(false), Ordering::Relaxed);
    }
}

/// What a wait has made possible runs code of the program. A capture of the stream does not wait for that.
#[apply(case_alone)]
fn what_ends_after_a_copy_may_wait_for_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, other, pool) = (env.stream()?, env.stream()?, env.pool()?);
    let numbers = pool.alloc_from(&stream, &[1_u8; 1000])?;
    let memory = pool.alloc::<u8>(&stream, 1000)?;
    stream.synchronize()?;
    let ((begun, has_begun), (end, over)) = (mpsc::channel(), mpsc::channel());
    let in_time = Arc::new(AtomicBool::new(false));
    let owner = Waits {
        begun,
        over: Mutex::new(over),
        in_time: Arc::clone(&in_time),
    };
    // SAFETY: the memory outlives the buffer, and nothing else uses it.
    let borrowed = unsafe { DeviceBuffer::<u8>::borrow_raw(&other, memory.as_raw(), 1000, owner) };
    let held = hold(&other)?;
    other.capture(CaptureMode::Relaxed, |_| {
        drop(borrowed);
        Ok(())
    })?;
    drop(held);
    while !other.is_done()? {
        thread::yield_now();
    }
    thread::scope(|scope| -> Result<()> {
        let copies = scope.spawn(|| numbers.to_vec());
        has_begun.recv_timeout(LIMIT)?;
        stream.capture(CaptureMode::Relaxed, |_| Ok(()))?;
        end.send(())?;
        let copied = copies.join().map_err(|_| anyhow!("it panicked"))??;
        ensure!(copied == [1; 1000]);
        Ok(())
    })?;
    ensure!(
        in_time.load(Ordering::Relaxed),
        "the capture waited for the owner"
    );
    Ok(())
}

type Call = fn(&Environment, &Elsewhere) -> Result<()>;

fn alloc(resource: impl Into<Resource>, stream: &Stream) -> Result<()> {
    let buffer = resource.into().alloc::<u8>(stream, 1000)?;
    buffer.free()?;
    Ok(())
}

const CALLS: [(&str, Call); 11] = [
    // The captured stream does not wait for that one.
    ("use the legacy stream", |_, at| {
        let legacy = at.stream.context().legacy_stream();
        at.pool.alloc_zeroed::<u8>(&legacy, 1000)?.free()?;
        Ok(())
    }),
    ("allocate from a pool", |_, at| {
        at.pool.alloc::<u8>(&at.stream, 1000)?.free()?;
        Ok(())
    }),
    ("allocate from the current pool", |_, at| {
        at.stream.alloc::<u8>(1000)?.free()?;
        Ok(())
    }),
    ("allocate directly", |env, at| {
        alloc(
            Resource::new(DirectResource::new(env.device()?)),
            &at.stream,
        )
    }),
    ("allocate pinned memory", |env, at| {
        alloc(Resource::new(PinnedResource::new(env.driver)), &at.stream)
    }),
    ("allocate managed memory", |env, at| {
        alloc(Resource::new(ManagedResource::new(env.driver)), &at.stream)
    }),
    ("free and wait", |_, at| {
        at.pool.alloc::<u8>(&at.stream, 1000)?.free_sync()?;
        Ok(())
    }),
    ("ask the stream", |_, at| {
        at.stream.is_done()?;
        Ok(())
    }),
    ("wait for the stream", |_, at| {
        Ok(at.stream.synchronize()?)
    }),
    ("ask the event", |_, at| {
        at.event.is_done()?;
        Ok(())
    }),
    ("wait for the event", |_, at| Ok(at.event.synchronize()?)),
];

#[apply(case_alone)]
fn what_is_done_elsewhere_spoils_no_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    let elsewhere = Elsewhere {
        pool: env.pool()?,
        event: env.context()?.event()?,
        stream: other,
    };
    elsewhere.event.record(&elsewhere.stream)?;
    for (name, call) in CALLS {
        for mode in MODES {
            let (_, (here, there)) = stream
                .capture(mode, |capture| {
                    let here = call(env, &elsewhere);
                    let there = by_another_thread(|| call(env, &elsewhere));
                    drop(capture.alloc::<u8>(1000)?);
                    Ok((here, there))
                })
                .with_context(|| format!("{name}, {mode:?}: the capture is lost"))?;
            here.with_context(|| format!("{name}, {mode:?}"))?;
            there.with_context(|| format!("{name}, {mode:?}, by another thread"))?;
        }
    }
    Ok(())
}

#[apply(case_alone)]
fn a_wait_for_the_whole_context_is_refused_beside_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (context, stream) = (env.context()?, env.stream()?);
    for mode in MODES {
        let (_, (here, there)) = stream.capture(mode, |capture| {
            let here = context.synchronize().map_err(|error| error.kind());
            let there = thread::scope(|scope| {
                let thread = scope.spawn(|| context.synchronize().map_err(|error| error.kind()));
                thread.join()
            });
            drop(capture.alloc::<u8>(1000)?);
            Ok((here, there))
        })?;
        ensure!(here == Err(ErrorKind::Capturing), "{mode:?}: {here:?}");
        ensure!(matches!(there, Ok(Err(ErrorKind::Capturing))), "{there:?}");
    }
    Ok(context.synchronize()?)
}

/// One handle names a thread's own streams of all contexts.
#[apply(case_alone)]
fn a_thread_captures_its_own_streams_of_two_contexts_at_once(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let foreign = Foreign::new(env)?;
    // SAFETY: it ends after everything that is made in it here.
    let second = unsafe { env.driver.context_from_raw(foreign.1) }?;
    let own = [env.context()?, second].map(|context| context.per_thread_stream());
    let kind = |stream: &Stream| stream.synchronize().map_err(|error| error.kind());
    for mode in MODES {
        let (outer, (inner, answers)) = own[0].capture(mode, |outer| {
            let before = own.each_ref().map(kind);
            let (inner, during) = own[1].capture(mode, |inner| {
                drop(inner.alloc::<u8>(1000)?);
                Ok(own.each_ref().map(kind))
            })?;
            drop(outer.alloc::<u8>(1000)?);
            Ok((inner, [before, during]))
        })?;
        let refused = Err(ErrorKind::Capturing);
        ensure!(
            answers == [[refused, Ok(())], [refused, refused]],
            "{mode:?}: {answers:?}"
        );
        for (graph, stream) in [outer, inner].into_iter().zip(&own) {
            graph.instantiate(Instantiate::Plain)?.launch(stream)?;
            stream.synchronize()?;
        }
    }
    Ok(())
}

#[apply(case_alone)]
fn a_graph_is_instantiated_and_dropped_beside_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    for mode in MODES {
        for kind in [Instantiate::Plain, Instantiate::AutoFree] {
            let record = || {
                other.capture(mode, |capture| {
                    drop(capture.alloc::<u8>(1000)?);
                    Ok(())
                })
            };
            let (before, ()) = record()?;
            let before = before.instantiate(kind).map_err(|failed| failed.error)?;
            let (graph, ()) = record()?;
            let (_, exec) = stream
                .capture(mode, |capture| {
                    let exec = graph.instantiate(kind);
                    let ended = thread::scope(|scope| scope.spawn(|| drop(before)).join());
                    assert!(ended.is_ok());
                    drop(capture.alloc::<u8>(1000)?);
                    Ok(exec)
                })
                .with_context(|| format!("{kind:?}, {mode:?}: the capture is lost"))?;
            exec.map_err(|failed| failed.error)?.launch(&other)?;
            other.synchronize()?;
        }
    }
    Ok(())
}

#[apply(case_alone)]
fn the_legacy_stream_is_refused_beside_a_capture_of_a_per_thread_stream(
    env: &Environment,
) -> Result<()> {
    let own = env.context()?.per_thread_stream();
    legacy_is_refused_beside(env, &own)
}

#[apply(case_alone)]
fn the_legacy_stream_is_refused_beside_a_capture_of_a_blocking_stream(
    env: &Environment,
) -> Result<()> {
    let context = env.context()?;
    let raw = raw_stream(&context, CUstream_flags::CU_STREAM_DEFAULT)?;
    // SAFETY: the stream is of this context, and nobody else destroys it.
    let blocking = unsafe { Stream::from_raw(&context, raw) };
    legacy_is_refused_beside(env, &blocking)
}

/// The driver would let it wait for the captured stream.
fn legacy_is_refused_beside(env: &Environment, captured: &Stream) -> Result<()> {
    env.need(11, 4)?;
    let (pool, legacy) = (env.pool()?, captured.context().legacy_stream());
    let mut buffer = pool.alloc::<u8>(&legacy, 1000)?;
    for mode in MODES {
        let dropped = pool.alloc::<u8>(&legacy, 1000)?;
        let (_, refused) = captured
            .capture(mode, |capture| {
                let answers = [
                    buffer.fill(1),
                    legacy.synchronize(),
                    legacy.is_done().map(drop),
                    pool.alloc::<u8>(&legacy, 1000).map(drop),
                ];
                drop(dropped);
                drop(capture.alloc::<u8>(1000)?);
                Ok(answers.map(|answer| answer.map_err(|error| error.kind())))
            })
            .with_context(|| format!("{mode:?}: the capture is lost"))?;
        ensure!(refused == [Err(ErrorKind::Capturing); 4], "{refused:?}");
    }
    buffer.fill(2)?;
    ensure!(buffer.to_vec()? == [2; 1000]);
    buffer.free_sync()?;
    ensure!(pool.stats()?.used.current == 0, "{}", pool.stats()?);
    Ok(())
}

/// Its arena takes memory of the pool below in a stream that is not captured.
#[apply(case_alone)]
fn a_capture_pool_grows_over_any_resource(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (device, stream) = (env.device()?, env.stream()?);
    let below = [
        Resource::from(env.pool()?),
        Resource::new(DirectResource::new(device)),
    ];
    for below in below {
        for mode in [CaptureMode::Global, CaptureMode::ThreadLocal] {
            let pool = Arena::over(below.clone()).capture_pool()?;
            ensure!(pool.held_bytes() == 0, "{}", pool.held_bytes());
            stream
                .capture(mode, |capture| {
                    drop(capture.alloc_from::<u8>(&pool, 1000)?);
                    Ok(())
                })
                .with_context(|| format!("{below:?}, {mode:?}: the capture is lost"))?;
            ensure!(pool.held_bytes() > 0, "it did not grow");
        }
    }
    Ok(())
}

//! Waits between streams while much else goes on: streams and threads that come and go, pools that end, graphs.

use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::Stream;
use cuda_mem::interop::{CaptureMode, GraphExec, Instantiate};

use crate::environment::Environment;
use crate::hold::hold_for;
use crate::{settings, watchdog};

/// Rounds of a thread between two looks at what it saw.
const ROUNDS: usize = 64;

/// In turns one stream writes and another, which waits for it, reads; the streams are all threads'.
fn write_and_read(env: &Environment, streams: &[Stream], thread: usize, seed: u64) -> Result<()> {
    let pool = env.pool()?;
    let own = env.context()?.stream()?;
    let mut memory = pool.alloc::<u32>(&own, 64)?;
    let mut seen = Vec::new();
    let first = (seed * 3 + thread as u64) as u32 * (2 * ROUNDS as u32);
    for round in 0..ROUNDS {
        let word = first + 2 * round as u32;
        let [writer, reader] = [round, round + 1].map(|at| &streams[(at + thread) % streams.len()]);
        let held = round
            .is_multiple_of(8)
            .then(|| hold_for(writer, Duration::from_micros(100)));
        let held = held.transpose()?;
        memory.set_stream(writer)?;
        memory.fill(word)?;
        let mut copy = pool.alloc::<u32>(writer, 64)?;
        copy.copy_from_device(&memory)?;
        seen.push(copy);
        memory.set_stream(reader)?;
        memory.fill(word + 1)?;
        drop(held);
    }
    for (round, copy) in seen.iter().enumerate() {
        let (word, found) = (first + 2 * round as u32, copy.to_vec()?);
        ensure!(
            found == [word; 64],
            "round {round} of thread {thread}: {found:?} instead of {word}"
        );
    }
    Ok(())
}

/// A stream that comes, waits and is waited for, and goes.
fn pass_by(env: &Environment, own: &Stream, streams: &[Stream], round: usize) -> Result<()> {
    let mut memory = env.pool()?.alloc::<u32>(own, 64)?;
    let held = round
        .is_multiple_of(4)
        .then(|| hold_for(own, Duration::from_micros(100)));
    let held = held.transpose()?;
    memory.fill(round as u32)?;
    for stream in streams {
        stream.wait_for(own)?;
        own.wait_for(stream)?;
    }
    drop((memory, held));
    Ok(())
}

/// A launch or an upload.
type CallOfGraph = fn(&mut GraphExec, &Stream) -> cuda_mem::Result<()>;

/// What goes on beside threads whose streams wait for each other.
#[derive(Clone, Copy, Default)]
struct Beside {
    /// A thread makes streams and drops them.
    streams: bool,
    /// Threads use a stream of their own and end.
    threads: bool,
    /// A thread makes this call with a graph, in each of the streams in turn.
    graphs: Option<CallOfGraph>,
}

/// A graph that fills memory which nobody looks at.
fn filling(env: &Environment) -> Result<GraphExec> {
    let stream = env.stream()?;
    let memory = env.pool()?.alloc::<u32>(&stream, 64)?;
    let (graph, _) = stream.capture(CaptureMode::ThreadLocal, |capture| {
        let memory = capture.adopt(memory);
        let mut scratch = capture.alloc::<u32>(64)?;
        scratch.as_mut_slice().fill(1)?;
        scratch.copy_out(&memory)?;
        scratch.free()?;
        Ok(memory)
    })?;
    Ok(graph.instantiate(Instantiate::Plain)?)
}

fn waits_do_not_mix(env: &Environment, beside: Beside) -> Result<()> {
    let context = env.context()?;
    let streams: cuda_mem::Result<Vec<Stream>> = (0..3).map(|_| context.stream()).collect();
    let streams = &streams?;
    let with_graph = beside.graphs.map(|call| anyhow::Ok((filling(env)?, call)));
    let mut with_graph = with_graph.transpose()?;
    settings::each(4, |seed| {
        watchdog::next_part();
        let with_graph = &mut with_graph;
        thread::scope(|scope| {
            let mut threads: Vec<_> = (0..3)
                .map(|number| scope.spawn(move || write_and_read(env, streams, number, seed)))
                .collect();
            if beside.streams {
                let mut rounds = 0..ROUNDS / 4;
                threads.push(scope.spawn(move || {
                    rounds.try_for_each(|round| {
                        pass_by(env, &env.context()?.stream()?, streams, round)
                    })
                }));
            }
            for round in 0..if beside.threads { 3 } else { 0 } {
                threads.push(scope.spawn(move || {
                    let context = env.context()?;
                    pass_by(env, &context.per_thread_stream(), streams, round)
                }));
            }
            if let Some((graph, call)) = with_graph {
                threads.push(scope.spawn(move || {
                    (0..ROUNDS).try_for_each(|round| {
                        thread::yield_now();
                        Ok(call(graph, &streams[round % streams.len()])?)
                    })
                }));
            }
            threads.into_iter().try_for_each(|thread| {
                let done = thread.join().map_err(|_| anyhow!("a panic"))?;
                done.with_context(|| format!("with seed {seed}"))
            })
        })
    })?;
    Ok(())
}

#[apply(case_alone)]
fn waits_of_several_threads_do_not_mix(env: &Environment) -> Result<()> {
    waits_do_not_mix(env, Beside::default())
}

#[apply(case_alone)]
fn waits_do_not_mix_while_streams_come_and_go(env: &Environment) -> Result<()> {
    let beside = Beside {
        streams: true,
        ..Beside::default()
    };
    waits_do_not_mix(env, beside)
}

#[apply(case_alone)]
fn waits_do_not_mix_while_threads_with_own_streams_end(env: &Environment) -> Result<()> {
    let beside = Beside {
        threads: true,
        ..Beside::default()
    };
    waits_do_not_mix(env, beside)
}

/// Pools come and go too. A driver crashes if they are destroyed beside waits (R178).
#[apply(case_alone)]
fn waits_do_not_mix_while_streams_and_threads_come_and_go(env: &Environment) -> Result<()> {
    let beside = Beside {
        streams: true,
        threads: true,
        ..Beside::default()
    };
    waits_do_not_mix(env, beside)
}

/// A driver loses waits for events that are recorded meanwhile (R179).
#[apply(case_alone)]
fn waits_do_not_mix_while_graphs_are_launched(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let beside = Beside {
        graphs: Some(GraphExec::launch),
        ..Beside::default()
    };
    waits_do_not_mix(env, beside)
}

/// The same of uploads (R179).
#[apply(case_alone)]
fn waits_do_not_mix_while_graphs_are_uploaded(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let beside = Beside {
        graphs: Some(GraphExec::upload),
        ..Beside::default()
    };
    waits_do_not_mix(env, beside)
}

/// Once a graph was launched, or uploaded, an event serves one wait (R179).
fn an_event_serves_one_wait_after(env: &Environment, call: CallOfGraph) -> Result<()> {
    let control = env.control()?;
    let (stream, other) = (env.stream()?, env.stream()?);
    let none = control.live().events;
    stream.wait_for(&other)?;
    ensure!(control.live().events == none + 1, "an event is kept");
    stream.wait_for(&other)?;
    ensure!(control.live().events == none + 1, "it is used again");
    call(&mut filling(env)?, &stream)?;
    for _ in 0..5 {
        stream.wait_for(&other)?;
    }
    ensure!(control.live().events == none, "none is kept");
    Ok(())
}

#[apply(case_of_sim_alone)]
fn an_event_serves_one_wait_once_graphs_are_launched(env: &Environment) -> Result<()> {
    an_event_serves_one_wait_after(env, GraphExec::launch)
}

#[apply(case_of_sim_alone)]
fn an_event_serves_one_wait_once_graphs_are_uploaded(env: &Environment) -> Result<()> {
    an_event_serves_one_wait_after(env, GraphExec::upload)
}

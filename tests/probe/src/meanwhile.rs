//! What may be done while a stream is recorded, and what makes the recording worthless.

mod calls;
mod questions;
mod scene;

use anyhow::Result;
use cuda_driver_sys::*;

use self::calls::CALLS;
use self::questions::QUESTIONS;
use self::scene::{Mapped, Scene, Shared, is_of_mapping, is_of_sharing};
use crate::environment::{Environment, cu, name, size};
use crate::recorder::{self, alloc_node, begin, ended, exchange, free_node, instantiate, status};

/// A graph that allocates memory and frees it.
fn graph_with_memory(env: &Environment) -> Result<CUgraph> {
    let graph = recorder::graph(env)?;
    let (node, address) = alloc_node(env, graph, &[], 1000)?;
    free_node(env, graph, &[node], address)?;
    Ok(graph)
}

/// The thread that makes the calls.
#[derive(Clone, Copy)]
enum By {
    Capturing,
    /// As the capturing thread, which has set its own capture mode to relaxed.
    Relaxed,
    Other,
    OtherRelaxed,
}

/// Each call once while a stream is captured.
fn meanwhile(env: &Environment, mode: u32, by: By) -> Result<()> {
    for (part, call) in CALLS.into_iter().chain(QUESTIONS) {
        let (stream, other, pool) = (env.stream()?, env.stream()?, env.pool(0)?);
        let mut scene = Scene {
            block: env.alloc(pool, 1000, stream)?,
            plain: env.plain(64)?,
            pinned: env.pinned(64)?,
            event: env.event()?,
            fresh: env.event()?,
            captured: 0,
            graph: graph_with_memory(env)?,
            exec: instantiate(env, graph_with_memory(env)?, 0)?,
            unused: env.pool(0)?,
            shared: is_of_sharing(part)
                .then(|| Shared::new(env, stream))
                .transpose()?,
            mapped: is_of_mapping(part).then(|| Mapped::new(env)).transpose()?,
            stream,
            other,
            pool,
        };
        env.record(scene.event, other)?;
        env.synchronise(stream)?;
        env.fine("begin", begin(env, stream, mode))?;
        if part.contains("captured") {
            scene.captured = env.alloc(pool, 1000, stream)?;
        }
        let relaxed_call = |env: &Environment, scene: &Scene| -> Result<CUresult> {
            env.fine("to relaxed", exchange(env, 2).0)?;
            let code = call(env, scene);
            env.fine("to global", exchange(env, 0).0)?;
            Ok(code)
        };
        let code = match by {
            By::Capturing => call(env, &scene),
            By::Relaxed => relaxed_call(env, &scene)?,
            By::Other | By::OtherRelaxed => {
                // An environment is not `Sync`, so the other thread has one of its own.
                let (table, context, scene) =
                    (env.table, env.context().expose_provenance(), &scene);
                std::thread::scope(|scope| {
                    let thread = scope.spawn(move || {
                        let env = Environment::new(table, "thread");
                        let context = std::ptr::with_exposed_provenance_mut(context);
                        env.current(context)?;
                        match by {
                            By::OtherRelaxed => relaxed_call(&env, scene),
                            _ => Ok(call(&env, scene)),
                        }
                    });
                    thread.join().unwrap_or(Ok(CUresult::CUDA_ERROR_UNKNOWN))
                })?
            }
        };
        let after = status(env, stream);
        let graph = ended(env, stream);
        let used = size(env.used(pool)?);
        env.say(
            part,
            format!("{}, {after}; end {graph}; used {used}", name(code)),
        );
        // What was joined and left open is not captured any more.
        if !part.contains("cuStreamDestroy") && status(env, scene.other) != "none" {
            env.say(
                format!("{part}, the other stream"),
                status(env, scene.other),
            );
        }
        let _ = cu!(env, cuCtxSynchronize());
    }
    Ok(())
}

pub(crate) fn global(env: &Environment) -> Result<()> {
    meanwhile(env, 0, By::Capturing)
}

pub(crate) fn thread_local(env: &Environment) -> Result<()> {
    meanwhile(env, 1, By::Capturing)
}

pub(crate) fn relaxed(env: &Environment) -> Result<()> {
    meanwhile(env, 2, By::Capturing)
}

pub(crate) fn global_relaxed_thread(env: &Environment) -> Result<()> {
    meanwhile(env, 0, By::Relaxed)
}

pub(crate) fn global_relaxed_other_thread(env: &Environment) -> Result<()> {
    meanwhile(env, 0, By::OtherRelaxed)
}

pub(crate) fn global_other_thread(env: &Environment) -> Result<()> {
    meanwhile(env, 0, By::Other)
}

pub(crate) fn thread_local_other_thread(env: &Environment) -> Result<()> {
    meanwhile(env, 1, By::Other)
}

pub(crate) fn relaxed_other_thread(env: &Environment) -> Result<()> {
    meanwhile(env, 2, By::Other)
}

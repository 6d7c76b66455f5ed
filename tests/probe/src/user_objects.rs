//! Objects of the program that graphs keep alive.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::gate::Gate;
use crate::recorder::*;

/// A destructor is given this long to run; one that must not run is waited for that long.
const PATIENCE: Duration = Duration::from_millis(100);

/// A place that the driver leaves alone.
const ODD: usize = 0xabab;

/// How often the destructor has run, and in which thread at last.
#[derive(Debug, Default)]
struct Runs {
    count: AtomicU32,
    thread: AtomicU64,
}

fn this_thread() -> u64 {
    // SAFETY: no arguments; it always succeeds.
    unsafe { libc::pthread_self() as u64 }
}

unsafe extern "C" fn destroy_it(argument: *mut c_void) {
    // SAFETY: `create` gives a place that lives for ever.
    let runs = unsafe { &*argument.cast::<Runs>() };
    runs.thread.store(this_thread(), Ordering::SeqCst);
    runs.count.fetch_add(1, Ordering::SeqCst);
}

unsafe extern "C" fn ignore(_: *mut c_void) {}

impl Runs {
    fn fresh() -> &'static Self {
        Box::leak(Box::default())
    }

    fn argument(&'static self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// Whether it has run, after a while.
    fn told(&self) -> String {
        let start = Instant::now();
        while self.count.load(Ordering::SeqCst) == 0 && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(2));
        }
        match self.count.load(Ordering::SeqCst) {
            0 => "not destroyed".into(),
            1 => "destroyed".into(),
            more => format!("destroyed {more} times"),
        }
    }
}

fn try_create(
    env: &Environment,
    runs: &'static Runs,
    count: u32,
    flags: u32,
) -> (CUresult, CUuserObject) {
    let mut object = std::ptr::without_provenance_mut(ODD);
    let code = cu!(
        env,
        cuUserObjectCreate(
            &raw mut object,
            runs.argument(),
            Some(destroy_it),
            count,
            flags
        )
    );
    (code, object)
}

fn create(env: &Environment, count: u32) -> Result<(&'static Runs, CUuserObject)> {
    let runs = Runs::fresh();
    let (code, object) = try_create(env, runs, count, 1);
    env.fine("cuUserObjectCreate", code)?;
    Ok((runs, object))
}

fn release(env: &Environment, object: CUuserObject, count: u32) -> CUresult {
    cu!(env, cuUserObjectRelease(object, count))
}

fn retain(env: &Environment, object: CUuserObject, count: u32) -> CUresult {
    cu!(env, cuUserObjectRetain(object, count))
}

fn keep(
    env: &Environment,
    graph: CUgraph,
    object: CUuserObject,
    count: u32,
    flags: u32,
) -> CUresult {
    cu!(env, cuGraphRetainUserObject(graph, object, count, flags))
}

fn give_up(env: &Environment, graph: CUgraph, object: CUuserObject, count: u32) -> CUresult {
    cu!(env, cuGraphReleaseUserObject(graph, object, count))
}

/// Making them, with arguments of every kind.
pub(crate) fn creates(env: &Environment) -> Result<()> {
    for (count, flags) in [
        (0, 1),
        (1, 0),
        (1, 1),
        (1, 2),
        (1, 3),
        (5, 1),
        (i32::MAX as u32, 1),
        (1 << 31, 1),
        (u32::MAX, 1),
    ] {
        let (code, object) = try_create(env, Runs::fresh(), count, flags);
        let seen = match object.addr() {
            0 => "null",
            ODD => "untouched",
            _ => "a handle",
        };
        env.say(
            format!("count {count}, flags {flags}"),
            format!("{}, {seen}", name(code)),
        );
    }
    let (runs, mut object) = (Runs::fresh(), std::ptr::null_mut());
    let null = std::ptr::null_mut::<u8>();
    let code = cu!(
        env,
        cuUserObjectCreate(null.cast(), runs.argument(), Some(destroy_it), 1, 1)
    );
    env.code("no place for the handle", code);
    let code = cu!(
        env,
        cuUserObjectCreate(&raw mut object, runs.argument(), None, 1, 1)
    );
    env.code("no destructor", code);
    let code = cu!(
        env,
        cuUserObjectCreate(&raw mut object, null.cast(), Some(ignore), 1, 1)
    );
    env.code("no argument", code);
    env.no_context()?;
    let (code, _) = try_create(env, runs, 1, 1);
    env.code("without a context", code);
    Ok(())
}

/// References of the program.
pub(crate) fn references(env: &Environment) -> Result<()> {
    let (runs, object) = create(env, 1)?;
    let say = |part: &str, code: CUresult, runs: &Runs| {
        env.say(part, format!("{}, {}", name(code), runs.told()));
    };
    say("release of one", release(env, object, 1), runs);
    let own = runs.thread.load(Ordering::SeqCst) == this_thread();
    env.say("in the thread that released it", yes(own));
    let (runs, object) = create(env, 3)?;
    say("release none of three", release(env, object, 0), runs);
    say("release one of three", release(env, object, 1), runs);
    say("retain none", retain(env, object, 0), runs);
    say("retain one", retain(env, object, 1), runs);
    say("retain too many", retain(env, object, 1 << 31), runs);
    say("release two of three", release(env, object, 2), runs);
    say("release the last", release(env, object, 1), runs);
    let (runs, object) = create(env, 2)?;
    say("release both at once", release(env, object, 2), runs);
    let (runs, object) = create(env, 1)?;
    env.no_context()?;
    say("release without a context", release(env, object, 1), runs);
    Ok(())
}

/// Invalid arguments, and calls that no other question makes.
pub(crate) fn odd(env: &Environment) -> Result<()> {
    let null = std::ptr::null_mut();
    env.alone("release null", || Ok(name(release(env, null, 1))));
    env.alone("retain null", || Ok(name(retain(env, null, 1))));
    env.alone("release two of one", || {
        let (runs, object) = create(env, 1)?;
        let code = release(env, object, 2);
        Ok(format!("{}, {}", name(code), runs.told()))
    });
    env.alone("a graph keeps null", || {
        let graph = graph(env)?;
        Ok(name(keep(env, graph, null, 1, 0)))
    });
    env.alone("no graph keeps it", || {
        let (_, object) = create(env, 1)?;
        Ok(name(keep(env, std::ptr::null_mut(), object, 1, 0)))
    });
    env.alone("no graph gives it up", || {
        let (_, object) = create(env, 1)?;
        Ok(name(give_up(env, std::ptr::null_mut(), object, 1)))
    });
    env.alone("a graph gives up null", || {
        let graph = graph(env)?;
        Ok(name(give_up(env, graph, null, 1)))
    });
    env.alone("a graph gives up what it has not", || {
        let (graph, (runs, object)) = (graph(env)?, create(env, 1)?);
        let code = give_up(env, graph, object, 1);
        Ok(format!("{}, {}", name(code), runs.told()))
    });
    env.alone("a graph gives up more than it has", || {
        let (graph, (runs, object)) = (graph(env)?, create(env, 1)?);
        env.fine("retain", keep(env, graph, object, 1, 0))?;
        let code = give_up(env, graph, object, 2);
        Ok(format!("{}, {}", name(code), runs.told()))
    });
    env.alone("moved, more than there are", || {
        let (graph, (runs, object)) = (graph(env)?, create(env, 1)?);
        let code = keep(env, graph, object, 2, 1);
        Ok(format!("{}, {}", name(code), runs.told()))
    });
    env.alone("the destructor calls the driver", || {
        static CODE: AtomicU32 = AtomicU32::new(77);
        unsafe extern "C" fn calls(argument: *mut c_void) {
            // SAFETY: below, the argument is the environment, which outlives the object.
            let env = unsafe { &*argument.cast::<Environment>() };
            let (mut free, mut total) = (0, 0);
            let code = cu!(env, cuMemGetInfo_v2(&raw mut free, &raw mut total));
            CODE.store(code.0, Ordering::SeqCst);
        }
        let argument = std::ptr::from_ref(env).cast_mut().cast();
        let mut object = std::ptr::null_mut();
        let code = cu!(
            env,
            cuUserObjectCreate(&raw mut object, argument, Some(calls), 1, 1)
        );
        env.fine("cuUserObjectCreate", code)?;
        env.fine("release", release(env, object, 1))?;
        std::thread::sleep(PATIENCE);
        Ok(name(CUresult(CODE.load(Ordering::SeqCst))))
    });
    Ok(())
}

/// References of graphs.
pub(crate) fn graphs(env: &Environment) -> Result<()> {
    let say = |part: &str, code: CUresult, runs: &Runs| {
        env.say(part, format!("{}, {}", name(code), runs.told()));
    };
    let graph_ = graph(env)?;
    let (runs, object) = create(env, 2)?;
    for (count, flags) in [(0, 0), (0, 1), (1, 2), (1, 3), (1 << 31, 0)] {
        let code = keep(env, graph_, object, count, flags);
        say(&format!("keep {count}, flags {flags}"), code, runs);
    }
    say("keep one", keep(env, graph_, object, 1, 0), runs);
    say("the program releases two", release(env, object, 2), runs);
    say("give up none", give_up(env, graph_, object, 0), runs);
    say("give up one", give_up(env, graph_, object, 1), runs);
    destroy(env, graph_)?;
    // A graph with its own reference.
    let graph_ = graph(env)?;
    let (runs, object) = create(env, 1)?;
    say("keep", keep(env, graph_, object, 1, 0), runs);
    say("release", release(env, object, 1), runs);
    say("destroy", cu!(env, cuGraphDestroy(graph_)), runs);
    let own = runs.thread.load(Ordering::SeqCst) == this_thread();
    env.say("in the thread that destroyed it", yes(own));
    // The program's reference moves.
    let graph_ = graph(env)?;
    let (runs, object) = create(env, 1)?;
    say("move", keep(env, graph_, object, 1, 1), runs);
    say("destroy, moved", cu!(env, cuGraphDestroy(graph_)), runs);
    // Two references in one graph, and two graphs.
    let (first, second) = (graph(env)?, graph(env)?);
    let (runs, object) = create(env, 1)?;
    say("keep two", keep(env, first, object, 2, 0), runs);
    say("keep one more", keep(env, first, object, 1, 0), runs);
    say("in the second", keep(env, second, object, 1, 1), runs);
    say("give up two", give_up(env, first, object, 2), runs);
    say("destroy the first", cu!(env, cuGraphDestroy(first)), runs);
    say("destroy the second", cu!(env, cuGraphDestroy(second)), runs);
    // Clones and children.
    let graph_ = graph(env)?;
    let (runs, object) = create(env, 1)?;
    say("move again", keep(env, graph_, object, 1, 1), runs);
    let mut clone = std::ptr::null_mut();
    say(
        "clone",
        cu!(env, cuGraphClone(&raw mut clone, graph_)),
        runs,
    );
    say(
        "destroy the original",
        cu!(env, cuGraphDestroy(graph_)),
        runs,
    );
    say("clone gives up", give_up(env, clone, object, 1), runs);
    destroy(env, clone)?;
    let (parent, child) = (graph(env)?, graph(env)?);
    let (runs, object) = create(env, 1)?;
    say("move into a child", keep(env, child, object, 1, 1), runs);
    let mut node = std::ptr::null_mut();
    let code = cu!(
        env,
        cuGraphAddChildGraphNode(&raw mut node, parent, std::ptr::null(), 0, child)
    );
    say("add the child", code, runs);
    say("destroy the child", cu!(env, cuGraphDestroy(child)), runs);
    say("destroy the parent", cu!(env, cuGraphDestroy(parent)), runs);
    let (parent, child) = (graph(env)?, graph(env)?);
    let (runs, object) = create(env, 1)?;
    say("move into another", keep(env, child, object, 1, 1), runs);
    say("move that child", add_child(env, parent, child, 1), runs);
    say(
        "destroy that parent",
        cu!(env, cuGraphDestroy(parent)),
        runs,
    );
    Ok(())
}

/// References of what is instantiated and runs.
pub(crate) fn instances(env: &Environment) -> Result<()> {
    let say = |part: &str, code: CUresult, runs: &Runs| {
        env.say(part, format!("{}, {}", name(code), runs.told()));
    };
    let with = || -> Result<(&'static Runs, CUuserObject, CUgraph)> {
        let (graph, (runs, object)) = (graph(env)?, create(env, 1)?);
        let (code, _) = try_memset_node(env, graph, &[], env.plain(64)?, 64);
        env.fine("memset node", code)?;
        env.fine("move", keep(env, graph, object, 1, 1))?;
        Ok((runs, object, graph))
    };
    let stream = env.stream()?;
    let (runs, _, graph_) = with()?;
    let exec = instantiate(env, graph_, 0)?;
    say("destroy the graph", cu!(env, cuGraphDestroy(graph_)), runs);
    say("launch", try_launch(env, exec, stream), runs);
    env.synchronise(stream)?;
    say("done", OK, runs);
    say("destroy it", cu!(env, cuGraphExecDestroy(exec)), runs);
    // Given up by the graph alone.
    let (runs, object, graph_) = with()?;
    let exec = instantiate(env, graph_, 0)?;
    say("the graph gives up", give_up(env, graph_, object, 1), runs);
    say(
        "destroy the instance",
        cu!(env, cuGraphExecDestroy(exec)),
        runs,
    );
    // Destroyed while it runs.
    let (runs, _, graph_) = with()?;
    let exec = instantiate(env, graph_, 0)?;
    let gate = Gate::hold(env, stream)?;
    launch(env, exec, stream)?;
    let destroyed = cu!(env, cuGraphExecDestroy(exec));
    say("held, destroy the instance", destroyed, runs);
    say(
        "held, destroy the graph",
        cu!(env, cuGraphDestroy(graph_)),
        runs,
    );
    gate.open();
    env.synchronise(stream)?;
    say("let go", OK, runs);
    // A graph that is being captured keeps what is put into it.
    let (runs, object) = create(env, 1)?;
    env.fine("begin", begin(env, stream, 2))?;
    let (mut status, mut id) = (CUstreamCaptureStatus_enum(77), 0);
    let (mut graph_, mut list, mut count) = (std::ptr::null_mut(), std::ptr::null(), 0);
    let code = cu!(
        env,
        cuStreamGetCaptureInfo_v2(
            stream,
            &raw mut status,
            &raw mut id,
            &raw mut graph_,
            &raw mut list,
            &raw mut count
        )
    );
    env.fine("cuStreamGetCaptureInfo_v2", code)?;
    say("captured", keep(env, graph_, object, 1, 1), runs);
    let (code, ended) = end(env, stream);
    say("end", code, runs);
    say("destroy what came", cu!(env, cuGraphDestroy(ended)), runs);
    Ok(())
}

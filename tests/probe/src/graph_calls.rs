//! Instantiating with parameters, graphs in graphs, clones, and graphs written to files.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, MISSING, OK, cu, name, yes};
use crate::gate::Gate;
use crate::recorder::*;

/// No driver writes that.
const ODD: usize = 0xabab;

/// Instantiates, and says all that the driver wrote.
fn instantiated(
    env: &Environment,
    graph: CUgraph,
    flags: u64,
    upload: CUstream,
) -> (String, CUgraphExec) {
    let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags,
        hUploadStream: upload,
        result_out: CUgraphInstantiateResult_enum(77),
        hErrNode_out: std::ptr::without_provenance_mut(ODD),
    };
    let mut exec = std::ptr::without_provenance_mut(ODD);
    let code = cu!(
        env,
        cuGraphInstantiateWithParams(&raw mut exec, graph, &raw mut params)
    );
    let node = match params.hErrNode_out.addr() {
        0 => "no node",
        ODD => "node untouched",
        _ if nodes(env, graph).contains(&params.hErrNode_out) => "a node of it",
        _ => "another node",
    };
    let seen = match exec.addr() {
        0 => "null",
        ODD => "handle untouched",
        _ => "a handle",
    };
    let mut answer = format!(
        "{}, result {}, {node}, {seen}",
        name(code),
        params.result_out.0
    );
    if code == OK {
        let mut kept = 77;
        let code = cu!(env, cuGraphExecGetFlags(exec, &raw mut kept));
        answer += &format!(", flags {} {kept}", name(code));
    } else {
        exec = std::ptr::null_mut();
    }
    (answer, exec)
}

/// A graph of one node: an allocation that is freed, a memset of plain memory, or none.
fn of(env: &Environment, what: &str) -> Result<CUgraph> {
    let graph = graph(env)?;
    match what {
        "memory" => {
            let (node, address) = alloc_node(env, graph, &[], 1000)?;
            free_node(env, graph, &[node], address)?;
        }
        "left" => {
            alloc_node(env, graph, &[], 1000)?;
        }
        "memset" => {
            let (code, _) = try_memset_node(env, graph, &[], env.plain(64)?, 64);
            env.fine("memset node", code)?;
        }
        _ => {}
    }
    Ok(graph)
}

/// All flags, on graphs of every kind.
pub(crate) fn flags(env: &Environment) -> Result<()> {
    let (null, stream) = (std::ptr::null_mut(), env.stream()?);
    for what in ["empty", "memset", "memory", "left"] {
        for flags in [0, 1, 2, 3, 8, 9, 10, 16, 1 << 40] {
            let (answer, _) = instantiated(env, of(env, what)?, flags, stream);
            env.say(format!("{what}, flags {flags}"), answer);
        }
        env.synchronise(stream)?;
        let (answer, _) = instantiated(env, of(env, what)?, 0, null);
        env.say(format!("{what}, flags 0, no stream"), answer);
        for (who, stream) in [
            ("no stream", null),
            ("legacy stream", CU_STREAM_LEGACY),
            ("per-thread stream", CU_STREAM_PER_THREAD),
        ] {
            let (answer, _) = instantiated(env, of(env, what)?, 2, stream);
            env.say(format!("{what}, upload, {who}"), answer);
        }
    }
    let graph = of(env, "memory")?;
    let (answer, exec) = instantiated(env, graph, 0, null);
    env.say("memory, once", answer);
    env.say("memory, twice", instantiated(env, graph, 0, null).0);
    if !exec.is_null() {
        destroy_exec(env, exec)?;
    }
    let (parent, child) = (crate::recorder::graph(env)?, of(env, "memory")?);
    env.code("a moved child", add_child(env, parent, child, 1));
    env.say("the child", instantiated(env, child, 0, null).0);
    env.say("the parent", instantiated(env, parent, 0, null).0);
    env.no_context()?;
    let bare = crate::recorder::graph(env)?;
    env.say("without a context", instantiated(env, bare, 0, null).0);
    Ok(())
}

/// Arguments that are not there, graphs for launches from the device, and streams that are captured.
pub(crate) fn odd(env: &Environment) -> Result<()> {
    for what in ["empty", "memset", "memory"] {
        env.alone(&format!("device launch, {what}"), || {
            let stream = env.stream()?;
            Ok(instantiated(env, of(env, what)?, 4, stream).0)
        });
        env.alone(&format!("device launch and upload, {what}"), || {
            let stream = env.stream()?;
            Ok(instantiated(env, of(env, what)?, 6, stream).0)
        });
    }
    let null = std::ptr::null_mut::<u8>();
    env.alone("no parameters", || {
        let (graph, mut exec) = (of(env, "memset")?, null.cast());
        let code = cu!(
            env,
            cuGraphInstantiateWithParams(&raw mut exec, graph, null.cast())
        );
        Ok(name(code))
    });
    env.alone("no place for the handle", || {
        let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
            result_out: CUgraphInstantiateResult_enum(77),
            ..CUDA_GRAPH_INSTANTIATE_PARAMS::default()
        };
        let graph = of(env, "memset")?;
        let code = cu!(
            env,
            cuGraphInstantiateWithParams(null.cast(), graph, &raw mut params)
        );
        Ok(format!("{}, result {}", name(code), params.result_out.0))
    });
    env.alone("no graph", || {
        let mut params = CUDA_GRAPH_INSTANTIATE_PARAMS {
            result_out: CUgraphInstantiateResult_enum(77),
            ..CUDA_GRAPH_INSTANTIATE_PARAMS::default()
        };
        let mut exec = null.cast();
        let code = cu!(
            env,
            cuGraphInstantiateWithParams(&raw mut exec, null.cast(), &raw mut params)
        );
        Ok(format!("{}, result {}", name(code), params.result_out.0))
    });
    env.alone("no path", || {
        let (graph, nowhere) = (of(env, "memset")?, std::ptr::null());
        let code = cu!(env, cuGraphDebugDotPrint(graph, nowhere, 0));
        Ok(name(code))
    });
    env.alone("a child's graph into null", || {
        let (parent, child) = (graph(env)?, of(env, "memset")?);
        env.fine("a moved child", add_child(env, parent, child, 1))?;
        let node = nodes(env, parent)[0];
        Ok(name(cu!(
            env,
            cuGraphChildGraphNodeGetGraph(node, null.cast())
        )))
    });
    env.alone("destroy the copy of a child", || {
        let (parent, child) = (graph(env)?, of(env, "memset")?);
        let (mut node, mut copy) = (null.cast(), null.cast());
        let list = std::ptr::null();
        let code = cu!(
            env,
            cuGraphAddChildGraphNode(&raw mut node, parent, list, 0, child)
        );
        env.fine("cuGraphAddChildGraphNode", code)?;
        let code = cu!(env, cuGraphChildGraphNodeGetGraph(node, &raw mut copy));
        env.fine("cuGraphChildGraphNodeGetGraph", code)?;
        Ok(name(cu!(env, cuGraphDestroy(copy))))
    });
    env.alone("upload into a captured stream", || {
        let (stream, graph) = (env.stream()?, of(env, "memset")?);
        env.fine("begin", begin(env, stream, 2))?;
        let (answer, _) = instantiated(env, graph, 2, stream);
        Ok(format!("{answer}; {}", ended(env, stream)))
    });
    for (mode, number) in MODES {
        env.alone(&format!("while another stream is captured, {mode}"), || {
            let (stream, graph) = (env.stream()?, of(env, "memset")?);
            env.fine("begin", begin(env, stream, number))?;
            let (answer, _) = instantiated(env, graph, 0, std::ptr::null_mut());
            Ok(format!("{answer}; {}", ended(env, stream)))
        });
    }
    Ok(())
}

/// Uploads: when the memory comes, and whether what is held waits.
pub(crate) fn uploads(env: &Environment) -> Result<()> {
    let (stream, other) = (env.stream()?, env.stream()?);
    show(env, "at first")?;
    let (answer, exec) = instantiated(env, of(env, "memory")?, 2, stream);
    env.say("instantiate", answer);
    if exec.is_null() {
        return Ok(());
    }
    env.synchronise(stream)?;
    show(env, "uploaded")?;
    env.code("launch", try_launch(env, exec, stream));
    env.synchronise(stream)?;
    show(env, "launched")?;
    destroy_exec(env, exec)?;
    let gate = Gate::hold(env, stream)?;
    let (answer, exec) = instantiated(env, of(env, "memory")?, 2, stream);
    env.say("instantiate, stream held", answer);
    env.code("launch in another stream", try_launch(env, exec, other));
    env.let_it_finish();
    env.code("is it done", cu!(env, cuStreamQuery(other)));
    gate.open();
    env.synchronise(stream)?;
    env.synchronise(other)
}

/// Graphs in graphs, and copies of graphs.
pub(crate) fn families(env: &Environment) -> Result<()> {
    let null = std::ptr::null_mut::<u8>();
    let (parent, child) = (graph(env)?, of(env, "memset")?);
    let mut node: CUgraphNode = null.cast();
    let code = cu!(
        env,
        cuGraphAddChildGraphNode(&raw mut node, parent, std::ptr::null(), 0, child)
    );
    env.code("add a child", code);
    let inner = |part: &str, node: CUgraphNode, original: CUgraph| {
        let mut inner = std::ptr::without_provenance_mut(ODD);
        let code = cu!(env, cuGraphChildGraphNodeGetGraph(node, &raw mut inner));
        let which = match inner.addr() {
            0 => "null",
            ODD => "untouched",
            _ if inner == original => "the same graph",
            _ => "another graph",
        };
        env.say(part, format!("{}, {which}", name(code)));
        if code == OK {
            env.say(format!("{part}, nodes"), kinds(env, inner));
        }
        inner
    };
    if code == OK {
        let copy = inner("its graph", node, child);
        env.code("instantiate it", try_instantiate(env, copy, 0).0);
        let mut seen: CUgraphNode = null.cast();
        let original = nodes(env, child)[0];
        let code = cu!(env, cuGraphNodeFindInClone(&raw mut seen, original, copy));
        let is_there = yes(nodes(env, copy).contains(&seen));
        env.say("a node in it", format!("{}, {is_there}", name(code)));
        env.code("destroy the child", cu!(env, cuGraphDestroy(child)));
        env.say("nodes of the parent", kinds(env, parent));
        let (code, exec) = try_instantiate(env, parent, 0);
        env.code("instantiate the parent", code);
        env.code("launch the parent", try_launch(env, exec, env.stream()?));
        env.fine("sync", cu!(env, cuCtxSynchronize()))?;
    }
    let (parent, child) = (graph(env)?, of(env, "memset")?);
    env.code("a moved child", add_child(env, parent, child, 1));
    inner("its graph, moved", nodes(env, parent)[0], child);
    let memset = of(env, "memset")?;
    let first = nodes(env, memset)[0];
    inner("of a memset", first, child);
    let mut clone: CUgraph = null.cast();
    env.fine("clone", cu!(env, cuGraphClone(&raw mut clone, memset)))?;
    let find = |part: &str, node: CUgraphNode, clone: CUgraph| {
        let mut seen: CUgraphNode = std::ptr::without_provenance_mut(ODD);
        let code = cu!(env, cuGraphNodeFindInClone(&raw mut seen, node, clone));
        let which = match seen.addr() {
            0 => "null",
            ODD => "untouched",
            _ if nodes(env, clone).contains(&seen) => "its node",
            _ => "another node",
        };
        env.say(part, format!("{}, {which}", name(code)));
        seen
    };
    let seen = find("in a clone", first, clone);
    find("in the graph itself", first, memset);
    find("in an unrelated graph", first, parent);
    let mut again: CUgraph = null.cast();
    env.fine("clone", cu!(env, cuGraphClone(&raw mut again, clone)))?;
    find("in a clone of the clone", first, again);
    if code != MISSING {
        find("the clone's in the second clone", seen, again);
    }
    env.fine(
        "destroy",
        cu!(env, cuGraphDestroyNode(nodes(env, clone)[0])),
    )?;
    find("in a clone without it", first, clone);
    Ok(())
}

/// Writes a graph to a file and says what is in it.
fn written(env: &Environment, graph: CUgraph, path: &Path, flags: u32) -> (String, usize) {
    let text = CString::new(path.as_os_str().as_bytes()).expect("the path has no zero");
    let code = cu!(env, cuGraphDebugDotPrint(graph, text.as_ptr(), flags));
    let Ok(bytes) = std::fs::read(path) else {
        return (format!("{}, no file", name(code)), 0);
    };
    let text = String::from_utf8_lossy(&bytes);
    let arrows = text.matches("->").count();
    let answer = format!(
        "{}, begins with digraph {}, ends with a brace {}, {arrows} arrows",
        name(code),
        yes(text.starts_with("digraph")),
        yes(text.trim_end().ends_with('}'))
    );
    (answer, text.len())
}

/// Graphs written to files.
pub(crate) fn dot(env: &Environment) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("cuda-mem-probe-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let outcome = dots(env, &folder);
    std::fs::remove_dir_all(&folder)?;
    outcome
}

fn dots(env: &Environment, folder: &Path) -> Result<()> {
    let file = |name: &str| -> PathBuf { folder.join(name) };
    let empty = graph(env)?;
    let memory = of(env, "memory")?;
    let all = nodes(env, memory);
    let (code, _) = try_memset_node(env, memory, &all, env.plain(64)?, 64);
    env.fine("memset node", code)?;
    env.say("an empty graph", written(env, empty, &file("empty"), 0).0);
    let (answer, short) = written(env, memory, &file("three"), 0);
    env.say("three nodes", answer);
    for flags in [1, 1 << 4, 1 << 10, 0xffff, 1 << 16, 1 << 30, u32::MAX] {
        let path = file(&format!("flags-{flags}"));
        let (answer, size) = written(env, memory, &path, flags);
        let more = yes(size > short);
        env.say(
            format!("three nodes, flags {flags}"),
            format!("{answer}, longer {more}"),
        );
    }
    let path = file("there");
    std::fs::write(&path, "x".repeat(100_000))?;
    let (answer, size) = written(env, memory, &path, 0);
    env.say("over a file", answer);
    env.say("over a file, as long as before", yes(size == short));
    let (answer, _) = written(env, memory, &file("none").join("file"), 0);
    env.say("a folder that is not there", answer);
    env.say("the path is a folder", written(env, memory, folder, 0).0);
    env.say("an empty path", written(env, memory, Path::new(""), 0).0);
    let (answer, _) = written(env, std::ptr::null_mut(), &file("no graph"), 0);
    env.say("no graph", answer);
    Ok(())
}

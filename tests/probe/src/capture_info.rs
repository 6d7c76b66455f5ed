//! What the driver says about a capture.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};
use crate::recorder::*;

/// Values that no driver writes.
const ODD_STATUS: u32 = 77;
const ODD_NUMBER: u64 = 0xabab_abab;

/// The outputs of a question about a capture.
#[derive(Debug)]
pub(crate) struct Info {
    pub(crate) code: CUresult,
    status: CUstreamCaptureStatus,
    id: u64,
    pub(crate) graph: CUgraph,
    list: *const CUgraphNode,
    edges: *const CUgraphEdgeData,
    count: usize,
}

impl Info {
    fn fresh() -> Self {
        Self {
            code: OK,
            status: CUstreamCaptureStatus_enum(ODD_STATUS),
            id: ODD_NUMBER,
            graph: std::ptr::without_provenance_mut(1),
            list: std::ptr::without_provenance(1),
            edges: std::ptr::without_provenance(1),
            count: ODD_NUMBER as usize,
        }
    }

    pub(crate) fn ask(env: &Environment, stream: CUstream, abi: u32) -> Self {
        Self::without(env, stream, abi, &[])
    }

    /// Asks with null for some of the outputs.
    fn without(env: &Environment, stream: CUstream, abi: u32, missing: &[&str]) -> Self {
        fn place<T>(is_missing: bool, at: *mut T) -> *mut T {
            if is_missing { std::ptr::null_mut() } else { at }
        }
        let mut info = Self::fresh();
        let is_missing = |what: &str| missing.contains(&what);
        let status = place(is_missing("status"), &raw mut info.status);
        let id = place(is_missing("id"), &raw mut info.id);
        let graph = place(is_missing("graph"), &raw mut info.graph);
        let list = place(is_missing("list"), &raw mut info.list);
        let edges = place(is_missing("edges"), &raw mut info.edges);
        let count = place(is_missing("count"), &raw mut info.count);
        info.code = match abi {
            1 => cu!(env, cuStreamGetCaptureInfo(stream, status, id)),
            2 => cu!(
                env,
                cuStreamGetCaptureInfo_v2(stream, status, id, graph, list, count)
            ),
            _ => cu!(
                env,
                cuStreamGetCaptureInfo_v3(stream, status, id, graph, list, edges, count)
            ),
        };
        info
    }

    pub(crate) fn nodes(&self) -> Vec<CUgraphNode> {
        if self.code != OK || self.list.addr() <= 1 || self.count as u64 == ODD_NUMBER {
            return Vec::new();
        }
        // SAFETY: the driver keeps this number of nodes there until the next call for this stream.
        unsafe { std::slice::from_raw_parts(self.list, self.count) }.to_vec()
    }

    fn told(&self) -> String {
        let place = |address: usize, what: &str| match address {
            0 => format!("{what} null"),
            1 => format!("{what} untouched"),
            _ => format!("{what} given"),
        };
        let status = match self.status.0 {
            0 => "none".into(),
            1 => "active".into(),
            2 => "invalidated".into(),
            ODD_STATUS => "status untouched".into(),
            other => format!("status {other}"),
        };
        let id = match self.id {
            0 => "id 0",
            ODD_NUMBER => "id untouched",
            _ => "id given",
        };
        let count = match self.count as u64 {
            ODD_NUMBER => "count untouched".into(),
            count => format!("count {count}"),
        };
        [
            name(self.code),
            status,
            id.into(),
            place(self.graph.addr(), "graph"),
            place(self.list.addr(), "list"),
            place(self.edges.addr(), "edges"),
            count,
        ]
        .join(", ")
    }
}

fn all_abis(env: &Environment, part: &str, stream: CUstream) {
    for abi in 1..=3 {
        let info = Info::ask(env, stream, abi);
        env.say(format!("{part}, v{abi}"), info.told());
    }
}

/// The kinds of the nodes that the next one will depend on.
pub(crate) fn waiting_for(env: &Environment, stream: CUstream) -> String {
    let info = Info::ask(env, stream, 2);
    if info.code != OK {
        return name(info.code);
    }
    let list = info.nodes();
    if list.is_empty() {
        return "nothing".into();
    }
    let kinds: Vec<String> = list.into_iter().map(|node| kind(env, node)).collect();
    kinds.join(" ")
}

/// Streams that are not captured.
pub(crate) fn idle(env: &Environment) -> Result<()> {
    let null = std::ptr::null_mut();
    all_abis(env, "a new stream", env.stream()?);
    all_abis(env, "the null stream", null);
    all_abis(env, "the legacy stream", CU_STREAM_LEGACY);
    all_abis(env, "the per-thread stream", CU_STREAM_PER_THREAD);
    let stream = env.stream()?;
    env.fine("begin", begin(env, stream, 2))?;
    all_abis(env, "the null stream, another captured", null);
    all_abis(env, "another stream, one captured", env.stream()?);
    env.say("end", ended(env, stream));
    all_abis(env, "ended", stream);
    let blocking = env.stream_with(0)?;
    env.fine("begin", begin(env, blocking, 2))?;
    all_abis(env, "the null stream, a blocking one captured", null);
    env.say("then it is", status(env, blocking));
    env.say("end of the blocking one", ended(env, blocking));
    env.no_context()?;
    all_abis(env, "without a context", stream);
    Ok(())
}

/// One captured stream, node by node.
pub(crate) fn active(env: &Environment) -> Result<()> {
    let (stream, plain) = (env.stream()?, env.plain(64)?);
    for (mode, number) in MODES {
        env.fine("begin", begin(env, stream, number))?;
        all_abis(env, &format!("begun, {mode}"), stream);
        env.say(format!("end, {mode}"), ended(env, stream));
    }
    env.fine("begin", begin(env, stream, 2))?;
    let set = || cu!(env, cuMemsetD8Async(plain, 1, 64, stream));
    env.fine("memset", set())?;
    all_abis(env, "one node", stream);
    env.say("one node, next waits for", waiting_for(env, stream));
    env.fine("memset", set())?;
    all_abis(env, "two nodes", stream);
    let (first, second) = (Info::ask(env, stream, 2), Info::ask(env, stream, 3));
    env.say("the same id twice", yes(first.id == second.id));
    env.say("the same graph twice", yes(first.graph == second.graph));
    env.say(
        "the same nodes twice",
        yes(first.nodes() == second.nodes() && first.nodes().len() == 1),
    );
    let mut block = 0;
    let code = cu!(env, cuMemAllocAsync(&raw mut block, 64, stream));
    env.fine("alloc", code)?;
    env.say("alloc, next waits for", waiting_for(env, stream));
    env.fine("free", cu!(env, cuMemFreeAsync(block, stream)))?;
    env.say("free, next waits for", waiting_for(env, stream));
    env.record(env.event()?, stream)?;
    env.say("event, next waits for", waiting_for(env, stream));
    let info = Info::ask(env, stream, 2);
    if info.code == OK {
        env.say("nodes of the graph meanwhile", kinds(env, info.graph));
    }
    let (code, graph) = end(env, stream);
    env.code("end", code);
    env.say("the ended graph is that one", yes(graph == info.graph));
    // Ids of captures one after the other.
    env.fine("begin", begin(env, stream, 2))?;
    let next = Info::ask(env, stream, 2);
    env.say("the next id is greater", yes(next.id > info.id));
    env.say("the next graph is another", yes(next.graph != info.graph));
    let other = env.stream()?;
    env.fine("begin", begin(env, other, 2))?;
    let second = Info::ask(env, other, 2);
    env.say("a second capture, another id", yes(second.id > next.id));
    env.say("end of the second", ended(env, other));
    env.say("end of the first", ended(env, stream));
    Ok(())
}

/// Two streams of one capture.
pub(crate) fn forks(env: &Environment) -> Result<()> {
    let (a, b, event) = (env.stream()?, env.stream()?, env.event()?);
    let plain = env.plain(64)?;
    let say = |part: &str| {
        for (who, stream) in [("first", a), ("second", b)] {
            let info = Info::ask(env, stream, 3);
            env.say(format!("{part}, {who}"), info.told());
        }
        let (first, second) = (Info::ask(env, a, 2), Info::ask(env, b, 2));
        env.say(
            format!("{part}, same id, same graph"),
            format!(
                "{}, {}",
                yes(first.id == second.id),
                yes(first.graph == second.graph)
            ),
        );
    };
    let join = |later: CUstream, earlier: CUstream| -> Result<()> {
        env.record(event, earlier)?;
        let code = cu!(env, cuStreamWaitEvent(later, event, 0));
        env.fine("cuStreamWaitEvent", code)
    };
    let set = |stream: CUstream| {
        let code = cu!(env, cuMemsetD8Async(plain, 1, 64, stream));
        env.fine("memset", code)
    };
    env.fine("begin", begin(env, a, 0))?;
    join(b, a)?;
    say("forked from nothing");
    set(a)?;
    join(b, a)?;
    say("forked from a node");
    set(a)?;
    set(b)?;
    say("a node on each");
    join(a, b)?;
    say("joined");
    join(a, b)?;
    say("joined twice");
    set(a)?;
    say("a node after it");
    env.say("end", ended(env, a));
    say("ended");
    Ok(())
}

/// Outputs that are left out.
pub(crate) fn nulls(env: &Environment) -> Result<()> {
    let (stream, plain) = (env.stream()?, env.plain(64)?);
    let all: [&[&str]; 8] = [
        &["status"],
        &["id"],
        &["graph"],
        &["list"],
        &["edges"],
        &["count"],
        &["list", "edges"],
        &["id", "graph", "list", "edges", "count"],
    ];
    let ask = |how: &str| {
        for missing in all {
            let what = missing.join(" ");
            for abi in [2, 3] {
                if abi == 2 && missing == ["edges"] {
                    continue;
                }
                let info = Info::without(env, stream, abi, missing);
                env.say(format!("{how}, v{abi} without {what}"), info.told());
            }
        }
        let info = Info::without(env, stream, 1, &["id"]);
        env.say(format!("{how}, v1 without id"), info.told());
        let info = Info::without(env, stream, 1, &["status"]);
        env.say(format!("{how}, v1 without status"), info.told());
    };
    ask("idle");
    env.fine("begin", begin(env, stream, 2))?;
    ask("begun");
    env.fine("memset", cu!(env, cuMemsetD8Async(plain, 1, 64, stream)))?;
    ask("one node");
    env.say("end", ended(env, stream));
    Ok(())
}

/// A capture that nothing can save, and another thread's.
pub(crate) fn lost(env: &Environment) -> Result<()> {
    for (mode, number) in MODES {
        let stream = env.stream()?;
        env.fine("begin", begin(env, stream, number))?;
        let _ = cu!(env, cuStreamQuery(stream));
        all_abis(env, &format!("invalidated, {mode}"), stream);
        env.say(format!("end, {mode}"), ended(env, stream));
        all_abis(env, &format!("ended, {mode}"), stream);
        env.fine("begin", begin(env, stream, number))?;
        let (table, handle) = (env.table, stream.expose_provenance());
        let context = env.context().expose_provenance();
        let answer = std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                let env = Environment::new(table, "thread");
                env.current(std::ptr::with_exposed_provenance_mut(context))?;
                let stream = std::ptr::with_exposed_provenance_mut(handle);
                anyhow::Ok(Info::ask(&env, stream, 3).told())
            });
            thread.join().expect("the thread answers")
        })?;
        env.say(format!("another thread asks, {mode}"), answer);
        env.say(format!("its end, {mode}"), ended(env, stream));
    }
    Ok(())
}

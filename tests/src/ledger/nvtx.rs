//! What a tool learns of arenas through NVTX, in processes that run under the simulated one.

use std::path::PathBuf;
use std::process::Output;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::arena::{ArenaBacking, SleepContents};
use cuda_mem::ledger::{Ledger, Recorder};
use cuda_mem::memory::{DirectResource, PinnedResource};
use cuda_mem::sys::nvtx::NVTX_INJECTION_VARIABLE;
use cuda_mem::{Arena, ErrorKind, MemoryResource as _, Resource};
use nvtx_sim::{Control, State};

use super::recorded_arena::run;
use crate::environment::Environment;
use crate::forks;
use crate::hold::hold;
use crate::own_process;

const MIB: usize = 1 << 20;
const SWITCH: &str = "CUDA_MEM_NVTX";
/// Says in the other process that it is the one.
const CHILD: &str = "CUDA_MEM_TEST_NVTX_CHILD";

fn library() -> Result<PathBuf> {
    nvtx_sim::library_path().context("libnvtx_sim.so was not found beside the test program")
}

/// The same test in another process, with these variables.
fn again(test: &str, variables: &[(&str, &str)]) -> Result<Output> {
    let output = own_process::again()?
        .args(["--exact", &format!("ledger::nvtx::{test}"), "--nocapture"])
        .env_remove(SWITCH)
        .env(CHILD, "1")
        .envs(variables.iter().copied())
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let ran = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && ran.contains("1 passed"),
        "{variables:?}: {ran}{said}"
    );
    Ok(output)
}

/// Runs the rest of a test in a process under the simulated tool. In that process: the tool's control.
fn under_tool(test: &str) -> Result<Option<Tool>> {
    let library = library()?;
    if std::env::var_os(CHILD).is_some() {
        return Ok(Some(Tool(library)));
    }
    let path = library.to_str().context("a path of text")?;
    // Memory that moves and sleeps: this tool takes it.
    let output = again(test, &[(NVTX_INJECTION_VARIABLE, path), (SWITCH, "mapped")])?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!said.contains("nvtx-sim"), "{said}");
    Ok(None)
}

struct Tool(PathBuf);

impl Tool {
    /// What the tool knows, which must have found nothing wrong.
    fn state(&self) -> Result<State> {
        let control = Control::of(&self.0).context("the process is not attached to the tool")?;
        let state = control.state();
        ensure!(state.faults.is_empty(), "{:?}", state.faults);
        Ok(state)
    }

    fn require(&self, heaps: u64, regions: u64) -> Result<()> {
        let state = self.state()?;
        let of_heaps: u64 = state.heaps.iter().map(|(_, bytes)| bytes).sum();
        let of_regions: u64 = state.regions.iter().map(|region| region.bytes).sum();
        ensure!(
            (of_heaps, of_regions) == (heaps, regions),
            "{of_heaps} bytes in heaps and {of_regions} in regions, not {heaps} and {regions}: {state:?}"
        );
        Ok(())
    }
}

/// The arena's own numbers round blocks up; these are the bytes that were asked for.
fn asked(kept: &[cuda_mem::DeviceBuffer<u8>]) -> u64 {
    kept.iter().map(|buffer| buffer.len() as u64).sum()
}

/// compute-sanitizer takes no heap of mapped memory.
#[apply(case)]
fn a_tool_gets_memory_that_it_can_check(env: &Environment) -> Result<()> {
    let test = "a_tool_gets_memory_that_it_can_check";
    if std::env::var_os(CHILD).is_none() {
        let library = library()?;
        let path = library.to_str().context("a path of text")?;
        for switch in ["", "on", "off", "mapped"] {
            again(test, &[(NVTX_INJECTION_VARIABLE, path), (SWITCH, switch)])?;
        }
        return Ok(());
    }
    let is_mapped = matches!(std::env::var(SWITCH).as_deref(), Ok("off" | "mapped"));
    let (device, stream) = (env.device()?, env.stream()?);
    let arena = Arena::builder(&device).max_bytes(64 << 20).build()?;
    let buffer = arena.alloc_from::<u8>(&stream, &[7; 1000])?;
    ensure!(buffer.to_vec()? == [7; 1000]);
    ensure!(
        (arena.backing() == ArenaBacking::VirtualMemory) == is_mapped,
        "{}",
        arena.backing()
    );
    ensure!(arena.memory_properties().device == Some(device) && arena.max_bytes() == 64 << 20);
    Ok(())
}

/// That of `cuMemAlloc`, unless it is told of all.
#[apply(case)]
fn a_tool_is_told_of_memory_that_it_takes(env: &Environment) -> Result<()> {
    let test = "a_tool_is_told_of_memory_that_it_takes";
    let library = library()?;
    if std::env::var_os(CHILD).is_none() {
        let path = library.to_str().context("a path of text")?;
        again(test, &[(NVTX_INJECTION_VARIABLE, path), (SWITCH, "on")])?;
        return Ok(());
    }
    let (tool, stream) = (Tool(library), env.stream()?);
    let direct = Arena::over(DirectResource::new(env.device()?));
    let pinned = Arena::over(PinnedResource::new(env.driver));
    let of_pool = Arena::over(env.pool()?);
    for (arena, is_told) in [(direct, true), (of_pool, false), (pinned, false)] {
        let block = arena.alloc::<u8>(&stream, 1000)?;
        let regions = tool.state()?.regions;
        ensure!(
            regions.len() == usize::from(is_told),
            "{}: {regions:?}",
            arena.backing()
        );
        drop(block);
    }
    Ok(())
}

#[apply(case)]
fn every_block_is_a_region_of_a_heap(env: &Environment) -> Result<()> {
    const THREADS: u64 = 4;
    let Some(tool) = under_tool("every_block_is_a_region_of_a_heap")? else {
        return Ok(());
    };
    for is_over_pool in [false, true] {
        let builder = if is_over_pool {
            Arena::builder_over(Resource::from(env.pool()?))
        } else {
            Arena::builder(&env.device()?)
        };
        let arena = builder.build()?;
        let kept = std::thread::scope(|scope| {
            let arena = &arena;
            let threads: Vec<_> = (0..THREADS)
                .map(|seed| scope.spawn(move || run(arena, env, seed, 1000)))
                .collect();
            let ends = threads.into_iter().map(|thread| thread.join());
            let kept: Result<Vec<_>> = ends.map(|end| end.expect("no thread panics")).collect();
            kept
        })?;
        let kept: Vec<_> = kept.into_iter().flatten().collect();
        env.context()?.synchronize()?;
        arena.trim_to(u64::MAX)?;
        arena.trim_to(8 << 20)?;
        tool.require(arena.stats().reserved, asked(&kept))?;
        ensure!(Ledger::nvtx_tool()? == Some(library()?.as_path()));
        drop(kept);
        env.context()?.synchronize()?;
        arena.trim_to(0)?;
        tool.require(arena.stats().reserved, 0)?;
        drop(arena);
        env.context()?.synchronize()?;
        tool.require(0, 0)?;
    }
    ensure!(tool.state()?.all_regions > 8000);
    Ok(())
}

/// Also at the address that was just freed, which the arena's caches hand out again at once.
#[apply(case)]
fn every_pair_is_seen_with_its_line(env: &Environment) -> Result<()> {
    let Some(tool) = under_tool("every_pair_is_seen_with_its_line")? else {
        return Ok(());
    };
    let (arena, stream) = (Arena::builder(&env.device()?).build()?, env.stream()?);
    let mut address = None;
    for nth in 1..=10 {
        let (block, line) = (arena.alloc::<u8>(&stream, 1000)?, line!());
        ensure!(address.is_none_or(|address| address == block.as_raw()));
        address = Some(block.as_raw());
        let state = tool.state()?;
        ensure!(
            state.all_regions == nth && state.regions.len() == 1,
            "{state:?}"
        );
        let region = &state.regions[0];
        ensure!((region.address, region.bytes) == (block.as_raw(), 1000));
        ensure!(
            region.name.ends_with(&format!("nvtx.rs:{line}")),
            "{region:?}"
        );
        drop(block);
        ensure!(tool.state()?.regions.is_empty());
    }
    Ok(())
}

#[apply(case)]
fn heaps_follow_memory_that_moves(env: &Environment) -> Result<()> {
    const PIECE: usize = 32 * MIB;
    let Some(tool) = under_tool("heaps_follow_memory_that_moves")? else {
        return Ok(());
    };
    let stream = env.stream()?;
    let arena = Arena::builder(&env.device()?).slack(1.0).build()?;
    let mut row = Vec::new();
    for _ in 0..9 {
        row.push(arena.alloc::<u8>(&stream, PIECE)?);
    }
    let mut kept: Vec<_> = row.into_iter().skip(1).step_by(2).collect();
    stream.synchronize()?;
    // Lies in several chunks, and so is several regions.
    kept.push(arena.alloc::<u8>(&stream, 5 * PIECE)?);
    ensure!(arena.stats().moved > 0, "{}", arena.stats());
    ensure!(tool.state()?.regions.len() > kept.len());
    tool.require(arena.stats().reserved, asked(&kept))?;
    drop(kept);
    stream.synchronize()?;
    arena.trim_to(0)?;
    tool.require(0, 0)
}

#[apply(case)]
fn a_sleeping_arena_has_no_heaps(env: &Environment) -> Result<()> {
    let Some(tool) = under_tool("a_sleeping_arena_has_no_heaps")? else {
        return Ok(());
    };
    let (arena, stream) = (Arena::builder(&env.device()?).build()?, env.stream()?);
    let first = arena.alloc_from::<u8>(&stream, &[7; 1000])?;
    let second = arena.alloc::<u8>(&stream, 40 * MIB)?;
    for contents in [SleepContents::Keep, SleepContents::Discard] {
        // SAFETY: nothing uses the blocks until the arena is awake.
        unsafe { arena.sleep(contents) }?;
        tool.require(0, 0)?;
        arena.wake()?;
        tool.require(arena.stats().reserved, 1000 + second.len() as u64)?;
    }
    // SAFETY: as above.
    unsafe { arena.sleep(SleepContents::Discard) }?;
    drop(second);
    arena.wake()?;
    tool.require(arena.stats().reserved, 1000)?;
    drop(first);
    tool.require(arena.stats().reserved, 0)
}

/// A block that another stream may still use is one for the tool too.
#[apply(case)]
fn a_pending_block_is_a_region(env: &Environment) -> Result<()> {
    let Some(tool) = under_tool("a_pending_block_is_a_region")? else {
        return Ok(());
    };
    let arena = Arena::builder(&env.device()?).build()?;
    let (own, user) = (env.stream()?, env.stream()?);
    let block = arena.alloc::<u8>(&own, 1000)?;
    user.wait_for(&own)?;
    let held = hold(&user)?;
    block.free_after([&user])?;
    tool.require(arena.stats().reserved, 1000)?;
    drop(held);
    user.synchronize()?;
    arena.trim_to(u64::MAX)?;
    arena.trim_to(0)?;
    tool.require(0, 0)
}

#[apply(case)]
fn a_recorder_and_a_tool_see_the_same(env: &Environment) -> Result<()> {
    let Some(tool) = under_tool("a_recorder_and_a_tool_see_the_same")? else {
        return Ok(());
    };
    let recorder = Recorder::ring(1 << 20);
    let arena = Arena::builder(&env.device()?).record(&recorder).build()?;
    let kept = run(&arena, env, 3, 1000)?;
    super::recorded_arena::require_same(&arena, &recorder)?;
    env.context()?.synchronize()?;
    arena.trim_to(0)?;
    tool.require(arena.stats().reserved, asked(&kept))
}

#[apply(case)]
fn a_leak_is_a_region_at_the_end(env: &Environment) -> Result<()> {
    if std::env::var_os(CHILD).is_some() {
        let (arena, stream) = (Arena::builder(&env.device()?).build()?, env.stream()?);
        drop(arena.alloc::<u8>(&stream, 3000)?);
        std::mem::forget(arena.alloc::<u8>(&stream, 1000)?);
        return Ok(());
    }
    let path = library()?;
    let path = path.to_str().context("a path of text")?;
    let output = again(
        "a_leak_is_a_region_at_the_end",
        &[(NVTX_INJECTION_VARIABLE, path)],
    )?;
    let said = String::from_utf8_lossy(&output.stderr);
    let leaks: Vec<&str> = said
        .lines()
        .filter(|line| line.starts_with("nvtx-sim"))
        .collect();
    ensure!(
        leaks.len() == 1 && leaks[0].contains("leaked 1000 bytes") && leaks[0].contains("nvtx.rs:"),
        "{said}"
    );
    Ok(())
}

#[apply(case)]
fn a_fork_tells_nothing(env: &Environment) -> Result<()> {
    let Some(tool) = under_tool("a_fork_tells_nothing")? else {
        return Ok(());
    };
    let (arena, stream) = (Arena::builder(&env.device()?).build()?, env.stream()?);
    let block = arena.alloc::<u8>(&stream, 1000)?;
    let before = tool.state()?;
    // SAFETY: the child uses no lock that another thread may hold, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        let refused = arena.alloc::<u8>(&stream, 1000).is_err();
        drop((block, arena));
        let is_same = tool.state().is_ok_and(|after| {
            (after.all_regions, after.regions) == (before.all_regions, before.regions)
        });
        forks::end_child(refused && is_same);
    }
    forks::ends_well(child)?;
    drop(block);
    ensure!(tool.state()?.regions.is_empty());
    Ok(())
}

/// What is found, with these variables, and parts of what is said.
type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str]);

/// Whatever the variable names, the arena works; the reason can be had.
#[apply(case)]
fn tools_that_cannot_be_told_are_left_alone(env: &Environment) -> Result<()> {
    let test = "tools_that_cannot_be_told_are_left_alone";
    let library = library()?;
    if let Ok(expected) = std::env::var(CHILD) {
        let before = Ledger::nvtx_tool();
        ensure!(
            matches!(before, Ok(None)),
            "{before:?} before the first arena"
        );
        let (arena, stream) = (Arena::builder(&env.device()?).build()?, env.stream()?);
        let block = arena.alloc_from::<u8>(&stream, &[7; 1000])?;
        ensure!(block.to_vec()? == [7; 1000]);
        let found = match Ledger::nvtx_tool() {
            Ok(None) => "none",
            Ok(Some(_)) => "told",
            Err(error) if error.kind() == ErrorKind::NotFound => "missing",
            Err(error) if error.kind() == ErrorKind::NotSupported => "unable",
            Err(error) => bail!("{error}"),
        };
        ensure!(found == expected, "{found}");
        drop((block, arena));
        if let Some(control) = Control::of(&library) {
            ensure!(control.state().faults.is_empty(), "{:?}", control.state());
        }
        return Ok(());
    }
    let tool = library.to_str().context("a path of text")?;
    let name = NVTX_INJECTION_VARIABLE;
    let missing = "NVTX_SIM_MISSING";
    let refuse = "NVTX_SIM_REFUSE";
    let cases: [Case; 12] = [
        ("told", &[(name, tool)], &[]),
        ("told", &[(name, tool), (SWITCH, "on")], &[]),
        ("none", &[(name, tool), (SWITCH, "off")], &[]),
        (
            "told",
            &[(name, tool), (SWITCH, "no")],
            &["CUDA_MEM_NVTX is ignored", "on, off or mapped"],
        ),
        ("none", &[(name, "")], &[]),
        // NVTX's own way to name none.
        ("none", &[(name, "./.")], &[]),
        (
            "missing",
            &[(name, "/nowhere/tool.so")],
            &["/nowhere/tool.so", name],
        ),
        (
            "unable",
            &[(name, "libc.so.6")],
            &["InitializeInjectionNvtxExtension", name],
        ),
        // Tools for other parts of NVTX lack nothing that would have to be said.
        ("unable", &[(name, tool), (refuse, "extension")], &[]),
        (
            "unable",
            &[(name, tool), (missing, "nvtxMemRegionsRegister")],
            &[],
        ),
        ("told", &[(name, tool), (refuse, "heaps")], &[]),
        (
            "told",
            &[(name, tool), (missing, "nvtxMemRegionsName")],
            &[],
        ),
    ];
    for (expected, variables, parts) in cases {
        let mut all = vec![(CHILD, expected)];
        all.extend(variables);
        let output = again(test, &all)?;
        let said = String::from_utf8_lossy(&output.stderr);
        for part in parts {
            ensure!(said.contains(part), "{all:?}: no {part:?} in {said}");
        }
        let lines = said
            .lines()
            .filter(|line| line.contains("NVTX") || line.contains("nvtx"));
        let expected = usize::from(!parts.is_empty());
        ensure!(lines.count() == expected, "{all:?}: {said}");
    }
    Ok(())
}

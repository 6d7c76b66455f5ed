//! An arena's own thread: that it helps, and the rules that it keeps.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::{Arena, DeviceBuffer, MemoryResource as _, ReleaseThreshold, Resource, Stream};

use crate::environment::{Environment, Skip};
use crate::foreign::{begin, end_well};
use crate::forks;

pub(super) const MIB: usize = 1 << 20;
/// Blocks of this size are pieces of physical memory of their own.
pub(super) const PIECE: usize = 32 * MIB;
/// What such a request wants, in one place.
pub(super) const LARGE: usize = 4 * PIECE;
const NAME: &str = "cuda-mem-arena";
/// Where Linux lists the threads of a process.
const TASKS: &str = "/proc/self/task";
/// More than any work here takes.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) fn arena(env: &Environment) -> Result<(Arena, Resource)> {
    let builder = Arena::builder(&env.device()?).slack(1.0);
    let arena = builder.background_thread(true).build()?;
    Ok((arena.clone(), Resource::from(arena)))
}

/// Waits until something holds.
pub(super) fn until(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        ensure!(Instant::now() < end, "{what}: not in {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The arenas' threads of this process, by number.
fn threads() -> Result<Vec<String>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(TASKS)? {
        let path = entry?.path();
        // It may have ended since.
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        if name.trim_end() == NAME {
            found.push(path.display().to_string());
        }
    }
    Ok(found)
}

/// The thread names itself.
fn has_thread() -> Result<()> {
    if !cfg!(target_os = "linux") {
        return Err(Skip(format!("threads are found in {TASKS}")).into());
    }
    until("a thread", || {
        threads().is_ok_and(|threads| threads.len() == 1)
    })
}

/// Blocks of one piece side by side; every other one is freed then. Returns those that stay.
pub(super) fn every_other(
    resource: &Resource,
    stream: &Stream,
    count: usize,
) -> Result<Vec<DeviceBuffer<u8>>> {
    let blocks = (0..count).map(|_| resource.alloc::<u8>(stream, PIECE));
    let blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
    let mut place = 0;
    Ok(blocks
        .into_iter()
        .filter(|_| {
            place += 1;
            place % 2 == 0
        })
        .collect())
}

/// A request that finds no place: the thread has something to do from now on.
fn be_short(resource: &Resource, stream: &Stream) -> Result<Vec<DeviceBuffer<u8>>> {
    let kept = every_other(resource, stream, 19)?;
    drop(resource.alloc::<u8>(stream, LARGE)?);
    Ok(kept)
}

#[apply(case_alone)]
fn a_place_is_made_ahead_of_need(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env)?;
    let stream = env.stream()?;
    // Enough free memory for two requests, in no place for one.
    let _kept = every_other(&resource, &stream, 19)?;
    let start = arena.stats();
    let _first = resource.alloc::<u8>(&stream, LARGE)?;
    until("a place for another one", || arena.stats().prepared > 0)?;
    let before = arena.stats();
    ensure!(
        (before.grown, before.reserved) == (start.grown, start.reserved),
        "{start}, then {before}"
    );
    ensure!(before.moved > 0, "{before}");
    let _second = resource.alloc::<u8>(&stream, LARGE)?;
    let after = arena.stats();
    ensure!(
        (after.grown, after.moved) == (before.grown, before.moved),
        "the request found no place: {before}, then {after}"
    );
    Ok(())
}

#[apply(case_alone)]
fn the_thread_ends_with_the_last_handle(env: &Environment) -> Result<()> {
    for is_idle in [true, false] {
        let (arena, resource) = arena(env)?;
        let stream = env.stream()?;
        has_thread()?;
        if !is_idle {
            drop(be_short(&resource, &stream)?);
        }
        drop((arena, resource));
        // It may be in the middle of something, and then lets the arena go itself.
        until("the thread is still there", || {
            threads().is_ok_and(|threads| threads.is_empty())
        })?;
        stream.context().synchronize()?;
    }
    ensure!(cuda_mem::base::drop_counts().failures == 0);
    Ok(())
}

/// A fork has no such thread, and waits for none.
#[apply(case_alone)]
fn a_fork_drops_an_arena_whose_thread_works(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env)?;
    let stream = env.stream()?;
    let kept = be_short(&resource, &stream)?;
    // SAFETY: the child drops what it has, which must make no driver call there, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        drop((kept, resource, arena));
        forks::end_child(true);
    }
    forks::ends_within(child, Duration::from_secs(10))?;
    drop(kept);
    let again = resource.alloc::<u8>(&stream, LARGE)?;
    // The thread gives itself its name, once it runs.
    has_thread()?;
    drop(again);
    Ok(())
}

/// Threads of the child get the stacks, and with them the identities, of the parent's threads.
#[apply(case_alone)]
fn a_fork_that_drops_an_arena_can_wait_for_threads_of_its_own(env: &Environment) -> Result<()> {
    /// More than the parent has.
    const THREADS: usize = 64;
    let (arena, resource) = arena(env)?;
    has_thread()?;
    // SAFETY: the child drops what it has, starts threads of its own, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        let together = Arc::new(Barrier::new(THREADS + 1));
        let start = || {
            let together = Arc::clone(&together);
            std::thread::spawn(move || {
                together.wait();
            })
        };
        let threads: Vec<_> = (0..THREADS).map(|_| start()).collect();
        drop((resource, arena));
        together.wait();
        // A thread that somebody else has let go cannot be waited for, which is a panic.
        let wait = || threads.into_iter().all(|thread| thread.join().is_ok());
        let waited = catch_unwind(AssertUnwindSafe(wait));
        forks::end_child(waited.unwrap_or(false));
    }
    forks::ends_within(child, Duration::from_secs(10))?;
    drop((resource, arena));
    Ok(())
}

/// The process of this test ends while the thread has work, and while the arena lives: the test runs in a process of its
/// own, whose exit status is looked at.
#[apply(case_alone)]
fn a_process_exits_while_the_thread_works(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env)?;
    let stream = env.stream()?;
    let kept = be_short(&resource, &stream)?;
    let mut blocks = every_other(&resource, &stream, 9)?;
    blocks.extend(every_other(&resource, &stream, 9)?);
    drop(blocks);
    std::mem::forget((arena, resource, stream, kept));
    Ok(())
}

#[apply(case_alone)]
fn the_thread_spoils_no_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, captured) = (env.stream()?, env.stream()?);
    for mode in 0..3 {
        let (arena, resource) = arena(env)?;
        let _kept = every_other(&resource, &stream, 19)?;
        begin(&captured, mode)?;
        let _first = resource.alloc::<u8>(&stream, LARGE)?;
        until("a place for another one", || arena.stats().prepared > 0)?;
        end_well(&captured).with_context(|| format!("mode {mode}"))?;
    }
    Ok(())
}

/// How often the thread had the processor, by its own account.
fn switches(thread: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("{thread}/status"))?;
    let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
    let numbers = lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
    Ok(numbers.sum())
}

#[apply(case_alone)]
fn an_idle_thread_is_not_woken(env: &Environment) -> Result<()> {
    let (_arena, resource) = arena(env)?;
    let stream = env.stream()?;
    let _kept = be_short(&resource, &stream)?;
    has_thread()?;
    let thread = threads()?.pop().context("no thread")?;
    // What was asked for is done by then.
    std::thread::sleep(Duration::from_millis(300));
    let before = switches(&thread)?;
    // Last-freed blocks are no reason to look.
    for _ in 0..1000 {
        drop(resource.alloc::<u8>(&stream, 4096)?);
    }
    std::thread::sleep(Duration::from_secs(1));
    let woken = switches(&thread)? - before;
    ensure!(woken == 0, "woken {woken} times");
    Ok(())
}

#[apply(case_alone)]
fn the_thread_gives_back_what_the_arena_is_not_to_keep(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env)?;
    let stream = env.stream()?;
    arena.set_release_threshold(ReleaseThreshold::Bytes(0));
    drop(resource.alloc::<u8>(&stream, LARGE)?);
    ensure!(arena.stats().reserved > 0);
    stream.synchronize()?;
    until("it is kept", || arena.stats().reserved == 0)
}

/// Too little for a place: what was taken to move is put back, and is memory as any other.
#[apply(case_alone)]
fn what_is_not_moved_can_be_pinned(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env)?;
    let stream = env.stream()?;
    let mut kept = every_other(&resource, &stream, 17)?;
    let _first = resource.alloc::<u8>(&stream, LARGE)?;
    until("a place for another one", || arena.stats().prepared > 0)?;
    let _second = resource.alloc::<u8>(&stream, LARGE)?;
    let freed: Vec<_> = [6, 4, 2].map(|place| kept.remove(place)).into();
    let addresses: Vec<u64> = freed.iter().map(DeviceBuffer::as_raw).collect();
    drop(freed);
    // As long as a look takes.
    std::thread::sleep(Duration::from_millis(100));
    for address in addresses {
        let piece = arena.piece_at(address).context("no piece")?;
        drop(arena.pin(piece.start, piece.end - piece.start)?);
    }
    Ok(())
}

/// Too little for a place: what was taken to move is put back, and no byte of it is lost.
#[apply(case_alone)]
fn what_is_not_moved_is_not_lost(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env)?;
    let stream = env.stream()?;
    let mut kept = every_other(&resource, &stream, 17)?;
    let _first = resource.alloc::<u8>(&stream, LARGE)?;
    until("a place for another one", || arena.stats().prepared > 0)?;
    let _second = resource.alloc::<u8>(&stream, LARGE)?;
    let freed: Vec<_> = [6, 4, 2].map(|place| kept.remove(place)).into();
    let before = arena.stats().driver_calls;
    drop(freed);
    until("a look", || arena.stats().driver_calls > before)?;
    // Not before the look is over.
    arena.trim_to(0)?;
    let stats = arena.stats();
    ensure!(stats.reserved == stats.live, "{stats}");
    Ok(())
}

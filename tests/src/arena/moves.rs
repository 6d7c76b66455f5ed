//! Physical memory that moves to where a large request needs it.

use std::alloc::Layout;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::memory::DirectResource;
use cuda_mem::{Arena, DeviceBuffer, MemoryResource as _, Resource, ReusePolicy, Stream};
use cuda_mem_trace::{Op, Trace, recorded};

use super::spots;
use crate::draws::Draws;
use crate::environment::Environment;
use crate::hold::hold;
use crate::watchdog;

const MIB: usize = 1 << 20;
/// Blocks of this size are pieces of physical memory of their own.
pub(super) const PIECE: usize = 32 * MIB;

/// Blocks side by side, each with its number.
pub(super) fn row(
    resource: &Resource,
    stream: &Stream,
    count: u8,
) -> Result<Vec<DeviceBuffer<u8>>> {
    let blocks = (0..count).map(|number| {
        let mut block = resource.alloc::<u8>(stream, PIECE)?;
        spots::write(&mut block, number)?;
        Ok(block)
    });
    blocks.collect()
}

/// Every other block, which are freed, and the rest.
pub(super) fn every_other(
    blocks: Vec<DeviceBuffer<u8>>,
) -> (Vec<DeviceBuffer<u8>>, Vec<DeviceBuffer<u8>>) {
    let (freed, kept): (Vec<_>, Vec<_>) = blocks
        .into_iter()
        .enumerate()
        .partition(|(number, _)| number % 2 == 0);
    let only = |blocks: Vec<(usize, _)>| blocks.into_iter().map(|(_, block)| block).collect();
    (only(freed), only(kept))
}

pub(super) fn arena(env: &Environment, slack: f64) -> Result<(Arena, Resource)> {
    let arena = Arena::builder(&env.device()?).slack(slack).build()?;
    Ok((arena.clone(), Resource::from(arena)))
}

#[apply(case)]
fn free_memory_moves_where_a_large_request_needs_it(env: &Environment) -> Result<()> {
    let (arena, resource) = arena(env, 1.0)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    for second in [false, true] {
        if second {
            drop(resource.alloc::<u8>(&other, 1000)?);
        }
        let (freed, kept) = every_other(row(&resource, &stream, 9)?);
        drop(freed);
        stream.synchronize()?;
        let before = arena.stats();
        let mut large = resource.alloc::<u8>(&stream, 5 * PIECE)?;
        spots::write(&mut large, 100)?;
        let after = arena.stats();
        ensure!(after.reserved == before.reserved, "{before}; {after}");
        ensure!(after.grown == before.grown, "{before:?}; {after:?}");
        ensure!(after.moved >= before.moved + 4, "{before:?}; {after:?}");
        for (number, block) in (1..).step_by(2).zip(&kept) {
            spots::have(block, number)?;
        }
        spots::have(&large, 100)?;
        drop((kept, large));
        stream.synchronize()?;
        arena.trim_to(0)?;
        ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    }
    Ok(())
}

#[apply(case)]
fn memory_in_use_does_not_move(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (arena, resource) = arena(env, 1.0)?;
    let stream = env.stream()?;
    let (freed, kept) = every_other(row(&resource, &stream, 9)?);
    let before = arena.stats();
    let held = hold(&stream)?;
    drop(freed);
    let large = resource.alloc::<u8>(&stream, 5 * PIECE)?;
    let after = arena.stats();
    ensure!(after.moved == before.moved, "{after:?}");
    ensure!(after.beyond_slack > before.beyond_slack, "{after:?}");
    // What the four blocks had, and is not done.
    ensure!(after.stranded >= 4 * PIECE as u64, "{after:?}");
    ensure!(after.reserved > before.reserved, "{before}; {after}");
    drop(held);
    for (number, block) in (1..).step_by(2).zip(&kept) {
        spots::have(block, number)?;
    }
    drop(large);
    Ok(())
}

#[apply(case)]
fn what_is_freed_and_not_done_is_demand(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (arena, resource) = arena(env, 1.0)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    let _of_other = resource.alloc::<u8>(&other, PIECE)?;
    let freed = row(&resource, &stream, 4)?;
    let before = arena.stats();
    let held = hold(&stream)?;
    drop(freed);
    let block = resource.alloc::<u8>(&other, 5 * PIECE)?;
    let after = arena.stats();
    drop(held);
    ensure!(before.demand_peak == 5 * PIECE as u64, "{before:?}");
    // One block stays, four are not done, which are too few to wait for, and five are asked for.
    ensure!(after.demand_peak == 10 * PIECE as u64, "{after:?}");
    drop(block);
    Ok(())
}

#[apply(case)]
fn memory_moves_only_as_it_is_told(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let stream = env.stream()?;
    let builders = [
        Arena::builder(&device).slack(f64::INFINITY),
        Arena::builder(&device).slack(3.0),
        Arena::builder(&device)
            .slack(1.0)
            .reuse(ReusePolicy::DETERMINISTIC),
    ];
    for builder in builders {
        let arena = builder.build()?;
        let resource = Resource::from(arena.clone());
        let (freed, _kept) = every_other(row(&resource, &stream, 9)?);
        drop(freed);
        stream.synchronize()?;
        let before = arena.stats();
        let _large = resource.alloc::<u8>(&stream, 5 * PIECE)?;
        let after = arena.stats();
        ensure!(after.moved == 0, "{after:?}");
        ensure!(after.reserved > before.reserved, "{before}; {after}");
    }
    for slack in [0.9, f64::NAN, -1.0, f64::NEG_INFINITY] {
        let refused = Arena::builder(&device).slack(slack).build();
        ensure!(refused.is_err(), "{slack}");
    }
    Ok(())
}

/// Blocks of many sizes come and go, and move, on two streams.
#[apply(case_alone)]
fn bytes_survive_many_moves(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (arena, resource) = arena(env, 1.0)?;
    let streams = [env.stream()?, env.stream()?];
    let mut draws = Draws::new(7);
    let mut live: Vec<(DeviceBuffer<u8>, u8)> = Vec::new();
    let mut bytes = 0;
    for turn in 0..40_u32 {
        let stream = &streams[draws.next() as usize % streams.len()];
        while bytes > 150 * MIB || (live.len() > 4 && draws.next().is_multiple_of(3)) {
            let place = draws.next() as usize % live.len();
            let (block, number) = live.swap_remove(place);
            bytes -= block.len();
            spots::have(&block, number)?;
        }
        // What is not done does not move.
        for stream in &streams {
            stream.synchronize()?;
        }
        let megabytes = 10 + draws.next() as usize % 50;
        let mut block = resource.alloc::<u8>(stream, megabytes * MIB)?;
        spots::write(&mut block, turn as u8)?;
        bytes += block.len();
        live.push((block, turn as u8));
    }
    let stats = arena.stats();
    ensure!(stats.moved > 2, "{stats:?}");
    for (block, number) in &live {
        spots::have(block, *number)?;
    }
    Ok(())
}

/// How many pieces move in [`many_moves`].
const MOVES: &str = "CUDA_MEM_TEST_MOVES";
/// Every eighth block between the moving pieces is checked, and what a peer wrote in every eighth round, because the copies
/// take longest.
const LOOKED_AT: usize = 8;
/// A long run prints its progress after this many moves.
const TOLD: u64 = 100_000;

/// A stream of the next device, if there is one that reaches the memory of the first.
pub(super) fn peer(env: &Environment) -> Result<Option<Stream>> {
    let device = env.device()?;
    let others = env.driver.devices()?;
    let peers = others.iter().filter(|other| **other != device);
    for peer in peers {
        if peer.can_access_peer(&device)? {
            return Ok(Some(peer.primary_context()?.stream()?));
        }
    }
    Ok(None)
}

/// Free memory moves between blocks that stay, while another stream is busy with memory of the arena. Where the device
/// has a peer, that looks at what stayed, and writes what lies on moved memory.
#[apply(case_of_two)]
pub(super) fn many_moves(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let least = crate::settings::number(MOVES)?.unwrap_or(100);
    let peer = peer(env)?;
    let devices: Vec<_> = peer.iter().map(Stream::device).collect();
    let arena = Arena::builder(&env.device()?)
        .slack(1.0)
        .accessible_from(&devices)
        .build()?;
    let resource = Resource::from(arena.clone());
    let (beside, is_over) = (env.stream()?, AtomicBool::new(false));
    let mut busy = resource.alloc_zeroed::<u32>(&beside, 1 << 18)?;
    std::thread::scope(|scope| {
        let fills = scope.spawn(|| -> Result<u32> {
            let mut fills = 0;
            while !is_over.load(Ordering::Relaxed) {
                fills += 1;
                busy.fill(fills)?;
                if fills.is_multiple_of(16) {
                    beside.synchronize()?;
                }
            }
            ensure!(busy.to_vec()?.iter().all(|element| *element == fills));
            Ok(fills)
        });
        let looked_at = move_between(env, &arena, peer.as_ref(), least);
        is_over.store(true, Ordering::Relaxed);
        let fills = fills.join().map_err(|_| anyhow!("a thread panicked"))??;
        let looked_at = looked_at?;
        println!(
            "{} moves beside {fills} fills, {looked_at} blocks looked at, {} devices: {}",
            arena.stats().moved,
            1 + devices.len(),
            arena.stats()
        );
        Ok(())
    })
}

/// Returns how many blocks were looked at.
fn move_between(
    env: &Environment,
    arena: &Arena,
    peer: Option<&Stream>,
    least: u64,
) -> Result<usize> {
    const BLOCK: usize = 2 * MIB;
    let (resource, stream) = (Resource::from(arena.clone()), env.stream()?);
    let (mut looked_at, mut round, mut number, mut vain) = (0, 0_usize, 0_u8, 0);
    while arena.stats().moved < least {
        watchdog::next_part();
        let mut row = Vec::new();
        for _ in 0..64 {
            number = number.wrapping_add(1);
            let mut block = resource.alloc::<u8>(&stream, BLOCK)?;
            block.fill(number)?;
            row.push((block, number));
        }
        let mut place = 0;
        row.retain(|_| {
            place += 1;
            place % 2 == 0
        });
        stream.synchronize()?;
        let before = arena.stats().moved;
        let mut large = resource.alloc::<u8>(&stream, 24 * BLOCK)?;
        let stats = arena.stats();
        if stats.moved / TOLD > before / TOLD {
            println!("{} moves, {looked_at} blocks looked at", stats.moved);
        }
        // Growths rest from looking where looks found nothing.
        vain = if stats.moved > before { 0 } else { vain + 1 };
        ensure!(vain < 1000, "nothing moves any more: {stats:?}");
        match peer {
            Some(peer) => {
                let mark = round as u8;
                large.on(peer)?.fill(mark)?;
                if round.is_multiple_of(LOOKED_AT) {
                    spots::have(&large, mark)?;
                }
            }
            None => large.fill(0)?,
        }
        round += 1;
        let first = round % LOOKED_AT;
        for (block, number) in row.iter_mut().skip(first).step_by(LOOKED_AT) {
            match peer {
                Some(peer) => {
                    let mut found = vec![0; block.len()];
                    block.on(peer)?.copy_to(&mut found)?;
                    ensure!(found == vec![*number; found.len()], "not {number}");
                }
                None => spots::have(block, *number)?,
            }
            looked_at += 1;
        }
    }
    Ok(looked_at)
}

/// A recorded training run, twice, in an arena that may hold little more than what it asks for at most.
#[apply(case_alone)]
fn the_training_log_fits_in_little_more_than_its_peak(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let trace = Trace::read(&recorded())?;
    let stream = env.stream()?;
    let max = trace.peak_bytes / 100 * 102;
    let arena = Arena::builder(&env.device()?).max_bytes(max).build()?;
    run(&trace, &arena, &stream)?;
    let stats = arena.stats();
    ensure!(stats.moved > 0 && stats.live == 0, "{stats:?}");
    Ok(())
}

/// The same where somebody else holds all of the card but 1.1 times the peak.
#[apply(case_of_full_card)]
fn the_training_log_runs_on_a_full_card(env: &Environment) -> Result<()> {
    let trace = Trace::read(&recorded())?;
    let (device, stream) = (env.device()?, env.stream()?);
    let context = stream.context().clone();
    let room = trace.peak_bytes / 10 * 11;
    let taken = context.memory_info()?.free.saturating_sub(room);
    let held =
        Resource::new(DirectResource::new(device)).alloc::<u8>(&stream, usize::try_from(taken)?)?;
    let free = context.memory_info()?.free;
    ensure!(free <= room + (64 << 20), "{free} bytes are free");
    let arena = Arena::builder(&device).build()?;
    run(&trace, &arena, &stream)?;
    let stats = arena.stats();
    println!(
        "{free} bytes were free, the peak asked for is {}: {stats}",
        trace.peak_bytes
    );
    ensure!(stats.live == 0, "{stats:?}");
    drop(held);
    Ok(())
}

/// Two passes.
fn run(trace: &Trace, arena: &Arena, stream: &Stream) -> Result<()> {
    let layout = |bytes: usize| Layout::from_size_align(bytes.max(1), 256);
    for pass in 0..2 {
        let mut slots = vec![(0, 0); trace.slots];
        for (number, op) in trace.ops.iter().enumerate() {
            match *op {
                Op::Allocate { slot, bytes, .. } => {
                    let address = arena.allocate(layout(bytes)?, stream);
                    let what = || format!("pass {pass}, operation {number}: {}", arena.stats());
                    slots[slot] = (address.with_context(what)?, bytes);
                }
                Op::Free { slot, .. } => {
                    let (address, bytes) = std::mem::take(&mut slots[slot]);
                    // SAFETY: allocated as this layout, and no work uses it.
                    unsafe { arena.deallocate(address, layout(bytes)?, stream) }?;
                }
            }
        }
        for (address, bytes) in slots {
            // SAFETY: as above; what is free already has the address 0.
            unsafe { arena.deallocate(address, layout(bytes)?, stream) }?;
        }
    }
    Ok(())
}

//! Arenas on a small device: they reserve as many addresses as it has memory, which are soon used up.

use anyhow::{Result, bail, ensure};
use cuda_mem::arena::ArenaBacking;
use cuda_mem::memory::Fallback;
use cuda_mem::{
    Arena, Device, DeviceBuffer, Driver, ErrorKind, MemoryResource as _, Resource, Stream,
};
use cuda_mem_tests::arena::places;
use cuda_mem_tests::environment::Environment;
use cuda_sim::{Machine, Simulator};

const MIB: usize = 1 << 20;
/// A piece of physical memory. There are addresses for 32.
const PIECE: usize = 32 * MIB;
/// So many pieces leave fewer addresses behind them than a large request wants.
const MANY: usize = 29;

fn machine() -> Result<(Simulator, Device)> {
    let simulator = Machine::new().memory(1 << 30).start()?;
    let device = Driver::load_simulated(&simulator)?.device(0)?;
    Ok((simulator, device))
}

/// With a request that moves alone serve, and with one for which a little has to be made behind what moved.
#[apply(case)]
fn memory_moves_into_gaps_when_all_addresses_were_used(_: &Environment) -> Result<()> {
    let (simulator, device) = machine()?;
    let stream = device.primary_context()?.stream()?;
    for more in [0, 2 * MIB] {
        let arena = Arena::builder(&device).slack(1.0).build()?;
        let resource = Resource::from(arena.clone());
        let piece = || resource.alloc::<u8>(&stream, PIECE);
        let mut last = piece()?;
        for _ in 0..MANY {
            drop(std::mem::replace(&mut last, piece()?));
            stream.synchronize()?;
            arena.trim_to(PIECE as u64)?;
        }
        let mut blocks: Vec<Option<DeviceBuffer<u8>>> = Vec::new();
        for _ in 0..9 {
            blocks.push(Some(piece()?));
        }
        blocks.iter_mut().step_by(2).for_each(|block| *block = None);
        stream.synchronize()?;
        let large = resource.alloc::<u8>(&stream, 5 * PIECE + more)?;
        let stats = arena.stats();
        ensure!(stats.reserved == (10 * PIECE + more) as u64, "{stats:?}");
        ensure!(stats.moved == 4, "{stats:?}");
        drop((last, blocks, large));
        stream.synchronize()?;
    }
    simulator.check()?;
    Ok(())
}

#[apply(case)]
fn a_place_is_made_in_a_gap(_: &Environment) -> Result<()> {
    let (simulator, device) = machine()?;
    places::make_the_rest_of_a_place(&device, MANY)?;
    simulator.check()?;
    Ok(())
}

fn pieces(resource: &Resource, stream: &Stream, count: usize) -> Result<Vec<DeviceBuffer<u8>>> {
    let pieces = (0..count).map(|_| resource.alloc::<u8>(stream, PIECE));
    Ok(pieces.collect::<cuda_mem::Result<_>>()?)
}

/// No gap is large enough, and nothing is left behind the last piece: more addresses are reserved for what moves.
#[apply(case)]
fn memory_moves_where_no_address_was_reserved(_: &Environment) -> Result<()> {
    let (simulator, device) = machine()?;
    let stream = device.primary_context()?.stream()?;
    let arena = Arena::builder(&device).slack(1.0).build()?;
    let resource = Resource::from(arena.clone());
    // Every fourth piece of all addresses is kept.
    let mut kept = Vec::new();
    for _ in 0..8 {
        kept.extend(pieces(&resource, &stream, 4)?.pop());
        stream.synchronize()?;
        arena.trim_to(0)?;
    }
    ensure!(
        arena.stats().reserved == 8 * PIECE as u64,
        "{}",
        arena.stats()
    );
    // Two of the gaps are full; then four pieces there are free, none beside another one.
    let blocks = pieces(&resource, &stream, 6)?.into_iter();
    let mut blocks: Vec<_> = blocks.map(Some).collect();
    [0, 2, 3, 5].into_iter().for_each(|at| blocks[at] = None);
    stream.synchronize()?;
    let large = resource.alloc::<u8>(&stream, 5 * PIECE)?;
    let stats = arena.stats();
    ensure!(stats.moved == 4, "{stats:?}");
    ensure!(stats.reserved == 15 * PIECE as u64, "{stats:?}");
    drop((kept, blocks, large));
    stream.synchronize()?;
    arena.trim_to(0)?;
    ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    simulator.check()?;
    Ok(())
}

/// The request would fit into the gap; the arena grows by a share of what it holds, which does not.
#[apply(case)]
fn a_growth_that_is_larger_than_its_gap_goes_elsewhere(_: &Environment) -> Result<()> {
    let (simulator, device) = machine()?;
    let stream = device.primary_context()?.stream()?;
    let arena = Arena::builder(&device).build()?;
    let resource = Resource::from(arena.clone());
    let allocate = |bytes: usize| resource.alloc::<u8>(&stream, bytes);
    let give_back = || -> Result<()> {
        stream.synchronize()?;
        Ok(arena.trim_to(0)?)
    };
    let small = allocate(8 * MIB)?;
    let behind = allocate(PIECE)?;
    let gap = small.as_raw();
    ensure!(behind.as_raw() == gap + (8 << 20), "not side by side");
    drop(small);
    give_back()?;
    let mut kept = Vec::new();
    for _ in 0..7 {
        kept.extend(pieces(&resource, &stream, 4)?.pop());
        give_back()?;
    }
    // All addresses that are left.
    let last = allocate(1024 * MIB - 8 * MIB - 29 * PIECE)?;
    let before = arena.stats();
    let block = allocate(4 * MIB)?;
    let after = arena.stats();
    ensure!(
        after.reserved > before.reserved + (8 << 20),
        "no more than the gap: {before}, then {after}"
    );
    let next = behind.as_raw() + PIECE as u64;
    ensure!(
        block.as_raw() == next,
        "{:#x}, not {next:#x}",
        block.as_raw()
    );
    drop((behind, kept, last, block));
    stream.synchronize()?;
    simulator.check()?;
    Ok(())
}

/// The arena's own device is none of those that its memory would have to reach besides.
#[apply(case)]
fn without_virtual_memory_an_arena_takes_blocks_if_it_may(_: &Environment) -> Result<()> {
    let machine = Machine::new().devices(2).memory(1 << 30);
    let simulator = machine.set("CUDA_SIM_VMM", 0).start()?;
    let driver = Driver::load_simulated(&simulator)?;
    let (own, peer) = (driver.device(0)?, driver.device(1)?);
    let stream = own.primary_context()?.stream()?;
    for builder in [
        Arena::builder(&own),
        Arena::builder(&own).accessible_from([&own]),
    ] {
        let arena = builder.build()?;
        let backing = arena.backing();
        ensure!(matches!(backing, ArenaBacking::Upstream(_)), "{backing}");
        let block = arena.alloc_from::<u8>(&stream, &[7; 1000])?;
        ensure!(block.to_vec()? == [7; 1000]);
    }
    for builder in [
        Arena::builder(&own).fallback(Fallback::Refuse),
        Arena::builder(&own).accessible_from([&peer]),
    ] {
        let Err(error) = builder.build() else {
            bail!("an arena was made");
        };
        ensure!(error.kind() == ErrorKind::NotSupported, "{error}");
    }
    simulator.check()?;
    Ok(())
}

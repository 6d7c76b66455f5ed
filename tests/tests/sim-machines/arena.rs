//! Arenas on a small device: they reserve as many addresses as it has memory, which are soon used up.

use anyhow::{Result, ensure};
use cuda_mem::{Arena, Device, DeviceBuffer, Driver, MemoryResource as _, Resource};
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

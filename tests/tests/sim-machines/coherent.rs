//! A machine like a Grace Hopper: devices use the memory of the program through the page tables of the host.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::driver::{Capability, Location};
use cuda_mem::kernel::{Image, Launch};
use cuda_mem::mapped::{Advice, ManagedBuffer};
use cuda_mem::memory::Strategy;
use cuda_mem::placement::{AccessPattern, PlacementKind, PlacementRequest, Topology};
use cuda_mem::{Driver, MemoryPool};
use cuda_mem_tests::case::Kind;
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::own_process;
use cuda_mem_tests::suite::Suite;
use cuda_sim::{Machine, Simulator};

const COHERENT: &str = "CUDA_SIM_COHERENT";

/// What the suites of memory ask of every driver.
pub(crate) const SUITES: Suite = Suite::made_of("memory-of-a-coherent-machine", |test| {
    let modules = [
        "managed",
        "host",
        "placement",
        "sim_machines::coherent::asked",
    ];
    matches!(test.kind, Kind::Any | Kind::Staged) && modules.iter().any(|it| test.is_in(it))
})
.staged()
.sim_only()
.serial();

fn machine() -> Result<(Simulator, Driver)> {
    let machine = Machine::new().devices(2).memory(1 << 30).set(COHERENT, 1);
    let simulator = machine.start()?;
    let driver = Driver::load_simulated(&simulator)?;
    Ok((simulator, driver))
}

#[apply(case)]
fn its_devices_say_so(_: &Environment) -> Result<()> {
    let (_simulator, driver) = machine()?;
    let other = Driver::load_simulated(&Machine::new().memory(1 << 30).start()?)?;
    let discrete = other.device(0)?.capabilities()?;
    for device in driver.devices()? {
        let can = device.capabilities()?;
        ensure!(can.concurrent_managed_access && can.compute_capability == (9, 0));
        let mut own = discrete;
        for capability in [
            Capability::HostNativeAtomics,
            Capability::PageableMemoryAccess,
            Capability::HostPageTables,
            Capability::DirectManagedAccessFromHost,
        ] {
            ensure!(!discrete.has(capability), "{capability:?}");
            own.set(capability, true);
        }
        ensure!(can == own, "{can:?}");
        ensure!(device.strategy()? == Strategy::Pool);
    }
    let topology = Topology::gather(&driver.devices()?)?;
    ensure!(topology.devices[1].host_numa_node == Some(0));
    Ok(())
}

#[apply(case)]
fn kernels_take_the_address_of_a_vec(_: &Environment) -> Result<()> {
    let (simulator, driver) = machine()?;
    let context = driver.device(0)?.primary_context()?;
    let stream = context.stream()?;
    let text = include_str!("../../data/kernels.ptx");
    let (fill, copy) = {
        let module = context.load(&Image::ptx(text)?)?;
        (module.function("fill")?, module.function("copy")?)
    };
    let mut words = vec![0_u32; 1000];
    let (address, count) = (words.as_mut_ptr().expose_provenance() as u64, 1000_u64);
    let pool = MemoryPool::builder(&driver.device(0)?).build()?;
    let mut buffer = pool.alloc_zeroed::<u32>(&stream, 1000)?;
    let launch = Launch::over(1000, 256);
    // SAFETY: as the kernel says; the device reaches the vector, which nobody else uses until the stream is done.
    unsafe { fill.launch(&stream, launch, (address, 7_u32, count)) }?;
    // SAFETY: as above.
    unsafe { copy.launch(&stream, launch, (&mut buffer, address, count)) }?;
    ensure!(buffer.to_vec()? == [7; 1000]);
    ensure!(words == [7; 1000]);
    simulator.check()?;
    Ok(())
}

#[apply(case)]
fn managed_memory_is_used_as_anywhere(_: &Environment) -> Result<()> {
    let (simulator, driver) = machine()?;
    let device = driver.device(0)?;
    let stream = device.primary_context()?.stream()?;
    let here = Location::Device(device);
    let mut numbers = ManagedBuffer::<u32>::zeroed(&stream, 1 << 20)?;
    for advice in [
        Advice::ReadMostly,
        Advice::PreferredLocation(here),
        Advice::AccessedBy(here),
        Advice::AccessedBy(Location::Host),
    ] {
        numbers.advise(advice)?;
    }
    numbers.prefetch(here)?;
    numbers.host_mut()?[5] = 6;
    ensure!(numbers.host()?[4..7] == [0, 6, 0]);
    let info = numbers.info()?;
    ensure!(info.read_mostly && info.last_prefetch == Some(here));
    drop(numbers);
    let turns = PlacementRequest::bytes(1 << 20).access(AccessPattern::SharedInTurns);
    let placed = turns.place(&Topology::gather(&driver.devices()?)?)?;
    ensure!(placed.kind == PlacementKind::Managed, "{placed}");
    simulator.check()?;
    Ok(())
}

#[apply(case)]
fn suites_of_memory_pass_there(_: &Environment) -> Result<()> {
    let output = own_process::command(SUITES.name)?
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("CUDA_MEM_TEST_REQUIRE_GPU")
        .env("CUDA_MEM_TEST_BACKEND", "sim")
        .env(COHERENT, "1")
        .output()
        .context("could not start the suites")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{text}{errors}");
    ensure!(!text.contains("... ignored"), "{text}");
    Ok(())
}

/// What the child asks beside them.
mod asked {
    use super::*;

    #[apply(case_staged)]
    fn the_machine_is_coherent(env: &Environment) -> Result<()> {
        ensure!(env.device()?.capabilities()?.host_page_tables);
        Ok(())
    }
}

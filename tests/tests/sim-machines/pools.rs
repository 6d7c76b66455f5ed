//! Pools of older and newer drivers, of kinds that a machine lacks, and of managed memory. Each machine is one of its own in
//! this process.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::driver::{AllocationType, Location};
use cuda_mem::sys::CUresult;
use cuda_mem::{CudaVersion, Driver, Error, ErrorKind, MemoryPool, PoolStats, ReusePolicy, Stream};
use cuda_mem_tests::environment::Environment;
use cuda_sim::{Machine, Simulator};

use super::start;

const MIB: usize = 1 << 20;
const CREATE: &str = "cuMemPoolCreate";

/// A machine whose driver is of this version.
fn version(major: u32, minor: u32) -> Result<(Simulator, Driver)> {
    start(Machine::new().cuda_version(major, minor))
}

fn kind<T>(outcome: cuda_mem::Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

/// An error that names the version, before the driver is asked.
fn ensure_needs(error: &Error, major: u32, minor: u32) -> Result<()> {
    ensure!(error.kind() == ErrorKind::NotSupported, "{error}");
    let since = Some(CudaVersion::new(major, minor));
    ensure!(error.needs_version() == since, "{error}");
    Ok(())
}

#[apply(case)]
fn drivers_before_11_2_say_that_they_have_no_pools(_: &Environment) -> Result<()> {
    for minor in [0, 1] {
        let (_simulator, driver) = version(11, minor)?;
        let device = driver.device(0)?;
        let not_supported = Some(ErrorKind::NotSupported);
        ensure!(kind(MemoryPool::builder(&device).build()) == not_supported);
        ensure!(kind(device.default_pool()) == not_supported);
        ensure!(kind(device.current_pool()) == not_supported);
    }
    Ok(())
}

#[apply(case)]
fn a_pool_of_11_2_serves_a_second_time_and_has_no_statistics(_: &Environment) -> Result<()> {
    let (_simulator, driver) = version(11, 2)?;
    let builder = MemoryPool::builder(&driver.device(0)?);
    let first = builder.clone().build()?;
    let handle = first.as_raw();
    first.close()?;
    let second = builder.build()?;
    ensure!(second.as_raw() == handle);
    for refused in [second.stats().map(drop), second.reset_high_marks()] {
        let error = refused.err().context("an old driver has statistics")?;
        ensure_needs(&error, 11, 3)?;
    }
    Ok(())
}

/// Such a driver does not say whether memory of a pool is alive, so the pool ends before its memory.
#[apply(case)]
fn memory_that_outlives_its_pool_goes_back_on_11_2(_: &Environment) -> Result<()> {
    let (_simulator, driver) = version(11, 2)?;
    let context = driver.device(0)?.primary_context()?;
    let stream = context.stream()?;
    let free = context.memory_info()?.free;
    let pool = MemoryPool::builder(&context.device()).build()?;
    let buffer = pool.alloc::<u8>(&stream, 64 * MIB)?;
    drop(pool);
    ensure!(context.memory_info()?.free < free, "it is alive");
    buffer.free()?;
    stream.synchronize()?;
    let left = free - context.memory_info()?.free;
    ensure!(left == 0, "{left} bytes are kept");
    Ok(())
}

/// The first version that tells what is alive, and has high marks.
#[apply(case)]
fn a_pool_of_11_3_ends_after_its_memory_and_serves_again_as_new(_: &Environment) -> Result<()> {
    let (_simulator, driver) = version(11, 3)?;
    let device = driver.device(0)?;
    let stream = device.primary_context()?.stream()?;
    let pool = MemoryPool::builder(&device).build()?;
    let handle = pool.as_raw();
    let buffer = pool.alloc::<u8>(&stream, 1000)?;
    let Err(failed) = pool.close() else {
        bail!("a pool was closed with memory in use");
    };
    ensure!(failed.error.kind() == ErrorKind::InUse, "{}", failed.error);
    let pool = failed.object.context("the pool was not given back")?;
    buffer.free()?;
    stream.synchronize()?;
    pool.close()?;
    let next = MemoryPool::builder(&device).build()?;
    ensure!(next.as_raw() == handle);
    ensure!(next.stats()? == PoolStats::default(), "{}", next.stats()?);
    Ok(())
}

/// Older ones can hand out memory too early.
#[apply(case)]
fn new_pools_reuse_at_an_opportunity_from_11_5_on(_: &Environment) -> Result<()> {
    let all = ReusePolicy::DRIVER_DEFAULT;
    let expected = [(4, all - ReusePolicy::ALLOW_OPPORTUNISTIC), (5, all)];
    for (minor, expected) in expected {
        let (_simulator, driver) = version(11, minor)?;
        let pool = MemoryPool::builder(&driver.device(0)?).build()?;
        let found = pool.reuse_policy()?;
        ensure!(found == expected, "CUDA 11.{minor}: {found}");
    }
    Ok(())
}

#[apply(case)]
fn pools_by_place_need_13_0(_: &Environment) -> Result<()> {
    let (_simulator, driver) = version(12, 9)?;
    let place = (Location::Device(driver.device(0)?), AllocationType::Pinned);
    let default = driver.default_pool_at(place.0, place.1).map(drop);
    let current = driver.current_pool_at(place.0, place.1).map(drop);
    for refused in [default, current] {
        let error = refused
            .err()
            .context("an old driver knows pools by their place")?;
        ensure_needs(&error, 13, 0)?;
    }
    Ok(())
}

#[apply(case)]
fn a_pool_tells_whether_it_is_for_decompression_and_its_domain(_: &Environment) -> Result<()> {
    for (minor, has_domains) in [(2, false), (4, true)] {
        let (_simulator, driver) = version(13, minor)?;
        let device = driver.device(0)?;
        for asked in [false, true] {
            let pool = MemoryPool::builder(&device).hw_decompress(asked).build()?;
            let told = pool.properties()?;
            ensure!(told.hw_decompress == asked, "CUDA 13.{minor}: {told:?}");
            let is_told = told.locality_domain.is_some();
            ensure!(is_told == has_domains, "CUDA 13.{minor}: {told:?}");
        }
    }
    Ok(())
}

/// Its number is that of a device here.
#[apply(case)]
fn a_device_of_another_driver_is_no_place_of_a_pool(_: &Environment) -> Result<()> {
    let ((simulator, driver), (_other, other)) = (start(Machine::new())?, start(Machine::new())?);
    let place = (Location::Device(other.device(0)?), AllocationType::Pinned);
    let invalid = Some(ErrorKind::InvalidValue);
    ensure!(kind(MemoryPool::builder_at(driver, place.0, place.1).build()) == invalid);
    ensure!(simulator.control().calls(CREATE) == 0);
    ensure!(kind(driver.default_pool_at(place.0, place.1)) == invalid);
    ensure!(kind(driver.current_pool_at(place.0, place.1)) == invalid);
    Ok(())
}

/// And no pool is made to find out. Windows has no pools on NUMA nodes at all.
#[cfg(target_os = "linux")]
#[apply(case)]
fn an_attribute_tells_that_a_kind_is_missing(_: &Environment) -> Result<()> {
    use AllocationType::{Managed, Pinned};
    use cuda_mem::driver::{Reason, Support};
    let node = Location::HostNuma(0);
    let kinds = [
        (Location::Host, Pinned),
        (node, Pinned),
        (Location::Host, Managed),
        (node, Managed),
        (Location::Anywhere, Managed),
    ];
    for (setting, missing) in [
        ("CUDA_SIM_HOST_POOLS", &kinds[..1]),
        ("CUDA_SIM_NUMA_POOLS", &kinds[1..2]),
        ("CUDA_SIM_MANAGED_POOLS", &kinds[2..]),
    ] {
        let (simulator, driver) = start(Machine::new().set(setting, 0))?;
        let control = simulator.control();
        for kind in kinds {
            control.reset();
            let told = MemoryPool::builder_at(driver, kind.0, kind.1).support()?;
            let (expected, trials) = if missing.contains(&kind) {
                (Support::No(Reason::Device), 0)
            } else {
                (Support::Yes, 1)
            };
            ensure!(told == expected, "{setting}, {kind:?}: {told}");
            ensure!(control.calls(CREATE) == trials, "{setting}, {kind:?}");
        }
    }
    Ok(())
}

/// It says nothing about the machine.
#[apply(case)]
fn a_trial_that_found_no_memory_is_made_again(_: &Environment) -> Result<()> {
    let (simulator, driver) = start(Machine::new())?;
    let builder = MemoryPool::builder(&driver.device(0)?);
    let no_memory = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    simulator.control().fail(CREATE, 1, no_memory);
    ensure!(kind(builder.support()) == Some(ErrorKind::OutOfMemory));
    ensure!(builder.support()?.is_yes());
    Ok(())
}

/// The calls that renew a block of a managed pool: prefetches, and discards.
fn renewals(
    simulator: &Simulator,
    place: Location,
    stream: &Stream,
    bytes: usize,
) -> Result<(u64, u64)> {
    let driver = stream.device().driver();
    let pool = MemoryPool::builder_at(driver, place, AllocationType::Managed).build()?;
    let control = simulator.control();
    control.reset();
    // The first block of a pool begins at a page.
    pool.alloc::<u8>(stream, bytes)?.free()?;
    let prefetches = control.calls("cuMemPrefetchAsync_v2");
    Ok((prefetches, control.calls("cuMemDiscardBatchAsync")))
}

/// A discard needs no room on the device, and is slow afterwards (R190). A default stream takes none (R182).
#[apply(case)]
fn blocks_of_more_than_half_a_device_are_discarded_and_others_prefetched(
    _: &Environment,
) -> Result<()> {
    let (simulator, driver) = start(Machine::new())?;
    let device = driver.device(0)?;
    let context = device.primary_context()?;
    let half = usize::try_from(device.total_memory()? / 2)?;
    let stream = context.stream()?;
    for (bytes, expected) in [
        (MIB, (1, 0)),
        (half, (1, 0)),
        (half + MIB, (0, 1)),
        // Its end is no whole page.
        (half + MIB + 100, (1, 1)),
    ] {
        let found = renewals(&simulator, Location::Anywhere, &stream, bytes)?;
        ensure!(found == expected, "{bytes} bytes: {found:?}");
    }
    for stream in [context.legacy_stream(), context.per_thread_stream()] {
        let found = renewals(&simulator, Location::Anywhere, &stream, half + MIB)?;
        ensure!(found == (1, 0), "{stream:?}: {found:?}");
    }
    Ok(())
}

/// It would go elsewhere.
#[apply(case)]
fn memory_of_a_managed_pool_at_a_place_is_not_prefetched(_: &Environment) -> Result<()> {
    let (simulator, driver) = start(Machine::new())?;
    let device = driver.device(0)?;
    let stream = device.primary_context()?.stream()?;
    for place in [Location::Device(device), Location::Host] {
        let found = renewals(&simulator, place, &stream, MIB)?;
        ensure!(found == (0, 0), "{place}: {found:?}");
    }
    Ok(())
}

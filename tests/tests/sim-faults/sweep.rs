//! Every driver call that this crate makes fails once, in turn, with several codes. Each time the
//! caller gets a typed error, or the destructor reports; nothing is left over, nothing panics.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use cuda_mem::driver::{AllocationType, Capability, HandleTypes, Location, Support};
use cuda_mem::memory::{
    AlignedAdaptor, DeviceScalar, DeviceVec, DirectResource, ManagedResource, PinnedResource,
    PrefetchAdaptor, TrackingAdaptor,
};
use cuda_mem::{
    Access, DeviceBuffer, Driver, Error, MemoryPool, ReleaseThreshold, Resource, ReusePolicy,
    Stream,
};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::executor::block_on;
use cuda_mem_tests::own_process;
use cuda_mem_tests::suite::Suite;
use cuda_mem_tests::sweep::meaning::{
    CAPTURES, NOT_BOUND, NOT_FREED, NOT_READY, NOT_WAITED_FOR, STUB, UNKNOWN_ADDRESS,
    UNKNOWN_ATTRIBUTE, UNTOLD_ACCESS, WHO_REACHES, devices_after,
};
use cuda_mem_tests::sweep::{self, Answer, Scenario, When};

/// With two devices.
pub(crate) const PAIRS: Suite = Suite::made_of("sweep-of-two-devices", |test| {
    test.is_in("sim_faults::sweep::pairs")
})
.staged()
.serial()
.drops_fail()
.sim_only();

/// A trial of a pool was refused.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Everything the core calls, in one go. Objects end by being dropped, in the usual order.
fn everything(driver: Driver) -> Result<(), Error> {
    let device = driver.devices()?.swap_remove(0);
    device.name()?;
    device.uuid()?;
    device.total_memory()?;
    device.capabilities()?;
    device.support(Capability::HostMemoryPools)?;
    device.has_active_context()?;
    let context = device.primary_context()?;
    context.memory_info()?;
    let (stream, other) = (context.stream()?, context.stream()?);
    let (start, end) = (context.timing_event()?, context.timing_event()?);
    start.record(&stream)?;
    let pool = MemoryPool::builder(&device)
        .max_size(256 << 20)
        .release_threshold(ReleaseThreshold::Bytes(64 << 20))
        .reuse(ReusePolicy::DETERMINISTIC)
        .build()?;
    assert_eq!(pool.release_threshold()?, ReleaseThreshold::Bytes(64 << 20));
    assert_eq!(pool.reuse_policy()?, ReusePolicy::DETERMINISTIC);
    let mut bytes = pool.alloc_from(&stream, &[1_u8; 1000])?;
    let mut halves = pool.alloc_zeroed::<u16>(&stream, 1000)?;
    let mut words = pool.alloc::<u32>(&other, 1000)?;
    bytes.fill(2)?;
    halves.fill(3)?;
    words.fill(4)?;
    let mut copy = pool.alloc::<u8>(&other, 1000)?;
    copy.copy_from_device(&bytes)?;
    words.on(&stream)?.fill(5)?;
    assert_eq!(copy.to_vec()?, [2; 1000]);
    assert_eq!(halves.to_vec()?, [3; 1000]);
    assert_eq!(words.to_vec()?, [5; 1000]);
    end.record(&stream)?;
    other.wait_event(&end)?;
    end.synchronize()?;
    end.is_done()?;
    end.elapsed_ms_since(&start)?;
    copy.slice_mut(10..20)?
        .copy_from_device(&bytes.slice(..10)?)?;
    let (low, high) = copy.split_at_mut(500)?;
    let (mut low, mut high) = (low.on(&stream)?, high.on(&other)?);
    low.as_mut_slice().slice_mut(..10)?.zero()?;
    high.fill(6)?;
    drop((low, high));
    drop((bytes, halves, words, copy));
    other.is_done()?;
    other.synchronize()?;
    // Done already: the thread that waits would make calls of its own.
    block_on(end.completion())?;
    block_on(other.completion()?)?;
    context.synchronize()?;
    pool.stats()?;
    pool.trim_to(0)?;
    pool.reset_high_marks()?;
    more(driver, &stream, &other)
}

/// The rest: other kinds of pools and streams, access, scopes, loans for reading.
fn more(driver: Driver, stream: &Stream, other: &Stream) -> Result<(), Error> {
    let (device, context) = (stream.device(), stream.context());
    let shared = MemoryPool::builder(&device).handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR);
    // Where only trying tells, a refusal is an answer, with the driver's code in it.
    let support = shared.support()?;
    REFUSED.store(support != Support::Yes, Ordering::Relaxed);
    assert_eq!(shared.support()?, support, "it is remembered");
    let host = MemoryPool::builder_at(driver, Location::Host, AllocationType::Pinned)
        .accessible_from([&device])
        .build()?;
    assert_eq!(host.access(&device)?, Access::ReadWrite);
    let mut buffer = host.alloc_from(stream, &[1_u8; 100])?;
    buffer.on(other)?.fill(2)?;
    {
        let there = buffer.read_on(other)?;
        let mut bytes = [0; 100];
        there.copy_to(&mut bytes)?;
        assert_eq!(bytes, [2; 100]);
    }
    drop(buffer);
    let legacy = context.legacy_stream();
    let mut buffer = device.default_pool()?.alloc_from(&legacy, &[1_u8; 100])?;
    buffer.on(stream)?.fill(2)?;
    drop(buffer);
    legacy.is_done()?;
    legacy.synchronize()?;
    let own = context.per_thread_stream();
    own.fork([stream, other])?;
    own.join([stream, other])?;
    let default = device.default_pool()?;
    {
        let _raised = default.raise_release_threshold(ReleaseThreshold::Never)?;
        assert_eq!(default.release_threshold()?, ReleaseThreshold::Never);
    }
    let mut buffer = default.alloc_from(&own, &[3_u16; 10])?;
    driver.pointer_info(buffer.as_raw())?;
    buffer.wait_for_pending_uses()?;
    let address = buffer.into_raw()?;
    // SAFETY: the address of the buffer above.
    drop(unsafe { DeviceBuffer::<u16>::from_raw(&own, address, 10) });
    let pool = MemoryPool::builder(&device).build()?;
    device.set_current_pool(&pool)?;
    device.current_pool()?;
    // What ends below has nothing outstanding then, so that every run makes the same calls.
    context.synchronize()
}

/// Resources and containers over them. The default resource is left out: it stays as long as the process.
fn resources(driver: Driver) -> Result<(), Error> {
    let device = driver.device(0)?;
    let context = device.primary_context()?;
    let (stream, other) = (context.stream()?, context.stream()?);
    let pool = MemoryPool::builder(&device).build()?;
    for resource in [
        Resource::new(DirectResource::new(device)),
        Resource::new(PinnedResource::new(driver)),
        Resource::new(PrefetchAdaptor::new(ManagedResource::new(driver))),
        Resource::new(AlignedAdaptor::new(
            TrackingAdaptor::new(pool.clone()),
            4096,
        )?),
    ] {
        let mut buffer = resource.alloc::<u32>(&stream, 100)?;
        buffer.fill(2)?;
    }
    let resource = Resource::new(pool);
    let mut vec = DeviceVec::from_slice_in(&resource, &stream, &[1_u8, 2, 3])?;
    vec.reserve(100)?;
    vec.resize_zeroed(5)?;
    vec.set_stream(&other)?;
    assert_eq!(vec.try_clone()?.to_vec()?, [1, 2, 3, 0, 0]);
    drop(vec);
    drop(DeviceScalar::new_in(&resource, &stream, 1.5_f32)?);
    stream.synchronize()?;
    context.synchronize()
}

/// Two devices: access, loans and copies.
fn two_devices(driver: Driver) -> Result<(), Error> {
    let (near, far) = (driver.device(0)?, driver.device(1)?);
    let here = near.primary_context()?.stream()?;
    let there = far.primary_context()?.stream()?;
    assert!(far.can_access_peer(&near)?);
    let pool = MemoryPool::builder(&near).accessible_from([&far]).build()?;
    let mut buffer = pool.alloc_zeroed::<u32>(&here, 100)?;
    buffer.on(&there)?.fill(1)?;
    let foreign = pool.alloc_from(&there, &[2_u32; 100])?;
    buffer.copy_from_device(&foreign)?;
    let mut copy = MemoryPool::builder(&far)
        .build()?
        .alloc::<u32>(&there, 100)?;
    copy.copy_from_device(&buffer)?;
    assert_eq!(copy.to_vec()?, [2; 100]);
    drop((buffer, foreign, copy));
    there.synchronize()?;
    here.synchronize()?;
    pool.set_access([(far, Access::None)])?;
    assert_eq!(pool.access(&far)?, Access::None);
    pool.set_access([(far, Access::ReadWrite)])
}

/// Where only trying tells whether a pool can be had.
const TRIAL: Answer = Answer {
    functions: &["cuMemPoolCreate"],
    when: When::If(|| REFUSED.swap(false, Ordering::Relaxed)),
};

const CORE: &[Answer] = &[CAPTURES, STUB, UNKNOWN_ADDRESS, NOT_READY, TRIAL];

const RESOURCES: &[Answer] = &[
    STUB,
    UNKNOWN_ADDRESS,
    UNKNOWN_ATTRIBUTE,
    NOT_READY,
    TRIAL,
    CAPTURES,
    WHO_REACHES,
    devices_after(0),
];

const OF_RESOURCES: Scenario = Scenario {
    run: resources,
    at_least: 100,
    answers: RESOURCES,
    leftovers: &[NOT_WAITED_FOR, NOT_FREED],
};

const OF_ONE_DEVICE: Scenario = Scenario {
    run: everything,
    at_least: 250,
    answers: CORE,
    leftovers: &[NOT_BOUND],
};

#[apply(case)]
fn every_call_of_resources_fails_once(env: &Environment) -> Result<()> {
    sweep::in_parts(env, OF_RESOURCES)
}

#[apply(case)]
fn every_call_of_one_device_fails_once(env: &Environment) -> Result<()> {
    sweep::in_parts(env, OF_ONE_DEVICE)
}

#[apply(case)]
fn a_sample_of_pairs_of_calls_of_resources_fails(env: &Environment) -> Result<()> {
    sweep::every_pair_fails(env, OF_RESOURCES)
}

#[apply(case)]
fn a_sample_of_pairs_of_calls_of_one_device_fails(env: &Environment) -> Result<()> {
    sweep::every_pair_fails(env, OF_ONE_DEVICE)
}

#[apply(case)]
fn every_call_of_two_devices_fails_once(_: &Environment) -> Result<()> {
    let output = own_process::command(PAIRS.name)?
        .env("CUDA_SIM_DEVICES", "2")
        .env_remove("CUDA_VISIBLE_DEVICES")
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
    Ok(())
}

mod pairs {
    use super::*;

    #[apply(case_staged)]
    fn every_call_between_devices_fails_once(env: &Environment) -> Result<()> {
        let scenario = Scenario {
            run: two_devices,
            at_least: 60,
            answers: &[
                CAPTURES,
                STUB,
                UNKNOWN_ADDRESS,
                NOT_READY,
                TRIAL,
                UNTOLD_ACCESS[0],
                UNTOLD_ACCESS[1],
            ],
            leftovers: &[],
        };
        sweep::in_parts(env, scenario)
    }
}

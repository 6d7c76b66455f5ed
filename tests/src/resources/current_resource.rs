//! Which resource is the default, and which is current.

use std::sync::Arc;
use std::thread;

use anyhow::{Result, ensure};
use cuda_mem::driver::MemoryKind;
use cuda_mem::interop::CaptureMode;
use cuda_mem::memory::{DeviceVec, DirectResource, Fallback, StatisticsAdaptor, Strategy};
use cuda_mem::{MemoryResource as _, Resource};

use crate::environment::Environment;

#[apply(case)]
fn the_default_resource_says_what_it_is(env: &Environment) -> Result<()> {
    let device = env.device()?;
    ensure!(device.strategy()? == Strategy::Pool);
    ensure!(device.strategy()?.to_string() == "memory pool");
    let resource = device.default_resource()?;
    ensure!(resource == device.default_resource()?, "there is one");
    ensure!(resource == device.default_resource_with(Fallback::Refuse)?);
    ensure!(resource.memory_properties().kind == MemoryKind::Device);
    ensure!(resource.device() == Some(device));
    let direct = Resource::new(DirectResource::new(device));
    ensure!(direct != resource && direct == direct.clone());
    Ok(())
}

/// Alone, because it captures, and because the first question counts.
#[apply(case_alone)]
fn the_strategy_is_found_beside_a_capture(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let (_, strategy) = stream.capture(CaptureMode::Global, |_| device.strategy())?;
    ensure!(strategy == Strategy::Pool, "{strategy}");
    let pool = env.pool()?;
    stream.capture(CaptureMode::Global, |_| Ok(Resource::from(pool.clone())))?;
    let buffer = device.default_resource()?.alloc_from(&stream, &[1_u8, 2])?;
    ensure!(buffer.to_vec()? == [1, 2]);
    Ok(())
}

/// Alone: it is a setting of the process.
#[apply(case_alone)]
fn the_current_resource_is_set_for_all_threads(env: &Environment) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let default = device.default_resource()?;
    ensure!(device.current_resource()? == default);
    let counted = Arc::new(StatisticsAdaptor::new(default.clone()));
    let resource = Resource::from(counted.clone());
    device.set_current_resource(&resource)?;
    let made = thread::spawn(move || DeviceVec::<u8>::zeroed(&stream, 100)).join();
    let vec = made.map_err(|_| anyhow::anyhow!("it panicked"))??;
    ensure!(vec.resource() == &resource);
    ensure!(counted.statistics().bytes.current == 100);
    device.reset_current_resource()?;
    ensure!(device.current_resource()? == default);
    drop(vec);
    ensure!(counted.statistics().bytes.current == 0, "it went back home");
    drop(resource);
    ensure!(Arc::strong_count(&counted) == 1, "nobody keeps it");
    Ok(())
}

#[apply(case)]
fn a_scope_is_of_one_thread_and_nests(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let make = || Ok::<_, anyhow::Error>(Resource::new(env.pool()?));
    let (first, second, third) = (make()?, make()?, make()?);
    let before = device.current_resource()?;
    let outer = device.use_resource(&first)?;
    ensure!(device.current_resource()? == first);
    let inner = device.use_resource(&second)?;
    ensure!(device.current_resource()? == second);
    let elsewhere = thread::spawn(move || device.current_resource()).join();
    ensure!(elsewhere.map_err(|_| anyhow::anyhow!("it panicked"))?? == before);
    drop(inner);
    ensure!(device.current_resource()? == first);
    // Ends out of order.
    let last = device.use_resource(&third)?;
    drop(outer);
    ensure!(device.current_resource()? == third);
    drop(last);
    ensure!(device.current_resource()? == before);
    Ok(())
}

//! Drivers and devices.

use anyhow::{Result, ensure};
use cuda_mem::driver::{Capability, PciId, Uuid};
use cuda_mem::sys::CUdevice_attribute;
use cuda_mem::{CudaVersion, ErrorKind};

use crate::environment::Environment;

#[apply(case)]
fn a_device_says_what_it_is(env: &Environment) -> Result<()> {
    let device = env.device()?;
    ensure!(!device.name()?.is_empty());
    ensure!(device.uuid()? != Uuid([0; 16]));
    ensure!(env.driver.device_by_uuid(&device.uuid()?)? == device);
    let nobody = env.driver.device_by_uuid(&Uuid([0; 16])).err();
    ensure!(nobody.is_some_and(|error| error.kind() == ErrorKind::InvalidDevice));
    let pci = device.pci_id()?;
    ensure!(pci.to_string().parse::<PciId>()? == pci);
    ensure!(device.total_memory()? > 1 << 28);
    let can = device.capabilities()?;
    let pools = device.support(Capability::MemoryPools)?;
    ensure!(can.memory_pools && pools.is_yes(), "{pools}");
    ensure!(can.compute_capability.0 >= 3 && can.multiprocessors > 0);
    ensure!(can.unified_addressing);
    Ok(())
}

#[apply(case)]
fn an_ordinal_past_the_end_is_an_invalid_device(env: &Environment) -> Result<()> {
    let count = env.driver.device_count()?;
    ensure!(count >= 1);
    for ordinal in [count, usize::MAX] {
        let Err(error) = env.driver.device(ordinal) else {
            anyhow::bail!("device {ordinal} exists");
        };
        ensure!(error.kind() == ErrorKind::InvalidDevice, "{error}");
        ensure!(
            error.to_string().contains(&format!("of {count}")),
            "{error}"
        );
    }
    Ok(())
}

#[apply(case)]
fn an_unknown_attribute_is_none(env: &Environment) -> Result<()> {
    ensure!(
        env.device()?
            .attribute(CUdevice_attribute(100_000))?
            .is_none()
    );
    Ok(())
}

#[apply(case)]
fn a_symbol_that_does_not_exist_is_missing(env: &Environment) -> Result<()> {
    ensure!(env.driver.has("cuMemPoolCreate"));
    let Err(error) = env.driver.require("cuTeapot") else {
        anyhow::bail!("cuTeapot exists");
    };
    ensure!(error.kind() == ErrorKind::SymbolMissing);
    ensure!(error.function() == Some("cuTeapot"));
    Ok(())
}

#[apply(case)]
fn the_version_is_one_that_has_pools(env: &Environment) -> Result<()> {
    ensure!(env.driver.version() >= CudaVersion::new(11, 2));
    Ok(())
}

/// Alone, because any other test may have made a context.
#[apply(case_alone)]
fn looking_creates_no_context(env: &Environment) -> Result<()> {
    for device in env.driver.devices()? {
        device.name()?;
        device.uuid()?;
        device.pci_id()?;
        device.total_memory()?;
        device.capabilities()?;
        ensure!(!device.has_active_context()?, "{device:?}");
        let pool = cuda_mem::MemoryPool::builder(&device).build()?;
        pool.trim_to(0)?;
        ensure!(
            !device.has_active_context()?,
            "{device:?} after making a pool"
        );
    }
    Ok(())
}

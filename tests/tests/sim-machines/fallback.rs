//! Machines without memory pools: the default resource falls back and says why, and passes the same
//! suite as on machines with pools. Each machine is simulated in a process of its own.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::driver::{Capability, Reason};
use cuda_mem::memory::{Fallback, Strategy};
use cuda_mem::{Device, ErrorKind, MemoryPool, MemoryResource as _};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::own_process;
use cuda_mem_tests::suite::Suite;

/// What every resource must do, on the machine that a test has made.
pub(crate) const CONFORMANCE: Suite = Suite::made_of("conformance", |test| {
    let modules = [
        "resources::bodies",
        "resources::misuse",
        "sim_machines::fallback::about",
    ];
    modules.iter().any(|module| test.is_in(module))
})
.staged()
.sim_only()
.serial();

/// Runs the suite on the machine that the settings make, after `about` has described it. Returns its words.
fn machine(settings: &[(&str, &str)]) -> Result<String> {
    let output = own_process::command(CONFORMANCE.name)?
        .env_remove("CUDA_VISIBLE_DEVICES")
        .envs(settings.iter().copied())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{settings:?}: {text}{errors}");
    ensure!(
        text.contains("bodies::sizes_from_nothing_to_a_gibibyte_are_served")
            && text.contains(" 0 ignored"),
        "{settings:?}: not all of the suite ran: {text}"
    );
    Ok(text)
}

/// What the child said of a device.
fn said(text: &str, device: usize) -> Result<&str> {
    let start = format!("strategy {device}: ");
    let line = text.lines().find_map(|line| line.strip_prefix(&start));
    line.with_context(|| format!("nothing about device {device}:\n{text}"))
}

#[apply(case)]
fn an_ordinary_machine_takes_pools(_: &Environment) -> Result<()> {
    let text = machine(&[])?;
    ensure!(said(&text, 0)? == "memory pool", "{text}");
    Ok(())
}

#[apply(case)]
fn tcc_and_wddm_are_named_as_the_reason(_: &Environment) -> Result<()> {
    let text = machine(&[("CUDA_SIM_DRIVER_MODEL", "tcc")])?;
    let expected =
        "cuMemAlloc, because memory pools are missing: not on this device (driver model: TCC)";
    ensure!(said(&text, 0)? == expected, "{text}");
    // What is no TCC, a Linux program cannot tell from Linux.
    let text = machine(&[("CUDA_SIM_DRIVER_MODEL", "wddm")])?;
    let expected = "cuMemAlloc, because memory pools are missing: not on this device";
    ensure!(said(&text, 0)?.starts_with(expected), "{text}");
    Ok(())
}

#[apply(case)]
fn a_guest_with_a_virtual_gpu_falls_back(_: &Environment) -> Result<()> {
    let text = machine(&[("CUDA_SIM_VGPU", "1")])?;
    ensure!(said(&text, 0)?.contains("not on this device"), "{text}");
    Ok(())
}

#[apply(case)]
fn drivers_before_11_2_fall_back_and_name_the_version(_: &Environment) -> Result<()> {
    for (version, found) in [("11000", "11.0"), ("11010", "11.1")] {
        let text = machine(&[("CUDA_SIM_DRIVER_VERSION", version)])?;
        let expected = format!(
            "cuMemAlloc, because memory pools are missing: needs CUDA 11.2, the driver has {found}"
        );
        ensure!(said(&text, 0)?.starts_with(&expected), "{text}");
    }
    Ok(())
}

#[apply(case)]
fn pools_that_are_promised_and_refused_are_found_out(_: &Environment) -> Result<()> {
    let text = machine(&[("CUDA_SIM_BROKEN_POOLS", "1")])?;
    let words = said(&text, 0)?;
    ensure!(
        words.contains("tried, and the driver answered") && words.contains("801"),
        "{text}"
    );
    Ok(())
}

#[apply(case)]
fn devices_of_one_process_may_differ(_: &Environment) -> Result<()> {
    let text = machine(&[("CUDA_SIM_DEVICES", "3"), ("CUDA_SIM_NO_POOLS", "1")])?;
    ensure!(said(&text, 0)? == "memory pool", "{text}");
    ensure!(said(&text, 1)?.starts_with("cuMemAlloc"), "{text}");
    ensure!(said(&text, 2)? == "memory pool", "{text}");
    Ok(())
}

/// What the children ask beyond the suite.
mod about {
    use super::*;

    #[apply(case_staged)]
    fn every_device_says_its_strategy_and_keeps_it(env: &Environment) -> Result<()> {
        for (index, device) in env.driver.devices()?.into_iter().enumerate() {
            let strategy = device.strategy()?;
            let control = env.control()?;
            control.reset();
            ensure!(device.strategy()? == strategy);
            let resource = device.default_resource()?;
            ensure!(resource == device.current_resource()?);
            ensure!(control.calls_total() == 0, "it costs nothing any more");
            ensure!(resource.memory_properties().device == Some(device));
            println!("\nstrategy {index}: {strategy}");
            refusal(&device, strategy)?;
        }
        Ok(())
    }

    /// It can be refused, with the reason, and then nothing is handed out.
    fn refusal(device: &Device, strategy: Strategy) -> Result<()> {
        let refused = device.default_resource_with(Fallback::Refuse);
        ensure!(device.default_resource_with(Fallback::Direct).is_ok());
        match (strategy, refused) {
            (Strategy::Pool, Ok(_)) => Ok(()),
            (Strategy::Direct { reason, .. }, Err(error)) => {
                ensure!(error.kind() == ErrorKind::NotSupported, "{error}");
                ensure!(error.to_string().contains(&reason.to_string()), "{error}");
                let lied = matches!(reason, Reason::Refused(_));
                let built = MemoryPool::builder(device).build();
                ensure!(built.is_err(), "pools exist, and {reason} was said");
                ensure!(device.support(Capability::MemoryPools)?.is_yes() == lied);
                Ok(())
            }
            (strategy, refused) => bail!("{strategy}, and refusing gave {refused:?}"),
        }
    }

    /// Work of each device is served by its own resource, whichever that is.
    #[apply(case_staged)]
    fn every_device_is_served(env: &Environment) -> Result<()> {
        for device in env.driver.devices()? {
            let stream = device.primary_context()?.stream()?;
            let resource = device.default_resource()?;
            let buffer = resource.alloc_from(&stream, &[1_u8, 2, 3])?;
            ensure!(buffer.to_vec()? == [1, 2, 3] && buffer.device() == Some(device));
            for other in env.driver.devices()? {
                if other == device || resource.memory_properties().reaches(other) {
                    continue;
                }
                let stream = other.primary_context()?.stream()?;
                let Err(error) = resource.alloc::<u8>(&stream, 10) else {
                    bail!("{other:?} was served with memory that it does not reach");
                };
                ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
                ensure!(other.set_current_resource(&resource).is_err());
                ensure!(other.use_resource(&resource).is_err());
            }
        }
        Ok(())
    }
}

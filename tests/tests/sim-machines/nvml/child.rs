//! What happens in the processes of their own: each scenario prints what it found.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::driver::Uuid;
use cuda_mem::placement::{DeviceChoice, Nvml, NvmlDevice};
use cuda_mem::sys::{CUdevice, CUresult, CUuuid, DriverTable};
use cuda_mem::{Driver, Error};
use cuda_mem_tests::environment::sim_path;
use cuda_sim::Control;

use super::ASKED;

/// Runs a scenario by its name.
pub(crate) fn run(scenario: &str) -> Result<()> {
    match scenario {
        "list" => list(),
        "map" => map(),
        "pick" => pick(),
        "visible" => visible(),
        "uuid" => uuid(),
        "open" => open(),
        "mig" => mig(),
        #[cfg(unix)]
        "fork" => fork(),
        other => bail!("no scenario {other}"),
    }
}

/// A line for each GPU, in gibibytes.
fn list() -> Result<()> {
    let nvml = Nvml::load()?;
    println!(
        "driver {} cuda {}",
        nvml.driver_version()?,
        nvml.cuda_version()?
    );
    for gpu in nvml.devices()? {
        let (memory, bar1) = (gpu.memory()?, gpu.bar1_memory()?);
        ensure!(memory.total == memory.free + memory.used + memory.reserved.unwrap_or(0));
        ensure!(bar1.total == bar1.free + bar1.used);
        ensure!(nvml.device_by_uuid(&gpu.uuid_text()?)? == gpu);
        ensure!(nvml.device_by_pci(&gpu.pci_id()?)? == gpu);
        println!(
            "{} {} {} {} total {} free {} used {} reserved {:?} mig {:?} {:?} {:?}",
            gpu.index()?,
            gpu.uuid()?,
            gpu.pci_id()?,
            gpu.name()?,
            memory.total >> 30,
            memory.free >> 30,
            memory.used >> 30,
            memory.reserved.map(|bytes| bytes >> 30),
            gpu.mig_mode()?.map(|mode| mode.enabled),
            gpu.compute_mode()?,
            gpu.processes()
                .map_err(|error| error.kind())
                .map(|found| found
                    .iter()
                    .map(|p| (p.pid, p.used_memory))
                    .collect::<Vec<_>>()),
        );
    }
    Ok(())
}

/// The driver's devices and NVML's are the same, by every way from one to the other, and nothing of it
/// makes a context.
fn map() -> Result<()> {
    let nvml = Nvml::load()?;
    let driver = Driver::load()?;
    for device in driver.devices()? {
        let seen = device.nvml(&nvml)?;
        ensure!(seen.uuid()? == device.uuid()?);
        ensure!(seen.pci_id()? == device.pci_id()?);
        ensure!(seen.name()? == device.name()?, "{}", seen.name()?);
        ensure!(driver.device_by_uuid(&seen.uuid()?)? == device);
        println!("{}={}", device.ordinal(), seen.index()?);
    }
    no_context()
}

fn choice() -> Result<DeviceChoice<'static>> {
    let asked = std::env::var(ASKED).map_or(Ok(0), |text| text.parse::<u64>())?;
    Ok(DeviceChoice::most_free().at_least(asked << 30))
}

fn told(error: &Error) {
    println!("{:?}: {error}", error.kind());
}

/// Chooses without the driver, then looks where it is among the driver's devices.
fn pick() -> Result<()> {
    let nvml = Nvml::load()?;
    let gpu = match choice()?.pick(&nvml) {
        Ok(gpu) => gpu,
        Err(error) => {
            told(&error);
            return Ok(());
        }
    };
    let control = Control::open(sim_path()?).map_err(|error| anyhow::anyhow!("{error}"))?;
    ensure!(control.calls_total() == 0, "the driver was called");
    println!("{} {}", gpu.index()?, gpu.uuid_text()?);
    match Driver::load()?.device_by_uuid(&gpu.uuid()?) {
        Ok(device) => println!("ordinal {}", device.ordinal()),
        Err(error) => told(&error),
    }
    Ok(())
}

fn visible() -> Result<()> {
    let driver = match Driver::load() {
        Ok(driver) => driver,
        Err(error) => {
            told(&error);
            return Ok(());
        }
    };
    match choice()?.pick_visible(&Nvml::load()?, driver) {
        Ok(device) => println!("ordinal {} {}", device.ordinal(), device.name()?),
        Err(error) => told(&error),
    }
    no_context()
}

fn no_context() -> Result<()> {
    let control = Control::open(sim_path()?).map_err(|error| anyhow::anyhow!("{error}"))?;
    ensure!(control.live().contexts == 0, "a context came to be");
    ensure!(control.calls("cuDevicePrimaryCtxRetain") == 0);
    Ok(())
}

/// The first GPU says who it is, or why not.
fn uuid() -> Result<()> {
    let gpu = Nvml::load()?.device(0)?;
    match gpu.uuid_text().and_then(|text| Ok((text, gpu.index()?))) {
        Ok((text, index)) => println!("{text} {index}"),
        Err(error) => told(&error),
    }
    Ok(())
}

fn open() -> Result<()> {
    let Err(error) = Nvml::load() else {
        bail!("it opened");
    };
    let again = Nvml::load().err().context("it opened the second time")?;
    ensure!(again.to_string() == error.to_string());
    println!("code {:?}", error.nvml_code().map(|code| code.0));
    told(&error);
    // The driver needs no NVML.
    ensure!(Driver::load()?.device_count()? > 0);
    Ok(())
}

static mut INSTANCE: [u8; 16] = [0; 16];

/// A driver whose only device is the MIG instance that was found.
fn driver_of(instance: Uuid) -> Result<Driver> {
    unsafe extern "C" fn init(_: u32) -> CUresult {
        CUresult::CUDA_SUCCESS
    }
    unsafe extern "C" fn number(out: *mut i32) -> CUresult {
        // SAFETY: the caller's place for one int.
        unsafe { out.write(1) };
        CUresult::CUDA_SUCCESS
    }
    unsafe extern "C" fn get(out: *mut CUdevice, _: i32) -> CUresult {
        // SAFETY: as above.
        unsafe { out.write(0) };
        CUresult::CUDA_SUCCESS
    }
    unsafe extern "C" fn uuid(out: *mut CUuuid, _: CUdevice) -> CUresult {
        // SAFETY: written once, before the driver is used.
        let bytes = unsafe { INSTANCE };
        // SAFETY: the caller's place for 16 bytes.
        unsafe { out.cast::<[u8; 16]>().write(bytes) };
        CUresult::CUDA_SUCCESS
    }
    // SAFETY: this program has one thread here.
    unsafe { INSTANCE = instance.0 };
    let table = DriverTable {
        cuInit: Some(init),
        cuDriverGetVersion: Some(number),
        cuDeviceGetCount: Some(number),
        cuDeviceGet: Some(get),
        cuDeviceGetUuid_v2: Some(uuid),
        ..DriverTable::default()
    };
    // SAFETY: the functions answer as a driver with one device does.
    Ok(unsafe { Driver::from_table(Box::leak(Box::new(table))) }?)
}

/// The GPU with index 1 is divided.
fn mig() -> Result<()> {
    let nvml = Nvml::load()?;
    ensure!(nvml.device(0)?.mig_devices()?.is_empty());
    let gpu = nvml.device(1)?;
    let instances = gpu.mig_devices()?;
    for (index, instance) in instances.iter().enumerate() {
        let text = instance.uuid_text()?;
        ensure!(text.starts_with("MIG-"), "{text}");
        ensure!(instance.index()? as usize == index);
        ensure!(instance.pci_id()? == gpu.pci_id()?);
        ensure!(nvml.device_by_uuid(&text)? == *instance);
        println!("free {}", instance.memory()?.free >> 30);
    }
    let last: NvmlDevice = *instances.last().context("no instances")?;
    let device = driver_of(last.uuid()?)?.device(0)?;
    ensure!(
        device.nvml(&nvml)? == last,
        "found {:?}",
        device.nvml(&nvml)?
    );
    Ok(())
}

/// NVML refuses in a fork, and the driver that the parent has not started works there.
#[cfg(unix)]
fn fork() -> Result<()> {
    use cuda_mem::ErrorKind;

    let nvml = Nvml::load()?;
    let gpu = nvml.device(0)?;
    // SAFETY: this program has one thread, so the child may go on as it likes.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = |kind: Option<ErrorKind>| kind == Some(ErrorKind::Forked);
        let fine = refused(gpu.memory().err().map(|error| error.kind()))
            && refused(Nvml::load().err().map(|error| error.kind()))
            && Driver::load().is_ok_and(|driver| driver.device_count().is_ok_and(|n| n == 1));
        // SAFETY: ends the child without the parent's handlers.
        unsafe { libc::_exit(if fine { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: `status` is valid for a write, and the child is this process's.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    ensure!(
        waited == child && status == 0,
        "the fork ended with {status}"
    );
    ensure!(gpu.memory().is_ok(), "the parent goes on");
    println!("fine");
    Ok(())
}

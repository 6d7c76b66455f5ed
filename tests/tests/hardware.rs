//! What only hardware shows: that the tables made from headers agree with a real driver.

#[macro_use(apply)]
extern crate macro_rules_attribute;
#[macro_use]
extern crate cuda_mem_tests;

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::placement::Nvml;
use cuda_mem::sys::{self, CUresult, SYMBOLS};
use cuda_mem_tests::environment::{Backend, Environment, Skip};
use cuda_mem_tests::run;
use cuda_mem_tests::suite::Suite;

fn need_gpu(env: &Environment) -> Result<()> {
    match env.backend {
        Backend::Gpu => Ok(()),
        Backend::Sim => Err(Skip("needs a real driver".to_owned()).into()),
    }
}

/// The versions in our table are right if the driver has everything up to its own.
#[apply(case)]
fn the_driver_exports_every_public_symbol_of_its_version(env: &Environment) -> Result<()> {
    need_gpu(env)?;
    let version = env.driver.version();
    let absent: Vec<_> = SYMBOLS
        .iter()
        .filter(|symbol| symbol.since() <= version)
        .filter(|symbol| {
            sys::SPELLINGS
                .iter()
                .any(|(_, name)| *name == symbol.name())
        })
        .filter(|symbol| !env.driver.has(symbol.name()))
        .map(|symbol| format!("{} ({})", symbol.name(), symbol.since()))
        .collect();
    ensure!(absent.is_empty(), "{absent:?}");
    Ok(())
}

/// Also the variants that the header keeps for internal use, or the table would be a promise
/// that no driver keeps.
#[apply(case)]
fn the_driver_exports_the_older_variants_too(env: &Environment) -> Result<()> {
    need_gpu(env)?;
    let version = env.driver.version();
    let absent: Vec<_> = SYMBOLS
        .iter()
        .filter(|symbol| symbol.since() <= version && !env.driver.has(symbol.name()))
        .map(|symbol| format!("{} ({})", symbol.name(), symbol.since()))
        .collect();
    ensure!(absent.is_empty(), "{absent:?}");
    Ok(())
}

/// Error names come from a table, so that printing one never calls the driver. Here the driver
/// is asked whether it agrees.
#[apply(case)]
fn the_driver_calls_its_codes_as_we_do(env: &Environment) -> Result<()> {
    need_gpu(env)?;
    let name_of = env
        .driver
        .table()
        .cuGetErrorName
        .context("no cuGetErrorName")?;
    let mut agreed = 0;
    for code in (0..1000).map(CUresult) {
        let mut text = std::ptr::null();
        // SAFETY: `text` is valid for a write of one pointer.
        if unsafe { name_of(code, &raw mut text) } != CUresult::CUDA_SUCCESS || text.is_null() {
            continue;
        }
        // SAFETY: the driver answers with a text that it keeps for ever.
        let theirs = unsafe { std::ffi::CStr::from_ptr(text) }.to_str()?;
        ensure!(
            code.name() == Some(theirs),
            "{theirs} is {:?} here",
            code.name()
        );
        agreed += 1;
    }
    ensure!(agreed > 80, "only {agreed} names");
    Ok(())
}

/// The programs of other libraries must not see the simulator's symbols through ours.
#[apply(case)]
fn nothing_of_the_simulator_is_visible(env: &Environment) -> Result<()> {
    need_gpu(env)?;
    // SAFETY: looks a name up among what the program and its libraries export.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"simcuda_identify".as_ptr()) };
    ensure!(found.is_null());
    Ok(())
}

/// Nothing of the crate makes such a call, and the simulator does not know it (R65).
#[apply(case)]
fn a_batch_of_copies_is_refused_on_the_legacy_stream(env: &Environment) -> Result<()> {
    need_gpu(env)?;
    env.need(13, 0)?;
    let batch = env.driver.table().cuMemcpyBatchAsync_v2;
    let batch = batch.context("no cuMemcpyBatchAsync_v2")?;
    let (pool, stream) = (env.pool()?, env.stream()?);
    let source = pool.alloc_from(&stream, &[7_u8; 1000])?;
    let target = pool.alloc_zeroed::<u8>(&stream, 1000)?;
    let context = env.context()?;
    let _current = context.bind()?;
    let copy_on = |stream| {
        let (mut to, mut from) = (target.as_raw(), source.as_raw());
        let (mut bytes, mut first) = (1000, 0);
        let mut how = sys::CUmemcpyAttributes {
            srcAccessOrder: sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
            ..Default::default()
        };
        // SAFETY: lists of one entry each; both blocks are live, and done with in their stream.
        unsafe {
            batch(
                &raw mut to,
                &raw mut from,
                &raw mut bytes,
                1,
                &raw mut how,
                &raw mut first,
                1,
                stream,
            )
        }
    };
    stream.synchronize()?;
    let answer = copy_on(stream.as_raw());
    ensure!(answer == CUresult::CUDA_SUCCESS, "on a stream: {answer}");
    ensure!(target.to_vec()? == [7; 1000]);
    let answer = copy_on(std::ptr::null_mut());
    ensure!(
        answer == CUresult::CUDA_ERROR_INVALID_VALUE,
        "on the legacy stream: {answer}"
    );
    Ok(())
}

/// The structs of NVML are written by hand, so a real library has to fill them sensibly.
#[apply(case)]
fn nvml_and_the_driver_mean_the_same_devices(env: &Environment) -> Result<()> {
    need_gpu(env)?;
    let nvml = match Nvml::load() {
        Err(error) if error.kind() == ErrorKind::NvmlMissing => {
            return Err(Skip(error.to_string()).into());
        }
        nvml => nvml?,
    };
    ensure!(nvml.cuda_version()? == env.driver.version());
    ensure!(nvml.driver_version()?.contains('.'));
    for device in env.driver.devices()? {
        let seen = device.nvml(&nvml)?;
        ensure!(seen.uuid()? == device.uuid()?, "{seen:?}");
        ensure!(seen.pci_id()? == device.pci_id()?, "{seen:?}");
        ensure!(env.driver.device_by_uuid(&seen.uuid()?)? == device);
        let memory = seen.memory()?;
        ensure!(memory.total >= device.total_memory()?, "{memory:?}");
        let reserved = memory.reserved.unwrap_or(0);
        ensure!(
            memory.free + memory.used + reserved == memory.total,
            "{memory:?}"
        );
        let bar1 = seen.bar1_memory()?;
        ensure!(bar1.free + bar1.used == bar1.total, "{bar1:?}");
        let processes = seen.processes()?;
        ensure!(
            processes.iter().all(|process| process.pid > 0),
            "{processes:?}"
        );
        seen.mig_mode()?;
        seen.compute_mode()?;
    }
    Ok(())
}

fn main() -> ExitCode {
    run::main(&[Suite::of("hardware")])
}

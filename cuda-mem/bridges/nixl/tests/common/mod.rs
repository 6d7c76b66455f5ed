//! What the test programs share.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use cuda_mem::mapped::MappedMemory;
use cuda_mem::sys::CUresult;
use cuda_mem::{Context, Device, DeviceBuffer, Driver, Stream};
use cuda_sim::Control;
use libtest_mimic::{Arguments, Failed, Trial};

/// A test's name and body.
pub(crate) type Test = (&'static str, fn() -> Result<()>);

/// Runs the tests, one at a time: some look at all that is alive.
pub(crate) fn run(tests: &'static [Test]) -> std::process::ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = tests
        .iter()
        .map(|(name, test)| Trial::test(*name, move || checked(*test)))
        .collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs a test. On the simulated driver nothing may have been out of order, and nothing may be left.
fn checked(test: fn() -> Result<()>) -> Result<(), Failed> {
    test().map_err(|error| format!("{error:?}"))?;
    let Some(simulator) = simulator().map_err(|error| error.to_string())? else {
        return Ok(());
    };
    let reports = simulator.reports();
    simulator.reset();
    let live = simulator.live();
    if reports.is_empty() && live.allocations == 0 && live.streams == 0 {
        return Ok(());
    }
    Err(format!("reports: {reports:?}; left: {live:?}").into())
}

/// The simulated driver, if it is the driver.
pub(crate) fn simulator() -> Result<Option<Control>> {
    let driver = Driver::load()?;
    Ok(driver
        .library_path()
        .and_then(|path| Control::open(path).ok()))
}

/// The first device and a stream of it.
pub(crate) fn machine() -> Result<(Device, Context, Stream)> {
    let device = Driver::load()?.device(0)?;
    let context = device.primary_context()?;
    let stream = context.stream()?;
    Ok((device, context, stream))
}

/// Memory that network cards reach.
pub(crate) fn collective(stream: &Stream, len: usize) -> Result<DeviceBuffer<u32>> {
    let memory = MappedMemory::collective(&stream.device())?.build(len as u64 * 4)?;
    Ok(memory.into_buffer(stream, len)?.into_buffer())
}

/// Holds up a stream for a while. The flag is set at the end.
pub(crate) fn hold_up(stream: &Stream) -> Result<Arc<AtomicBool>> {
    unsafe extern "C" fn wait(flag: *mut c_void) {
        thread::sleep(Duration::from_millis(100));
        // SAFETY: `hold_up` made it of an Arc, and a host function runs once.
        let flag = unsafe { Arc::from_raw(flag.cast::<AtomicBool>()) };
        flag.store(true, Ordering::SeqCst);
    }
    let flag = Arc::new(AtomicBool::new(false));
    let table = stream.device().driver().table();
    let launch = table.cuLaunchHostFunc.context("cuLaunchHostFunc")?;
    let given = Arc::into_raw(Arc::clone(&flag)).cast_mut().cast();
    // SAFETY: the stream is live, and `wait` takes what it is given here.
    match unsafe { launch(stream.as_raw(), Some(wait), given) } {
        CUresult::CUDA_SUCCESS => Ok(flag),
        code => bail!("cuLaunchHostFunc: {code:?}"),
    }
}

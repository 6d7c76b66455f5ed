//! Futures whose question fails, and events of another driver.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::sys::CUresult;
use cuda_mem::{Driver, ErrorKind};
use cuda_mem_tests::environment::{Environment, sim_path};
use cuda_mem_tests::executor::block_on;

/// In another mode the question would disturb captures, so it is asked later.
#[apply(case)]
fn a_future_asks_again_where_the_capture_mode_could_not_be_set(env: &Environment) -> Result<()> {
    let (stream, control) = (env.stream()?, env.control()?);
    stream.synchronize()?;
    let mut future = pin!(stream.completion()?);
    let unknown = CUresult::CUDA_ERROR_UNKNOWN;
    control.fail("cuThreadExchangeStreamCaptureMode", 1, unknown);
    let polled = future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    ensure!(polled.is_pending(), "{polled:?}");
    block_on(future)?;
    Ok(())
}

#[apply(case)]
fn a_stream_waits_for_no_event_of_another_driver(env: &Environment) -> Result<()> {
    // SAFETY: it is the simulated driver, opened a second time.
    let second = unsafe { Driver::load_from(sim_path()?) }?;
    let event = second.device(0)?.primary_context()?.event()?;
    let error = env.stream()?.wait_event(&event).err();
    let error = error.context("two drivers were mixed")?;
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    ensure!(error.code().is_none(), "the driver was asked: {error}");
    Ok(())
}

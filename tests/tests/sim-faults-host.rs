//! Every driver call of pinned and registered memory fails once, in turn, with several codes. Each time
//! the caller gets a typed error, or the destructor reports; nothing is left over, nothing panics.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::sys::CUresult;
use cuda_mem::{Driver, Error, ErrorKind, HostFlags, PinnedResource, RegisterFlags, Resource};
use cuda_mem_tests::lab::Lab;
use cuda_mem_tests::run::{self, Options};
use cuda_mem_tests::sweep::{self, Tour};
use cuda_sim::Live;

const LEN: usize = 1000;

/// Everything of host memory, in one go.
fn host_memory(driver: Driver) -> Result<(), Error> {
    let device = driver.devices()?.swap_remove(0);
    let context = device.primary_context()?;
    let stream = context.stream()?;
    let pool = device.default_pool()?;
    let mut buffer = pool.alloc_zeroed::<u8>(&stream, LEN)?;
    {
        let flags = HostFlags::PORTABLE | HostFlags::WRITE_COMBINED;
        let resource = Resource::new(PinnedResource::with_flags(driver, flags));
        drop(resource.alloc::<u8>(&stream, LEN)?);
        let pinned = context.pinned_with::<u8>(LEN, flags)?;
        assert!(pinned.flags()?.contains(flags));
    }
    let pinned = context.pinned_from(&[1u8; LEN])?;
    let mut loan = pinned.lend(&stream)?;
    loan.copy_to(&mut buffer)?;
    buffer.fill(2)?;
    loan.copy_from(&buffer)?;
    loan.is_done()?;
    let pinned = loan.take_back()?;
    assert_eq!(*pinned, [2; LEN]);
    // This one ends as a loan.
    drop(pinned.lend(&stream)?);
    let flags = RegisterFlags::default() | RegisterFlags::READ_ONLY;
    let mut memory = [3u8; LEN];
    let registered = context.register(&mut memory, flags)?;
    assert_ne!(registered.device_address(&context)?, 0);
    buffer.copy_from(&registered)?;
    drop(registered);
    let boxed = context.register_boxed(vec![4u8; LEN].into(), RegisterFlags::default())?;
    let loan = boxed.lend(&stream)?;
    loan.copy_to(&mut buffer)?;
    let boxed = loan.take_back()?;
    assert_eq!(boxed.unregister()?.as_deref(), Some(&[4; LEN][..]));
    // What ends below has nothing outstanding then.
    drop(buffer);
    context.synchronize()
}

/// A failure that is answered in another way and not reported.
fn has_a_second_way(index: usize, function: &str, code: CUresult) -> bool {
    match function {
        // Asked only whether it is the stub; asked again for the version after cuInit.
        "cuDriverGetVersion" => index == 0,
        // Without an answer whether somebody captures the stream, it is waited for.
        "cuStreamIsCapturing" => true,
        // What could disturb a capture comes later.
        "cuThreadExchangeStreamCaptureMode" => true,
        // It means that the work still runs.
        "cuStreamQuery" => code == CUresult::CUDA_ERROR_NOT_READY,
        // Memory of a buffer that cannot be freed now is tried again later.
        "cuMemFreeAsync" => code == CUresult::CUDA_ERROR_INVALID_VALUE,
        _ => false,
    }
}

/// A loan that could not be waited for leaks its memory, and so does what could not be freed or unregistered.
fn may_leave(function: &str, now: Live, before: Live) -> bool {
    let ends = [
        "cuMemFreeHost",
        "cuMemHostUnregister",
        "cuStreamSynchronize",
        "cuCtxSynchronize",
        // Said before each of these, so that they disturb no capture.
        "cuThreadExchangeStreamCaptureMode",
    ];
    if !ends.contains(&function) {
        return false;
    }
    let left = Live {
        host_allocations: now.host_allocations,
        registrations: now.registrations,
        primary_retains: now.primary_retains,
        ..before
    };
    now == left
}

mod faults {
    use super::*;

    pub(crate) fn every_call_of_host_memory_fails_once(lab: &Lab) -> Result<()> {
        let tour = Tour {
            walk: host_memory,
            at_least: 60,
            second_way: has_a_second_way,
            may_leave,
        };
        sweep::in_parts(lab, tour)
    }

    pub(crate) fn memory_that_could_not_be_freed_comes_back(lab: &Lab) -> Result<()> {
        let (context, control) = (lab.context()?, lab.control()?);
        control.reset();
        let before = control.live().host_allocations;
        let pinned = context.pinned_from(&[7u8; LEN])?;
        control.fail_without_effect("cuMemFreeHost", 1, CUresult::CUDA_ERROR_INVALID_VALUE);
        let Err(failed) = pinned.free() else {
            bail!("the failure was lost");
        };
        ensure!(failed.error.kind() == ErrorKind::InvalidValue);
        let pinned = failed.object.context("the memory was not given back")?;
        ensure!(*pinned == [7; LEN]);
        // An earlier fault that is reported now says nothing about the memory.
        control.fail("cuMemFreeHost", 1, CUresult::CUDA_ERROR_LAUNCH_FAILED);
        let Err(failed) = pinned.free() else {
            bail!("the failure was lost");
        };
        ensure!(failed.object.is_none() && control.live().host_allocations == before);
        Ok(())
    }

    pub(crate) fn a_box_that_may_be_registered_is_not_freed(lab: &Lab) -> Result<()> {
        let (context, control) = (lab.context()?, lab.control()?);
        control.reset();
        let flags = RegisterFlags::default();
        control.fail(
            "cuMemHostRegister_v2",
            1,
            CUresult::CUDA_ERROR_LAUNCH_FAILED,
        );
        let failed = context.register_boxed(vec![1u8; LEN].into(), flags);
        let Err(failed) = failed else {
            bail!("the failure was lost");
        };
        ensure!(
            failed.object.is_none(),
            "whether it is registered is not known"
        );
        let boxed = context.register_boxed(vec![1u8; LEN].into(), flags)?;
        control.fail("cuMemHostUnregister", 1, CUresult::CUDA_ERROR_LAUNCH_FAILED);
        let Err(failed) = boxed.unregister() else {
            bail!("the failure was lost");
        };
        ensure!(failed.object.is_none() && control.calls("cuMemHostUnregister") == 1);
        Ok(())
    }

    pub(crate) fn a_loan_that_could_not_be_waited_for_goes_on(lab: &Lab) -> Result<()> {
        let (context, stream, control) = (lab.context()?, lab.stream()?, lab.control()?);
        control.reset();
        let loan = context.pinned_from(&[7u8; LEN])?.lend(&stream)?;
        control.fail("cuStreamSynchronize", 1, CUresult::CUDA_ERROR_UNKNOWN);
        let Err(failed) = loan.take_back() else {
            bail!("the failure was lost");
        };
        let loan = failed.object.context("the loan was not given back")?;
        let pinned = loan.take_back()?;
        ensure!(*pinned == [7; LEN]);
        control.fail("cuMemHostGetDevicePointer_v2", 1, CUresult(1));
        let Err(failed) = pinned.lend(&stream) else {
            bail!("the failure was lost");
        };
        let loan = failed
            .object
            .context("it was not given back")?
            .lend(&stream)?;
        // Dropped, its memory leaks rather than end under a copy.
        let before = cuda_mem::drop_counts();
        control.fail("cuStreamSynchronize", 1, CUresult::CUDA_ERROR_UNKNOWN);
        drop(loan);
        ensure!(cuda_mem::drop_counts().failures == before.failures + 1);
        ensure!(control.live().host_allocations > 0);
        Ok(())
    }
}

fn main() -> ExitCode {
    let tests = cuda_mem_tests::tests! {
        faults: every_call_of_host_memory_fails_once,
            memory_that_could_not_be_freed_comes_back,
            a_box_that_may_be_registered_is_not_freed,
            a_loan_that_could_not_be_waited_for_goes_on;
    };
    run::main(
        &tests,
        Options {
            serial: true,
            drops_fail: true,
            sim_only: true,
            ..Options::default()
        },
    )
}

//! Every driver call that the core makes fails once, in turn, with several codes. Each time the
//! caller gets a typed error, or the destructor reports; nothing is left over, nothing panics.

use std::panic::catch_unwind;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::sys::CUresult;
use cuda_mem::{
    Access, AllocationType, DeviceBuffer, Driver, Error, ErrorKind, HandleTypes, Location,
    MemoryPool, ReleaseThreshold, ReusePolicy, Stream, Support,
};
use cuda_mem_tests::lab::{Lab, sim_path};
use cuda_mem_tests::run::{self, Options};

/// A trial of a pool was refused.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Everything the core calls, in one go. Objects end by being dropped, in the usual order.
fn everything(driver: Driver) -> Result<(), Error> {
    let device = driver.devices()?.swap_remove(0);
    device.name()?;
    device.uuid()?;
    device.total_memory()?;
    device.capabilities()?;
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
    copy.copy_from_buffer(&bytes)?;
    words.on(&stream)?.fill(5)?;
    assert_eq!(copy.to_vec()?, [2; 1000]);
    assert_eq!(halves.to_vec()?, [3; 1000]);
    assert_eq!(words.to_vec()?, [5; 1000]);
    end.record(&stream)?;
    other.wait_event(&end)?;
    end.synchronize()?;
    end.is_done()?;
    end.elapsed_ms_since(&start)?;
    drop((bytes, halves, words, copy));
    other.is_done()?;
    other.synchronize()?;
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
        .accessible_from(&device)
        .build()?;
    assert_eq!(host.access(&device)?, Access::ReadWrite);
    let legacy = context.legacy_stream();
    let mut buffer = host.alloc_from(&legacy, &[1_u8; 100])?;
    buffer.on(stream)?.fill(2)?;
    {
        let there = buffer.read_on(other)?;
        let mut bytes = [0; 100];
        there.copy_to(&mut bytes)?;
        assert_eq!(bytes, [2; 100]);
    }
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
    buffer.settle()?;
    let address = buffer.into_raw()?;
    // SAFETY: the address of the buffer above.
    drop(unsafe { DeviceBuffer::<u16>::from_raw(&own, address, 10) });
    let pool = MemoryPool::builder(&device).build()?;
    device.set_current_pool(&pool)?;
    device.current_pool().map(drop)
}

/// Loads the driver anew, so that its first calls are among those that fail.
fn load_and_do_everything() -> Result<(), Error> {
    let path = sim_path().expect("found before");
    // SAFETY: the simulated driver behaves as a CUDA driver does, also when it fails.
    everything(unsafe { Driver::load_from(path) }?)
}

/// A failure that is answered in another way and not reported. Each is checked by what
/// [`everything`] asserts of the result.
fn has_a_second_way(index: usize, function: &str, code: CUresult) -> bool {
    match function {
        // Asked only whether it is the stub; asked again for the version after cuInit.
        "cuDriverGetVersion" => index == 0,
        // The answer "not known" to a question about an address.
        "cuPointerGetAttribute" => code == CUresult::CUDA_ERROR_INVALID_VALUE,
        // The answers "not ready" to "is it done?".
        "cuStreamQuery" | "cuEventQuery" => code == CUresult::CUDA_ERROR_NOT_READY,
        _ => false,
    }
}

/// A destructor may have failed to put back the context that was current.
fn leave_no_context(lab: &Lab) -> Result<()> {
    let set = lab
        .driver
        .table()
        .cuCtxSetCurrent
        .context("no cuCtxSetCurrent")?;
    // SAFETY: null leaves the thread without a context.
    let code = unsafe { set(std::ptr::null_mut()) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    Ok(())
}

mod faults {
    use super::*;

    pub(crate) fn every_call_fails_once(lab: &Lab) -> Result<()> {
        let control = lab.control()?;
        control.reset();
        control.start_call_log();
        load_and_do_everything()?;
        let log = control.call_log();
        ensure!(log.len() > 80, "only {} calls were logged", log.len());
        leave_no_context(lab)?;
        let codes = [1, 2, 3, 201, 600, 719, 801, 999, 54_321].map(CUresult);
        let mut left = cuda_sim::Live::default();
        for (index, function) in log.iter().enumerate() {
            for code in codes {
                control.reset();
                control.fail_call(index as u64 + 1, code);
                let before = cuda_mem::drop_counts();
                REFUSED.store(false, Ordering::Relaxed);
                let outcome = catch_unwind(load_and_do_everything)
                    .map_err(|_| anyhow::anyhow!("call {index} {function}: a panic"))?;
                control.clear_faults();
                let after = cuda_mem::drop_counts();
                // A context that is gone already is no failure, and counted all the same.
                let reported = after.failures > before.failures
                    || after.too_late > before.too_late
                    || (*function == "cuMemPoolCreate" && REFUSED.load(Ordering::Relaxed));
                let what = format!("call {} {function} answering {code}", index + 1);
                match outcome {
                    Err(error) => {
                        ensure!(error.code() == Some(code), "{what}: {error}");
                        ensure!(error.function() == Some(function), "{what}: {error}");
                    }
                    Ok(()) if reported || has_a_second_way(index, function, code) => {}
                    Ok(()) => bail!("{what}: nobody noticed"),
                }
                leave_no_context(lab)?;
                let live = control.live();
                let is_binding = matches!(function.as_str(), "cuCtxGetCurrent" | "cuCtxSetCurrent");
                if is_binding && reported && live.allocations == left.allocations + 1 {
                    // A free in a default stream needs the context to be current. If it cannot be, the
                    // memory is not freed, and the hook is told.
                    left = live;
                }
                ensure!(live == left, "{what}: {live:?} is left");
                let reports = control.reports();
                ensure!(reports.is_empty(), "{what}: {reports:?}");
            }
        }
        println!("{} calls, {} codes each", log.len(), codes.len());
        Ok(())
    }

    pub(crate) fn a_buffer_that_could_not_be_freed_comes_back(lab: &Lab) -> Result<()> {
        let (pool, stream, control) = (lab.pool()?, lab.stream()?, lab.control()?);
        let buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
        control.fail_without_effect("cuMemFreeAsync", 1, CUresult::CUDA_ERROR_INVALID_VALUE);
        let Err(failed) = buffer.free() else {
            bail!("the failure was lost");
        };
        ensure!(failed.error.kind() == ErrorKind::InvalidValue);
        let buffer = failed.object.context("the buffer was not given back")?;
        ensure!(buffer.to_vec()? == [7; 100]);
        buffer.free()?;
        ensure!(pool.stats()?.used.current == 0);
        Ok(())
    }

    pub(crate) fn a_buffer_that_another_stream_could_not_free_is_as_before(
        lab: &Lab,
    ) -> Result<()> {
        let (pool, home, other) = (lab.pool()?, lab.stream()?, lab.stream()?);
        let buffer = pool.alloc_from(&home, &[7_u8; 100])?;
        let control = lab.control()?;
        control.fail_without_effect("cuMemFreeAsync", 1, CUresult::CUDA_ERROR_INVALID_VALUE);
        let Err(failed) = buffer.free_on(&other) else {
            bail!("the failure was lost");
        };
        let buffer = failed.object.context("the buffer was not given back")?;
        ensure!(*buffer.stream() == home && buffer.to_vec()? == [7; 100]);
        Ok(())
    }

    pub(crate) fn a_pool_that_could_not_be_closed_comes_back(lab: &Lab) -> Result<()> {
        let (pool, stream, control) = (lab.pool()?, lab.stream()?, lab.control()?);
        control.fail_without_effect("cuMemPoolDestroy", 1, CUresult::CUDA_ERROR_INVALID_VALUE);
        let Err(failed) = pool.close() else {
            bail!("the failure was lost");
        };
        ensure!(failed.error.code() == Some(CUresult::CUDA_ERROR_INVALID_VALUE));
        let pool = failed.object.context("the pool was not given back")?;
        drop(pool.alloc::<u8>(&stream, 10)?);
        pool.close()?;
        Ok(())
    }

    /// An earlier fault may be reported by a call that does its work all the same. Freeing again
    /// could free what somebody else has got since.
    pub(crate) fn what_may_be_released_is_not_released_again(lab: &Lab) -> Result<()> {
        let (pool, stream, control) = (lab.pool()?, lab.stream()?, lab.control()?);
        control.reset();
        let first = pool.alloc::<u8>(&stream, 1000)?;
        let address = first.as_raw();
        control.fail("cuMemFreeAsync", 1, CUresult::CUDA_ERROR_LAUNCH_FAILED);
        let Err(failed) = first.free() else {
            bail!("the failure was lost");
        };
        ensure!(failed.object.is_none() && failed.error.kind() == ErrorKind::DeviceFault);
        let second = pool.alloc_from(&stream, &[2_u8; 1000])?;
        ensure!(second.as_raw() == address, "the simulator did free it");
        drop(failed);
        ensure!(
            control.calls("cuMemFreeAsync") == 1,
            "it was freed a second time"
        );
        drop(second);

        control.fail("cuMemPoolDestroy", 1, CUresult::CUDA_ERROR_LAUNCH_FAILED);
        let Err(failed) = pool.close() else {
            bail!("the failure was lost");
        };
        ensure!(failed.object.is_none());
        ensure!(control.calls("cuMemPoolDestroy") == 1);
        ensure!(control.reports().is_empty(), "{:?}", control.reports());
        Ok(())
    }

    /// The source of a copy is not freed before the copy has read it, whatever fails.
    pub(crate) fn a_source_remembers_a_copy_that_it_could_not_wait_for(lab: &Lab) -> Result<()> {
        let (pool, from, to) = (lab.pool()?, lab.stream()?, lab.stream()?);
        let control = lab.control()?;
        let source = pool.alloc_from(&from, &[1_u8; 1000])?;
        let mut target = pool.alloc::<u8>(&to, 1000)?;
        to.synchronize()?;
        control.reset();
        let held = cuda_mem_tests::hold::hold(&to)?;
        // The second recording is that of the way back.
        control.fail("cuEventRecord", 2, CUresult::CUDA_ERROR_UNKNOWN);
        let Err(error) = target.copy_from_buffer(&source) else {
            bail!("the failure was lost");
        };
        ensure!(error.function() == Some("cuEventRecord"), "{error}");
        ensure!(from.is_done()?, "nothing waits yet");
        drop(source);
        ensure!(!from.is_done()?, "the free did not wait for the copy");
        drop(held);
        ensure!(target.to_vec()? == [1; 1000]);
        ensure!(control.reports().is_empty(), "{:?}", control.reports());
        Ok(())
    }

    /// A hook may own what fails to drop when it is replaced.
    pub(crate) fn a_hook_is_replaced_without_its_own_lock(lab: &Lab) -> Result<()> {
        let (pool, stream, control) = (lab.pool()?, lab.stream()?, lab.control()?);
        let owned = pool.alloc::<u8>(&stream, 10)?;
        cuda_mem::on_drop_failure(move |_| {
            let _ = &owned;
        });
        control.fail("cuMemFreeAsync", 1, CUresult::CUDA_ERROR_UNKNOWN);
        let before = cuda_mem::drop_counts();
        cuda_mem::on_drop_failure(|_| {});
        ensure!(cuda_mem::drop_counts().failures == before.failures + 1);
        Ok(())
    }

    pub(crate) fn a_driver_that_is_going_down_is_no_failure(lab: &Lab) -> Result<()> {
        let (pool, stream, control) = (lab.pool()?, lab.stream()?, lab.control()?);
        let before = cuda_mem::drop_counts();
        let buffer = pool.alloc::<u8>(&stream, 10)?;
        control.fail("cuMemFreeAsync", 1, CUresult::CUDA_ERROR_DEINITIALIZED);
        drop(buffer);
        let after = cuda_mem::drop_counts();
        ensure!(after.failures == before.failures && after.too_late == before.too_late + 1);
        Ok(())
    }

    pub(crate) fn a_wait_that_failed_is_made_up_for(lab: &Lab) -> Result<()> {
        let (pool, stream, other) = (lab.pool()?, lab.stream()?, lab.stream()?);
        let control = lab.control()?;
        let mut buffer = pool.alloc_zeroed::<u8>(&stream, 100)?;
        stream.synchronize()?;
        let before = cuda_mem::drop_counts();
        let lent = buffer.on(&other)?;
        let held = cuda_mem_tests::hold::hold(&other)?;
        control.fail("cuEventRecord", 1, CUresult::CUDA_ERROR_UNKNOWN);
        drop(lent);
        ensure!(cuda_mem::drop_counts().failures == before.failures + 1);
        ensure!(stream.is_done()?, "the wait was not made");
        buffer.fill(1)?;
        ensure!(!stream.is_done()?, "the next use makes the wait");
        drop(held);
        ensure!(buffer.to_vec()? == [1; 100]);
        Ok(())
    }

    pub(crate) fn a_library_without_a_function_is_a_typed_error(lab: &Lab) -> Result<()> {
        let mut table = *lab.driver.table();
        table.cuMemPoolCreate = None;
        // SAFETY: the rest is the simulated driver's.
        let driver = unsafe { Driver::from_table(Box::leak(Box::new(table))) }?;
        let Err(error) = MemoryPool::builder(&driver.device(0)?).build() else {
            bail!("a pool without cuMemPoolCreate");
        };
        ensure!(error.kind() == ErrorKind::SymbolMissing);
        ensure!(error.to_string().contains("CUDA 11.2"), "{error}");
        Ok(())
    }

    pub(crate) fn two_drivers_do_not_mix(lab: &Lab) -> Result<()> {
        // SAFETY: it is the simulated driver, opened a second time.
        let second = unsafe { Driver::load_from(sim_path()?) }?;
        ensure!(second != lab.driver);
        let foreign = second.device(0)?.primary_context()?.stream()?;
        let pool = lab.pool()?;
        let refused = pool.alloc::<u8>(&foreign, 10).map_err(|error| error.kind());
        ensure!(matches!(refused, Err(ErrorKind::InvalidValue)));
        let waited = lab
            .stream()?
            .wait_for(&foreign)
            .map_err(|error| error.kind());
        ensure!(waited == Err(ErrorKind::InvalidValue));
        let mut buffer = pool.alloc::<u8>(&lab.stream()?, 10)?;
        ensure!(buffer.on(&foreign).is_err());
        let Err(failed) = buffer.free_on(&foreign) else {
            bail!("freed on a stream of another driver");
        };
        ensure!(failed.error.kind() == ErrorKind::InvalidValue);
        failed
            .object
            .context("the buffer was not given back")?
            .free()?;
        Ok(())
    }
}

fn main() -> ExitCode {
    let tests = cuda_mem_tests::tests! {
        faults: every_call_fails_once, a_buffer_that_could_not_be_freed_comes_back,
            a_buffer_that_another_stream_could_not_free_is_as_before,
            a_pool_that_could_not_be_closed_comes_back,
            what_may_be_released_is_not_released_again,
            a_source_remembers_a_copy_that_it_could_not_wait_for,
            a_hook_is_replaced_without_its_own_lock, a_driver_that_is_going_down_is_no_failure,
            a_wait_that_failed_is_made_up_for, a_library_without_a_function_is_a_typed_error,
            two_drivers_do_not_mix;
    };
    run::main(
        &tests,
        Options {
            serial: true,
            drops_fail: true,
            sim_only: true,
        },
    )
}

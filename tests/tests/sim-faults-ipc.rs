//! Every driver call of sharing between processes fails once, in turn, with several codes. Each time
//! the caller gets a typed error, or the destructor reports; no descriptor is left over, nothing
//! panics.

use std::panic::catch_unwind;
use std::process::ExitCode;

use anyhow::{Result, bail, ensure};
use cuda_mem::sys::CUresult;
use cuda_mem::{Channel, Driver, Error, EventHandle, HandleTypes, ImportedPool, MemoryPool};
use cuda_mem_tests::lab::Lab;
use cuda_mem_tests::run::{self, Options};
use cuda_mem_tests::two::two_processes;

/// All of it that one process can do, and an event of another one.
fn everything(driver: Driver, theirs: &EventHandle) -> Result<(), Error> {
    let device = driver.device(0)?;
    let context = device.primary_context()?;
    let (stream, other) = (context.stream()?, context.stream()?);
    let own = context.interprocess_event()?;
    own.export()?;
    own.record(&stream)?;
    let opened = context.import_event(theirs)?;
    other.wait_event(&opened)?;
    let pool = MemoryPool::builder(&device)
        .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
        .build()?;
    let (here, there) = Channel::pair()?;
    here.send_pool(&pool)?;
    let imported = there.receive_pool(&device)?;
    let again = ImportedPool::from_fd(&device, pool.export_fd()?)?;
    let mut buffer = pool.alloc_from(&stream, &[1_u32; 1000])?;
    here.send_buffer(&buffer)?;
    here.send_buffer(&buffer)?;
    // SAFETY: the streams are ordered below; the buffer lives longer.
    let mut one = unsafe { there.receive_buffer::<u32>(&imported, &stream) }?;
    // SAFETY: as above.
    let two = unsafe { there.receive_buffer::<u32>(&again, &other) }?;
    one.fill(2)?;
    other.wait_for(&stream)?;
    assert_eq!(two.to_vec()?, [2; 1000]);
    drop(one);
    drop(again);
    stream.wait_for(&other)?;
    there.give_back(two)?;
    stream.wait_for(&other)?;
    assert_eq!(buffer.to_vec()?, [2; 1000]);
    buffer.zero()?;
    drop((buffer, imported));
    stream.synchronize()?;
    pool.close()?;
    Ok(())
}

/// What fails while the end of a shared mapping is put in order. The mapping stays then, rather than
/// end under another stream's work, and the hook is told.
fn keeps_a_mapping(function: &str) -> bool {
    let ordering = ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"];
    let binding = ["cuCtxGetCurrent", "cuCtxSetCurrent"];
    ordering.contains(&function) || binding.contains(&function)
}

fn open_descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

/// A destructor may have failed to put back the context that was current.
fn leave_no_context(lab: &Lab) {
    if let Some(set) = lab.driver.table().cuCtxSetCurrent {
        // SAFETY: null leaves the thread without a context.
        unsafe { set(std::ptr::null_mut()) };
    }
}

mod faults {
    use super::*;

    pub(crate) fn every_call_of_sharing_fails_once(lab: &Lab) -> Result<()> {
        two_processes(
            lab,
            "faults::every_call_of_sharing_fails_once",
            |lab, other| {
                let theirs = EventHandle::from_bytes(&other.channel.receive()?.bytes)?;
                fail_each(lab, &theirs)
            },
            |lab, channel| {
                let event = lab.context()?.interprocess_event()?;
                channel.send_event(&event)?;
                // Until the first process is done.
                ensure!(channel.receive().is_err());
                Ok(())
            },
        )
    }

    fn fail_each(lab: &Lab, theirs: &EventHandle) -> Result<()> {
        let control = lab.control()?;
        everything(lab.driver, theirs)?;
        control.reset();
        control.start_call_log();
        everything(lab.driver, theirs)?;
        let log = control.call_log();
        for function in [
            "cuMemPoolExportToShareableHandle",
            "cuMemPoolImportFromShareableHandle",
            "cuMemPoolExportPointer",
            "cuMemPoolImportPointer",
            "cuIpcGetEventHandle",
            "cuIpcOpenEventHandle",
        ] {
            ensure!(log.iter().any(|called| called == function), "{function}");
        }
        let descriptors = open_descriptors()?;
        let codes = [1, 2, 3, 201, 205, 600, 719, 800, 801, 999, 54_321].map(CUresult);
        let mut left = cuda_sim::Live::default();
        for (index, function) in log.iter().enumerate() {
            for code in codes {
                control.reset();
                control.fail_call(index as u64 + 1, code);
                let before = cuda_mem::drop_counts();
                let outcome = catch_unwind(|| everything(lab.driver, theirs))
                    .map_err(|_| anyhow::anyhow!("call {index} {function}: a panic"))?;
                control.clear_faults();
                let after = cuda_mem::drop_counts();
                let reported = after.failures > before.failures || after.too_late > before.too_late;
                let what = format!("call {} {function} answering {code}", index + 1);
                match outcome {
                    Err(error) => {
                        ensure!(error.code() == Some(code), "{what}: {error}");
                        ensure!(error.function() == Some(function), "{what}: {error}");
                    }
                    Ok(()) if reported => {}
                    Ok(()) => bail!("{what}: nobody noticed"),
                }
                leave_no_context(lab);
                let live = control.live();
                if reported && keeps_a_mapping(function) {
                    left = live;
                }
                ensure!(live == left, "{what}: {live:?} is left, not {left:?}");
                let now = open_descriptors()?;
                ensure!(
                    now == descriptors,
                    "{what}: {now} descriptors, not {descriptors}"
                );
                let reports = control.reports();
                ensure!(reports.is_empty(), "{what}: {reports:?}");
            }
        }
        println!("{} calls, {} codes each", log.len(), codes.len());
        Ok(())
    }
}

fn main() -> ExitCode {
    let tests = cuda_mem_tests::tests! {
        faults: every_call_of_sharing_fails_once;
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

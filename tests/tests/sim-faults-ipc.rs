//! Every driver call of sharing between processes fails once, in turn, with several codes. Each time
//! the caller gets a typed error, or the destructor reports; no descriptor is left over, nothing
//! panics.

use std::process::ExitCode;
use std::sync::OnceLock;

use anyhow::{Result, ensure};
use cuda_mem::sys::CUresult;
use cuda_mem::{Channel, Driver, Error, EventHandle, HandleTypes, ImportedPool, MemoryPool};
use cuda_mem_tests::lab::Lab;
use cuda_mem_tests::run::{self, Options};
use cuda_mem_tests::sweep::{self, Tour};
use cuda_mem_tests::two::two_processes;
use cuda_sim::Live;

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

/// The event of the other process.
static THEIRS: OnceLock<EventHandle> = OnceLock::new();

fn walk(driver: Driver) -> Result<(), Error> {
    everything(driver, THEIRS.get().expect("received before"))
}

/// Whether a stream has carried out a free is also asked to let go of the stream early; without an
/// answer it is kept, and asked again.
fn second_way(index: usize, function: &str, _: CUresult) -> bool {
    let is_early = function == "cuDriverGetVersion" && index == 0;
    is_early || function == "cuStreamQuery"
}

/// What fails while the end of a shared mapping is put in order leaves the mapping, rather than end it
/// under another stream's work, and with it its pool and what the streams need. The hook is told.
fn may_leave(function: &str, live: Live, left: Live) -> bool {
    let ordering = ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"];
    let binding = ["cuCtxGetCurrent", "cuCtxSetCurrent"];
    let is_order = ordering.contains(&function) || binding.contains(&function);
    is_order && live.allocations <= left.allocations + 1 && live.pools <= left.pools + 2
}

fn open_descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

mod faults {
    use super::*;

    pub(crate) fn every_call_of_sharing_fails_once(lab: &Lab) -> Result<()> {
        two_processes(
            lab,
            "faults::every_call_of_sharing_fails_once",
            |lab, other| {
                let theirs = EventHandle::from_bytes(&other.channel.receive()?.bytes)?;
                THEIRS.get_or_init(|| theirs);
                let tour = Tour {
                    walk,
                    at_least: 100,
                    second_way,
                    may_leave,
                };
                let control = lab.control()?;
                let before = open_descriptors()?;
                sweep::every_call_fails_once(lab, tour)?;
                // A pool that was left has a descriptor in the simulator, and so have the events of a
                // context that was.
                let left = control.live();
                let kept = (left.pools + left.primary_retains) as usize;
                let after = open_descriptors()?;
                ensure!(
                    after <= before + kept,
                    "{before} before, {after} after, {left:?} is left"
                );
                Ok(())
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
            ..Options::default()
        },
    )
}

//! Every driver call of sharing between processes fails once, in turn, with several codes. Each time
//! the caller gets a typed error, or the destructor reports; no descriptor is left over, nothing
//! panics.

mod returns;

use std::sync::mpsc::{self, Receiver};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::driver::HandleTypes;
use cuda_mem::interop::{CaptureMode, Channel, EventHandle, ImportedPool};
use cuda_mem::sys::{CUresult, CUstream, DriverTable};
use cuda_mem::{DeviceBuffer, Driver, Error, ErrorKind, MemoryPool, Stream};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::hold::{Held, hold};
use cuda_mem_tests::sweep::meaning::{
    ASKED_EARLY, CAPTURES, NOT_DESTROYED, NOT_FREED, NOT_ORDERED, STUB,
};
use cuda_mem_tests::sweep::{self, Scenario};
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

/// The event of the other process.
static THEIRS: OnceLock<EventHandle> = OnceLock::new();

fn sharing(driver: Driver) -> Result<(), Error> {
    everything(driver, THEIRS.get().expect("received before"))
}

fn open_descriptors() -> Result<usize> {
    Ok(std::fs::read_dir("/proc/self/fd")?.count())
}

#[apply(case)]
fn every_call_of_sharing_fails_once(env: &Environment) -> Result<()> {
    two_processes(
        env,
        "ipc::every_call_of_sharing_fails_once",
        |env, other| {
            let theirs = other.channel.receive()?.bytes;
            // SAFETY: the other process is this test, and sends the handle of an event.
            let theirs = unsafe { EventHandle::from_bytes(&theirs) }?;
            THEIRS.get_or_init(|| theirs);
            let scenario = Scenario {
                run: sharing,
                at_least: 100,
                answers: &[STUB, ASKED_EARLY, CAPTURES],
                leftovers: &[NOT_ORDERED, NOT_DESTROYED, NOT_FREED],
            };
            let control = env.control()?;
            let before = open_descriptors()?;
            sweep::every_call_fails_once(env, scenario)?;
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
        |env, channel| {
            let event = env.context()?.interprocess_event()?;
            channel.send_event(&event)?;
            // Until the first process is done.
            ensure!(channel.receive().is_err());
            Ok(())
        },
    )
}

/// A lent buffer, as it came to the other end of the channel.
type Received = DeviceBuffer<u8>;

/// Lends a buffer within this process. A thread waits for it; `steps` has the other end of the channel,
/// the buffer there, and the end of the wait. If it fails, the channel is closed, and the wait ends.
fn lend(
    env: &Environment,
    steps: impl FnOnce(Channel, Received, &Receiver<Result<(), Error>>) -> Result<()>,
) -> Result<()> {
    let (device, stream) = (env.device()?, env.stream()?);
    let pool = MemoryPool::builder(&device)
        .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
        .build()?;
    let (here, there) = Channel::pair()?;
    here.send_pool(&pool)?;
    let imported = there.receive_pool(&device)?;
    let mut buffer = pool.alloc_from(&stream, &[1_u8; 100])?;
    let (tell, end) = mpsc::channel();
    std::thread::scope(|scope| {
        let lent = here.lend(&mut buffer)?;
        // SAFETY: one stream orders everything, and the buffer lives longer.
        let received = unsafe { there.receive_buffer(&imported, &stream) }?;
        scope.spawn(move || tell.send(lent.wait()));
        steps(there, received, &end)
    })
}

/// The stream that is to be held when the driver has said that it is done, and then what holds it.
static TO_HOLD: Mutex<Option<Stream>> = Mutex::new(None);
static HELD: Mutex<Option<Held>> = Mutex::new(None);
static REAL: OnceLock<DriverTable> = OnceLock::new();

/// Asks the driver; then more work comes to the stream, before the program can do anything else.
unsafe extern "C" fn query_and_hold(stream: CUstream) -> CUresult {
    let query = REAL.get().and_then(|real| real.cuStreamQuery);
    // SAFETY: the caller's.
    let answer = query.map(|query| unsafe { query(stream) });
    let mut to_hold = TO_HOLD.lock().expect("no test panics with it");
    if let Some(stream) = to_hold.take_if(|to_hold| to_hold.as_raw() == stream) {
        *HELD.lock().expect("as above") = Some(hold(&stream).expect("a live stream"));
    }
    answer.unwrap_or(CUresult::CUDA_ERROR_NOT_FOUND)
}

mod registry {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);

    /// A pool, an import of it, and a stream, of a driver that holds streams.
    fn imported(env: &Environment) -> Result<(MemoryPool, ImportedPool, Stream)> {
        let mut table = *REAL.get_or_init(|| *env.driver.table());
        table.cuStreamQuery = Some(query_and_hold);
        // SAFETY: the simulated driver's functions, one with work of the program after it.
        let driver = unsafe { Driver::from_table(Box::leak(Box::new(table))) }?;
        let device = driver.device(0)?;
        let pool = MemoryPool::builder(&device)
            .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
            .build()?;
        let imported = ImportedPool::from_fd(&device, pool.export_fd()?)?;
        Ok((pool, imported, device.primary_context()?.stream()?))
    }

    /// Drops something that waits for `stream`, which gets more work at this very moment. Another thread
    /// imports a pool and a buffer, and drops both, meanwhile.
    fn others_go_on<T: Send>(
        pool: &MemoryPool,
        buffer: &DeviceBuffer<u8>,
        stream: &Stream,
        dropped: T,
    ) -> Result<()> {
        let (pool_fd, shared) = (pool.export_fd()?, buffer.export()?);
        let device = pool.device().context("a pool of a device")?;
        let other = device.primary_context()?.stream()?;
        *TO_HOLD.lock().expect("no test panics with it") = Some(stream.clone());
        let (tell, told) = mpsc::channel();
        let (tell_end, end) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                drop(dropped);
                tell_end.send(())
            });
            while HELD.lock().expect("as above").is_none() {
                std::thread::yield_now();
            }
            scope.spawn(move || {
                let import = || -> Result<Vec<u8>> {
                    let imported = ImportedPool::from_fd(&device, pool_fd)?;
                    // SAFETY: nothing writes, and the buffer lives longer.
                    let view = unsafe { imported.import::<u8>(&other, &shared) }?;
                    Ok(view.to_vec()?)
                };
                tell.send(import())
            });
            let outcome = told.recv_timeout(LIMIT);
            let is_held = end.try_recv().is_err();
            *HELD.lock().expect("as above") = None;
            let outcome = outcome.context("it waits for the stream of another import")?;
            ensure!(outcome? == [1; 100]);
            ensure!(is_held, "the stream was not waited for");
            Ok(end.recv_timeout(LIMIT)?)
        })
    }

    #[apply(case)]
    fn the_end_of_a_view_keeps_no_other_import_waiting(env: &Environment) -> Result<()> {
        let (pool, imported, stream) = imported(env)?;
        let buffer = pool.alloc_from(&stream, &[1_u8; 100])?;
        let second = pool.alloc_from(&stream, &[1_u8; 100])?;
        stream.synchronize()?;
        // SAFETY: nothing writes, and the buffer lives longer.
        let view = unsafe { imported.import::<u8>(&stream, &buffer.export()?) }?;
        others_go_on(&pool, &second, &stream, view)
    }

    #[apply(case)]
    fn the_end_of_a_pool_keeps_no_other_import_waiting(env: &Environment) -> Result<()> {
        let (pool, imported, stream) = imported(env)?;
        let buffer = pool.alloc_from(&stream, &[1_u8; 100])?;
        // SAFETY: nothing writes, and the buffer lives longer.
        let view = unsafe { imported.import::<u8>(&stream, &buffer.export()?) }?;
        let held = hold(&stream)?;
        drop(view); // its free waits behind what holds the stream
        drop(held);
        while !stream.is_done()? {
            std::thread::yield_now();
        }
        others_go_on(&pool, &buffer, &stream, imported)
    }
}

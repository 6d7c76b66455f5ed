//! When memory is given back: by whom, in which order, and where not at all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::interop::CaptureMode;
use cuda_mem::interop::dlpack::{ImportedTensor, ManagedTensor};
use cuda_mem::{DeviceBuffer, ErrorKind};

use super::{Count, Producer, ensure_used};
use crate::environment::Environment;
use crate::foreign::{RELAXED, begin, end_well};
use crate::forks;
use crate::hold::hold;

/// Counts at its end.
struct Owner(Count);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.add();
    }
}

#[apply(case)]
fn a_deleter_gives_the_buffer_back_once_on_any_thread(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let owner = env.pool()?.alloc_from(&stream, &[1_u8, 2, 3])?;
    let ended = Count::default();
    // SAFETY: `owner` outlives the buffer, and is not used meanwhile.
    let borrow = || unsafe {
        DeviceBuffer::<u8>::borrow_raw(&stream, owner.as_raw(), 3, Owner(ended.clone()))
    };
    // Dropped as it was made, after it was handed out, and without a version; here and on another thread.
    let tensor = ManagedTensor::new(borrow(), &[3])?;
    thread::scope(|scope| scope.spawn(move || drop(tensor)).join())
        .map_err(|_| anyhow::anyhow!("the thread panicked"))?;
    ensure!(ended.get() == 1);

    let raw = ManagedTensor::new(borrow(), &[3])?.into_raw();
    ensure!(ended.get() == 1, "the consumer has it");
    let handed_out = raw.addr();
    let delete = move || {
        let raw = std::ptr::with_exposed_provenance_mut(handed_out);
        // SAFETY: handed out, and only this thread has it now.
        drop(unsafe { ManagedTensor::from_raw(raw) });
    };
    raw.expose_provenance();
    thread::spawn(delete)
        .join()
        .map_err(|_| anyhow::anyhow!("the thread panicked"))?;
    ensure!(ended.get() == 2);

    let raw = ManagedTensor::new(borrow(), &[3])?.into_raw_unversioned()?;
    ensure!(ended.get() == 2);
    // SAFETY: handed out just now, and valid.
    let deleter = unsafe { (*raw).deleter };
    let Some(deleter) = deleter else {
        bail!("there is no deleter");
    };
    // SAFETY: a consumer calls it once.
    unsafe { deleter(raw) };
    ensure!(ended.get() == 3);
    ensure!(owner.to_vec()? == [1, 2, 3]);
    Ok(())
}

#[apply(case_alone)]
fn an_owner_of_nothing_comes_back_from_a_captured_stream(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, ended) = (env.stream()?, Count::default());
    // SAFETY: there are no bytes.
    let nothing = unsafe { DeviceBuffer::<u8>::borrow_raw(&stream, 0, 0, Owner(ended.clone())) };
    let (_, nothing) = stream.capture(CaptureMode::default(), |_| {
        let refused = nothing.free().expect_err("the stream is captured");
        assert_eq!(refused.error.kind(), ErrorKind::Capturing);
        Ok(refused.object.expect("it has an owner"))
    })?;
    ensure!(ended.get() == 0);
    nothing.free()?;
    ensure!(ended.get() == 1);
    Ok(())
}

#[apply(case)]
fn a_deleter_frees_in_the_order_of_the_stream(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (pool, stream) = (env.pool()?, env.stream()?);
    let mut buffer = pool.alloc::<u8>(&stream, 1000)?;
    let held = hold(&stream)?;
    buffer.fill(3)?;
    drop(ManagedTensor::new(buffer, &[1000])?);
    ensure!(!stream.is_done()?, "it did not wait for the stream");
    drop(held);
    stream.synchronize()?;
    ensure_used(env, &pool, 0)?;
    Ok(())
}

#[apply(case)]
fn an_imported_tensor_is_deleted_after_its_stream(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (stream, home) = (env.stream()?, env.stream()?);
    let theirs = env.pool()?.alloc_zeroed::<u8>(&home, 1000)?;
    home.synchronize()?;
    let producer = Producer::new(&theirs);
    let mut tensor = producer.import::<u8>(&stream)?;
    let held = hold(&stream)?;
    tensor.as_mut_slice()?.fill(3)?;
    let begins = AtomicBool::new(false);
    thread::scope(|scope| {
        let begins = &begins;
        let dropping = scope.spawn(move || {
            begins.store(true, Ordering::Relaxed);
            drop(tensor);
        });
        while !begins.load(Ordering::Relaxed) {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(20));
        ensure!(producer.deleted.get() == 0, "the stream is not done");
        drop(held);
        let joined = dropping.join();
        joined.map_err(|_| anyhow::anyhow!("the thread panicked"))?;
        ensure!(producer.deleted.get() == 1 && stream.is_done()?);
        Ok(())
    })?;
    ensure!(theirs.to_vec()? == [3; 1000]);
    Ok(())
}

#[apply(case)]
fn the_producers_stream_waits_instead_of_the_host(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (stream, home) = (env.stream()?, env.stream()?);
    let mut theirs = env.pool()?.alloc_zeroed::<u8>(&home, 1000)?;
    home.synchronize()?;
    let producer = Producer::new(&theirs);
    let mut tensor = producer.import::<u8>(&stream)?;
    // SAFETY: `theirs` is used in this stream.
    unsafe { tensor.set_producer_stream(&home) };
    let held = hold(&stream)?;
    tensor.as_mut_slice()?.fill(3)?;
    drop(tensor);
    ensure!(producer.deleted.get() == 1, "the host did not wait");
    theirs.slice_mut(..1)?.fill(4)?;
    ensure!(!home.is_done()?, "the producer's stream waits");
    drop(held);
    let bytes = theirs.to_vec()?;
    ensure!(bytes[0] == 4 && bytes[1..] == [3; 999]);
    Ok(())
}

/// A capture forbids things to the whole process, so this runs alone.
#[apply(case_alone)]
fn a_tensor_dropped_in_a_capture_is_deleted_after_it(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, home) = (env.stream()?, env.stream()?);
    let pool = env.pool()?;
    let theirs = pool.alloc_zeroed::<u8>(&home, 1000)?;
    home.synchronize()?;
    for names_producer in [false, true] {
        let producer = Producer::new(&theirs);
        let mut tensor = producer.import::<u8>(&stream)?;
        if names_producer {
            // SAFETY: `theirs` is used in this stream.
            unsafe { tensor.set_producer_stream(&home) };
        }
        let kept = producer.import::<u8>(&stream)?;
        let (graph, kept) = stream.capture(CaptureMode::ThreadLocal, |_| {
            drop(tensor);
            assert_eq!(producer.deleted.get(), 0);
            let failed = kept.free().expect_err("the stream is captured");
            assert_eq!(failed.error.kind(), ErrorKind::Capturing);
            Ok(failed.object)
        })?;
        drop(graph);
        let Some(kept) = kept else {
            bail!("the tensor is lost");
        };
        kept.free()?;
        stream.synchronize()?;
        ensure!(producer.deleted.get() == 2, "{}", producer.deleted.get());
    }
    ensure!(cuda_mem::base::drop_counts().waiting == 0);
    Ok(())
}

/// The producer's stream is captured by another library, so the host waits instead. Alone, as above.
#[apply(case_alone)]
fn a_tensor_ends_while_its_producers_stream_is_captured(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, home) = (env.stream()?, env.stream()?);
    let theirs = env.pool()?.alloc_zeroed::<u8>(&home, 1000)?;
    home.synchronize()?;
    for mode in 0..=RELAXED {
        let producer = Producer::new(&theirs);
        let mut tensor = producer.import::<u8>(&stream)?;
        // SAFETY: `theirs` is used in this stream.
        unsafe { tensor.set_producer_stream(&home) };
        begin(&home, mode)?;
        drop(tensor);
        end_well(&home).with_context(|| format!("mode {mode}"))?;
        stream.synchronize()?;
        ensure!(producer.deleted.get() == 1, "mode {mode}");
    }
    ensure!(cuda_mem::base::drop_counts().failures == 0);
    Ok(())
}

/// Alone, because a fork copies only the thread that forks.
#[apply(case_alone)]
fn a_forked_child_gives_no_tensor_back(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let theirs = pool.alloc_from(&stream, &[3_u8; 1000])?;
    let producer = Producer::new(&theirs);
    let imported = producer.import::<u8>(&stream)?;
    let spare = producer.produce();
    let handed_out = ManagedTensor::new(pool.alloc_from(&stream, &[4_u8; 8])?, &[8])?;
    let raw = ManagedTensor::new(pool.alloc_from(&stream, &[5_u8; 8])?, &[8])?.into_raw();
    // SAFETY: the child drops GPU objects, which must do nothing there, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        // SAFETY: produced by the parent, of memory that outlives it.
        let answer = unsafe { ImportedTensor::<u8>::from_raw(spare, &stream) };
        let refused = answer.is_err_and(|error| error.kind() == ErrorKind::Forked);
        drop(imported);
        drop(handed_out);
        // SAFETY: handed out by the parent; the child has a copy of its own.
        drop(unsafe { ManagedTensor::from_raw(raw) });
        // SAFETY: as above.
        if let Some(deleter) = unsafe { (*raw).deleter } {
            // SAFETY: nothing was deleted before.
            unsafe { deleter(raw) };
        }
        let counts = cuda_mem::base::drop_counts();
        let fine = refused
            && producer.deleted.get() == 0
            && counts.failures == 0
            && counts.after_fork == 4;
        forks::end_child(fine);
    }
    forks::ends_well(child)?;
    // SAFETY: the parent's are as they were, and nobody else has them.
    drop(unsafe { ManagedTensor::from_raw(spare) });
    ensure!(producer.deleted.get() == 1);
    drop(imported);
    ensure!(producer.deleted.get() == 2);
    drop(handed_out);
    // SAFETY: as above.
    let tensor = unsafe { ImportedTensor::<u8>::from_raw(raw, &stream) }?;
    ensure!(tensor.as_slice().to_vec()? == [5; 8]);
    drop(tensor);
    stream.synchronize()?;
    ensure_used(env, &pool, 1000)?;
    Ok(())
}

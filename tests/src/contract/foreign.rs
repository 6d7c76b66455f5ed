//! Streams that somebody else made.

use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::stream::StreamRef;
use cuda_mem::sys::{CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUresult, CUstream, CUstream_flags};
use cuda_mem::{Context, ErrorKind, Stream};

use crate::environment::Environment;
use crate::forks;
use crate::hold::hold;

pub(super) fn raw_stream(context: &Context, flags: CUstream_flags) -> Result<CUstream> {
    let mut stream = null_mut();
    let create = context.device().driver().table().cuStreamCreate;
    let create = create.context("no cuStreamCreate")?;
    let _current = context.bind()?;
    // SAFETY: the context is current, and `stream` is valid for a write.
    let code = unsafe { create(&raw mut stream, flags.0) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    Ok(stream)
}

/// What another library keeps of its stream: destroys it at its own end, in a live context.
struct Owner {
    context: Context,
    stream: usize,
    answer: Arc<AtomicU32>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Some(destroy) = self.context.device().driver().table().cuStreamDestroy_v2 {
            // SAFETY: the stream is this owner's, and whoever borrowed it has let it go.
            let code = unsafe { destroy(self.stream as CUstream) };
            self.answer.store(code.0, Ordering::Relaxed);
        }
    }
}

#[apply(case)]
fn a_borrowed_stream_is_kept_for_its_buffers(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let raw = raw_stream(&context, CUstream_flags::CU_STREAM_NON_BLOCKING)?;
    let answer = Arc::new(AtomicU32::new(u32::MAX));
    let owner = Owner {
        context: context.clone(),
        stream: raw as usize,
        answer: Arc::clone(&answer),
    };
    // SAFETY: the stream is of this context and lives as long as its owner.
    let stream = unsafe { Stream::borrow_raw(&context, raw, owner) };
    let buffer = env.pool()?.alloc_from(&stream, &[6_u8; 500])?;
    drop(stream);
    drop(context);
    ensure!(
        answer.load(Ordering::Relaxed) == u32::MAX,
        "the buffer still needs it"
    );
    ensure!(buffer.to_vec()? == [6; 500]);
    drop(buffer);
    ensure!(
        answer.load(Ordering::Relaxed) == 0,
        "the owner was let go, in a live context"
    );
    Ok(())
}

#[apply(case)]
fn a_stream_taken_over_is_destroyed_with_its_last_handle(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let raw = raw_stream(&context, CUstream_flags::CU_STREAM_NON_BLOCKING)?;
    // SAFETY: made just now in this context, and given up here.
    let stream = unsafe { Stream::from_raw(&context, raw) };
    let clone = stream.clone();
    ensure!(clone == stream && clone.as_raw() == raw);
    drop(stream);
    let buffer = env.pool()?.alloc_from(&clone, &[1_u8, 2])?;
    ensure!(buffer.to_vec()? == [1, 2]);
    Ok(())
}

#[apply(case)]
fn a_view_of_a_stream_orders_like_the_stream(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (first, second) = (context.stream()?, context.stream()?);
    // SAFETY: the stream is live for the whole test.
    let view = unsafe { StreamRef::borrow_raw(&context, first.as_raw()) };
    ensure!(view == first.as_ref() && view != second.as_ref());
    ensure!(view.as_raw() == first.as_raw());
    let held = hold(&second)?;
    view.wait_for(&second)?;
    ensure!(!view.is_done()? && !first.is_done()?);
    drop(held);
    view.synchronize()?;
    ensure!(second.is_done()?);
    Ok(())
}

#[apply(case)]
fn an_event_does_not_mark_a_stream_of_another_context(env: &Environment) -> Result<()> {
    let (own, devices) = (env.device()?, env.driver.devices()?);
    let Some(other) = devices.into_iter().find(|device| *device != own) else {
        // One device has one primary context, and this crate makes no other: nothing to refuse.
        let (event, stream) = (env.context()?.event()?, env.stream()?);
        return event.record(&stream).map_err(Into::into);
    };
    let stream = other.primary_context()?.stream()?;
    let refused = env.context()?.event()?.record(&stream);
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    Ok(())
}

#[apply(case)]
fn time_is_between_two_events_with_time_stamps(env: &Environment) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    let (plain, timing) = (context.event()?, context.timing_event()?);
    plain.record(&stream)?;
    timing.record(&stream)?;
    stream.synchronize()?;
    ensure!(timing.elapsed_ms_since(&timing)? == 0.0);
    for answer in [
        plain.elapsed_ms_since(&timing),
        timing.elapsed_ms_since(&plain),
    ] {
        let error = answer.expect_err("one has no time stamps");
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        ensure!(error.code().is_none(), "the driver was asked: {error}");
    }
    Ok(())
}

/// Alone, because a fork copies only the thread that forks. What the owner would destroy is the parent's.
#[apply(case_alone)]
fn a_forked_child_does_not_drop_the_owner_of_a_borrowed_stream(env: &Environment) -> Result<()> {
    let (theirs, owner) = (env.stream()?, Arc::new(()));
    // SAFETY: `theirs` lives longer.
    let stream =
        unsafe { Stream::borrow_raw(theirs.context(), theirs.as_raw(), Arc::clone(&owner)) };
    // SAFETY: the child drops a stream, which must do nothing there, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        drop(stream);
        forks::end_child(Arc::strong_count(&owner) == 2);
    }
    forks::ends_well(child)?;
    drop(stream);
    ensure!(Arc::strong_count(&owner) == 1, "it is kept for nobody");
    Ok(())
}

#[apply(case)]
fn a_view_of_a_default_stream_is_that_stream(env: &Environment) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    // SAFETY: default streams live as long as their context, and the other one is kept.
    let view = |raw| unsafe { StreamRef::borrow_raw(&context, raw) };
    for raw in [null_mut(), CU_STREAM_LEGACY] {
        ensure!(view(raw) == context.legacy_stream().as_ref());
    }
    let (own, plain) = (view(CU_STREAM_PER_THREAD), view(stream.as_raw()));
    ensure!(own == context.per_thread_stream().as_ref());
    std::thread::scope(|scope| {
        let there = scope.spawn(|| {
            ensure!(own != context.per_thread_stream().as_ref());
            let refused = own.synchronize().map_err(|error| error.kind());
            ensure!(refused == Err(ErrorKind::InvalidValue), "{refused:?}");
            Ok(plain.synchronize()?)
        });
        there.join().map_err(|_| anyhow::anyhow!("panicked"))?
    })
}

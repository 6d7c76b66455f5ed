//! Contexts, and which one is current.

use std::ptr::null_mut;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::ledger::Recorder;
use cuda_mem::sys::{CUcontext, CUresult};
use cuda_mem::{Arena, Driver, ErrorKind, MemoryResource as _};

use crate::environment::Environment;

pub(super) fn current(driver: Driver) -> Result<CUcontext> {
    let mut context = null_mut();
    let call = driver
        .table()
        .cuCtxGetCurrent
        .context("no cuCtxGetCurrent")?;
    // SAFETY: `context` is valid for a write of one handle.
    let code = unsafe { call(&raw mut context) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    Ok(context)
}

pub(super) fn set_current(driver: Driver, context: CUcontext) -> Result<()> {
    let call = driver
        .table()
        .cuCtxSetCurrent
        .context("no cuCtxSetCurrent")?;
    // SAFETY: the callers give null or a live context.
    let code = unsafe { call(context) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    Ok(())
}

/// A context that another library might have made.
pub(super) struct Foreign(Driver, pub(super) CUcontext);

impl Foreign {
    pub(super) fn new(env: &Environment) -> Result<Self> {
        let mut context = null_mut();
        let create = env
            .driver
            .table()
            .cuCtxCreate_v2
            .context("no cuCtxCreate_v2")?;
        // SAFETY: `context` is valid for a write; the device is of this driver.
        let code = unsafe { create(&raw mut context, 0, env.device()?.as_raw()) };
        ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
        Ok(Self(env.driver, context))
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(destroy) = self.0.table().cuCtxDestroy_v2 {
            // SAFETY: made in `new`, and nothing else uses it. It is popped where it is current.
            let _ = unsafe { destroy(self.1) };
        }
    }
}

#[apply(case)]
fn binding_puts_back_what_was_current(env: &Environment) -> Result<()> {
    let context = env.context()?;
    set_current(env.driver, null_mut())?;
    {
        let _bound = context.bind()?;
        ensure!(current(env.driver)? == context.as_raw());
    }
    ensure!(
        current(env.driver)?.is_null(),
        "no context was current before"
    );

    let foreign = Foreign::new(env)?;
    ensure!(current(env.driver)? == foreign.1);
    {
        let _bound = context.bind()?;
        ensure!(current(env.driver)? == context.as_raw());
    }
    ensure!(
        current(env.driver)? == foreign.1,
        "the foreign context was current before"
    );
    let buffer = env.pool()?.alloc_from(&env.stream()?, &[1u8, 2, 3])?;
    ensure!(buffer.to_vec()? == [1, 2, 3]);
    ensure!(
        current(env.driver)? == foreign.1,
        "work on ours left the foreign one"
    );
    drop(foreign);
    set_current(env.driver, null_mut())
}

#[apply(case)]
fn binding_is_nested(env: &Environment) -> Result<()> {
    let context = env.context()?;
    set_current(env.driver, null_mut())?;
    let outer = context.bind()?;
    let inner = context.bind()?;
    drop(inner);
    ensure!(current(env.driver)? == context.as_raw());
    drop(outer);
    ensure!(current(env.driver)?.is_null());
    Ok(())
}

#[apply(case)]
fn no_operation_needs_or_leaves_a_current_context(env: &Environment) -> Result<()> {
    // Synchronising the context lets the host see every stream's frees.
    let _pressure = env.exclusive();
    set_current(env.driver, null_mut())?;
    let check = |what: &str| -> Result<()> {
        ensure!(
            current(env.driver)?.is_null(),
            "{what} left a context current"
        );
        Ok(())
    };
    let context = env.context()?;
    check("primary_context")?;
    let (stream, other) = (context.stream()?, context.stream()?);
    check("stream")?;
    let event = context.event()?;
    check("event")?;
    event.record(&stream)?;
    other.wait_event(&event)?;
    event.synchronize()?;
    ensure!(event.is_done()?);
    check("the event's use")?;
    let pool = env.pool()?;
    pool.set_reuse_policy(cuda_mem::ReusePolicy::DETERMINISTIC)?;
    check("pool")?;
    let mut buffer = pool.alloc::<u32>(&stream, 1000)?;
    check("alloc")?;
    buffer.fill(7)?;
    check("fill")?;
    buffer.on(&other)?.fill(8)?;
    check("on")?;
    buffer.copy_from(&[3; 1000])?;
    check("copy_from")?;
    ensure!(buffer.to_vec()? == [3; 1000]);
    check("to_vec")?;
    drop(buffer);
    check("drop of a buffer")?;
    ensure!(stream.is_done().is_ok());
    stream.synchronize()?;
    context.synchronize()?;
    context.memory_info()?;
    pool.trim_to(0)?;
    if env.need(11, 3).is_ok() {
        pool.stats()?;
    }
    check("the rest")?;
    drop(event);
    drop(stream);
    drop(other);
    drop(pool);
    drop(context);
    check("drops")
}

#[apply(case)]
fn memory_info_is_plausible(env: &Environment) -> Result<()> {
    let info = env.context()?.memory_info()?;
    ensure!(info.free <= info.total && info.free > 0, "{info:?}");
    ensure!(
        info.total <= env.device()?.total_memory()? + (1 << 30),
        "{info:?}"
    );
    Ok(())
}

/// Alone, because it looks at whether anybody in the process holds the context.
#[apply(case_alone)]
fn a_primary_context_lives_while_something_holds_it(env: &Environment) -> Result<()> {
    let device = env.device()?;
    ensure!(!device.has_active_context()?, "before anything was asked");
    let context = device.primary_context()?;
    let second = device.primary_context()?;
    ensure!(context == second && device.has_active_context()?);
    let stream = context.stream()?;
    let buffer = env.pool()?.alloc::<u8>(&stream, 100)?;
    drop(context);
    drop(second);
    drop(stream);
    ensure!(device.has_active_context()?, "the buffer holds it");
    drop(buffer);
    ensure!(!device.has_active_context()?, "nothing holds it any more");
    Ok(())
}

#[apply(case)]
fn a_context_of_the_program_can_be_handed_in(env: &Environment) -> Result<()> {
    set_current(env.driver, null_mut())?;
    // SAFETY: null is refused.
    let refused = unsafe { env.driver.context_from_raw(null_mut()) };
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::InvalidContext));
    let foreign = Foreign::new(env)?;
    set_current(env.driver, null_mut())?;
    // SAFETY: it ends after everything that is made in it here.
    let context = unsafe { env.driver.context_from_raw(foreign.1) }?;
    ensure!(current(env.driver)?.is_null(), "asking left it current");
    ensure!(!context.is_primary() && context.device() == env.device()?);
    let primary = env.context()?;
    ensure!(context != primary, "they are two");
    let refused = primary.event()?.record(&context.stream()?);
    ensure!(refused.is_err_and(|error| {
        // The driver was not asked.
        error.kind() == ErrorKind::InvalidValue && error.code().is_none()
    }));
    let (a, b) = (context.stream()?, context.stream()?);
    let mut buffer = env.pool()?.alloc_from(&a, &[1u8, 2, 3])?;
    buffer.on(&b)?.fill(7)?;
    ensure!(buffer.to_vec()? == [7; 3]);
    ensure!(current(env.driver)?.is_null(), "work left it current");
    drop((buffer, a, b, context));
    // It is still there, and its maker's.
    set_current(env.driver, foreign.1)?;
    ensure!(current(env.driver)? == foreign.1);
    drop(foreign);
    set_current(env.driver, null_mut())
}

/// An arena refuses requests of such a context's streams, but not the end of what was moved there.
#[apply(case_alone)]
fn memory_of_an_arena_may_end_in_a_context_that_was_handed_in(env: &Environment) -> Result<()> {
    let foreign = Foreign::new(env)?;
    set_current(env.driver, null_mut())?;
    for is_recorded in [false, true] {
        // SAFETY: it ends after everything that is made in it here.
        let context = unsafe { env.driver.context_from_raw(foreign.1) }?;
        let (own, theirs, third) = (env.stream()?, context.stream()?, env.stream()?);
        let mut builder = Arena::builder(&env.device()?);
        if is_recorded {
            builder = builder.record(&Recorder::ring(100));
        }
        let arena = builder.build()?;
        let refused = arena.alloc::<u8>(&theirs, 1000);
        ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::NotSupported));
        for len in [1000, 1 << 20] {
            let mut moved = arena.alloc_from(&own, &vec![1_u8; len])?.move_to(&theirs)?;
            moved.fill(2)?;
            ensure!(moved.to_vec()? == vec![2; len]);
            drop(moved);
            let mut used = arena.alloc_from(&own, &vec![1_u8; len])?;
            used.on(&theirs)?.fill(3)?;
            used.free_after([&theirs, &third])?;
            let moved = arena.alloc::<u8>(&own, len)?.move_to(&theirs)?;
            moved.free_after([&own])?;
        }
        let counts = drop_counts();
        ensure!(counts.failures == 0, "recorded: {is_recorded}; {counts:?}");
        ensure!(arena.stats().live == 0, "{}", arena.stats());
        // The memory was freed in streams of this one, after the work in the other.
        env.context()?.synchronize()?;
        arena.trim_to(0)?;
        ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    }
    Ok(())
}

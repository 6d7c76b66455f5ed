//! Which context this crate takes for current, seen by the calls that make one current. A context that was made anew has
//! the handle of the one before it, which may still be on the thread's stack.

use std::mem::forget;
use std::ptr::null_mut;

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::Context;
use cuda_mem::sys::CUresult;
use cuda_mem_tests::environment::Environment;

/// How often this context is made current when it is wanted next.
fn times_made_current(env: &Environment, context: &Context) -> Result<u64> {
    let control = env.control()?;
    control.reset();
    drop(context.bind()?);
    Ok(control.calls("cuCtxSetCurrent"))
}

/// On a thread of its own: what stays current goes with it.
fn on_a_thread(work: impl FnOnce() -> Result<()> + Send) -> Result<()> {
    std::thread::scope(|scope| {
        let joined = scope.spawn(work).join();
        joined.map_err(|_| anyhow!("the thread panicked"))?
    })
}

/// A context that another library makes. It is current, and nobody destroys it.
fn made_elsewhere(env: &Environment) -> Result<Context> {
    let create = env.driver.table().cuCtxCreate_v2;
    let create = create.context("no cuCtxCreate_v2")?;
    let mut context = null_mut();
    // SAFETY: `context` is valid for a write; the device is of this driver.
    let code = unsafe { create(&raw mut context, 0, env.device()?.as_raw()) };
    ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    // SAFETY: it lives to the end of the process.
    Ok(unsafe { env.driver.context_from_raw(context) }?)
}

/// The primary context, made anew while the one before it is on the thread's stack.
fn made_anew(env: &Environment) -> Result<Context> {
    let first = env.context()?;
    let handle = first.as_raw();
    forget(first.bind()?);
    drop(first);
    let second = env.context()?;
    ensure!(second.as_raw() == handle);
    Ok(second)
}

#[apply(case)]
fn a_context_that_is_handed_in_again_is_made_current_again(env: &Environment) -> Result<()> {
    on_a_thread(|| {
        let own = env.context()?;
        // SAFETY: `own` keeps it alive.
        let hand_in = || unsafe { env.driver.context_from_raw(own.as_raw()) };
        let first = hand_in()?;
        forget(first.bind()?);
        ensure!(times_made_current(env, &first)? == 0, "it is current");
        drop(first);
        // For all that this crate knows, its owner has destroyed the first one.
        let second = hand_in()?;
        let times = times_made_current(env, &second)?;
        ensure!(times == 1, "{times} times");
        ensure!(times_made_current(env, &second)? == 0, "once is enough");
        Ok(())
    })
}

#[apply(case)]
fn a_context_is_still_current_after_a_guard_above_it(env: &Environment) -> Result<()> {
    on_a_thread(|| {
        let (context, other) = (env.context()?, made_elsewhere(env)?);
        let _below = context.bind()?;
        drop(other.bind()?);
        let times = times_made_current(env, &context)?;
        ensure!(times == 0, "{times} times");
        Ok(())
    })
}

#[apply(case)]
fn a_context_is_not_current_because_it_was_above_one_that_has_ended(
    env: &Environment,
) -> Result<()> {
    on_a_thread(|| {
        let other = made_elsewhere(env)?;
        let context = made_anew(env)?;
        let outer = other.bind()?;
        drop(context.bind()?);
        drop(outer);
        let times = times_made_current(env, &context)?;
        ensure!(times == 1, "{times} times");
        Ok(())
    })
}

/// Guards are dropped in the order in which they were made. What is current then has ended.
fn drop_in_disorder(env: &Environment, third_is_like_first: bool) -> Result<()> {
    on_a_thread(|| {
        let (first, different) = (made_elsewhere(env)?, made_elsewhere(env)?);
        let context = made_anew(env)?;
        let third = if third_is_like_first {
            &first
        } else {
            &different
        };
        drop([first.bind()?, context.bind()?, third.bind()?]);
        let times = times_made_current(env, &context)?;
        ensure!(times == 1, "{times} times");
        Ok(())
    })
}

#[apply(case)]
fn guards_in_disorder_leave_nothing_that_counts_as_current(env: &Environment) -> Result<()> {
    drop_in_disorder(env, false)
}

/// Each guard finds the handle of its own context on top.
#[apply(case)]
fn like_guards_in_disorder_leave_nothing_that_counts_as_current(env: &Environment) -> Result<()> {
    drop_in_disorder(env, true)
}

/// Nothing is current on this thread, on whose stack are at most two contexts.
fn empty_stack(env: &Environment) -> Result<()> {
    let set = env.driver.table().cuCtxSetCurrent;
    let set = set.context("no cuCtxSetCurrent")?;
    for _ in 0..2 {
        // SAFETY: null is always allowed. It takes the top off the stack.
        let code = unsafe { set(null_mut()) };
        ensure!(code == CUresult::CUDA_SUCCESS, "{code}");
    }
    Ok(())
}

/// A guard that was made where nothing was current takes off what is on top when it is dropped, whichever it is.
#[apply(case)]
fn guards_under_others_leave_nothing_that_counts_as_current(env: &Environment) -> Result<()> {
    on_a_thread(|| {
        let (first, second) = (made_elsewhere(env)?, made_elsewhere(env)?);
        let mut under = Vec::new();
        for _ in 0..3 {
            empty_stack(env)?;
            under.push(first.bind()?);
        }
        empty_stack(env)?;
        let context = made_anew(env)?;
        for above in [&first, &second, &context] {
            forget(above.bind()?);
        }
        let last = first.bind()?;
        // What is left is the context that has ended, and the first one above it.
        drop(under);
        drop(last);
        let times = times_made_current(env, &context)?;
        ensure!(times == 1, "{times} times");
        Ok(())
    })
}

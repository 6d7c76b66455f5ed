//! A context that stays current on a thread after its last release, and guards that would put one back.
//!
//! Each body alone: it counts on being the only one that holds the primary context.

use std::mem::forget;
use std::ptr::null_mut;
use std::sync::mpsc::channel;
use std::thread;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::{Context, MemoryPool, Stream};

use super::context::{Foreign, current, set_current};
use crate::environment::Environment;

/// What programs do with a stream, first with calls that need no current context.
fn use_stream(pool: &MemoryPool, stream: &Stream) -> Result<()> {
    const LEN: usize = 100_000;
    drop(pool.alloc::<u32>(stream, LEN)?);
    let mut buffer = pool.alloc::<u32>(stream, LEN)?;
    buffer.fill(7)?;
    ensure!(buffer.to_vec()? == [7; LEN]);
    buffer.copy_from(&[8; LEN])?;
    let mut copy = pool.alloc_zeroed::<u32>(stream, LEN)?;
    copy.copy_from_device(&buffer)?;
    buffer.free()?;
    ensure!(copy.to_vec()? == [8; LEN]);
    stream.synchronize()?;
    ensure!(stream.is_done()?);
    Ok(())
}

/// Also with both default streams, another stream and an event.
fn use_context(pool: &MemoryPool, context: &Context) -> Result<()> {
    let (stream, other) = (context.stream()?, context.stream()?);
    use_stream(pool, &stream).context("a new stream")?;
    use_stream(pool, &context.legacy_stream()).context("the legacy stream")?;
    use_stream(pool, &context.per_thread_stream()).context("the thread's own stream")?;
    let mut buffer = pool.alloc_zeroed::<u8>(&stream, 1000)?;
    buffer.on(&other)?.fill(9)?;
    let event = context.event()?;
    event.record(&stream)?;
    other.wait_event(&event)?;
    event.synchronize()?;
    ensure!(buffer.to_vec()? == [9; 1000]);
    context.synchronize()?;
    context.memory_info()?;
    Ok(())
}

/// Nothing holds the primary context any more.
fn ensure_ended(env: &Environment) -> Result<()> {
    ensure!(!env.device()?.has_active_context()?, "somebody holds it");
    Ok(())
}

#[apply(case_alone)]
fn a_context_is_used_again_after_a_leaked_guard(env: &Environment) -> Result<()> {
    set_current(env.driver, null_mut())?;
    let pool = env.pool()?;
    for _ in 0..3 {
        let context = env.context()?;
        use_context(&pool, &context)?;
        forget(context.bind()?);
        use_context(&pool, &context)?;
        drop(context);
        ensure_ended(env)?;
    }
    let context = env.context()?;
    // The default streams first: they need the context that is current.
    use_stream(&pool, &context.legacy_stream())?;
    use_stream(&pool, &context.per_thread_stream())?;
    context.synchronize()?;
    use_context(&pool, &context)
}

/// On a thread that did not see how the context ended and was made again.
#[apply(case_alone)]
fn a_leaked_guard_of_another_thread_does_no_harm(env: &Environment) -> Result<()> {
    let pool = env.pool()?;
    type First = fn(&MemoryPool, &Context, &Stream) -> Result<()>;
    let firsts: [First; 4] = [
        |pool, _, stream| use_stream(pool, stream),
        |pool, context, _| use_stream(pool, &context.legacy_stream()),
        |pool, context, _| use_stream(pool, &context.per_thread_stream()),
        |_, context, _| Ok(context.synchronize()?),
    ];
    for (index, first) in firsts.into_iter().enumerate() {
        thread::scope(|scope| {
            let (send, receive) = channel::<(Context, Stream)>();
            let (leaked, is_leaked) = channel();
            let pool = &pool;
            let other = scope.spawn(move || {
                let context = env.context()?;
                forget(context.bind()?);
                drop(context);
                leaked.send(())?;
                let (context, stream) = receive.recv()?;
                first(pool, &context, &stream)?;
                use_stream(pool, &stream)?;
                use_context(pool, &context)
            });
            is_leaked.recv().context("the guard was not leaked")?;
            ensure_ended(env)?;
            let context = env.context()?;
            let stream = context.stream()?;
            send.send((context, stream))?;
            let joined = other.join();
            joined.map_err(|_| anyhow::anyhow!("the thread panicked"))?
        })
        .with_context(|| format!("thread {index}"))?;
    }
    Ok(())
}

#[apply(case_alone)]
fn guards_may_be_dropped_out_of_order(env: &Environment) -> Result<()> {
    let pool = env.pool()?;
    let foreign = Foreign::new(env)?;
    set_current(env.driver, null_mut())?;
    for leave_out in [false, true] {
        // SAFETY: it ends after everything that is made in it here.
        let other = unsafe { env.driver.context_from_raw(foreign.1) }?;
        let context = env.context()?;
        let outer = context.bind()?;
        let inner = other.bind()?;
        let innermost = context.bind()?;
        drop(outer);
        use_context(&pool, &context)?;
        use_context(&pool, &other)?;
        drop(inner);
        use_context(&pool, &other)?;
        if leave_out {
            forget(innermost);
        } else {
            drop(innermost);
        }
        use_context(&pool, &context)?;
        drop(context);
        ensure_ended(env)?;
        // Whatever is current now.
        use_context(&pool, &other)?;
        let context = env.context()?;
        use_context(&pool, &context)?;
        use_context(&pool, &other)?;
    }
    set_current(env.driver, null_mut())
}

#[apply(case_alone)]
fn a_guard_does_not_put_back_a_primary_context_that_has_ended(env: &Environment) -> Result<()> {
    let pool = env.pool()?;
    let foreign = Foreign::new(env)?;
    set_current(env.driver, null_mut())?;
    // SAFETY: it ends after everything that is made in it here.
    let other = unsafe { env.driver.context_from_raw(foreign.1) }?;
    for _ in 0..2 {
        let context = env.context()?;
        let ended = context.as_raw();
        forget(context.bind()?);
        let guard = other.bind()?;
        use_context(&pool, &context)?;
        drop(context);
        ensure_ended(env)?;
        use_context(&pool, &other)?;
        drop(guard);
        ensure!(
            current(env.driver)? != ended,
            "a context is current that has ended"
        );
        use_context(&pool, &other)?;
        use_context(&pool, &env.context()?)?;
    }
    set_current(env.driver, null_mut())
}

/// Of a context that lives again, or still, the guard puts back what was current.
#[apply(case_alone)]
fn a_guard_puts_back_a_primary_context_that_was_made_again(env: &Environment) -> Result<()> {
    let pool = env.pool()?;
    let foreign = Foreign::new(env)?;
    set_current(env.driver, null_mut())?;
    // SAFETY: it ends after everything that is made in it here.
    let other = unsafe { env.driver.context_from_raw(foreign.1) }?;
    let context = env.context()?;
    forget(context.bind()?);
    let guard = other.bind()?;
    drop(context);
    ensure_ended(env)?;
    let (context, second) = (env.context()?, env.context()?);
    drop(second);
    drop(guard);
    ensure!(current(env.driver)? == context.as_raw());
    use_context(&pool, &context)?;
    use_context(&pool, &other)?;
    ensure!(current(env.driver)? == context.as_raw());
    set_current(env.driver, null_mut())
}

/// The context that was current before is another library's, which destroys it too early.
#[apply(case_alone)]
fn a_guard_survives_the_end_of_a_foreign_context(env: &Environment) -> Result<()> {
    let (pool, context) = (env.pool()?, env.context()?);
    let foreign = Foreign::new(env)?;
    ensure!(current(env.driver)? == foreign.1);
    let (guard, destroyed) = (context.bind()?, foreign.1);
    drop(foreign);
    ensure!(current(env.driver)? == context.as_raw());
    use_context(&pool, &context)?;
    drop(guard);
    ensure!(current(env.driver)? == destroyed);
    use_context(&pool, &context)?;
    ensure!(current(env.driver)? == destroyed);
    use_context(&pool, &env.context()?)?;
    set_current(env.driver, null_mut())
}

/// What is current is another library's, which has destroyed it.
#[apply(case_alone)]
fn a_context_is_handed_in_where_a_destroyed_one_is_current(env: &Environment) -> Result<()> {
    let (pool, context) = (env.pool()?, env.context()?);
    let handed_in = Foreign::new(env)?;
    set_current(env.driver, null_mut())?;
    let foreign = Foreign::new(env)?;
    let (guard, destroyed) = (context.bind()?, foreign.1);
    drop(foreign);
    drop(guard);
    ensure!(current(env.driver)? == destroyed);
    // SAFETY: it ends after everything that is made in it here.
    let other = unsafe { env.driver.context_from_raw(handed_in.1) }?;
    ensure!(other.device() == env.device()?);
    ensure!(current(env.driver)? == destroyed);
    use_context(&pool, &other)?;
    ensure!(current(env.driver)? == destroyed);
    use_context(&pool, &context)?;
    set_current(env.driver, null_mut())
}

/// Only a primary context is known to have ended.
#[apply(case_alone)]
fn a_guard_puts_back_a_foreign_context_although_the_primary_one_has_ended(
    env: &Environment,
) -> Result<()> {
    let above = Foreign::new(env)?;
    set_current(env.driver, null_mut())?;
    let before = Foreign::new(env)?;
    // SAFETY: it ends after everything that is made in it here.
    let other = unsafe { env.driver.context_from_raw(above.1) }?;
    let context = env.context()?;
    let guard = other.bind()?;
    drop(context);
    ensure_ended(env)?;
    drop(guard);
    ensure!(current(env.driver)? == before.1, "it was current before");
    drop(before);
    set_current(env.driver, null_mut())
}

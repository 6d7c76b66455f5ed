//! When freed memory serves another stream: the driver's matrix, policy by policy.
//!
//! The pool holds at most 64 MiB, so that a second block of 40 MiB fits only where the first was.

use anyhow::{Result, bail, ensure};
use cuda_mem::{DeviceBuffer, ErrorKind, MemoryPool, ReusePolicy, Stream};

use crate::environment::Environment;
use crate::hold::hold;

const BLOCK: usize = 40 << 20;

fn small_pool(env: &Environment, policy: ReusePolicy) -> Result<MemoryPool> {
    env.need(12, 2)?;
    Ok(MemoryPool::builder(&env.device()?)
        .max_size(64 << 20)
        .reuse(policy)
        .build()?)
}

/// Allocates a block on `stream` and frees it there at once; returns where it was.
fn free_block(pool: &MemoryPool, stream: &Stream) -> Result<u64> {
    let block = pool.alloc::<u8>(stream, BLOCK)?;
    let address = block.as_raw();
    block.free()?;
    Ok(address)
}

fn must_fail(pool: &MemoryPool, stream: &Stream) -> Result<()> {
    match pool.alloc::<u8>(stream, BLOCK) {
        Ok(_) => bail!("a block was reused that must not be"),
        Err(error) => ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}"),
    }
    Ok(())
}

fn must_be(address: u64, block: &DeviceBuffer<u8>) -> Result<()> {
    ensure!(
        block.as_raw() == address,
        "{:#x} is not {address:#x}",
        block.as_raw()
    );
    Ok(())
}

#[apply(case)]
fn the_same_stream_gets_its_block_back(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let pool = small_pool(env, ReusePolicy::NONE)?;
    let stream = env.stream()?;
    let held = hold(&stream)?;
    let address = free_block(&pool, &stream)?;
    must_be(address, &pool.alloc(&stream, BLOCK)?)?;
    drop(held);
    stream.synchronize()?;
    Ok(())
}

#[apply(case)]
fn a_seen_free_serves_every_stream(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let pool = small_pool(env, ReusePolicy::NONE)?;
    let (first, second) = (env.stream()?, env.stream()?);
    let address = free_block(&pool, &first)?;
    first.synchronize()?;
    must_be(address, &pool.alloc(&second, BLOCK)?)
}

#[apply(case)]
fn no_policy_reuses_nothing_pending(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let pool = small_pool(env, ReusePolicy::NONE)?;
    let (first, second) = (env.stream()?, env.stream()?);
    let held = hold(&first)?;
    free_block(&pool, &first)?;
    must_fail(&pool, &second)?;
    second.wait_for(&first)?;
    must_fail(&pool, &second)?;
    drop(held);
    first.synchronize()?;
    second.synchronize()?;
    Ok(())
}

#[apply(case)]
fn event_dependencies_are_followed(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let pool = small_pool(env, ReusePolicy::FOLLOW_EVENT_DEPENDENCIES)?;
    let (first, second) = (env.stream()?, env.stream()?);
    let held = hold(&first)?;
    let address = free_block(&pool, &first)?;
    must_fail(&pool, &second)?;
    second.wait_for(&first)?;
    let block = pool.alloc(&second, BLOCK)?;
    must_be(address, &block)?;
    ensure!(!second.is_done()?, "the wait is still there");
    drop(held);
    second.synchronize()?;
    Ok(())
}

#[apply(case)]
fn a_finished_free_is_seen_opportunistically(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let pool = small_pool(env, ReusePolicy::ALLOW_OPPORTUNISTIC)?;
    let (first, second, third) = (env.stream()?, env.stream()?, env.stream()?);
    let held = hold(&first)?;
    let address = free_block(&pool, &first)?;
    must_fail(&pool, &second)?;
    drop(held);
    // Another stream waits for the first one and is synchronised, so that the free has run without
    // the host having synchronised with its stream.
    third.wait_for(&first)?;
    while !third.is_done()? {
        std::thread::yield_now();
    }
    must_be(address, &pool.alloc(&second, BLOCK)?)
}

#[apply(case)]
fn an_internal_dependency_waits(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let pool = small_pool(env, ReusePolicy::ALLOW_INTERNAL_DEPENDENCIES)?;
    let (first, second) = (env.stream()?, env.stream()?);
    let held = hold(&first)?;
    let address = free_block(&pool, &first)?;
    let block = pool.alloc(&second, BLOCK)?;
    must_be(address, &block)?;
    ensure!(!second.is_done()?, "the driver's own wait is there");
    drop(held);
    second.synchronize()?;
    Ok(())
}

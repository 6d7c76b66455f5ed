//! Buffers: what is written is what is read.

use anyhow::{Result, ensure};
use cuda_mem::{DeviceBuffer, ErrorKind};

use crate::environment::Environment;
use crate::hold::hold;

/// Bytes that repeat late, so that a shifted copy shows.
fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| ((index + seed) % 251) as u8).collect()
}

#[apply(case)]
fn bytes_come_back_as_they_were_sent(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    for len in [
        1,
        2,
        255,
        256,
        257,
        4096,
        65_535,
        65_536,
        65_537,
        (5 << 20) + 3,
    ] {
        let sent = pattern(len, len);
        let buffer = pool.alloc_from(&stream, &sent)?;
        ensure!(buffer.len() == len && buffer.size_bytes() == len);
        ensure!(buffer.to_vec()? == sent, "{len} bytes");
    }
    Ok(())
}

#[apply(case)]
fn every_width_fills(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let mut bytes = pool.alloc::<u8>(&stream, 1001)?;
    bytes.fill(0xab)?;
    ensure!(bytes.to_vec()? == [0xab; 1001]);
    let mut halves = pool.alloc::<u16>(&stream, 1001)?;
    halves.fill(0xabcd)?;
    ensure!(halves.to_vec()? == [0xabcd; 1001]);
    let mut floats = pool.alloc::<f32>(&stream, 1001)?;
    floats.fill(-1.5)?;
    ensure!(floats.to_vec()? == [-1.5; 1001]);
    let mut doubles = pool.alloc::<f64>(&stream, 1001)?;
    doubles.fill_bytes(0)?;
    ensure!(doubles.to_vec()? == [0.0; 1001]);
    Ok(())
}

#[apply(case)]
fn zeroed_memory_is_zero(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let mut dirty = pool.alloc::<u64>(&stream, 10_000)?;
    dirty.fill_bytes(0xff)?;
    drop(dirty);
    ensure!(pool.alloc_zeroed::<u64>(&stream, 10_000)?.to_vec()? == [0; 10_000]);
    Ok(())
}

#[apply(case)]
fn a_wrong_length_is_refused_and_changes_nothing(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let mut buffer = pool.alloc_from(&stream, &[1u8; 10])?;
    let other = pool.alloc_from(&stream, &[2u8; 11])?;
    let mut back = [3; 9];
    for refused in [
        buffer.copy_from(&[2; 11]),
        buffer.copy_to(&mut back),
        buffer.copy_from_device(&other),
    ] {
        let Err(error) = refused else {
            anyhow::bail!("a copy of another length was made");
        };
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        ensure!(error.to_string().contains("10 elements"), "{error}");
    }
    ensure!(back == [3; 9] && buffer.to_vec()? == [1; 10]);
    Ok(())
}

#[apply(case)]
fn nothing_at_all_is_a_buffer_too(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let mut empty = pool.alloc::<u32>(&stream, 0)?;
    ensure!(empty.is_empty() && empty.as_raw() == 0 && empty.size_bytes() == 0);
    empty.fill(1)?;
    empty.copy_from(&[])?;
    ensure!(empty.to_vec()?.is_empty());
    drop(empty.on(&env.stream()?)?);
    empty.free()?;
    let units = pool.alloc_from(&stream, &[(); 5])?;
    ensure!(units.len() == 5 && units.size_bytes() == 0 && units.to_vec()? == [(); 5]);
    Ok(())
}

#[apply(case)]
fn live_buffers_do_not_overlap(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let mut live = Vec::new();
    for round in 0..120_usize {
        let len = 1 + (round * 7919) % 100_000;
        live.push((round, pool.alloc_from(&stream, &pattern(len, round))?));
        if round % 3 == 2 {
            live.swap_remove(round % live.len());
        }
    }
    ensure!(live.len() == 80);
    for (seed, buffer) in &live {
        ensure!(
            buffer.to_vec()? == pattern(buffer.len(), *seed),
            "buffer {seed}"
        );
    }
    Ok(())
}

#[apply(case)]
fn a_buffer_may_be_dropped_by_another_thread(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let buffer = pool.alloc_from(&stream, &[7u8; 100])?;
    let back = std::thread::spawn(move || buffer.to_vec())
        .join()
        .map_err(|_| anyhow::anyhow!("the thread panicked"))??;
    ensure!(back == [7; 100]);
    if env.need(11, 3).is_ok() {
        ensure!(pool.stats()?.used.current == 0);
    }
    Ok(())
}

#[apply(case)]
fn freeing_says_how_it_went(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    pool.alloc::<u8>(&stream, 100)?.free()?;
    if env.need(11, 3).is_ok() {
        ensure!(pool.stats()?.used.current == 0);
    }
    stream.synchronize()?;
    pool.close()?;
    Ok(())
}

#[apply(case)]
fn freeing_on_another_stream_is_ordered(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (pool, home, other) = (env.pool()?, env.stream()?, env.stream()?);
    let mut buffer = pool.alloc_zeroed::<u8>(&home, 1000)?;
    home.synchronize()?;
    let held = hold(&home)?;
    buffer.fill(1)?;
    buffer.free_on(&other)?;
    ensure!(
        !other.is_done()?,
        "the free ran ahead of the buffer's own stream"
    );
    drop(held);
    other.synchronize()?;
    pool.alloc::<u8>(&home, 0)?.free_on(&other)?;
    Ok(())
}

#[apply(case)]
fn freeing_at_once_serves_every_stream(env: &Environment) -> Result<()> {
    env.need(12, 2)?;
    let _pressure = env.exclusive();
    let pool = cuda_mem::MemoryPool::builder(&env.device()?)
        .max_size(64 << 20)
        .reuse(cuda_mem::ReusePolicy::empty())
        .build()?;
    let (home, other) = (env.stream()?, env.stream()?);
    let mut buffer = pool.alloc::<u8>(&home, 40 << 20)?;
    buffer.fill(1)?;
    buffer.free_sync()?;
    pool.alloc::<u8>(&other, 40 << 20)?.free_sync()?;
    ensure!(pool.stats()?.used.current == 0);
    pool.alloc::<u8>(&home, 0)?.free_sync()?;
    Ok(())
}

#[apply(case)]
fn a_buffer_moves_to_another_stream(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (pool, first, second) = (env.pool()?, env.stream()?, env.stream()?);
    let mut buffer = pool.alloc_zeroed::<u8>(&first, 1000)?;
    first.synchronize()?;
    let held = hold(&first)?;
    buffer.fill(1)?;
    let mut buffer = buffer.move_to(&second)?;
    ensure!(*buffer.stream() == second && !second.is_done()?, "in order");
    drop(held);
    buffer.fill(2)?;
    let held = hold(&first)?;
    ensure!(
        buffer.to_vec()? == [2; 1000],
        "nothing of it is in the old stream"
    );
    drop(buffer);
    drop(held);
    let moved = pool.alloc::<u8>(&first, 0)?.move_to(&second)?;
    ensure!(*moved.stream() == second);
    Ok(())
}

#[apply(case)]
fn memory_goes_out_of_hand_and_comes_back(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let address = pool.alloc_from(&stream, &[1_u16, 2, 3])?.into_raw()?;
    if env.need(11, 3).is_ok() {
        ensure!(pool.stats()?.used.current == 6, "nobody has freed it");
    }
    // SAFETY: address and length are those of the buffer above.
    let buffer = unsafe { cuda_mem::DeviceBuffer::<u16>::from_raw(&stream, address, 3) };
    ensure!(buffer.to_vec()? == [1, 2, 3]);
    drop(buffer);
    if env.need(11, 3).is_ok() {
        ensure!(pool.stats()?.used.current == 0);
    }
    ensure!(pool.alloc::<u8>(&stream, 0)?.into_raw()? == 0);
    Ok(())
}

#[apply(case)]
fn no_address_is_no_bytes(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    // SAFETY: address 0 means no bytes.
    let numbers = unsafe { DeviceBuffer::<u32>::from_raw(&stream, 0, 5) };
    ensure!(numbers.is_empty() && numbers.to_vec()?.is_empty());
    // SAFETY: as above.
    let units = unsafe { DeviceBuffer::<()>::from_raw(&stream, 0, 5) };
    ensure!(units.len() == 5, "they need no bytes");
    Ok(())
}

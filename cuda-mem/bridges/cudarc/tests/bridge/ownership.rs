//! Streams and memory that go from one crate to the other.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::Resource;
use cuda_mem::memory::CurrentPool;
use cuda_mem_cudarc_bridge::{Buffer, Error, borrow_stream};
use cudarc::driver::{CudaContext, DeviceSlice as _, sys};

use crate::common::{Gate, Machine, require_held_up};

pub(crate) const TESTS: &[crate::Test] = &[
    (
        "a_borrowed_stream_is_the_same_and_is_kept",
        a_borrowed_stream_is_the_same_and_is_kept,
    ),
    (
        "the_default_stream_is_the_legacy_one",
        the_default_stream_is_the_legacy_one,
    ),
    (
        "per_thread_streams_are_refused",
        per_thread_streams_are_refused,
    ),
    ("other_contexts_are_refused", other_contexts_are_refused),
    (
        "memory_of_another_stream_is_refused",
        memory_of_another_stream_is_refused,
    ),
    (
        "memory_of_a_pool_goes_to_cudarc",
        memory_of_a_pool_goes_to_cudarc,
    ),
    (
        "other_streams_wait_for_memory_that_was_handed_over",
        other_streams_wait_for_memory_that_was_handed_over,
    ),
    (
        "memory_of_an_arena_is_not_handed_over",
        memory_of_an_arena_is_not_handed_over,
    ),
    ("no_memory_is_not_handed_over", no_memory_is_not_handed_over),
    ("memory_of_cudarc_comes_over", memory_of_cudarc_comes_over),
    (
        "cudarc_allocates_from_the_current_pool",
        cudarc_allocates_from_the_current_pool,
    ),
];

fn a_borrowed_stream_is_the_same_and_is_kept() -> Result<()> {
    let machine = Machine::new()?;
    let theirs = machine.stream()?;
    let stream = borrow_stream(&theirs)?;
    ensure!(stream.as_raw().addr() == theirs.cu_stream().addr());
    ensure!(stream.context().is_primary() && stream.device() == machine.device);
    drop(theirs);
    // It is not destroyed before the last buffer.
    let x = machine.pool.alloc_from(&stream, &[1u8, 2])?;
    drop((stream, machine.context));
    ensure!(x.to_vec()? == [1, 2]);
    Ok(())
}

fn the_default_stream_is_the_legacy_one() -> Result<()> {
    let machine = Machine::new()?;
    let stream = borrow_stream(&machine.context.default_stream())?;
    ensure!(stream == machine.device.primary_context()?.legacy_stream());
    Ok(())
}

fn per_thread_streams_are_refused() -> Result<()> {
    let machine = Machine::new()?;
    let theirs = machine.context.per_thread_stream();
    ensure!(matches!(
        borrow_stream(&theirs),
        Err(Error::PerThreadStream)
    ));
    let ours = machine.device.primary_context()?.per_thread_stream();
    let memory = machine.pool.alloc::<u8>(&ours, 10)?;
    let refused = Buffer::new(memory, &theirs).err().context("it was taken")?;
    ensure!(matches!(refused.error, Error::PerThreadStream));
    ensure!(refused.object.is_some());
    Ok(())
}

fn other_contexts_are_refused() -> Result<()> {
    let machine = Machine::new()?;
    let device = machine.context.cu_device();
    let mut raw = std::ptr::null_mut();
    // SAFETY: the handle is written before the call returns.
    unsafe { sys::cuCtxCreate_v2(&raw mut raw, 0, device) }.result()?;
    // SAFETY: a live context of this device, which is destroyed by its new owner only.
    let own = unsafe { CudaContext::from_raw_context(0, device, raw) }?;
    let refused = borrow_stream(&own.new_stream()?);
    ensure!(matches!(
        refused,
        Err(Error::NotPrimaryContext { ordinal: 0 })
    ));

    // A buffer does not take a stream of it either.
    let theirs = machine.stream()?;
    let memory = machine.buffer(&theirs, &[1])?.into_memory()?;
    ensure!(matches!(
        Buffer::new(memory, &own.default_stream()).map_err(|refused| refused.error),
        Err(Error::OtherStream)
    ));
    machine.context.bind_to_thread()?;
    Ok(())
}

fn memory_of_another_stream_is_refused() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, other) = (machine.stream()?, machine.stream()?);
    let memory = machine.buffer(&stream, &[1, 2])?.into_memory()?;
    let refused = Buffer::new(memory, &other).err().context("it was taken")?;
    ensure!(matches!(refused.error, Error::OtherStream));
    let memory = refused.object.context("the memory is lost")?;
    let x = Buffer::new(memory.move_to(&borrow_stream(&other)?)?, &other)?;
    ensure!(other.clone_dtoh(&x)? == [1, 2]);
    Ok(())
}

fn memory_of_a_pool_goes_to_cudarc() -> Result<()> {
    let machine = Machine::new()?;
    let stream = machine.stream()?;
    let slice = match machine.buffer(&stream, &[1, 2, 3])?.into_cuda_slice() {
        Ok(slice) => slice,
        Err(refused) => bail!(refused.error),
    };
    ensure!(slice.len() == 3 && slice.stream() == &stream);
    ensure!(machine.used()? > 0);
    ensure!(stream.clone_dtoh(&slice)? == [1, 2, 3]);
    drop(slice);
    stream.synchronize()?;
    machine.context.check_err()?;
    ensure!(machine.used()? == 0, "it was freed in its pool");
    Ok(())
}

/// A new slice of cudarc knows nothing of earlier work.
fn other_streams_wait_for_memory_that_was_handed_over() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, other, writer) = (machine.stream()?, machine.stream()?, machine.stream()?);
    let mut x = machine.buffer(&stream, &[9; 1000])?;
    let gate = Gate::close(&writer)?;
    writer.memset_zeros(&mut x)?; // pending when it is handed over
    let slice = x.into_cuda_slice()?;
    let mut y = machine.buffer(&other, &[8; 1000])?;
    other.memcpy_dtod(&slice, &mut y)?;
    require_held_up(&other)?;
    gate.open();
    ensure!(other.clone_dtoh(&y)? == [0; 1000]);
    Ok(())
}

fn memory_of_an_arena_is_not_handed_over() -> Result<()> {
    let machine = Machine::new()?;
    let stream = machine.stream()?;
    let ours = borrow_stream(&stream)?;
    let of_resource = Resource::from(machine.pool.clone()).alloc_from(&ours, &[1, 2, 3])?;
    for memory in [machine.part(&stream, &[1, 2, 3])?, of_resource] {
        let x = Buffer::new(memory, &stream)?;
        let refused = x.into_cuda_slice().err().context("it was handed over")?;
        ensure!(
            matches!(refused.error, Error::NotOfPool(_)),
            "{:?}",
            refused.error
        );
        let x = refused.object.context("the buffer is lost")?;
        ensure!(stream.clone_dtoh(&x)? == [1, 2, 3]);
    }
    Ok(())
}

fn no_memory_is_not_handed_over() -> Result<()> {
    let machine = Machine::new()?;
    let stream = machine.stream()?;
    let refused = machine.buffer(&stream, &[])?.into_cuda_slice();
    ensure!(matches!(
        refused.map_err(|refused| refused.error),
        Err(Error::NoMemory)
    ));
    Ok(())
}

fn memory_of_cudarc_comes_over() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, other) = (machine.stream()?, machine.stream()?);
    let mut slice = stream.clone_htod(&[9u32; 1000])?;
    let gate = Gate::close(&other)?;
    other.memset_zeros(&mut slice)?;
    let x = Buffer::from_cuda_slice(slice)?;
    ensure!(x.len() == 1000 && Arc::ptr_eq(x.stream(), &stream));
    require_held_up(&stream)?;
    gate.open();
    ensure!(x.memory()?.to_vec()? == [0; 1000]);
    // And back: it is a whole allocation of a pool.
    let slice = x.into_cuda_slice()?;
    ensure!(stream.clone_dtoh(&slice)? == [0; 1000]);
    Ok(())
}

fn cudarc_allocates_from_the_current_pool() -> Result<()> {
    let machine = Machine::new()?;
    let stream = machine.stream()?;
    machine.device.set_current_pool(&machine.pool)?;
    ensure!(machine.used()? == 0);
    let x = stream.alloc_zeros::<u8>(1 << 20)?;
    ensure!(machine.used()? >= 1 << 20);
    drop(x);
    stream.synchronize()?;
    ensure!(machine.used()? == 0);
    ensure!(machine.pool.stats()?.used.high >= 1 << 20);

    let default = machine.device.default_pool()?;
    machine.device.set_current_pool(&default)?;
    let x = stream.alloc_zeros::<u8>(1 << 20)?;
    ensure!(machine.used()? == 0, "it came from the default pool");
    drop(x);
    ensure!(matches!(
        machine.device.current_pool()?,
        CurrentPool::Default(_)
    ));
    Ok(())
}

//! What a buffer becomes for others.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use cuda_mem::interop::dlpack::{
    ArrayInterface, DLDataType, DLDeviceType, ExchangeStream, ImportedTensor, ManagedTensor,
};
use cuda_mem::memory::{ManagedResource, PinnedResource};
use cuda_mem::{ErrorKind, Resource};

use super::{ensure_used, numbers};
use crate::environment::Environment;
use crate::hold::hold;

#[apply(case)]
fn a_tensor_beyond_its_buffer_is_refused(env: &Environment) -> Result<()> {
    const MAX: usize = usize::MAX;
    let stream = env.stream()?;
    let mut buffer = env.pool()?.alloc_from(&stream, &[7_u32; 6])?;
    for shape in [
        &[7][..],
        &[2, 4],
        &[MAX],
        &[1 << 33, 1 << 33],
        &[MAX, 0, MAX, MAX],
    ] {
        let Err(failed) = ManagedTensor::new(buffer, shape) else {
            bail!("{shape:?} was exported");
        };
        ensure!(failed.error.kind() == ErrorKind::InvalidValue, "{failed}");
        buffer = failed.object.context("the buffer is lost")?;
    }
    for (shape, strides) in [
        (&[2, 3][..], &[3][..]),
        (&[2, 3], &[4, 1]),
        (&[2, 3], &[MAX, 1]),
        (&[3, 3], &[MAX / 2, MAX / 2]),
        (&[1, 3], &[MAX, 1]),
    ] {
        let builder = ManagedTensor::builder(buffer, DLDataType::U32);
        let Err(failed) = builder.shape(shape).strides(strides).build() else {
            bail!("{shape:?} with {strides:?} was exported");
        };
        ensure!(failed.error.kind() == ErrorKind::InvalidValue, "{failed}");
        buffer = failed.object.context("the buffer is lost")?;
    }
    let Err(failed) = ManagedTensor::builder(buffer, DLDataType::F64).build() else {
        bail!("elements of 8 bytes were made of 4");
    };
    ensure!(failed.error.kind() == ErrorKind::InvalidValue, "{failed}");
    buffer = failed.object.context("the buffer is lost")?;
    ensure!(buffer.to_vec()? == [7; 6], "the buffer is as it was");
    Ok(())
}

#[apply(case)]
fn strides_are_handed_on(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let buffer = pool.alloc_zeroed::<f32>(&stream, 6)?;
    let tensor = ManagedTensor::builder(buffer, DLDataType::F32)
        .shape(&[2, 3])
        .strides(&[1, 2])
        .build()?;
    let described = *tensor.tensor().context("another version")?;
    ensure!(numbers(described.shape, 2) == [2, 3] && numbers(described.strides, 2) == [1, 2]);
    let raw = tensor.into_raw();
    // SAFETY: made just now, for this stream.
    let refused = unsafe { ImportedTensor::<f32>::from_raw(raw, &stream) };
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::NotSupported));
    // SAFETY: it was refused, so it is still ours.
    drop(unsafe { ManagedTensor::from_raw(raw) });
    ensure_used(env, &pool, 0)?;
    Ok(())
}

#[apply(case)]
fn a_tensor_without_a_version_frees_the_buffer_too(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let buffer = pool.alloc_from(&stream, &[1_i64, 2, 3])?;
    let raw = ManagedTensor::new(buffer, &[3])?.into_raw_unversioned()?;
    // SAFETY: handed out just now.
    let tensor = unsafe { ManagedTensor::from_raw_unversioned(raw) };
    // SAFETY: made just now, for this stream.
    let tensor = unsafe { ImportedTensor::<i64>::from_raw(tensor.into_raw(), &stream) }?;
    ensure!(tensor.as_slice().to_vec()? == [1, 2, 3]);
    drop(tensor);
    ensure_used(env, &pool, 0)?;
    Ok(())
}

/// Alone, because freeing memory that is no pool's waits for the streams that other tests hold (R96).
#[apply(case_alone)]
fn memory_of_the_host_and_managed_memory_say_so(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut resources = vec![(
        Resource::new(PinnedResource::new(env.driver)),
        DLDeviceType::CUDA_HOST,
    )];
    if env.device()?.capabilities()?.managed_memory {
        resources.push((
            Resource::new(ManagedResource::new(env.driver)),
            DLDeviceType::CUDA_MANAGED,
        ));
    }
    for (resource, device_type) in resources {
        let mut buffer = resource.alloc::<u8>(&stream, 1000)?;
        buffer.fill(5)?;
        let tensor = ManagedTensor::new(buffer, &[10, 100])?;
        let described = *tensor.tensor().context("another version")?;
        ensure!(described.device.device_type == device_type, "{described:?}");
        ensure!(described.device.device_id == 0, "{described:?}");
        // SAFETY: made just now, for this stream.
        let mut tensor = unsafe { ImportedTensor::<u8>::from_raw(tensor.into_raw(), &stream) }?;
        ensure!(tensor.device().is_none(), "{tensor:?}");
        tensor.as_mut_slice()?.slice_mut(..10)?.fill(6)?;
        let bytes = tensor.as_slice().to_vec()?;
        ensure!(bytes[..10] == [6; 10] && bytes[10..] == [5; 990]);
        tensor.free()?;
    }
    Ok(())
}

#[apply(case)]
fn the_array_interface_names_memory_and_stream(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let stream = context.stream()?;
    let pool = env.pool()?;
    let buffer = pool.alloc_zeroed::<i16>(&stream, 6)?;
    let interface = ArrayInterface::of(buffer.slice(1..)?, &[5])?;
    ensure!(interface.shape == [5] && interface.typestr == "<i2");
    ensure!(interface.data == (buffer.as_raw() + 2, true) && interface.strides.is_none());
    let handle = i64::try_from(stream.as_raw().addr())?;
    ensure!(interface.stream == Some(handle), "{interface:?}");
    let refused = ArrayInterface::of(buffer.as_slice(), &[2, 4]);
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    let overflow = ArrayInterface::of(buffer.as_slice(), &[usize::MAX, 2]);
    ensure!(overflow.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    let empty = ArrayInterface::of(buffer.as_slice(), &[0, 2])?;
    ensure!(empty.data.0 == 0, "{empty:?}");
    for (stream, number) in [
        (context.legacy_stream(), 1),
        (context.per_thread_stream(), 2),
    ] {
        let buffer = pool.alloc::<u8>(&stream, 1)?;
        let interface = ArrayInterface::of(buffer.as_slice(), &[1])?;
        ensure!(interface.stream == Some(number), "{interface:?}");
    }
    Ok(())
}

/// A consumer takes the number 2 for its own stream.
#[apply(case)]
fn an_array_in_another_threads_own_stream_is_waited_for(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (context, pool, other) = (env.context()?, env.pool()?, env.stream()?);
    let ((send, receive), (end, over)) = (mpsc::channel(), mpsc::channel());
    let (context, pool, other) = (&context, &pool, &other);
    thread::scope(|scope| {
        let there = scope.spawn(move || -> Result<()> {
            let own = context.per_thread_stream();
            let buffer = pool.alloc_from(&own, &[1_u8])?;
            let held = hold(other)?;
            own.wait_for(other)?;
            let done = context.event()?;
            done.record(&own)?;
            send.send((buffer, held, done))?;
            // With the thread its stream would end.
            Ok(over.recv()?)
        });
        let look = || -> Result<()> {
            let (buffer, held, done) = receive.recv()?;
            thread::spawn(|| {
                thread::sleep(Duration::from_millis(20));
                drop(held);
            });
            let interface = ArrayInterface::of(buffer.as_slice(), &[1])?;
            ensure!(interface.stream.is_none(), "{interface:?}");
            ensure!(
                done.is_done()?,
                "the work of that stream was not waited for"
            );
            Ok(())
        };
        let looked = look();
        end.send(())?;
        there.join().map_err(|_| anyhow!("panicked"))??;
        looked
    })
}

#[apply(case)]
fn a_number_names_a_stream_to_order_with(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let (home, theirs) = (context.stream()?, context.stream()?);
    let mut buffer = env.pool()?.alloc_from(&home, &[1_u8, 2, 3])?;
    let number = ExchangeStream::of(&theirs).for_dlpack();
    for (number, expected) in [
        (Some(number), Some(theirs.clone())),
        (None, Some(context.legacy_stream())),
        (Some(1), Some(context.legacy_stream())),
        (Some(2), Some(context.per_thread_stream())),
        (Some(-1), None),
    ] {
        // SAFETY: the number is that of `theirs`, which lives on, or of a default stream.
        let found = unsafe { ExchangeStream::of_dlpack(number)?.stream(&context, ()) };
        ensure!(found == expected, "{number:?} is {found:?}");
        if let Some(stream) = found {
            buffer.set_stream(&stream)?;
            ensure!(buffer.to_vec()? == [1, 2, 3]);
        }
    }
    buffer.set_stream(&home)?;
    Ok(())
}

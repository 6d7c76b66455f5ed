//! Vectors and scalars on a device.

use anyhow::{Result, bail, ensure};
use cuda_mem::memory::{DeviceScalar, DeviceVec, LimitAdaptor};
use cuda_mem::{ErrorKind, Resource};

use crate::environment::Environment;
use crate::hold::hold;

#[apply(case)]
fn a_vector_grows_and_keeps_its_elements(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut vec = DeviceVec::<u32>::new(&stream)?;
    ensure!(vec.is_empty() && vec.capacity() == 0 && vec.as_raw() == 0);
    let mut expected = Vec::new();
    for round in 0..100_u32 {
        let values = [round, round + 1, round + 2];
        vec.extend_from_slice(&values)?;
        expected.extend(values);
        ensure!(vec.capacity() >= vec.len());
    }
    ensure!(vec.to_vec()? == expected);
    vec.reserve(1000)?;
    ensure!(vec.capacity() >= 1300 && vec.len() == 300);
    vec.resize(305, 9)?;
    vec.resize_zeroed(307)?;
    vec.resize_uninit(310)?;
    expected.extend([9, 9, 9, 9, 9, 0, 0]);
    ensure!(vec.to_vec()?[..307] == expected);
    vec.truncate(307);
    ensure!(vec.to_vec()? == expected);
    vec.truncate(400);
    ensure!(vec.len() == 307, "there are no more");
    vec.resize(2, 5)?;
    ensure!(vec.to_vec()? == [0, 1]);
    vec.clear();
    ensure!(vec.is_empty() && vec.capacity() >= 1300);
    Ok(())
}

#[apply(case)]
fn room_is_as_asked(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut vec = DeviceVec::<u64>::with_capacity(&stream, 10)?;
    ensure!(vec.capacity() == 10 && vec.is_empty());
    let address = vec.as_raw();
    vec.extend_from_slice(&[1; 10])?;
    ensure!(vec.as_raw() == address, "there was room");
    vec.reserve_exact(1)?;
    ensure!(vec.capacity() == 11);
    vec.reserve(1)?;
    ensure!(vec.capacity() == 11, "there is room");
    vec.reserve(2)?;
    ensure!(vec.capacity() == 22, "it doubles");
    vec.shrink_to(15)?;
    ensure!(vec.capacity() == 15);
    vec.shrink_to_fit()?;
    ensure!(vec.capacity() == 10 && vec.to_vec()? == [1; 10]);
    vec.clear();
    vec.shrink_to_fit()?;
    ensure!(vec.capacity() == 0 && vec.as_raw() == 0);
    Ok(())
}

#[apply(case)]
fn a_vector_that_cannot_grow_is_as_it_was(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let resource = Resource::new(LimitAdaptor::new(env.device()?.default_resource()?, 1000));
    let mut vec = DeviceVec::from_slice_in(&resource, &stream, &[7_u8; 400])?;
    for wanted in [601, 1 << 40] {
        let Err(error) = vec.reserve(wanted) else {
            bail!("{wanted} more than the limit were reserved");
        };
        ensure!(error.kind() == ErrorKind::OutOfMemory, "{error}");
    }
    ensure!(vec.resize(1000, 1).is_err() && vec.resize_zeroed(1000).is_err());
    ensure!(vec.extend_from_slice(&[1; 700]).is_err());
    let Err(error) = vec.reserve(usize::MAX) else {
        bail!("an overflow was reserved");
    };
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    ensure!(vec.capacity() == 400 && vec.to_vec()? == [7; 400]);
    // Twice as much would be too much; what is needed is not.
    vec.reserve(50)?;
    ensure!(vec.capacity() == 450);
    Ok(())
}

#[apply(case)]
fn vectors_are_copied_in_the_order_of_their_streams(env: &Environment) -> Result<()> {
    let (stream, other) = (env.stream()?, env.stream()?);
    let first = DeviceVec::from_slice(&stream, &[1_u16, 2, 3])?;
    let clone = first.try_clone()?;
    ensure!(clone.to_vec()? == [1, 2, 3] && clone.as_raw() != first.as_raw());
    ensure!(clone.resource() == first.resource());
    let mut second = DeviceVec::from_slice(&other, &[9_u16])?;
    second.extend_from_device(&first)?;
    second.extend_from_device(&clone)?;
    ensure!(second.to_vec()? == [9, 1, 2, 3, 1, 2, 3]);
    second.set_element(0, 4)?;
    ensure!(second.element(0)? == 4 && second.element(6)? == 3);
    for index in [7, usize::MAX] {
        let Err(error) = second.element(index) else {
            bail!("there is no element {index}");
        };
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        ensure!(second.set_element(index, 0).is_err());
    }
    let buffer = second.into_buffer();
    ensure!(buffer.len() == 7);
    buffer.free()?;
    Ok(())
}

#[apply(case_alone)]
fn growing_does_not_wait(env: &Environment) -> Result<()> {
    let (stream, pool) = (env.stream()?, Resource::new(env.pool()?));
    let mut vec = DeviceVec::<u32>::with_capacity_in(&pool, &stream, 100)?;
    vec.resize(100, 1)?;
    let held = hold(&stream)?;
    vec.resize(1000, 2)?;
    vec.shrink_to_fit()?;
    let clone = vec.try_clone()?;
    ensure!(!stream.is_done()?, "the host was not held");
    drop(held);
    let values = clone.to_vec()?;
    ensure!(values[..100] == [1; 100] && values[100..] == [2; 900]);
    Ok(())
}

#[apply(case)]
fn elements_of_no_size_take_no_memory(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut vec = DeviceVec::<[u8; 0]>::zeroed(&stream, 1000)?;
    vec.extend_from_slice(&[[]; 7])?;
    ensure!(vec.len() == 1007 && vec.as_raw() == 0);
    ensure!(vec.to_vec()?.len() == 1007);
    Ok(())
}

#[apply(case)]
fn a_scalar_is_read_and_set(env: &Environment) -> Result<()> {
    let (stream, other) = (env.stream()?, env.stream()?);
    let mut scalar = DeviceScalar::new(&stream, 1.5_f64)?;
    ensure!(scalar.value()? == 1.5 && scalar.len() == 1);
    scalar.set(-2.0)?;
    ensure!(scalar.value()? == -2.0);
    scalar.zero()?;
    ensure!(scalar.value()? == 0.0);
    scalar.set_stream(&other)?;
    scalar.set(4.0)?;
    ensure!(scalar.into_buffer().to_vec()? == [4.0]);
    ensure!(DeviceScalar::<u64>::zeroed(&stream)?.value()? == 0);
    let pinned = Resource::new(cuda_mem::memory::PinnedResource::new(env.driver));
    let mut scalar = DeviceScalar::<u32>::uninit_in(&pinned, &stream)?;
    scalar.fill(7)?;
    ensure!(scalar.value()? == 7);
    ensure!(DeviceScalar::new_in(&pinned, &stream, 3_u8)?.value()? == 3);
    ensure!(DeviceScalar::<u8>::zeroed_in(&pinned, &stream)?.value()? == 0);
    Ok(())
}

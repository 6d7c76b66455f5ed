//! Buffers of host memory, as the host uses them in place.

use anyhow::{Result, ensure};
use cuda_mem::memory::{DeviceVec, DirectResource, PinnedResource};
use cuda_mem::{Arena, DeviceBuffer, ErrorKind, Resource, ReusePolicy};

use crate::environment::Environment;
use crate::hold::hold;

#[apply(case)]
fn host_and_device_take_turns(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let pinned = PinnedResource::new(env.driver);
    let staging = Arena::over(PinnedResource::new(env.driver));
    for resource in [Resource::new(pinned), staging.into()] {
        let mut x = resource.alloc::<u32>(&stream, 1000)?;
        x.host_mut()?.fill(7);
        x.slice_mut(500..)?.fill(8)?;
        ensure!(x.host()?[499..501] == [7, 8], "{resource:?}");
        let vec = DeviceVec::from_slice_in(&resource, &stream, &[1_u8, 2, 3])?;
        ensure!(vec.host()? == [1, 2, 3]);
    }
    Ok(())
}

#[apply(case)]
fn other_memory_is_copied(env: &Environment) -> Result<()> {
    let (stream, device) = (env.stream()?, env.device()?);
    let direct = Resource::new(DirectResource::new(device));
    let mut of_pool = env.pool()?.alloc_zeroed::<u8>(&stream, 10)?;
    let mut of_device = direct.alloc_zeroed::<u8>(&stream, 10)?;
    let mut of_arena = Arena::builder(&device)
        .build()?
        .alloc_zeroed::<u8>(&stream, 10)?;
    // SAFETY: the memory is that of `of_pool`, which lives longer.
    let mut view = unsafe { DeviceBuffer::<u8>::borrow_raw(&stream, of_pool.as_raw(), 10, ()) };
    for buffer in [&mut view, &mut of_device, &mut of_arena, &mut of_pool] {
        let refused = [buffer.host().err(), buffer.host_mut().err()];
        for error in refused {
            let kind = error.map(|error| error.kind());
            ensure!(kind == Some(ErrorKind::NotSupported), "{buffer:?}");
        }
    }
    // Whether its work is done decides how device memory is freed.
    stream.synchronize()?;
    Ok(())
}

/// As the recipe for staging does: memory from an idle stream is the host's at once, and is not reused before the copy
/// has read it.
#[apply(case)]
fn staging_is_not_reused_under_a_copy(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (context, pool) = (env.context()?, env.pool()?);
    let (stream, idle) = (context.stream()?, context.stream()?);
    let staging = Arena::builder_over(PinnedResource::new(env.driver))
        .reuse(ReusePolicy::ALLOW_OPPORTUNISTIC)
        .build()?;
    const LEN: usize = 1 << 20;
    let targets = (0..20).map(|_| pool.alloc::<u8>(&stream, LEN));
    let mut targets = targets.collect::<cuda_mem::Result<Vec<_>>>()?;
    let held = hold(&stream)?;
    for (value, target) in (1..).zip(&mut targets) {
        let mut batch = staging.alloc::<u8>(&idle, LEN)?;
        batch.host_mut()?.fill(value);
        target.copy_from_device(&batch.move_to(&stream)?)?;
        ensure!(idle.is_done()?, "the host would wait for the copies");
    }
    drop(held);
    for (value, target) in (1..).zip(&targets) {
        ensure!(target.to_vec()? == vec![value; LEN], "batch {value}");
    }
    // What the copies have read serves the next ones.
    let reserved = staging.stats().reserved;
    for value in 1..=50 {
        let mut batch = staging.alloc::<u8>(&idle, LEN)?;
        batch.host_mut()?.fill(value);
        targets[0].copy_from_device(&batch.move_to(&stream)?)?;
        stream.synchronize()?;
    }
    ensure!(staging.stats().reserved == reserved, "{}", staging.stats());
    Ok(())
}

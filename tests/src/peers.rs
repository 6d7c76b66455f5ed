//! Test bodies for two devices that can reach each other.

mod captures;
mod graphs;
mod mapped;
mod resources;
mod taking;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::driver::Location;
use cuda_mem::memory::CurrentPool;
use cuda_mem::{Access, Context, Device, ErrorKind, MemoryPool, Stream};

use crate::environment::Environment;
use crate::hold::hold;

/// Two devices, each with its context and a stream.
struct Pair {
    devices: [Device; 2],
    contexts: [Context; 2],
    streams: [Stream; 2],
}

fn pair(env: &Environment) -> Result<Pair> {
    let devices: [Device; 2] = env.driver.devices()?[..2].try_into()?;
    let contexts = [devices[0].primary_context()?, devices[1].primary_context()?];
    let streams = [contexts[0].stream()?, contexts[1].stream()?];
    Ok(Pair {
        devices,
        contexts,
        streams,
    })
}

fn pool(device: &Device) -> Result<MemoryPool> {
    Ok(MemoryPool::builder(device).build()?)
}

/// A pool on `device` that `peer` reaches too.
fn open_pool(device: &Device, peer: &Device) -> Result<MemoryPool> {
    Ok(MemoryPool::builder(device)
        .accessible_from([peer])
        .build()?)
}

mod access {
    use super::*;

    #[apply(case_of_two)]
    fn a_new_pool_is_its_own_devices(env: &Environment) -> Result<()> {
        let Pair { devices, .. } = pair(env)?;
        for (own, other) in [(0, 1), (1, 0)] {
            let pool = pool(&devices[own])?;
            ensure!(pool.access(&devices[own])? == Access::ReadWrite);
            ensure!(pool.access(&devices[other])? == Access::None);
            ensure!(devices[other].can_access_peer(&devices[own])?);
            ensure!(
                !devices[own].can_access_peer(&devices[own])?,
                "no peer of itself"
            );
        }
        Ok(())
    }

    #[apply(case_of_two)]
    fn what_is_given_holds_for_all_memory(env: &Environment) -> Result<()> {
        let Pair {
            devices, streams, ..
        } = pair(env)?;
        let pool = pool(&devices[0])?;
        let mut before = pool.alloc_zeroed::<u8>(&streams[0], 3 << 20)?;
        pool.set_access([
            (devices[0], Access::ReadWrite),
            (devices[1], Access::ReadWrite),
        ])?;
        ensure!(pool.access(&devices[1])? == Access::ReadWrite);
        let mut after = pool.alloc_zeroed::<u8>(&streams[0], 100)?;
        before.on(&streams[1])?.fill(5)?;
        after.on(&streams[1])?.fill(6)?;
        ensure!(before.to_vec()?.iter().all(|byte| *byte == 5));
        ensure!(after.to_vec()? == [6; 100]);
        Ok(())
    }

    #[apply(case_of_two)]
    fn what_is_taken_is_gone(env: &Environment) -> Result<()> {
        let Pair {
            devices, streams, ..
        } = pair(env)?;
        let pool = pool(&devices[0])?;
        pool.set_access([(devices[1], Access::ReadWrite)])?;
        let mut buffer = pool.alloc_zeroed::<u8>(&streams[0], 100)?;
        buffer.on(&streams[1])?.fill(1)?;
        ensure!(buffer.to_vec()? == [1; 100]);
        drop(buffer);
        streams[0].synchronize()?;
        pool.set_access([(devices[1], Access::None)])?;
        ensure!(pool.access(&devices[1])? == Access::None);
        let mut buffer = pool.alloc_from(&streams[0], &[1_u8; 100])?;
        let lent = buffer.on(&streams[1]).map(drop);
        ensure!(lent.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
        let allocated = pool.alloc::<u8>(&streams[1], 1).map(drop);
        ensure!(allocated.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
        ensure!(buffer.to_vec()? == [1; 100]);
        Ok(())
    }

    #[apply(case_of_two)]
    fn the_owner_is_never_revoked_and_nothing_else_changes(env: &Environment) -> Result<()> {
        let Pair { devices, .. } = pair(env)?;
        let pool = pool(&devices[0])?;
        for less in [Access::None, Access::Read] {
            let refused = pool.set_access([(devices[1], Access::ReadWrite), (devices[0], less)]);
            let Err(error) = refused else {
                bail!("the owner's access was taken");
            };
            ensure!(
                error.kind() == ErrorKind::InvalidValue && error.code().is_none(),
                "{error}"
            );
            ensure!(
                pool.access(&devices[1])? == Access::None,
                "nothing was changed"
            );
        }
        ensure!(pool.access(&devices[0])? == Access::ReadWrite);
        Ok(())
    }

    #[apply(case_of_two)]
    fn what_pools_do_not_know_is_refused(env: &Environment) -> Result<()> {
        let Pair { devices, .. } = pair(env)?;
        let pool = pool(&devices[0])?;
        let reading = pool.set_access([(devices[1], Access::Read)]);
        ensure!(reading.is_err_and(|error| error.kind() == ErrorKind::NotSupported));
        let twice = pool.set_access([(devices[1], Access::ReadWrite), (devices[1], Access::None)]);
        ensure!(twice.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
        ensure!(pool.access(&devices[1])? == Access::None);
        pool.set_access([])?;
        Ok(())
    }

    #[apply(case_of_two)]
    fn access_is_given_at_the_start(env: &Environment) -> Result<()> {
        let Pair {
            devices, streams, ..
        } = pair(env)?;
        let pool = MemoryPool::builder(&devices[0])
            .accessible_from([&devices[1]])
            .accessible_from([&devices[0]])
            .build()?;
        let buffer = pool.alloc_from(&streams[1], &[7_u32; 50])?;
        ensure!(buffer.device() == Some(devices[0]) && *buffer.stream() == streams[1]);
        ensure!(buffer.to_vec()? == [7; 50]);
        Ok(())
    }

    /// Destroyed pools whose handle comes again must leave nothing behind (R27).
    #[apply(case_of_two)]
    fn a_new_pool_inherits_no_access(env: &Environment) -> Result<()> {
        let Pair {
            devices, streams, ..
        } = pair(env)?;
        for _ in 0..20 {
            let open = open_pool(&devices[0], &devices[1])?;
            // The pool's own device comes last, and is none that has been given access.
            open.set_access([
                (devices[1], Access::ReadWrite),
                (devices[0], Access::ReadWrite),
            ])?;
            open.alloc::<u8>(&streams[0], 100)?.free_sync()?;
            open.close()?;
            ensure!(pool(&devices[0])?.access(&devices[1])? == Access::None);
        }
        Ok(())
    }

    #[apply(case_of_two)]
    fn a_buffer_outlives_its_pool_on_both_devices(env: &Environment) -> Result<()> {
        let Pair {
            devices, streams, ..
        } = pair(env)?;
        let pool = open_pool(&devices[0], &devices[1])?;
        let mut buffer = pool.alloc_zeroed::<u8>(&streams[0], 1000)?;
        drop(pool);
        buffer.on(&streams[1])?.fill(9)?;
        ensure!(buffer.to_vec()? == [9; 1000]);
        Ok(())
    }
}

mod streams {
    use super::*;

    #[apply(case_of_two)]
    fn a_pool_wants_a_stream_that_reaches_it(env: &Environment) -> Result<()> {
        let Pair {
            devices, streams, ..
        } = pair(env)?;
        let Err(error) = pool(&devices[0])?.alloc::<u8>(&streams[1], 10) else {
            bail!("a stream of a device without access was taken");
        };
        ensure!(error.kind() == ErrorKind::InvalidValue && error.code().is_none());
        ensure!(error.to_string().contains("device 1"), "{error}");
        Ok(())
    }

    #[apply(case_of_two)]
    fn a_stream_of_a_peer_allocates_and_frees(env: &Environment) -> Result<()> {
        let Pair {
            devices, streams, ..
        } = pair(env)?;
        let pool = open_pool(&devices[0], &devices[1])?;
        let mut buffer = pool.alloc_from(&streams[1], &[1_u8; 100])?;
        buffer.fill(2)?;
        ensure!(buffer.to_vec()? == [2; 100]);
        buffer.on(&streams[0])?.fill(3)?;
        ensure!(buffer.to_vec()? == [3; 100]);
        ensure!(pool.stats()?.used.current == 100);
        buffer.free_on(&streams[0])?;
        ensure!(pool.stats()?.used.current == 0);
        Ok(())
    }

    #[apply(case_of_two)]
    fn a_loan_wants_access(env: &Environment) -> Result<()> {
        let Pair {
            devices, streams, ..
        } = pair(env)?;
        let mut buffer = pool(&devices[0])?.alloc_from(&streams[0], &[1_u8; 10])?;
        let written = buffer.on(&streams[1]).map(drop);
        ensure!(written.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
        let read = buffer.read_on(&streams[1]).map(drop);
        ensure!(read.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
        ensure!(buffer.to_vec()? == [1; 10]);
        Ok(())
    }

    #[apply(case_of_two)]
    fn streams_of_two_devices_wait_for_each_other(env: &Environment) -> Result<()> {
        let Pair {
            streams, contexts, ..
        } = pair(env)?;
        let held = hold(&streams[0])?;
        streams[1].wait_for(&streams[0])?;
        ensure!(!streams[1].is_done()?);
        drop(held);
        streams[1].synchronize()?;
        let event = contexts[1].event()?;
        let refused = event.record(&streams[0]);
        ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
        event.record(&streams[1])?;
        streams[0].wait_event(&event)?;
        streams[0].synchronize()?;
        Ok(())
    }

    #[apply(case_of_two)]
    fn a_threads_default_streams_are_of_their_device(env: &Environment) -> Result<()> {
        let Pair {
            devices, contexts, ..
        } = pair(env)?;
        // Whatever is current on the thread.
        let _current = contexts[0].bind()?;
        for stream in [contexts[1].legacy_stream(), contexts[1].per_thread_stream()] {
            let buffer = pool(&devices[1])?.alloc_from(&stream, &[4_u16; 30])?;
            ensure!(buffer.to_vec()? == [4; 30]);
            ensure!(stream != contexts[0].legacy_stream());
            ensure!(stream != contexts[0].per_thread_stream());
        }
        Ok(())
    }
}

mod copies {
    use super::*;

    #[apply(case_of_two)]
    fn bytes_are_copied_without_access(env: &Environment) -> Result<()> {
        let Pair {
            devices, streams, ..
        } = pair(env)?;
        let numbers: Vec<u32> = (0..100_000).collect();
        let near = pool(&devices[0])?.alloc_from(&streams[0], &numbers)?;
        let mut far = pool(&devices[1])?.alloc::<u32>(&streams[1], numbers.len())?;
        far.copy_from_device(&near)?;
        let mut back = pool(&devices[0])?.alloc::<u32>(&streams[0], numbers.len())?;
        back.copy_from_device(&far)?;
        ensure!(back.to_vec()? == numbers && far.to_vec()? == numbers);
        Ok(())
    }

    #[apply(case_of_two)]
    fn a_copy_orders_both_devices(env: &Environment) -> Result<()> {
        let Pair {
            devices, streams, ..
        } = pair(env)?;
        let mut source = pool(&devices[0])?.alloc_zeroed::<u8>(&streams[0], 1 << 20)?;
        let mut target = pool(&devices[1])?.alloc_zeroed::<u8>(&streams[1], 1 << 20)?;
        streams[1].synchronize()?;
        let held = hold(&streams[0])?;
        source.fill(1)?;
        target.copy_from_device(&source)?;
        source.fill(2)?;
        ensure!(!streams[1].is_done()?, "the copy waits for the source");
        drop(held);
        ensure!(target.to_vec()?.iter().all(|byte| *byte == 1));
        ensure!(source.to_vec()?.iter().all(|byte| *byte == 2));
        Ok(())
    }

    /// The stream that copies reaches the target, and nothing reaches the source.
    #[apply(case_of_two)]
    fn a_closed_source_is_copied_on_a_peers_stream(env: &Environment) -> Result<()> {
        let Pair {
            devices, streams, ..
        } = pair(env)?;
        let open = open_pool(&devices[0], &devices[1])?;
        let mut target = open.alloc_zeroed::<u8>(&streams[1], 500)?;
        let source = pool(&devices[0])?.alloc_from(&streams[0], &[6_u8; 500])?;
        target.copy_from_device(&source)?;
        ensure!(target.to_vec()? == [6; 500]);
        let mut back = pool(&devices[0])?.alloc_zeroed::<u8>(&streams[0], 500)?;
        back.copy_from_device(&target)?;
        ensure!(back.to_vec()? == [6; 500]);
        Ok(())
    }

    #[apply(case_of_two)]
    fn a_copy_inside_the_other_device_needs_nothing(env: &Environment) -> Result<()> {
        let Pair {
            devices,
            contexts,
            streams,
        } = pair(env)?;
        let _current = contexts[0].bind()?;
        let pool = pool(&devices[1])?;
        let source = pool.alloc_from(&streams[1], &[8_u8; 77])?;
        let mut target = pool.alloc::<u8>(&contexts[1].stream()?, 77)?;
        target.copy_from_device(&source)?;
        ensure!(target.to_vec()? == [8; 77]);
        Ok(())
    }
}

mod samples {
    use super::*;

    /// What CUDA's sample streamOrderedAllocationP2P checks: memory of one device is written by its
    /// owner, changed by a peer, and read back by the owner, in one order.
    #[apply(case_of_two)]
    fn a_peer_works_on_what_the_owner_made(env: &Environment) -> Result<()> {
        let Pair {
            devices, streams, ..
        } = pair(env)?;
        let pool = open_pool(&devices[0], &devices[1])?;
        for round in 0..10_u32 {
            let mut buffer = pool.alloc::<u32>(&streams[0], 1 << 18)?;
            buffer.fill(round)?;
            let mut seen = vec![0; 1 << 18];
            {
                let mut there = buffer.on(&streams[1])?;
                there.copy_to(&mut seen)?;
                there.fill(round + 100)?;
            }
            ensure!(seen.iter().all(|number| *number == round));
            ensure!(buffer.to_vec()?.iter().all(|number| *number == round + 100));
        }
        Ok(())
    }
}

mod places {
    use super::*;

    #[apply(case_of_two)]
    fn a_current_pool_is_one_of_its_device(env: &Environment) -> Result<()> {
        let Pair { devices, .. } = pair(env)?;
        let pool = pool(&devices[0])?;
        let refused = devices[1].set_current_pool(&pool);
        ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
        devices[0].set_current_pool(&pool)?;
        ensure!(matches!(
            devices[1].current_pool()?,
            CurrentPool::Default(_)
        ));
        ensure!(devices[0].current_pool()? == CurrentPool::Owned(pool.clone()));
        pool.close().ok();
        devices[0].set_current_pool(&*devices[0].default_pool()?)?;
        ensure!(devices[0].default_pool()? != devices[1].default_pool()?);
        ensure!(devices[1].default_pool()?.location() == Location::Device(devices[1]));
        Ok(())
    }

    /// The plain call looks at the stream and not at what is current (R6).
    #[apply(case_of_two)]
    fn plain_allocations_follow_the_stream(env: &Environment) -> Result<()> {
        let Pair {
            devices,
            contexts,
            streams,
        } = pair(env)?;
        let table = env.driver.table();
        let allocate = table.cuMemAllocAsync.context("no cuMemAllocAsync")?;
        let _current = contexts[0].bind()?;
        let mut address = 0;
        // SAFETY: the stream is live, and `address` is valid for a write.
        let code = unsafe { allocate(&raw mut address, 5000, streams[1].as_raw()) };
        ensure!(code.0 == 0, "{code}");
        // SAFETY: allocated just now in this stream, and freed by nobody else.
        let buffer = unsafe { cuda_mem::DeviceBuffer::<u8>::from_raw(&streams[1], address, 5000) };
        let info = env.driver.pointer_info(buffer.as_raw())?;
        let device = info.context("the driver does not know it")?.device;
        ensure!(device == devices[1].as_raw(), "device {device}");
        Ok(())
    }

    #[apply(case_of_two)]
    fn one_device_at_work_leaves_the_other_alone(env: &Environment) -> Result<()> {
        let devices = env.driver.devices()?;
        if devices[..2]
            .iter()
            .any(|device| device.has_active_context().unwrap_or(true))
        {
            bail!("another test has left a context");
        }
        let stream = devices[1].primary_context()?.stream()?;
        let pool = pool(&devices[1])?;
        ensure!(pool.alloc_from(&stream, &[3_u8; 10])?.to_vec()? == [3; 10]);
        ensure!(devices[1].has_active_context()? && !devices[0].has_active_context()?);
        drop((stream, pool));
        ensure!(!devices[1].has_active_context()?);
        Ok(())
    }
}

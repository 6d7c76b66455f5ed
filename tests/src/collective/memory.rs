//! Memory that is registered.

use cuda_mem::collective::{ReduceOp, RegisteredResource};
use cuda_mem::mapped::MappedMemory;
use cuda_mem::placement::{PlacementRequest, Topology};
use cuda_mem::{Arena, DeviceBuffer, ReleaseThreshold, Resource};

use super::*;

#[apply(case)]
fn memory_for_collectives_is_one_piece(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let stream = device.primary_context()?.stream()?;
    let memory = MappedMemory::collective(&device)?.build(5 << 20)?;
    ensure!(memory.parts().count() == 1);
    ensure!(memory.size_bytes() >= 5 << 20);
    let mut buffer = memory.into_buffer::<u8>(&stream, 5 << 20)?;
    buffer.as_mut_slice().fill(7)?;
    ensure!(buffer.slice(..1000)?.to_vec()? == [7; 1000]);
    Ok(())
}

#[apply(case_of_two)]
fn a_placement_for_collectives_is_what_both_use(env: &Environment) -> Result<()> {
    let devices = env.driver.devices()?;
    let machine = Topology::gather(&devices[..2])?;
    let placement = PlacementRequest::elements::<f32>(1000)
        .collective([1])
        .place(&machine)?;
    ensure!(placement.to_string().contains("collective"), "{placement}");
    let [here, there] = contexts(env)?.map(|context| context.stream());
    let (here, there) = (here?, there?);
    let mut buffer = placement.allocate::<f32>(&here)?;
    buffer.as_mut_slice().on(&there)?.fill(7.0)?;
    ensure!(buffer.to_vec()? == [7.0; 1000]);
    Ok(())
}

/// Sums with a resource's memory: some buffers at a time, of sizes on both sides of what windows serve.
fn sums(rank: &Rank, resource: &Resource) -> Result<()> {
    let communicator = &rank.communicator;
    for round in 0..3 {
        let mut buffers: Vec<DeviceBuffer<f32>> = Vec::new();
        for len in [1, 100, 8 << 10, (8 << 10) + 1, 1 << 18] {
            let mut buffer = resource.alloc::<f32>(&rank.stream, len)?;
            buffer.as_mut_slice().fill(rank.number() as f32 + 1.0)?;
            communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum)?;
            buffers.push(buffer);
        }
        communicator.synchronize(&rank.stream)?;
        for buffer in &buffers {
            let seen = buffer.to_vec()?;
            ensure!(
                seen.iter().all(|number| *number == 3.0),
                "round {round}, {} elements",
                seen.len()
            );
        }
    }
    Ok(())
}

#[apply(case_of_two)]
fn an_arena_over_registered_memory_serves_all_sizes(env: &Environment) -> Result<()> {
    in_threads(env, LIMIT, |rank| {
        let memory = RegisteredResource::builder(&rank.communicator).build()?;
        sums(&rank, &Arena::over(memory).into())
    })?;
    Ok(())
}

#[apply(case_of_two)]
fn small_messages_use_the_window_and_large_ones_do_not(env: &Environment) -> Result<()> {
    in_threads(env, LIMIT, |rank| {
        let memory = RegisteredResource::builder(&rank.communicator).windows(true);
        let bytes = 16 << 20;
        let arena = Arena::builder_over(memory.build()?)
            .initial_bytes(bytes)
            .max_bytes(bytes)
            .release_threshold(ReleaseThreshold::Never)
            .build()?;
        let communicator = &rank.communicator;
        let small = arena.alloc::<u8>(&rank.stream, 32 << 10)?;
        let large = arena.alloc::<u8>(&rank.stream, (32 << 10) + 1)?;
        let other = rank.pool.alloc::<u8>(&rank.stream, 1000)?;
        ensure!(communicator.uses_window(&small, &small));
        ensure!(!communicator.uses_window(&large, &large));
        ensure!(!communicator.uses_window(&small, &other));
        drop((small, large));
        sums(&rank, &arena.into())?;
        // A window ends on all ranks together.
        Ok(())
    })?;
    Ok(())
}

#[apply(case_of_two)]
fn a_communicator_with_registered_memory_does_not_close(env: &Environment) -> Result<()> {
    in_threads(env, LIMIT, |rank| {
        let memory = RegisteredResource::builder(&rank.communicator).build()?;
        let memory = Resource::new(memory);
        let mut buffer = memory.alloc_from(&rank.stream, &[1_u32])?;
        let failed = rank.communicator.close().err().context("it closed")?;
        ensure!(failed.error.kind() == ErrorKind::InUse, "{}", failed.error);
        let communicator = failed.object.context("it is lost")?;
        communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum)?;
        ensure!(buffer.to_vec()? == [2]);
        drop((buffer, memory));
        Ok(communicator.close()?)
    })?;
    Ok(())
}

#[apply(case_of_two)]
fn memory_is_of_one_device(env: &Environment) -> Result<()> {
    let [first, second] = both(env)?;
    let both = RegisteredResource::builder(&first.communicator).and_with(&second.communicator);
    ensure!(format!("{both:?}").contains("rank 1 of 2"));
    refused(both.build(), ErrorKind::InvalidValue)?;
    Ok(())
}

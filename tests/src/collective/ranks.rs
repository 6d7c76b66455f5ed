//! Two ranks.

use cuda_mem::collective::ReduceOp;

use super::*;

#[apply(case_of_two)]
fn threads_sum_what_both_have(env: &Environment) -> Result<()> {
    in_threads(env, LIMIT, |rank| {
        let own = rank.number() as f32 + 1.0;
        for len in [1, 1000, 3 << 20] {
            let mut from = rank.pool.alloc::<f32>(&rank.stream, len)?;
            let mut to = rank.pool.alloc::<f32>(&rank.stream, len)?;
            from.as_mut_slice().fill(own)?;
            for (op, expected) in [
                (ReduceOp::Sum, 3.0),
                (ReduceOp::Product, 2.0),
                (ReduceOp::Max, 2.0),
                (ReduceOp::Min, 1.0),
                (ReduceOp::Average, 1.5),
            ] {
                rank.communicator.all_reduce(&from, &mut to, op)?;
                rank.communicator.synchronize(&rank.stream)?;
                let seen = to.to_vec()?;
                ensure!(
                    seen.iter().all(|number| *number == expected),
                    "{op:?}, {len}"
                );
            }
            ensure!(from.to_vec()?.iter().all(|number| *number == own));
        }
        Ok(rank.communicator.close()?)
    })?;
    Ok(())
}

#[apply(case_of_two)]
fn parts_are_gathered_scattered_and_broadcast(env: &Environment) -> Result<()> {
    in_threads(env, LIMIT, |rank| {
        let (communicator, stream) = (&rank.communicator, &rank.stream);
        let number = rank.number() as i32;
        let own = rank
            .pool
            .alloc_from(stream, &[10 * number, 10 * number + 1])?;
        let mut all = rank.pool.alloc::<i32>(stream, 4)?;
        communicator.all_gather(&own, &mut all)?;
        ensure!(all.to_vec()? == [0, 1, 10, 11]);

        let mut part = rank.pool.alloc::<i32>(stream, 2)?;
        communicator.reduce_scatter(&all, &mut part, ReduceOp::Sum)?;
        let expected = [[0, 2], [20, 22]][rank.number()];
        ensure!(part.to_vec()? == expected, "{:?}", part.to_vec()?);

        communicator.broadcast(&mut part, 1)?;
        ensure!(part.to_vec()? == [20, 22]);
        communicator.synchronize(stream)?;
        Ok(())
    })?;
    Ok(())
}

#[apply(case_of_two)]
fn one_thread_drives_both_in_a_group(env: &Environment) -> Result<()> {
    let ranks = both(env)?;
    let mut buffers = Vec::new();
    for rank in &ranks {
        let data = [rank.number() as u64 + 1; 100];
        buffers.push(rank.pool.alloc_from(&rank.stream, &data)?);
    }
    let mut group = nccl(env)?.group();
    for (rank, buffer) in ranks.iter().zip(&mut buffers) {
        group.all_reduce_in_place(&rank.communicator, buffer, ReduceOp::Sum)?;
    }
    group.run()?;
    for (rank, buffer) in ranks.iter().zip(&buffers) {
        rank.communicator.synchronize(&rank.stream)?;
        ensure!(buffer.to_vec()? == [3; 100]);
    }
    for rank in ranks {
        rank.communicator.close()?;
    }
    Ok(())
}

#[apply(case_of_two)]
fn ranks_that_send_to_each_other_do_so_in_a_group(env: &Environment) -> Result<()> {
    in_threads(env, LIMIT, |rank| {
        let (communicator, other) = (&rank.communicator, 1 - rank.number());
        let own = rank
            .pool
            .alloc_from(&rank.stream, &[rank.number() as u16 as f32; 5])?;
        let mut theirs = rank.pool.alloc::<f32>(&rank.stream, 5)?;
        let mut group = communicator.nccl().group();
        group.send(communicator, &own, other)?;
        group.receive(communicator, &mut theirs, other)?;
        group.run()?;
        communicator.synchronize(&rank.stream)?;
        ensure!(theirs.to_vec()? == [other as f32; 5]);
        // And one way.
        let mut word = rank.pool.alloc_from(&rank.stream, &[rank.number() as u8])?;
        if rank.number() == 0 {
            communicator.send(&word, 1)?;
        } else {
            communicator.receive(&mut word, 0)?;
        }
        communicator.synchronize(&rank.stream)?;
        ensure!(word.to_vec()? == [0]);
        Ok(())
    })?;
    Ok(())
}

#[apply(case_of_two)]
fn streams_that_come_and_go_take_turns(env: &Environment) -> Result<()> {
    in_threads(env, LIMIT, |rank| {
        let mut total = rank.pool.alloc_from(&rank.stream, &[1_u64])?;
        for _ in 0..20 {
            let stream = rank.communicator.context().stream()?;
            let mut part = rank.pool.alloc_from(&stream, &[1_u64])?;
            rank.communicator
                .all_reduce(&total, &mut part, ReduceOp::Max)?;
            total.copy_from_device(&part)?;
        }
        rank.communicator.synchronize(&rank.stream)?;
        ensure!(total.to_vec()? == [1]);
        Ok(())
    })?;
    Ok(())
}

#[apply(case_of_two)]
fn memory_of_another_device_is_refused(env: &Environment) -> Result<()> {
    let [first, second] = both(env)?;
    let mut theirs = second.pool.alloc::<u8>(&second.stream, 4)?;
    let said = refused(
        first
            .communicator
            .all_reduce_in_place(&mut theirs, ReduceOp::Sum),
        ErrorKind::InvalidValue,
    )?;
    ensure!(said.contains("context"), "{said}");
    Ok(())
}

fn blocking(builder: CommunicatorBuilder) -> CommunicatorBuilder {
    builder.blocking(true)
}

/// NCCL has a thread of its own for what does not block, with another default stream.
#[apply(case_of_two)]
fn a_threads_own_stream_needs_a_blocking_communicator(env: &Environment) -> Result<()> {
    let [first, _second] = both(env)?;
    let own = first.communicator.context().per_thread_stream();
    let mut numbers = first.pool.alloc_from(&own, &[1_u32; 10])?;
    let answer = first
        .communicator
        .all_reduce_in_place(&mut numbers, ReduceOp::Sum);
    let said = refused(answer, ErrorKind::NotSupported)?;
    ensure!(said.contains("a blocking communicator"), "{said}");
    first.communicator.check()?;
    ensure!(numbers.to_vec()? == [1; 10], "it was refused, and ran");

    in_threads_as(env, blocking, |rank| {
        let number = rank.number() as u32;
        let own = rank.communicator.context().per_thread_stream();
        let mut numbers = rank.pool.alloc_zeroed::<u32>(&own, 1 << 20)?;
        for round in 0..20_u32 {
            // Its contents are ready only in the order of the stream.
            numbers.fill(round + number)?;
            rank.communicator
                .all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
            ensure!(
                numbers.to_vec()? == vec![2 * round + 1; 1 << 20],
                "round {round}"
            );
        }
        Ok(rank.communicator.close()?)
    })?;
    Ok(())
}

#[apply(case_of_two)]
fn a_blocking_communicator_does_the_same(env: &Environment) -> Result<()> {
    in_threads_as(env, blocking, |rank| {
        let mine = [rank.number() as i8 + 1];
        let mut numbers = rank.pool.alloc_from(&rank.stream, &mine)?;
        rank.communicator
            .all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
        rank.communicator.synchronize(&rank.stream)?;
        ensure!(numbers.to_vec()? == [3]);
        Ok(rank.communicator.close()?)
    })?;
    Ok(())
}

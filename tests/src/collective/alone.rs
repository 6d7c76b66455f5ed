//! One rank: what needs no other.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use cuda_mem::collective::{Bf16, Element, F16, NcclVersion, ReduceOp, RegisteredResource};
use cuda_mem::{Arena, ReleaseThreshold, Resource};

use super::*;
use crate::{foreign, forks};

fn one(env: &Environment) -> Result<Rank> {
    let context = env.device()?.primary_context()?;
    let communicators = nccl(env)?.communicators(&[context]).join()?;
    let communicator = communicators.into_iter().next().context("one rank")?;
    Rank::new(communicator)
}

#[apply(case)]
fn the_library_says_its_version_and_path(env: &Environment) -> Result<()> {
    let nccl = nccl(env)?;
    ensure!(nccl.version()? >= NcclVersion::new(2, 14, 0));
    ensure!(nccl.library_path().to_string_lossy().contains("nccl"));
    let (first, second) = (nccl.unique_id()?, nccl.unique_id()?);
    ensure!(first != second && first.to_bytes() != [0; 128]);
    Ok(())
}

/// Alone, because a fork copies only the thread that forks.
#[apply(case_alone)]
fn a_forked_child_is_refused_by_every_call(env: &Environment) -> Result<()> {
    let (nccl, rank) = (nccl(env)?, one(env)?);
    let context = rank.communicator.context();
    let id = nccl.unique_id()?;
    let mut memory = rank.pool.alloc_from(&rank.stream, &[1_u32])?;
    let registered = RegisteredResource::builder(&rank.communicator).build()?;
    // SAFETY: the child only makes calls that are refused, and ends with _exit.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        let refused = |error: cuda_mem::Error| error.kind() == ErrorKind::Forked;
        let (communicator, stream) = (&rank.communicator, &rank.stream);
        let fine = nccl.version().is_err_and(refused)
            && nccl.unique_id().is_err_and(refused)
            && nccl
                .communicator(context, 1, 0)
                .join(&id)
                .is_err_and(refused)
            && nccl
                .communicators(std::slice::from_ref(context))
                .join()
                .is_err_and(refused)
            && communicator.check().is_err_and(refused)
            && communicator.synchronize(stream).is_err_and(refused)
            && communicator
                .all_reduce_in_place(&mut memory, ReduceOp::Sum)
                .is_err_and(refused)
            && Resource::new(registered)
                .alloc::<u8>(stream, 8)
                .is_err_and(refused)
            && communicator.abort().is_err_and(refused);
        forks::end_child(fine);
    }
    forks::ends_well(child)?;
    rank.communicator
        .all_reduce_in_place(&mut memory, ReduceOp::Sum)?;
    rank.communicator.synchronize(&rank.stream)?;
    ensure!(memory.to_vec()? == [1], "the parent goes on");
    Ok(())
}

fn reduces<T: Element + PartialEq + std::fmt::Debug>(rank: &Rank, data: &[T]) -> Result<()> {
    let from = rank.pool.alloc_from(&rank.stream, data)?;
    let mut to = rank.pool.alloc::<T>(&rank.stream, data.len())?;
    use ReduceOp as R;
    for op in [R::Sum, R::Product, R::Max, R::Min, R::Average] {
        to.as_mut_slice().fill_bytes(0)?;
        rank.communicator.all_reduce(&from, &mut to, op)?;
        rank.communicator.synchronize(&rank.stream)?;
        ensure!(
            to.to_vec()? == data,
            "{op:?} of one rank: {:?}",
            to.to_vec()?
        );
    }
    Ok(())
}

#[apply(case)]
fn one_rank_gets_its_own_elements_of_every_type(env: &Environment) -> Result<()> {
    let rank = one(env)?;
    ensure!((rank.number(), rank.communicator.rank_count()) == (0, 1));
    ensure!(rank.communicator.device() == env.device()?);
    reduces(&rank, &[1_i8, -2, 3])?;
    reduces(&rank, &[1_u8, 2, 255])?;
    reduces(&rank, &[1_i32, -2, i32::MAX])?;
    reduces(&rank, &[1_u32, 2, u32::MAX])?;
    reduces(&rank, &[1_i64, -2, i64::MAX])?;
    reduces(&rank, &[1_u64, 2, u64::MAX])?;
    reduces(&rank, &[1.0_f32, -2.5, 1e30])?;
    reduces(&rank, &[1.0_f64, -2.5, 1e300])?;
    // 1.0 and -2.0 in both formats.
    reduces(&rank, &[F16(0x3c00), F16(0xc000)])?;
    reduces(&rank, &[Bf16(0x3f80), Bf16(0xc000)])?;
    Ok(rank.communicator.close()?)
}

#[apply(case)]
fn wrong_lengths_ranks_and_streams_are_refused_and_lose_nothing(env: &Environment) -> Result<()> {
    let rank = one(env)?;
    let communicator = &rank.communicator;
    let from = rank.pool.alloc_from(&rank.stream, &[1_u32, 2])?;
    let mut short = rank.pool.alloc::<u32>(&rank.stream, 1)?;
    let wrong = ErrorKind::InvalidValue;
    let said = refused(
        communicator.all_reduce(&from, &mut short, ReduceOp::Sum),
        wrong,
    )?;
    ensure!(
        said.contains('2') && said.contains("ncclAllReduce"),
        "{said}"
    );
    refused(communicator.all_gather(&from, &mut short), wrong)?;
    refused(
        communicator.reduce_scatter(&from, &mut short, ReduceOp::Sum),
        wrong,
    )?;
    let said = refused(communicator.all_gather(&from, &mut short), wrong)?;
    ensure!(said.contains("must have 2"), "{said}");
    let said = refused(communicator.broadcast(&mut short, 1), wrong)?;
    ensure!(said.contains("rank 1"), "{said}");
    refused(communicator.send(&from, 7), wrong)?;
    refused(communicator.receive(&mut short, usize::MAX), wrong)?;

    let mut same = rank.pool.alloc::<u32>(&rank.stream, 2)?;
    communicator.all_reduce(&from, &mut same, ReduceOp::Sum)?;
    communicator.synchronize(&rank.stream)?;
    ensure!(same.to_vec()? == [1, 2], "it works on");
    Ok(())
}

#[apply(case)]
fn nothing_is_no_operation(env: &Environment) -> Result<()> {
    let rank = one(env)?;
    let from = rank.pool.alloc::<f32>(&rank.stream, 0)?;
    let mut to = rank.pool.alloc::<f32>(&rank.stream, 0)?;
    rank.communicator
        .all_reduce(&from, &mut to, ReduceOp::Sum)?;
    rank.communicator.all_gather(&from, &mut to)?;
    rank.communicator.broadcast(&mut to, 0)?;
    nccl(env)?.group().run()?;
    Ok(())
}

#[apply(case)]
fn impossible_ranks_are_refused_at_once(env: &Environment) -> Result<()> {
    let (nccl, context) = (nccl(env)?, env.device()?.primary_context()?);
    let id = nccl.unique_id()?;
    for (ranks, rank) in [(1, 1), (0, 0), (2, usize::MAX)] {
        let joined = nccl.communicator(&context, ranks, rank).join(&id);
        let said = refused(joined, ErrorKind::InvalidValue)?;
        let is_large = rank == usize::MAX;
        ensure!(
            said.contains(if is_large { "up to" } else { "from 0" }),
            "{said}"
        );
    }
    refused(nccl.communicators(&[]).join(), ErrorKind::InvalidValue)?;
    // Two ranks on one device.
    let twice = nccl.communicators(&[context.clone(), context]).join();
    ensure!(twice.is_err(), "two ranks of one device");
    Ok(())
}

#[apply(case)]
fn an_aborted_communicator_only_refuses(env: &Environment) -> Result<()> {
    let rank = one(env)?;
    let mut numbers = rank.pool.alloc_from(&rank.stream, &[1_i64, 2])?;
    rank.communicator.abort()?;
    let ended = ErrorKind::Aborted;
    let reduced = rank
        .communicator
        .all_reduce_in_place(&mut numbers, ReduceOp::Sum);
    let said = refused(reduced, ended)?;
    ensure!(said.contains("aborted"), "{said}");
    refused(rank.communicator.check(), ended)?;
    let mut nothing = rank.pool.alloc::<i64>(&rank.stream, 0)?;
    let reduced = rank
        .communicator
        .all_reduce_in_place(&mut nothing, ReduceOp::Sum);
    let said = refused(reduced, ended)?;
    ensure!(!said.contains("abort it"), "{said}");
    ensure!(rank.communicator.as_raw().is_null());
    rank.communicator.abort()?;
    ensure!(numbers.to_vec()? == [1, 2]);
    // Another one works.
    let next = one(env)?;
    next.communicator
        .all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
    next.communicator.synchronize(numbers.stream())?;
    Ok(())
}

#[apply(case)]
fn memory_of_another_stream_is_ordered(env: &Environment) -> Result<()> {
    let rank = one(env)?;
    let other = rank.communicator.context().stream()?;
    let mut from = rank.pool.alloc::<u32>(&other, 1 << 20)?;
    let mut to = rank.pool.alloc::<u32>(&rank.stream, 1 << 20)?;
    for round in 0..10 {
        from.as_mut_slice().fill(round)?;
        rank.communicator
            .all_reduce(&from, &mut to, ReduceOp::Max)?;
        from.as_mut_slice().fill(77)?;
        let seen = to.to_vec()?;
        ensure!(seen.iter().all(|number| *number == round), "round {round}");
    }
    Ok(())
}

#[apply(case)]
fn sends_to_itself_arrive_in_a_group(env: &Environment) -> Result<()> {
    let rank = one(env)?;
    let from = rank.pool.alloc_from(&rank.stream, &[5_u8, 6, 7])?;
    let mut to = rank.pool.alloc::<u8>(&rank.stream, 3)?;
    let mut group = nccl(env)?.group();
    group.send(&rank.communicator, &from, 0)?;
    group.receive(&rank.communicator, &mut to, 0)?;
    ensure!(format!("{group:?}").contains("Send"));
    group.run()?;
    rank.communicator.synchronize(&rank.stream)?;
    ensure!(to.to_vec()? == [5, 6, 7]);
    Ok(())
}

#[apply(case)]
fn elements_of_any_type_are_moved(env: &Environment) -> Result<()> {
    let rank = one(env)?;
    let from = rank
        .pool
        .alloc_from(&rank.stream, &[[1.0_f32; 4], [2.0; 4]])?;
    let mut to = rank.pool.alloc::<[f32; 4]>(&rank.stream, 2)?;
    rank.communicator.all_gather(&from, &mut to)?;
    rank.communicator.broadcast(&mut to, 0)?;
    let mut back = rank.pool.alloc::<[f32; 4]>(&rank.stream, 2)?;
    let mut group = nccl(env)?.group();
    group.send(&rank.communicator, &to, 0)?;
    group.receive(&rank.communicator, &mut back, 0)?;
    group.run()?;
    rank.communicator.synchronize(&rank.stream)?;
    ensure!(back.to_vec()? == [[1.0; 4], [2.0; 4]]);
    Ok(())
}

#[apply(case)]
fn registered_memory_in_a_capture_of_other_code_is_not_freed(env: &Environment) -> Result<()> {
    let rank = one(env)?;
    let memory = RegisteredResource::builder(&rank.communicator).build()?;
    let buffer = Resource::new(memory).alloc_zeroed::<f32>(&rank.stream, 10)?;
    rank.stream.synchronize()?;
    foreign::begin(&rank.stream, 2)?;
    let freed = buffer.free().err().context("it was freed")?;
    ensure!(
        freed.error.kind() == ErrorKind::Capturing,
        "{}",
        freed.error
    );
    foreign::end_well(&rank.stream)?;
    Ok(freed.object.context("it is lost")?.free()?)
}

/// Other threads may put work into the stream all the time.
#[apply(case)]
fn what_comes_later_is_not_waited_for(env: &Environment) -> Result<()> {
    let context = env.device()?.primary_context()?;
    let id = nccl(env)?.unique_id()?;
    let builder = nccl(env)?.communicator(&context, 1, 0).timeout(LIMIT);
    let rank = Rank::new(builder.join(&id)?)?;
    let is_over = AtomicBool::new(false);
    let (started, starts) = mpsc::channel();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| -> Result<()> {
            let mut busy = rank.pool.alloc::<u8>(&rank.stream, 8 << 20)?;
            let start = Instant::now();
            while !is_over.load(Ordering::Relaxed) && start.elapsed() < LIMIT {
                for _ in 0..4 {
                    busy.as_mut_slice().fill(1)?;
                }
                let _ = started.send(());
                // Not more than the simulator does in a few seconds.
                std::thread::sleep(Duration::from_millis(1));
            }
            ensure!(start.elapsed() < LIMIT, "it waited for all that");
            Ok(())
        });
        starts.recv_timeout(LIMIT)?;
        let waited = rank.communicator.synchronize(&rank.stream);
        is_over.store(true, Ordering::Relaxed);
        let other = other.join().map_err(|_| anyhow!("it panicked"))?;
        waited?;
        other
    })
}

#[apply(case)]
fn work_that_fails_aborts(env: &Environment) -> Result<()> {
    let rank = one(env)?;
    ensure!(rank.communicator.abort_on_error(|_| Ok::<_, ()>(7)) == Ok(7));
    rank.communicator.check()?;
    ensure!(rank.communicator.abort_on_error(|_| Err::<(), _>(8)) == Err(8));
    refused(rank.communicator.check(), ErrorKind::Aborted)?;
    let rank = one(env)?;
    let panicked = AssertUnwindSafe(|| {
        let _ = rank
            .communicator
            .abort_on_error(|_| -> Result<(), ()> { std::panic::resume_unwind(Box::new(())) });
    });
    ensure!(catch_unwind(panicked).is_err());
    refused(rank.communicator.check(), ErrorKind::Aborted)?;
    Ok(())
}

/// Alone, because it captures. What follows from a wait follows from this one, too.
#[apply(case_alone)]
fn a_wait_of_a_communicator_is_one_as_any(env: &Environment) -> Result<()> {
    const LARGE: usize = 40 << 20;
    env.need(11, 4)?;
    let (rank, device) = (one(env)?, env.device()?);
    let (stream, other) = (&rank.stream, rank.communicator.context().stream()?);
    let wait = || rank.communicator.synchronize(stream);
    // What captures put off: in the stream it is freed before the wait, so that the host has seen it, elsewhere after.
    for of in [stream, &other] {
        let pool = env.pool()?;
        let buffer = pool.alloc::<u8>(of, 1000)?;
        foreign::begin(of, 2)?;
        drop(buffer);
        foreign::end_well(of)?;
        ensure!(pool.stats()?.used.current == 1000);
        wait()?;
        ensure!(pool.stats()?.used.current == 0, "it was not freed");
        if of == stream {
            pool.close().context("the host has not seen the free")?;
        }
    }
    // What exceeds a threshold goes back.
    let arena = Arena::builder(&device)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .build()?;
    drop(arena.alloc::<u8>(stream, LARGE)?);
    ensure!(arena.stats().reserved > 0);
    wait()?;
    ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    // Others get what the stream has freed, also where nobody can ask the stream.
    let arena = Arena::builder(&device).build()?;
    let first = arena.alloc::<u8>(stream, LARGE)?;
    let place = first.as_raw();
    drop(first);
    wait()?;
    foreign::begin(stream, 2)?;
    let meanwhile = arena.alloc::<u8>(&other, LARGE);
    foreign::end_well(stream)?;
    let distance = meanwhile?.as_raw().abs_diff(place);
    ensure!(distance < LARGE as u64, "{}", arena.stats());
    Ok(rank.communicator.close()?)
}

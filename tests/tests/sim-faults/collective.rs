//! What goes wrong with NCCL, on machines of their own: every call fails in turn, a rank dies, ranks do not agree.

use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::collective::{Communicator, Nccl, ReduceOp, RegisteredResource};
use cuda_mem::interop::{CaptureMode, Instantiate};
use cuda_mem::sys::nccl::ncclResult_t;
use cuda_mem::{Arena, Context, Driver, Error, ErrorKind, Resource, Stream};
use cuda_mem_tests::environment::Environment;
use cuda_sim::{Machine, Simulator};
use nccl_sim::Control;

struct Two {
    simulator: Simulator,
    nccl: Nccl,
    control: Control,
    contexts: [Context; 2],
}

fn machine(settings: &[(&str, &str)]) -> Result<Two> {
    let mut machine = Machine::new().devices(2);
    for (name, value) in settings {
        machine = machine.set(name, value);
    }
    let simulator = machine.start()?;
    let path = nccl_sim::library_for(simulator.path())?;
    // SAFETY: it is the simulated NCCL, which behaves as NCCL does.
    let nccl = unsafe { Nccl::load_from(&path) }?;
    // SAFETY: it is the simulated driver, which behaves as a CUDA driver does.
    let devices = unsafe { Driver::load_from(simulator.path()) }?.devices()?;
    Ok(Two {
        control: Control::open(&path)?,
        nccl,
        contexts: [devices[0].primary_context()?, devices[1].primary_context()?],
        simulator,
    })
}

/// Nothing is left, nothing was done wrong, and another communicator works.
fn is_as_before(two: &Two, what: &str) -> Result<()> {
    let (live, faults) = (two.control.live(), two.control.faults());
    ensure!(live == nccl_sim::Live::default(), "{what}: {live:?}");
    ensure!(faults.is_empty(), "{what}: {faults:?}");
    everything(two).with_context(|| format!("after {what}"))?;
    Ok(())
}

/// What one thread can do with two ranks, so that calls come in one order.
fn everything(two: &Two) -> Result<(), Error> {
    let ranks = two.nccl.communicators(&two.contexts).join()?;
    let streams = [two.contexts[0].stream()?, two.contexts[1].stream()?];
    let ended = with_ranks(two, &ranks, &streams);
    if ended.is_err() {
        // As the documentation says.
        for (rank, stream) in ranks.iter().zip(&streams) {
            let _ = rank.abort();
            stream.synchronize()?;
        }
        return ended;
    }
    for rank in ranks {
        rank.close()?;
    }
    Ok(())
}

fn with_ranks(two: &Two, ranks: &[Communicator], streams: &[Stream; 2]) -> Result<(), Error> {
    two.nccl.version()?;
    let mut buffers = Vec::new();
    for (rank, stream) in ranks.iter().zip(streams) {
        let arena = Arena::over(RegisteredResource::builder(rank).build()?);
        buffers.push(arena.alloc_from(stream, &[rank.rank() as u32 + 1; 100])?);
    }
    let mut group = two.nccl.group();
    for (rank, buffer) in ranks.iter().zip(&mut buffers) {
        group.all_reduce_in_place(rank, buffer, ReduceOp::Sum)?;
    }
    group.run()?;
    let [first, second] = &mut buffers[..] else {
        return Err(Error::new(ErrorKind::Other, "two buffers"));
    };
    let mut group = two.nccl.group();
    group.send(&ranks[0], &*first, 1)?;
    group.receive(&ranks[1], second, 0)?;
    group.run()?;
    for (rank, stream) in ranks.iter().zip(streams) {
        rank.synchronize(stream)?;
    }
    assert_eq!(buffers[1].to_vec()?, [3; 100]);
    let alone = two.nccl.communicators(&two.contexts[..1]).join()?;
    let buffer = alone[0]
        .device()
        .default_pool()?
        .alloc::<u8>(&streams[0], 8)?;
    let (graph, _) = streams[0].capture(CaptureMode::Relaxed, |capture| {
        let buffer = capture.adopt(buffer);
        alone[0].all_reduce_in_place(&mut capture.buffer_mut(&buffer)?, ReduceOp::Max)
    })?;
    let mut exec = graph.instantiate(Instantiate::default())?;
    exec.launch(&streams[0])?;
    streams[0].synchronize()
}

#[apply(case)]
fn every_call_of_nccl_fails_once_in_turn(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    two.control.reset();
    everything(&two)?;
    let functions = [
        "ncclGetVersion",
        "ncclGetUniqueId",
        "ncclCommInitRankConfig",
        "ncclCommFinalize",
        "ncclCommDestroy",
        "ncclCommGetAsyncError",
        "ncclCommRegister",
        "ncclCommDeregister",
        "ncclAllReduce",
        "ncclSend",
        "ncclRecv",
        "ncclGroupStart",
        "ncclGroupEnd",
    ];
    let counts = functions.map(|function| (function, two.control.calls(function)));
    let mut failed = 0;
    for (function, count) in counts {
        ensure!(count > 0, "{function} is not called");
        // Questions are repeated until the answer comes.
        for nth in 1..=count.min(6) {
            for code in [
                ncclResult_t::ncclUnhandledCudaError,
                ncclResult_t::ncclInvalidUsage,
                ncclResult_t::ncclRemoteError,
            ] {
                let what = format!("call {nth} of {function} answers {code:?}");
                two.control.reset();
                two.control.fail(function, nth, code);
                let (drops, before) = (drop_counts().failures, two.control.live());
                match everything(&two) {
                    Err(error) => ensure!(!error.to_string().is_empty(), "{what}"),
                    // A destructor told it, or the answer was of no importance.
                    Ok(()) => {
                        let told = drop_counts().failures - drops;
                        ensure!(told <= 1, "{what}: {told} destructors failed");
                    }
                }
                failed += 1;
                two.control.reset();
                let live = two.control.live();
                // What NCCL refuses to free stays.
                if function != "ncclCommDestroy" && function != "ncclCommDeregister" {
                    ensure!(live == before, "{what}: {live:?}, and before {before:?}");
                }
                everything(&two).with_context(|| format!("after {what}"))?;
            }
        }
    }
    ensure!(failed > 100, "{failed}");
    let waiting = drop_counts().waiting;
    ensure!(waiting == 0, "{waiting} releases wait");
    let reports = two.simulator.control().reports();
    ensure!(reports.is_empty(), "{reports:?}");
    Ok(())
}

/// Runs both ranks in threads of their own.
fn in_threads(two: &Two, body: impl Fn(Communicator, Stream) -> Result<()> + Sync) -> Result<()> {
    let id = two.nccl.unique_id()?;
    let run = |number: usize| {
        let builder = two.nccl.communicator(&two.contexts[number], 2, number);
        let builder = builder.timeout(Duration::from_secs(20));
        body(builder.join(&id)?, two.contexts[number].stream()?)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(1));
        let first = run(0);
        other
            .join()
            .map_err(|_| anyhow!("rank 1 panicked"))?
            .and(first)
    })
}

#[apply(case)]
fn a_rank_that_dies_is_an_error_to_the_other(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    let both = Barrier::new(2);
    in_threads(&two, |rank, stream| {
        let mut numbers = rank
            .device()
            .default_pool()?
            .alloc_zeroed::<f32>(&stream, 10)?;
        rank.all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
        rank.synchronize(&stream)?;
        both.wait();
        if rank.rank() == 1 {
            ensure!(two.control.kill(rank.as_raw()));
            let dead = rank.all_reduce_in_place(&mut numbers, ReduceOp::Sum);
            ensure!(dead.is_err(), "a dead rank goes on");
            return Ok(rank.abort()?);
        }
        let started = rank.all_reduce_in_place(&mut numbers, ReduceOp::Sum);
        let error = started.and_then(|()| rank.synchronize(&stream)).err();
        let error = error.context("it went on without the other")?;
        ensure!(error.kind() == ErrorKind::PeerGone, "{error}");
        rank.abort()?;
        stream.synchronize()?;
        Ok(())
    })?;
    is_as_before(&two, "a rank's death")
}

#[apply(case)]
fn ranks_that_do_not_agree_are_told(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    in_threads(&two, |rank, stream| {
        let pool = rank.device().default_pool()?;
        let mut numbers = pool.alloc_zeroed::<u8>(&stream, 10 + rank.rank())?;
        let started = rank.all_reduce_in_place(&mut numbers, ReduceOp::Sum);
        let error = started.and_then(|()| rank.synchronize(&stream)).err();
        let error = error.context("sizes differ")?;
        let kinds = [ErrorKind::InvalidValue, ErrorKind::PeerGone];
        ensure!(kinds.contains(&error.kind()), "{error}");
        rank.abort()?;
        let seen = numbers.to_vec()?;
        ensure!(
            seen.iter().all(|number| *number == 0),
            "something was written"
        );
        Ok(())
    })?;
    is_as_before(&two, "different sizes")
}

#[apply(case)]
fn windows_of_different_sizes_are_refused(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    in_threads(&two, |rank, stream| {
        let memory = RegisteredResource::builder(&rank).windows(true).build()?;
        let arena = Arena::over(memory);
        let asked = (4 << 20) << (3 * rank.rank());
        let refused = arena.alloc::<u8>(&stream, asked).err();
        let error = refused.context("the sizes differ")?;
        // The other rank may have aborted before.
        let kinds = [ErrorKind::InvalidValue, ErrorKind::PeerGone];
        ensure!(kinds.contains(&error.kind()), "{error}");
        Ok(rank.abort()?)
    })?;
    is_as_before(&two, "windows of different sizes")
}

#[apply(case)]
fn an_old_nccl_lacks_what_it_lacks(_: &Environment) -> Result<()> {
    let two = machine(&[(
        "NCCL_SIM_MISSING",
        "ncclCommRegister,ncclCommWindowRegister",
    )])?;
    let ranks = two.nccl.communicators(&two.contexts[..1]).join()?;
    let stream = two.contexts[0].stream()?;
    let arena = Arena::over(RegisteredResource::builder(&ranks[0]).build()?);
    let error = arena.alloc::<u8>(&stream, 100).err().context("it cannot")?;
    ensure!(error.kind() == ErrorKind::SymbolMissing, "{error}");
    ensure!(error.to_string().contains("ncclCommRegister"), "{error}");
    // Without registered memory all is well.
    let mut buffer = ranks[0]
        .device()
        .default_pool()?
        .alloc_from(&stream, &[7_u8])?;
    ranks[0].all_reduce_in_place(&mut buffer, ReduceOp::Sum)?;
    ranks[0].synchronize(&stream)?;
    ensure!(buffer.to_vec()? == [7]);
    Ok(())
}

#[apply(case)]
fn a_group_blames_the_rank_whose_call_failed(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    for failing in [0, 1] {
        let ranks = two.nccl.communicators(&two.contexts).join()?;
        let mut buffers = Vec::new();
        for context in &two.contexts {
            let pool = context.device().default_pool()?;
            buffers.push(pool.alloc_zeroed::<f32>(&context.stream()?, 10)?);
        }
        let code = ncclResult_t::ncclInternalError;
        two.control.fail("ncclAllReduce", failing + 1, code);
        let mut group = two.nccl.group();
        for (rank, buffer) in ranks.iter().zip(&mut buffers) {
            group.all_reduce_in_place(rank, buffer, ReduceOp::Sum)?;
        }
        let error = group.run().err().context("a call failed")?;
        let named = format!("rank {failing} of 2");
        ensure!(error.to_string().contains(&named), "{error}");
        for rank in &ranks {
            let is_failed = rank.rank() as u64 == failing;
            ensure!(rank.check().is_err() == is_failed, "{rank}");
        }
        for rank in &ranks {
            rank.abort()?;
        }
    }
    is_as_before(&two, "a group that failed")
}

#[apply(case)]
fn a_groups_end_that_fails_is_of_all_its_ranks(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    let ranks = two.nccl.communicators(&two.contexts).join()?;
    let mut buffers = Vec::new();
    for context in &two.contexts {
        let pool = context.device().default_pool()?;
        buffers.push(pool.alloc_zeroed::<f32>(&context.stream()?, 10)?);
    }
    let code = ncclResult_t::ncclInternalError;
    two.control.fail("ncclGroupEnd", 1, code);
    let mut group = two.nccl.group();
    for (rank, buffer) in ranks.iter().zip(&mut buffers) {
        group.all_reduce_in_place(rank, buffer, ReduceOp::Sum)?;
    }
    let said = group.run().err().context("the end failed")?.to_string();
    for rank in &ranks {
        ensure!(said.contains(&rank.to_string()), "{said}");
        ensure!(rank.check().is_err(), "{rank}");
    }
    for rank in &ranks {
        rank.abort()?;
    }
    is_as_before(&two, "a group's end that failed")
}

#[apply(case)]
fn an_abort_ends_a_call_that_waits_on_another_thread(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    let ranks = two.nccl.communicators(&two.contexts).join()?;
    let mut buffers = Vec::new();
    for context in &two.contexts {
        let pool = context.device().default_pool()?;
        buffers.push(pool.alloc_zeroed::<f32>(&context.stream()?, 10)?);
    }
    // Each in turn, so that one of them is not the one that is waited for first.
    let (held, aborted) = (&ranks, &ranks[1]);
    for rank in held {
        ensure!(two.control.hold(rank.as_raw(), true));
    }
    std::thread::scope(|scope| {
        let group = scope.spawn(|| {
            let mut group = two.nccl.group();
            for (rank, buffer) in ranks.iter().zip(&mut buffers) {
                group.all_reduce_in_place(rank, buffer, ReduceOp::Sum)?;
            }
            group.run()
        });
        std::thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        aborted.abort()?;
        ensure!(start.elapsed() < Duration::from_secs(20));
        let ended = group.join().map_err(|_| anyhow!("it panicked"))?;
        let error = ended.err().context("it was aborted")?;
        let kinds = [ErrorKind::Aborted, ErrorKind::PeerGone];
        ensure!(kinds.contains(&error.kind()), "{error}");
        ensure!(ranks[0].as_raw().is_null(), "the other rank may go on");
        Ok(ranks[0].abort()?)
    })?;
    is_as_before(&two, "an abort of a waiting call")
}

/// NCCL's own thread would put the operation into the stream later, where the memory may be another's.
#[apply(case)]
fn an_operation_that_does_not_start_in_time_never_does(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    for is_group in [false, true] {
        let ranks = two.nccl.communicators(&two.contexts);
        let ranks = ranks.timeout(Duration::from_millis(200)).join()?;
        let mut buffers = Vec::new();
        for context in &two.contexts {
            let pool = context.device().default_pool()?;
            buffers.push(pool.alloc_zeroed::<f32>(&context.stream()?, 10)?);
        }
        ensure!(two.control.hold(ranks[0].as_raw(), true));
        let started = if is_group {
            let mut group = two.nccl.group();
            for (rank, buffer) in ranks.iter().zip(&mut buffers) {
                group.all_reduce_in_place(rank, buffer, ReduceOp::Sum)?;
            }
            group.run()
        } else {
            ranks[0].all_reduce_in_place(&mut buffers[0], ReduceOp::Sum)
        };
        let error = started.err().context("it was held up")?;
        ensure!(error.kind() == ErrorKind::TimedOut, "{error}");
        let used = if is_group { &ranks[..] } else { &ranks[..1] };
        for rank in used {
            ensure!(rank.as_raw().is_null(), "{rank} was not aborted");
        }
        let refused = ranks[0].check().err().context("it is of no use")?;
        ensure!(refused.kind() == ErrorKind::Aborted, "{refused}");
        for rank in &ranks {
            rank.abort()?;
        }
    }
    is_as_before(&two, "an operation that did not start in time")
}

/// A launch is made before an abort or refused after it.
#[apply(case)]
fn launches_and_an_abort_exclude_each_other(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    for round in 0..50 {
        let ranks = two.nccl.communicators(&two.contexts[..1]).join()?;
        let stream = two.contexts[0].stream()?;
        let pool = two.contexts[0].device().default_pool()?;
        let buffer = pool.alloc_zeroed::<f32>(&stream, 4)?;
        let (graph, ()) = stream.capture(CaptureMode::Relaxed, |capture| {
            let buffer = capture.adopt(buffer);
            ranks[0].all_reduce_in_place(&mut capture.buffer_mut(&buffer)?, ReduceOp::Sum)
        })?;
        let mut exec = graph.instantiate(Instantiate::default())?;
        std::thread::scope(|scope| {
            let aborter = scope.spawn(|| {
                std::thread::sleep(Duration::from_micros(20 * round));
                ranks[0].abort()
            });
            while exec.launch(&stream).is_ok() {}
            aborter
                .join()
                .map_err(|_| anyhow!("it panicked"))?
                .map_err(anyhow::Error::from)
        })?;
        stream.synchronize()?;
        let faults = two.control.faults();
        ensure!(faults.is_empty(), "round {round}: {faults:?}");
    }
    is_as_before(&two, "launches and aborts")
}

#[apply(case)]
fn a_window_that_failed_in_the_background_aborts(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    let both = Barrier::new(2);
    in_threads(&two, |rank, stream| {
        both.wait();
        if rank.rank() == 1 {
            std::thread::sleep(Duration::from_millis(100));
            ensure!(two.control.kill(rank.as_raw()));
            return Ok(rank.abort()?);
        }
        let memory = RegisteredResource::builder(&rank).windows(true).build()?;
        let refused = Arena::over(memory).alloc::<u8>(&stream, 100).err();
        let error = refused.context("the other rank is gone")?;
        ensure!(error.kind() == ErrorKind::PeerGone, "{error}");
        // The registration had begun, and nothing of NCCL works on the memory any more.
        ensure!(rank.as_raw().is_null(), "it was not aborted");
        Ok(rank.abort()?)
    })?;
    is_as_before(&two, "a window without the other rank")
}

/// Frees registered memory while the deregistration of its window goes on in the background.
fn free_while_held(two: &Two) -> Result<Communicator> {
    let ranks = two.nccl.communicators(&two.contexts[..1]);
    let ranks = ranks.timeout(Duration::from_millis(200)).join()?;
    let rank = ranks.into_iter().next().context("one rank")?;
    let stream = two.contexts[0].stream()?;
    let memory = RegisteredResource::builder(&rank).windows(true).build()?;
    let buffer = Resource::new(memory).alloc::<u8>(&stream, 100)?;
    ensure!(two.control.hold(rank.as_raw(), true));
    let before = drop_counts().failures;
    drop(buffer);
    ensure!(
        drop_counts().failures > before,
        "the drop reports no failure"
    );
    Ok(rank)
}

#[apply(case)]
fn a_window_whose_end_does_not_come_in_time_aborts(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    let rank = free_while_held(&two)?;
    ensure!(rank.as_raw().is_null(), "it was not aborted");
    drop(rank);
    is_as_before(&two, "a deregistration that did not end")
}

/// Memory that NCCL may still use is never unmapped.
#[apply(case)]
fn memory_of_a_window_that_neither_ends_nor_aborts_is_leaked(_: &Environment) -> Result<()> {
    let two = machine(&[])?;
    two.control
        .fail("ncclCommAbort", 1, ncclResult_t::ncclInternalError);
    let rank = free_while_held(&two)?;
    let faults = two.control.faults();
    ensure!(faults.is_empty(), "{faults:?}");
    ensure!(two.control.live().windows == 1, "{:?}", two.control.live());
    drop(rank);
    Ok(())
}

/// NCCL itself waits in a call of one thread; another one has its own limit, whether its stream is done or not.
#[apply(case)]
fn a_wait_ends_in_time_while_a_blocking_call_lasts(_: &Environment) -> Result<()> {
    const LIMIT: Duration = Duration::from_millis(300);
    let two = machine(&[])?;
    let id = two.nccl.unique_id()?;
    let (tell, told) = mpsc::channel();
    let join = |number: usize| {
        let builder = two.nccl.communicator(&two.contexts[number], 2, number);
        builder.blocking(true).timeout(LIMIT).join(&id)
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(move || -> Result<()> {
            let rank = join(1)?;
            // Over the limit, so that a wait for the call comes to an end.
            let _ = told.recv_timeout(20 * LIMIT);
            Ok(rank.abort()?)
        });
        let rank = join(0)?;
        while_a_call_blocks(&two, &rank, LIMIT, || Ok(tell.send(())?))?;
        rank.abort()?;
        other.join().map_err(|_| anyhow!("rank 1 panicked"))?
    })?;
    is_as_before(&two, "a call that blocked")
}

fn while_a_call_blocks(
    two: &Two,
    rank: &Communicator,
    limit: Duration,
    end: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let (held_up, idle) = (two.contexts[0].stream()?, two.contexts[0].stream()?);
    let pool = two.contexts[0].device().default_pool()?;
    let mut numbers = pool.alloc_zeroed::<f32>(&held_up, 10)?;
    rank.all_reduce_in_place(&mut numbers, ReduceOp::Sum)?;
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let memory = RegisteredResource::builder(rank).windows(true).build()?;
            Resource::new(memory).alloc::<u8>(&two.contexts[0].stream()?, 100)
        });
        std::thread::sleep(limit);
        for stream in [&idle, &held_up] {
            let start = Instant::now();
            let waited = rank.synchronize(stream).err();
            ensure!(start.elapsed() < 8 * limit, "{:?}", start.elapsed());
            let error = waited.context("it waited for nothing")?;
            ensure!(error.kind() == ErrorKind::TimedOut, "{error}");
        }
        end()?;
        let call = caller.join().map_err(|_| anyhow!("it panicked"))?;
        ensure!(call.is_err(), "the other rank never came");
        rank.abort()?;
        held_up.synchronize()?;
        Ok(())
    })
}

//! What goes wrong with NCCL, on machines of their own: every call fails in turn, a rank dies, ranks do not agree.

mod background;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::collective::{Communicator, Nccl, ReduceOp, RegisteredResource};
use cuda_mem::interop::{CaptureMode, Instantiate};
use cuda_mem::sys::nccl::ncclResult_t;
use cuda_mem::{Arena, Context, Driver, Error, ErrorKind, Stream};
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

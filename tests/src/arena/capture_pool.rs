//! Graphs whose memory is an arena's.

use anyhow::{Result, anyhow, ensure};
use cuda_mem::arena::CapturePool;
use cuda_mem::interop::{CaptureMode, GraphExec, Instantiate, PersistentAllocation};
use cuda_mem::{Arena, MemoryResource as _, Resource, Stream};

use crate::environment::Environment;

const LEN: usize = 1 << 17;
const MODES: [CaptureMode; 3] = [
    CaptureMode::Global,
    CaptureMode::ThreadLocal,
    CaptureMode::Relaxed,
];

/// A graph that fills a block, and leaves a copy of it. Says also where the first one was.
fn graph(
    pool: &CapturePool,
    stream: &Stream,
    mode: CaptureMode,
    value: u32,
) -> Result<(GraphExec, PersistentAllocation<u32>, u64)> {
    let (graph, (left, address)) = stream.capture(mode, |capture| {
        let mut first = capture.alloc_from::<u32>(pool, LEN)?;
        first.as_mut_slice().fill(value)?;
        let address = first.as_raw();
        let mut second = capture.alloc_alone_from::<u32>(pool, LEN)?;
        second.as_mut_slice().copy_from_device(&first)?;
        drop(first);
        // In the capture's order memory is used again at once.
        let held = pool.held_bytes();
        let mut third = capture.alloc_from::<u32>(pool, LEN)?;
        assert_eq!(pool.held_bytes(), held);
        third.as_mut_slice().fill(0)?;
        Ok((second.persist(), address))
    })?;
    Ok((graph.instantiate(Instantiate::Plain)?, left, address))
}

fn check(exec: &mut GraphExec, left: &PersistentAllocation<u32>, value: u32) -> Result<()> {
    ensure!(exec.left(left)?.to_vec()? == vec![value; LEN], "{value}");
    Ok(())
}

#[apply(case_alone)]
fn a_graph_keeps_its_arenas_memory(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (device, stream, other) = (env.device()?, env.stream()?, env.stream()?);
    for mode in MODES {
        let arena = Arena::builder(&device).slack(1.0).build()?;
        let resource = Resource::from(arena.clone());
        let pool = arena.capture_pool()?;
        let before = device.graph_memory()?.reserved;
        let (mut exec, left, _) = graph(&pool, &stream, mode, 7)?;
        let piece = arena.piece_at(left.as_raw());
        ensure!(piece.is_some());
        drop(pool);
        // Growth, moves and trims beside it.
        let mut blocks = Vec::new();
        for turn in 0..1000 {
            if turn % 25 == 0 {
                blocks.retain(|_| turn % 50 == 0);
                for size in [33, 40, 9, 70, 35] {
                    blocks.push(resource.alloc::<u8>(&other, (size + turn % 7) << 20)?);
                }
                let mut freed = 0;
                blocks.retain(|_| {
                    freed += 1;
                    freed % 2 == 0
                });
                other.synchronize()?;
                blocks.push(resource.alloc::<u8>(&other, 60 << 20)?);
                arena.trim_to(0)?;
            }
            exec.launch(&stream)?;
        }
        check(&mut exec, &left, 7)?;
        let stats = arena.stats();
        ensure!(
            stats.moved > 0 && stats.grown > 1 && stats.released > 0,
            "{stats:?}"
        );
        ensure!(arena.piece_at(left.as_raw()) == piece, "{stats}");
        ensure!(device.graph_memory()?.reserved == before);
        drop((exec, blocks));
        stream.synchronize()?;
        other.synchronize()?;
        arena.trim_to(0)?;
        ensure!(arena.stats().reserved == 0, "{}", arena.stats());
    }
    Ok(())
}

#[apply(case_alone)]
fn graphs_of_one_pool_share_its_memory(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    let arena = Arena::builder(&env.device()?).build()?;
    let pool = arena.capture_pool()?;
    let mode = CaptureMode::ThreadLocal;
    let (mut one, of_one, scratch) = graph(&pool, &stream, mode, 1)?;
    let held = arena.stats().live;
    let (mut two, of_two, again) = graph(&pool, &other, mode, 2)?;
    ensure!(scratch == again, "{scratch:#x}, {again:#x}");
    ensure!(of_one.as_raw() != of_two.as_raw());
    ensure!(
        pool.held_bytes() >= held && pool.live_bytes() == 8 * LEN as u64,
        "{pool:?}"
    );
    // They use the same scratch memory in two streams, so they take turns.
    for turn in 0..50 {
        one.launch(&stream)?;
        two.launch(&other)?;
        if turn % 10 == 0 {
            check(&mut one, &of_one, 1)?;
            check(&mut two, &of_two, 2)?;
        }
    }
    // What a graph left goes to the next one when the graph is gone.
    let held = pool.held_bytes();
    drop(one);
    ensure!(pool.live_bytes() == 4 * LEN as u64, "{pool:?}");
    let (mut three, of_three, _) = graph(&pool, &stream, mode, 3)?;
    ensure!(pool.held_bytes() == held, "{pool:?}");
    three.launch(&stream)?;
    two.launch(&stream)?;
    check(&mut three, &of_three, 3)?;
    check(&mut two, &of_two, 2)?;
    Ok(())
}

#[apply(case_alone)]
fn captures_that_fail_give_their_memory_back(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let stream = env.stream()?;
    let arena = Arena::builder(&env.device()?).max_bytes(32 << 20).build()?;
    let pool = arena.capture_pool()?;
    for _ in 0..5 {
        let failed = stream.capture(CaptureMode::default(), |capture| {
            let kept = capture.alloc_from::<u8>(&pool, 3 << 20)?;
            let _left = capture.alloc_from::<u8>(&pool, 3 << 20)?.persist();
            drop(capture.alloc_alone_from::<u8>(&pool, 3 << 20)?);
            let refused = capture.alloc_from::<u8>(&pool, 64 << 20);
            drop(kept);
            refused.map(drop)
        });
        ensure!(failed.is_err());
        ensure!(pool.live_bytes() == 0, "{pool:?}");
    }
    let (graph, empty) = stream.capture(CaptureMode::default(), |capture| {
        let nothing = capture.alloc_from::<u32>(&pool, 0)?;
        assert_eq!((nothing.as_raw(), nothing.len()), (0, 0));
        drop(nothing);
        let too_much = capture.alloc_from::<u32>(&pool, usize::MAX / 2);
        assert!(too_much.is_err());
        Ok(())
    })?;
    graph.instantiate(Instantiate::Plain)?.launch(&stream)?;
    stream.synchronize()?;
    Ok(empty)
}

/// Graphs of one pool share memory, and each is launched by a thread of its own.
#[apply(case_alone)]
fn launches_of_two_threads_keep_apart(env: &Environment) -> Result<()> {
    let pool = Arena::builder(&env.device()?).build()?.capture_pool()?;
    let mut graphs = Vec::new();
    for value in [1, 2] {
        let stream = env.stream()?;
        let (exec, left, _) = graph(&pool, &stream, CaptureMode::ThreadLocal, value)?;
        graphs.push((exec, left, stream, value));
    }
    std::thread::scope(|scope| {
        let launch = |(mut exec, left, stream, value): (
            GraphExec,
            PersistentAllocation<u32>,
            Stream,
            u32,
        )| {
            move || -> Result<()> {
                for turn in 0..300 {
                    exec.launch(&stream)?;
                    let found = exec.left(&left)?.to_vec()?;
                    let is_own = found.iter().all(|element| *element == value);
                    ensure!(
                        is_own,
                        "launch {turn} of {value} saw the other one's memory"
                    );
                }
                Ok(())
            }
        };
        let threads: Vec<_> = graphs
            .into_iter()
            .map(|graph| scope.spawn(launch(graph)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            let end = thread.join();
            end.map_err(|_| anyhow!("a thread panicked"))?
        })
    })
}

#[apply(case_alone)]
fn a_buffer_that_is_taken_back_leaves_the_pool_its_blocks(env: &Environment) -> Result<()> {
    let pool = Arena::builder(&env.device()?).build()?.capture_pool()?;
    let stream = env.stream()?;
    let buffer = env.pool()?.alloc_zeroed::<u32>(&stream, 100)?;
    let (graph, adopted) = stream.capture(CaptureMode::ThreadLocal, |capture| {
        let adopted = capture.adopt(buffer);
        let mut alone = capture.alloc_alone_from::<u32>(&pool, 1000)?;
        alone.as_mut_slice().fill(1)?;
        let _left = alone.persist();
        Ok(adopted)
    })?;
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    exec.launch(&stream)?;
    let _buffer = exec.into_buffer(&adopted)?;
    stream.synchronize()?;
    ensure!(pool.live_bytes() == 0, "{} bytes", pool.live_bytes());
    Ok(())
}

#[apply(case_alone)]
fn a_graph_keeps_the_memory_of_two_pools(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let stream = env.stream()?;
    let arena = Arena::builder(&env.device()?).build()?;
    let pools = [arena.capture_pool()?, arena.capture_pool()?];
    let (graph, left) = stream.capture(CaptureMode::ThreadLocal, |capture| {
        let mut left = Vec::new();
        for (value, pool) in (1_u32..).zip(&pools) {
            let mut block = capture.alloc_alone_from::<u32>(pool, LEN)?;
            block.as_mut_slice().fill(value)?;
            left.push(block.persist());
        }
        Ok(left)
    })?;
    let mut exec = graph.instantiate(Instantiate::Plain)?;
    let live = arena.stats().live;
    drop(pools);
    ensure!(arena.stats().live == live, "{}", arena.stats());
    exec.launch(&stream)?;
    for (value, left) in (1_u32..).zip(&left) {
        check(&mut exec, left, value)?;
    }
    drop(exec);
    stream.synchronize()?;
    ensure!(arena.stats().live == 0, "{}", arena.stats());
    Ok(())
}

//! Spans and events for `tracing`, and numbers for `metrics`.

use std::sync::Arc;

use anyhow::{Result, ensure};
use cuda_mem::memory::StatisticsAdaptor;
use cuda_mem::{Arena, MemoryPool, MemoryResource as _, Resource};
use metrics_exporter_prometheus::PrometheusBuilder;
use tracing::Level;

use crate::environment::Environment;
use crate::writers::Page;

/// What a subscriber of `tracing` writes about the calls of this thread.
fn traced(run: impl FnOnce() -> Result<()>) -> Result<String> {
    let page = Page::default();
    let written = page.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(Level::TRACE)
        .with_ansi(false)
        .with_writer(move || written.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, run)?;
    Ok(page.text())
}

#[apply(case)]
fn what_is_slow_or_fails_is_traced(env: &Environment) -> Result<()> {
    const PIECE: usize = 32 << 20;
    let (stream, other) = (env.stream()?, env.stream()?);
    let arena = Arena::builder(&env.device()?)
        .slack(1.0)
        .max_bytes(1 << 30)
        .build()?;
    let pool = MemoryPool::builder(&env.device()?).build()?;
    let text = traced(|| {
        let mut row = Vec::new();
        for _ in 0..9 {
            row.push(arena.alloc::<u8>(&stream, PIECE)?);
        }
        let kept: Vec<_> = row.into_iter().skip(1).step_by(2).collect();
        stream.synchronize()?;
        drop(arena.alloc::<u8>(&stream, 5 * PIECE)?);
        drop(kept);
        stream.synchronize()?;
        arena.trim_to(0)?;
        ensure!(arena.alloc::<u8>(&stream, 2 << 30).is_err());
        ensure!(pool.alloc::<u8>(&stream, 1 << 50).is_err());
        pool.trim_to(0)?;
        other.wait_for(&stream)?;
        Ok(())
    })?;
    ensure!(arena.stats().moved > 0, "{}", arena.stats());
    let lines = |level: &str, words: &str| {
        let lines = text.lines();
        lines
            .filter(|line| line.contains(level) && line.contains(words))
            .count() as u64
    };
    let stats = arena.stats();
    ensure!(
        lines("DEBUG", "the arena grew") == stats.grown,
        "{stats}\n{text}"
    );
    ensure!(lines("DEBUG", "grow{arena=") > 0, "no span\n{text}");
    ensure!(
        lines("DEBUG", "memory moved") == stats.moved,
        "{stats}\n{text}"
    );
    ensure!(
        lines("DEBUG", "memory released") == stats.released,
        "{stats}\n{text}"
    );
    ensure!(lines("WARN", "out of memory") == 2, "{text}");
    ensure!(lines("TRACE", "a stream waits") == 1, "{text}");
    Ok(())
}

/// Nothing of the usual paths is traced.
#[apply(case)]
fn usual_requests_are_not_traced(env: &Environment) -> Result<()> {
    let (stream, pool) = (env.stream()?, env.pool()?);
    let arena = Arena::builder(&env.device()?).build()?;
    drop(arena.alloc::<u8>(&stream, 1000)?);
    let text = traced(|| {
        for _ in 0..100 {
            drop(arena.alloc::<u8>(&stream, 1000)?);
            drop(pool.alloc::<u8>(&stream, 1000)?);
        }
        Ok(())
    })?;
    ensure!(text.is_empty(), "{text}");
    Ok(())
}

#[apply(case)]
fn statistics_are_published(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let arena = Arena::builder(&env.device()?).build()?;
    let pool = env.pool()?;
    let counted = Arc::new(StatisticsAdaptor::new(env.pool()?));
    let resource = Resource::from(Arc::clone(&counted));
    let kept = (
        arena.alloc::<u8>(&stream, 1000)?,
        pool.alloc::<u8>(&stream, 2000)?,
        resource.alloc::<u8>(&stream, 3000)?,
    );
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || -> Result<()> {
        arena.stats().publish("one");
        counted.statistics().publish("three");
        if env.need(11, 3).is_ok() {
            pool.stats()?.publish("two");
        }
        Ok(())
    })?;
    let text = recorder.handle().render();
    let mut expected = vec![
        "cuda_mem_arena_live_bytes{name=\"one\"} 1024".to_owned(),
        "cuda_mem_arena_live_blocks{name=\"one\"} 1".to_owned(),
        format!(
            "cuda_mem_arena_reserved_bytes{{name=\"one\"}} {}",
            arena.stats().reserved
        ),
        "cuda_mem_arena_grown_total{name=\"one\"} 1".to_owned(),
        "cuda_mem_resource_bytes{name=\"three\"} 3000".to_owned(),
        "cuda_mem_resource_allocations_total{name=\"three\"} 1".to_owned(),
    ];
    if env.need(11, 3).is_ok() {
        expected.push("cuda_mem_pool_used_bytes{name=\"two\"} 2000".to_owned());
    }
    for line in expected {
        ensure!(
            text.lines().any(|found| found == line),
            "{line:?} is not in\n{text}"
        );
    }
    drop(kept);
    Ok(())
}

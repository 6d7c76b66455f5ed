//! What is refused, and why.

use std::ops::Bound;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::driver::Location;
use cuda_mem::interop::CaptureMode;
use cuda_mem::mapped::{Advice, ManagedBuffer};
use cuda_mem::memory::PinnedResource;
use cuda_mem::{CudaVersion, Error, ErrorKind, Resource};

use super::{LARGE, large, need_concurrent};
use crate::environment::Environment;

fn refused<T>(answer: cuda_mem::Result<T>, kind: ErrorKind, words: &str) -> Result<Error> {
    let error = answer.err().with_context(|| format!("{words}: accepted"))?;
    ensure!(error.kind() == kind, "{error}");
    ensure!(error.to_string().contains(words), "{error}");
    Ok(error)
}

#[apply(case)]
fn ranges_that_are_none_are_refused(env: &Environment) -> Result<()> {
    let buffer = large(env)?;
    let invalid = ErrorKind::InvalidValue;
    let between = |from, to| buffer.range((from, to));
    for answer in [
        between(Bound::Included(5), Bound::Excluded(4)),
        between(Bound::Unbounded, Bound::Excluded(LARGE + 1)),
        between(Bound::Unbounded, Bound::Included(LARGE)),
        between(Bound::Excluded(LARGE), Bound::Unbounded),
        between(Bound::Included(LARGE + 1), Bound::Unbounded),
        between(Bound::Unbounded, Bound::Included(usize::MAX)),
        between(Bound::Excluded(usize::MAX), Bound::Unbounded),
    ] {
        refused(answer, invalid, "no range of a buffer of 4194304")?;
    }
    ensure!(buffer.range(LARGE..)?.is_empty());
    let part = buffer.range(10..=19)?;
    ensure!((part.len(), part.size_bytes()) == (10, 10));
    ensure!(
        buffer
            .range((Bound::Excluded(9), Bound::Excluded(20)))?
            .len()
            == 10
    );
    Ok(())
}

#[apply(case)]
fn places_that_are_none_are_refused(env: &Environment) -> Result<()> {
    let buffer = large(env)?;
    let invalid = ErrorKind::InvalidValue;
    for place in [Location::Anywhere, Location::Invisible] {
        refused(buffer.prefetch(place), invalid, "name a device")?;
        let preferred = Advice::PreferredLocation(place);
        refused(buffer.advise(preferred), invalid, "name a device")?;
    }
    let node = Advice::AccessedBy(Location::HostNuma(0));
    refused(buffer.advise(node), invalid, "Location::Host")?;
    refused(buffer.unadvise(node), invalid, "Location::Host")?;
    if env.need(12, 2).is_ok() {
        let nowhere = Location::HostNuma(u32::MAX);
        refused(buffer.prefetch(nowhere), invalid, "elements 0 to 4194304")?;
        let preferred = Advice::PreferredLocation(nowhere);
        refused(buffer.advise(preferred), invalid, "elements 0 to 4194304")?;
    }
    ensure!(buffer.info()? == cuda_mem::mapped::RangeInfo::default());
    Ok(())
}

#[apply(case)]
fn a_node_of_the_host_needs_a_newer_driver(env: &Environment) -> Result<()> {
    let buffer = large(env)?;
    let node = Location::HostNuma(0);
    let preferred = Advice::PreferredLocation(node);
    if env.need(12, 2).is_err() {
        for answer in [buffer.prefetch(node), buffer.advise(preferred)] {
            let error = refused(answer, ErrorKind::SymbolMissing, "CUDA 12.2")?;
            ensure!(error.needs_version() == Some(CudaVersion::new(12, 2)));
        }
        ensure!(buffer.migrations().prefetches == 0);
        return Ok(());
    }
    buffer.advise(preferred)?;
    buffer.prefetch(node)?;
    let info = buffer.info()?;
    // An H200's driver takes the advice and tells nothing of it.
    ensure!(info.preferred_location.is_none(), "{info:?}");
    ensure!(info.last_prefetch == Some(node), "{info:?}");
    ensure!(buffer.migrations_to(node).prefetched_bytes == LARGE as u64);
    Ok(())
}

#[apply(case)]
fn other_memory_is_refused(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for resource in [
        Resource::new(PinnedResource::new(env.driver)),
        Resource::new(cuda_mem::memory::DirectResource::new(env.device()?)),
    ] {
        let answer = ManagedBuffer::<u8>::uninit_in(&resource, &stream, 10);
        refused(answer, ErrorKind::InvalidValue, "needs managed memory")?;
    }
    let answer = ManagedBuffer::<u64>::uninit(&stream, usize::MAX / 4);
    ensure!(answer.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    Ok(())
}

#[apply(case_alone)]
fn a_captured_stream_takes_no_prefetch(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    need_concurrent(env)?;
    let (stream, other) = (env.stream()?, env.stream()?);
    let buffer = ManagedBuffer::<u8>::uninit(&stream, LARGE)?;
    let elsewhere = ManagedBuffer::<u8>::uninit(&other, LARGE)?;
    let (graph, ()) = stream.capture(CaptureMode::Relaxed, |capture| {
        for refused in [buffer.prefetch(Location::Host), buffer.host().map(drop)] {
            let kind = refused.map_err(|error| error.kind());
            assert_eq!(kind, Err(ErrorKind::Capturing));
        }
        elsewhere.prefetch(Location::Host)?;
        elsewhere.advise(Advice::ReadMostly)?;
        elsewhere.host()?;
        capture.alloc::<u32>(10)?.as_mut_slice().fill(0)
    })?;
    drop(graph);
    buffer.prefetch(Location::Host)?;
    ensure!(buffer.migrations().prefetches == 1);
    Ok(())
}

//! Where the memory comes from: resources below an arena, also bad ones, and how much it may be.
//!
//! A direct resource waits for the whole device when it frees, so nobody may hold a stream meanwhile.

use std::alloc::Layout;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use cuda_mem::ledger::{Recorder, TraceAction};
use cuda_mem::memory::{DirectResource, MemoryProperties};
use cuda_mem::{Arena, DeviceBuffer, Error, ErrorKind, MemoryResource, Resource, Stream};

use super::moody::{Mood, moody};
use crate::environment::Environment;

const MIB: usize = 1 << 20;
const GRANULE: u64 = 2 << 20;

/// On which side of the last part the next one lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
}

/// Hands out one large block, part by part, without a gap.
#[derive(Debug)]
pub(super) struct SideBySide {
    direction: Direction,
    /// Where the parts begin, and how large they are.
    parts: Mutex<Vec<(u64, u64)>>,
    memory: DeviceBuffer<u8>,
    properties: MemoryProperties,
}

impl SideBySide {
    pub(super) fn new(env: &Environment, stream: &Stream, direction: Direction) -> Result<Self> {
        let direct = DirectResource::new(env.device()?);
        let properties = direct.memory_properties();
        Ok(Self {
            direction,
            parts: Mutex::default(),
            memory: Resource::new(direct).alloc::<u8>(stream, 256 * MIB)?,
            properties,
        })
    }

    pub(super) fn has_in_one_part(&self, buffer: &DeviceBuffer<u8>) -> bool {
        let (start, end) = (buffer.as_raw(), buffer.as_raw() + buffer.len() as u64);
        let parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        parts
            .iter()
            .any(|(from, bytes)| *from <= start && end <= from + bytes)
    }
}

// SAFETY: each address is handed out once, within a block that lives as long as this.
unsafe impl MemoryResource for SideBySide {
    fn allocate(&self, layout: Layout, _: &Stream) -> cuda_mem::Result<u64> {
        let bytes = layout.size() as u64;
        let (first, end) = (
            self.memory.as_raw(),
            self.memory.as_raw() + self.memory.len() as u64,
        );
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let start = match (self.direction, parts.last()) {
            (Direction::Up, Some((last, bytes))) => last + bytes,
            (Direction::Up, None) => first.next_multiple_of(GRANULE),
            (Direction::Down, Some((last, _))) => last - bytes,
            (Direction::Down, None) => end / GRANULE * GRANULE - bytes,
        };
        if start < first || start + bytes > end {
            return Err(Error::new(ErrorKind::OutOfMemory, "the block is used up"));
        }
        parts.push((start, bytes));
        Ok(start)
    }

    unsafe fn deallocate(&self, _: u64, _: Layout, _: &Stream) -> cuda_mem::Result<()> {
        Ok(())
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.properties
    }
}

#[apply(case)]
fn a_block_lies_in_one_block_of_the_upstream(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (stream, other) = (env.stream()?, env.stream()?);
    for direction in [Direction::Up, Direction::Down] {
        let below = Arc::new(SideBySide::new(env, &stream, direction)?);
        let resource = Resource::from(Arena::over(Arc::clone(&below)));
        // A second stream, so that blocks do not stand in front.
        let _other = resource.alloc::<u8>(&other, 1000)?;
        for sizes in [[8, 8, 14], [3, 8, 9], [13, 2, 15], [1, 7, 20]] {
            let [first, second, large] = sizes.map(|mib| mib * MIB);
            let first = resource.alloc::<u8>(&stream, first)?;
            let second = resource.alloc::<u8>(&stream, second)?;
            let are_whole = below.has_in_one_part(&first) && below.has_in_one_part(&second);
            // Now they are free, side by side.
            drop((first, second));
            let large = resource.alloc::<u8>(&stream, large)?;
            ensure!(
                are_whole && below.has_in_one_part(&large),
                "{direction:?}, {sizes:?} MiB: across two blocks"
            );
        }
    }
    Ok(())
}

pub(super) fn wait_until(flag: &AtomicBool) {
    let begin = Instant::now();
    while !flag.load(Ordering::SeqCst) && begin.elapsed() < Duration::from_secs(3) {
        std::thread::yield_now();
    }
}

/// Hands out again at once what it is given back, to a thread that has been waiting for it.
#[derive(Debug)]
struct Handover {
    direct: DirectResource,
    spare: Mutex<Vec<(u64, Layout)>>,
    live: AtomicU64,
    armed: AtomicBool,
    asked: AtomicBool,
    given_back: AtomicBool,
    handed_out: AtomicBool,
}

// SAFETY: an address is handed out as it came from the direct resource, and again only when it came back.
unsafe impl MemoryResource for Handover {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        if self.armed.load(Ordering::SeqCst) {
            self.asked.store(true, Ordering::SeqCst);
            wait_until(&self.given_back);
        }
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        let place = spare.iter().position(|(_, free)| *free == layout);
        let found = place.map(|place| spare.swap_remove(place).0);
        drop(spare);
        let address = match found {
            Some(address) => address,
            None => self.direct.allocate(layout, stream)?,
        };
        self.live.fetch_add(1, Ordering::SeqCst);
        Ok(address)
    }

    unsafe fn deallocate(&self, address: u64, layout: Layout, _: &Stream) -> cuda_mem::Result<()> {
        self.live.fetch_sub(1, Ordering::SeqCst);
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.push((address, layout));
        drop(spare);
        if self.armed.swap(false, Ordering::SeqCst) {
            self.given_back.store(true, Ordering::SeqCst);
            // The arena has the block again before this returns.
            wait_until(&self.handed_out);
        }
        Ok(())
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.direct.memory_properties()
    }
}

#[apply(case)]
fn a_block_that_comes_again_at_once_is_not_lost(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let below = Arc::new(Handover {
        direct: DirectResource::new(env.device()?),
        spare: Mutex::default(),
        live: AtomicU64::new(0),
        armed: AtomicBool::new(false),
        asked: AtomicBool::new(false),
        given_back: AtomicBool::new(false),
        handed_out: AtomicBool::new(false),
    });
    let arena = Arena::over(Arc::clone(&below));
    let (a, b) = (env.stream()?, env.stream()?);
    let layout = Layout::from_size_align(8 * MIB, 256)?;
    let first = arena.allocate(layout, &a)?;
    let second = arena.allocate(layout, &b)?;
    below.armed.store(true, Ordering::SeqCst);
    let grows = std::thread::spawn({
        let (arena, b, below) = (arena.clone(), b.clone(), Arc::clone(&below));
        move || {
            let third = arena.allocate(layout, &b);
            below.handed_out.store(true, Ordering::SeqCst);
            third
        }
    });
    wait_until(&below.asked);
    // SAFETY: allocated as this layout, and not used.
    unsafe { arena.deallocate(first, layout, &a) }?;
    a.synchronize()?;
    arena.trim_to(0)?;
    let third = grows
        .join()
        .map_err(|_| anyhow!("the other thread panicked"))??;
    ensure!(third == first, "not the block that came back");
    for address in [second, third] {
        // SAFETY: allocated as this layout, and not used.
        unsafe { arena.deallocate(address, layout, &b) }?;
    }
    b.synchronize()?;
    arena.trim_to(0)?;
    let stats = arena.stats();
    drop(arena);
    let live = below.live.load(Ordering::SeqCst);
    let mut spare = below.spare.lock().unwrap_or_else(PoisonError::into_inner);
    for (address, layout) in spare.drain(..) {
        // SAFETY: it came from there as this layout, and is nobody's now.
        unsafe { below.direct.deallocate(address, layout, &a) }?;
    }
    ensure!(live == 0, "the arena kept {live} blocks: {stats}");
    ensure!(stats.reserved == 0, "{stats}");
    Ok(())
}

#[apply(case)]
fn memory_that_the_upstream_refuses_stays_usable(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (below, _) = moody(env)?;
    let recorder = Recorder::ring(1000);
    let builder = Arena::builder_over(Arc::clone(&below)).record(&recorder);
    let arena = builder.build()?;
    let resource = Resource::from(arena.clone());
    let stream = env.stream()?;
    for bytes in [1000, 8 * MIB] {
        drop(resource.alloc::<u8>(&stream, bytes)?);
    }
    stream.synchronize()?;
    let before = arena.stats();
    below.set(Mood::Refuses);
    for _ in 0..3 {
        let Err(error) = arena.trim_to(0) else {
            anyhow::bail!("the refusal is not told");
        };
        ensure!(error.kind() == ErrorKind::NotPermitted, "{error}");
    }
    let after = arena.stats();
    ensure!(
        (after.reserved, after.released) == (before.reserved, before.released),
        "{before}, then {after}"
    );
    let recording = recorder.recording();
    let mapped = recording.entries().iter().map(|entry| match entry.action {
        TraceAction::Map => entry.bytes.cast_signed(),
        TraceAction::Unmap => -entry.bytes.cast_signed(),
        _ => 0,
    });
    let mapped: i64 = mapped.sum();
    ensure!(mapped == after.reserved.cast_signed(), "{mapped}: {after}");
    let mut buffer = resource.alloc::<u8>(&stream, 8 * MIB)?;
    buffer.fill(4)?;
    ensure!(buffer.to_vec()?.iter().all(|byte| *byte == 4));
    ensure!(arena.stats().grown == before.grown, "{}", arena.stats());
    drop(buffer);
    below.set(Mood::Good);
    stream.synchronize()?;
    drop((resource, arena, stream));
    let (allocated, freed) = below.counts();
    ensure!(allocated == freed, "{allocated} came, {freed} went");
    Ok(())
}

/// Nothing moves there, so that growing by a share is worth more than holding little.
#[apply(case)]
fn an_upstream_is_asked_for_shares(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let arena = Arena::over(DirectResource::new(env.device()?));
    let resource = Resource::from(arena.clone());
    let stream = env.stream()?;
    let blocks = (0..200).map(|_| resource.alloc::<u8>(&stream, 3 * MIB));
    let blocks = blocks.collect::<cuda_mem::Result<Vec<_>>>()?;
    let stats = arena.stats();
    ensure!(stats.grown < 100, "{} growths", stats.grown);
    drop(blocks);
    Ok(())
}

#[apply(case)]
fn what_a_capture_refuses_is_released_after_it(env: &Environment) -> Result<()> {
    let _pressure = env.exclusive();
    let (below, arena) = moody(env)?;
    let stream = env.stream()?;
    drop(arena.alloc::<u8>(&stream, MIB)?);
    stream.synchronize()?;
    below.set(Mood::IsCaptured);
    drop(arena);
    ensure!(below.counts() == (1, 0), "{:?}", below.counts());
    below.set(Mood::Good);
    for _ in 0..100 {
        // What was refused is tried again, but not each time.
        stream.context().synchronize()?;
        if below.counts() == (1, 1) {
            return Ok(());
        }
    }
    Err(anyhow!("it is left: {:?}", below.counts()))
}

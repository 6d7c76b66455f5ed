//! What the programs of a test share.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::Result;
use cuda_mem::memory::DirectResource;
use cuda_mem::{Context, Device, DeviceBuffer, MemoryPool, Resource};
use cuda_sim::control::{Control, Live};

use super::freed::FreedContents;
use crate::environment::Environment;

/// A deliberate mistake, which the test has to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mistake {
    /// A word of memory is overwritten.
    Byte,
    /// A stream reads memory without waiting for it.
    Order,
}

/// What outlives a program.
#[derive(Debug)]
pub(super) struct Fixture {
    pub(super) env: &'static Environment,
    pub(super) device: Device,
    pub(super) context: Context,
    /// Contents of freed memory: [`FreedContents`].
    pub(super) freed_words: DeviceBuffer<u32>,
    pub(super) mistake: Option<Mistake>,
    /// The last pattern. Patterns are unique among programs: a program may find what an earlier one wrote.
    last_word: AtomicU32,
    /// The live objects of the simulator between two programs.
    pub(super) live: Option<Live>,
}

impl Fixture {
    pub(super) fn new(
        env: &'static Environment,
        threads: usize,
        mistake: Option<Mistake>,
    ) -> Result<Self> {
        let (device, context) = (env.device()?, env.context()?);
        let stream = context.stream()?;
        let plain = Resource::new(DirectResource::new(device));
        let freed_words = plain.alloc_zeroed(&stream, threads * FreedContents::WORDS)?;
        stream.synchronize()?;
        // It is created once per process.
        device.default_resource()?;
        let control = env.control().ok();
        Ok(Self {
            env,
            device,
            context,
            freed_words,
            mistake,
            last_word: AtomicU32::new(1 << 20),
            live: control.map(live_objects).transpose()?,
        })
    }

    /// A pattern that no other memory holds.
    pub(super) fn next_word(&self) -> u32 {
        self.last_word.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// The live objects, without those kept for reuse: events for waits, and spare pools.
pub(super) fn live_objects(control: &Control) -> Result<Live> {
    // SAFETY: no program is running, nor another test of this suite.
    unsafe { MemoryPool::destroy_spares() }?;
    Ok(Live {
        events: 0,
        ..control.live()
    })
}

//! A driver and the model of it, side by side.

mod blocks;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::{Context, DeviceBuffer, Event, MemoryPool, ReleaseThreshold, ReusePolicy, Stream};

use super::model::{Effect, Grain, Model, Reuses};
use super::order::{Mark, Order, STREAMS};
use super::step::{End, Settings, Step};
use crate::environment::Environment;
use crate::hold::{Held, hold};
use blocks::Block;

const POOLS: usize = 3;
const EVENTS: usize = 2;

/// What lives longer than a sequence.
#[derive(Debug)]
pub(super) struct Ground {
    context: Context,
    streams: [Stream; STREAMS],
    /// Keeps what blocks held at their free. It never moves memory between streams, so that it adds
    /// no order to them.
    witnesses: MemoryPool,
    grain: Grain,
    options: Options,
}

/// What the caller chooses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// Tell every step on standard error before it is done: for a driver that crashes.
    pub(super) loud: bool,
}

impl Ground {
    pub(super) fn new(env: &Environment, options: Options) -> Result<Self> {
        let context = env.context()?;
        let streams = [context.stream()?, context.stream()?, context.stream()?];
        let pool = env.pool()?;
        let byte = pool.alloc::<u8>(&streams[0], 1)?;
        let used = pool.stats()?.used.current;
        let next = pool.alloc::<u8>(&streams[0], 1)?;
        let grain = Grain {
            used,
            room: next.as_raw().abs_diff(byte.as_raw()),
        };
        drop((byte, next));
        let witnesses = MemoryPool::builder(&env.device()?)
            .reuse(ReusePolicy::NONE)
            .build()?;
        Ok(Self {
            context,
            streams,
            witnesses,
            grain,
            options,
        })
    }
}

#[derive(Debug)]
struct Pool {
    /// `None` once the handle was dropped.
    handle: Option<MemoryPool>,
    model: Model,
}

/// The driver and the model during one sequence.
#[derive(Debug)]
pub(super) struct World<'a> {
    ground: &'a Ground,
    gate: Option<Held>,
    order: Order,
    events: [(Event, Mark); EVENTS],
    pools: Vec<Pool>,
    blocks: Vec<Block>,
    witnesses: Vec<(DeviceBuffer<u8>, u8, usize)>,
    asked: u64,
    names: usize,
    /// What was done so far, a step a line.
    pub(super) story: Vec<String>,
}

impl<'a> World<'a> {
    pub(super) fn new(ground: &'a Ground) -> Result<Self> {
        let event = || Ok::<_, cuda_mem::Error>((ground.context.event()?, Mark::default()));
        Ok(Self {
            ground,
            gate: None,
            order: Order::default(),
            events: [event()?, event()?],
            pools: Vec::new(),
            blocks: Vec::new(),
            witnesses: Vec::new(),
            asked: 0,
            names: 0,
            story: Vec::new(),
        })
    }

    /// Does one step and checks everything that can be checked then.
    pub(super) fn step(&mut self, step: &Step) -> Result<()> {
        if self.ground.options.loud {
            eprintln!("{step:?}");
        }
        let (pool, effect) = self.perform(step)?;
        self.check(pool, effect)
    }

    /// Ends the sequence: everything is freed, seen, given back, and every pattern was intact.
    pub(super) fn finish(mut self) -> Result<()> {
        self.let_go();
        while !self.blocks.is_empty() {
            self.end(0, End::Drop)?;
        }
        self.synchronise_all()?;
        self.check(None, Effect::Synchronise)?;
        for (witness, pattern, name) in self.witnesses.drain(..) {
            let bytes = witness.to_vec()?;
            ensure!(
                bytes == vec![pattern; bytes.len()],
                "invariant 6: block {name} did not hold its pattern when it was freed"
            );
        }
        for index in 0..self.pools.len() {
            if let Some(handle) = self.pools[index].handle.clone() {
                handle.trim_to(0)?;
                self.check(Some(index), Effect::Trim(0))?;
            }
        }
        Ok(())
    }

    /// What all pools have handed out again.
    pub(super) fn reuses(&self) -> Reuses {
        let mut all = Reuses::default();
        self.pools.iter().for_each(|pool| all += pool.model.reuses);
        all
    }

    fn check(&mut self, changed: Option<usize>, effect: Effect) -> Result<()> {
        for (index, pool) in self.pools.iter_mut().enumerate() {
            let Some(handle) = &pool.handle else { continue };
            // A trim is about one pool, a synchronise about all.
            let here = match effect {
                Effect::Trim(_) if changed != Some(index) => Effect::None,
                effect => effect,
            };
            let stats = handle.stats()?;
            pool.model
                .check(stats, here, &self.order)
                .with_context(|| format!("pool {index}"))?;
            pool.model.forget_synchronised(&self.order);
        }
        Ok(())
    }

    fn say(&mut self, line: impl Into<String>) {
        let line = line.into();
        if self.ground.options.loud {
            eprintln!("    {line}");
        }
        self.story.push(line);
    }

    /// What the step did to the numbers: of which pool, and what.
    fn perform(&mut self, step: &Step) -> Result<(Option<usize>, Effect)> {
        const NOTHING: (Option<usize>, Effect) = (None, Effect::None);
        match *step {
            Step::NewPool(settings) => self.new_pool(settings)?,
            Step::DropPool(pool) => {
                // Also while blocks live or are still to be freed.
                if let Some(index) = self.pool(pool) {
                    self.say(format!("drop the handle of pool {index}"));
                    self.pools[index].handle = None;
                }
            }
            Step::SetPolicy(pool, policy) => {
                if let Some((index, handle)) = self.handle(pool) {
                    self.say(format!("pool {index}: policy {policy:?}"));
                    handle.set_reuse_policy(policy)?;
                    self.pools[index].model.policy = policy;
                }
            }
            Step::SetThreshold(pool, threshold) => {
                if let Some((index, handle)) = self.handle(pool) {
                    self.say(format!("pool {index}: threshold {threshold}"));
                    handle.set_release_threshold(threshold)?;
                    self.pools[index].model.threshold = threshold;
                }
            }
            Step::Trim(pool, keep) => {
                if let Some((index, handle)) = self.handle(pool) {
                    self.say(format!("pool {index}: trim to {keep}"));
                    handle.trim_to(keep)?;
                    return Ok((Some(index), Effect::Trim(keep)));
                }
            }
            Step::ResetMarks(pool) => {
                if let Some((index, handle)) = self.handle(pool) {
                    self.say(format!("pool {index}: reset the high marks"));
                    handle.reset_high_marks()?;
                    self.pools[index].model.reset_marks();
                }
            }
            Step::Alloc {
                pool,
                stream,
                bytes,
            } => {
                if self.pools.is_empty() {
                    self.new_pool(Settings {
                        policy: ReusePolicy::DRIVER_DEFAULT,
                        threshold: ReleaseThreshold::Never,
                        max_size: None,
                    })?;
                }
                if let Some(index) = self.pool(pool) {
                    if let Some(block) = self.alloc(index, number(stream, STREAMS), bytes)? {
                        self.fill(block)?;
                    }
                    return Ok((None, self.pressure_of(index)));
                }
            }
            Step::End(block, end) => {
                if let Some(block) = self.block(block) {
                    return Ok((None, self.end(block, end)?));
                }
            }
            Step::Rehome(block, stream) => {
                if let Some(block) = self.block(block) {
                    self.rehome(block, number(stream, STREAMS))?;
                }
            }
            Step::Lend(block, stream, lend) => {
                if let Some(block) = self.block(block) {
                    self.lend(block, number(stream, STREAMS), lend)?;
                }
            }
            Step::Fill(block) => {
                if let Some(block) = self.block(block) {
                    self.fill(block)?;
                }
            }
            Step::Write(block) => return self.write(block),
            Step::Read(block) => return self.read(block),
            Step::Copy { from, stream } => {
                if let Some(from) = self.block(from) {
                    let pool = self.blocks[from].pool;
                    self.copy(from, number(stream, STREAMS))?;
                    return Ok((None, self.pressure_of(pool)));
                }
            }
            Step::Wait { later, earlier } => {
                let (later, earlier) = (number(later, STREAMS), number(earlier, STREAMS));
                self.say(format!("stream {later} waits for stream {earlier}"));
                self.ground.streams[later].wait_for(&self.ground.streams[earlier])?;
                self.order.join(later, earlier);
            }
            Step::Record(event, stream) => {
                let (event, stream) = (number(event, EVENTS), number(stream, STREAMS));
                self.say(format!("record event {event} in stream {stream}"));
                self.events[event].0.record(&self.ground.streams[stream])?;
                self.events[event].1 = self.order.mark(stream);
            }
            Step::WaitEvent(stream, event) => {
                let (event, stream) = (number(event, EVENTS), number(stream, STREAMS));
                self.say(format!("stream {stream} waits for event {event}"));
                self.ground.streams[stream].wait_event(&self.events[event].0)?;
                let mark = self.events[event].1;
                self.order.wait(stream, &mark);
            }
            Step::Query(stream) => {
                let stream = number(stream, STREAMS);
                self.say(format!("ask whether stream {stream} is done"));
                self.query(stream)?;
            }
            Step::Synchronise(stream) => {
                let stream = number(stream, STREAMS);
                if self.order.flows(stream) {
                    self.say(format!("synchronise stream {stream}"));
                    self.synchronise(stream)?;
                    return Ok((None, Effect::Synchronise));
                }
            }
            Step::SynchroniseAll => {
                if !self.order.is_held() {
                    self.say("synchronise the context");
                    self.synchronise_all()?;
                    return Ok((None, Effect::Synchronise));
                }
            }
            Step::Hold(stream) => {
                let stream = number(stream, STREAMS);
                if !self.order.is_held() {
                    self.say(format!("hold stream {stream}"));
                    // It runs when what came before has: the wait would never end otherwise.
                    self.gate = Some(hold(&self.ground.streams[stream])?);
                    for pool in &mut self.pools {
                        pool.model.host_function_ran(&self.order, stream);
                    }
                    self.order.hold(stream);
                    return Ok((None, Effect::HostFunction));
                }
            }
            Step::LetGo => {
                if self.order.is_held() {
                    self.say("let the held stream go");
                    self.let_go();
                }
            }
        }
        Ok(NOTHING)
    }

    fn pool(&self, wanted: u8) -> Option<usize> {
        let open: Vec<usize> = (0..self.pools.len())
            .filter(|index| self.pools[*index].handle.is_some())
            .collect();
        (!open.is_empty()).then(|| open[number(wanted, open.len())])
    }

    fn handle(&self, wanted: u8) -> Option<(usize, MemoryPool)> {
        let index = self.pool(wanted)?;
        Some((index, self.pools[index].handle.clone()?))
    }

    /// Counted from the newest.
    fn block(&self, wanted: u8) -> Option<usize> {
        let last = self.blocks.len().checked_sub(1)?;
        Some(last - number(wanted, self.blocks.len()))
    }

    fn new_pool(&mut self, settings: Settings) -> Result<()> {
        let open = self.pools.iter().filter(|pool| pool.handle.is_some());
        if open.count() >= POOLS {
            return Ok(());
        }
        let Settings {
            policy,
            threshold,
            max_size,
        } = settings;
        let index = self.pools.len();
        self.say(format!(
            "pool {index}: new, policy {policy:?}, threshold {threshold}, at most {max_size:?} bytes"
        ));
        let mut builder = MemoryPool::builder(&self.ground.context.device())
            .reuse(policy)
            .release_threshold(threshold);
        if let Some(max_size) = max_size {
            builder = builder.max_size(max_size);
        }
        self.pools.push(Pool {
            handle: Some(builder.build()?),
            model: Model::new(settings, self.ground.grain),
        });
        Ok(())
    }

    /// A stream that is held must not say that it is done.
    fn query(&self, stream: usize) -> Result<()> {
        let done = self.ground.streams[stream].is_done()?;
        ensure!(
            !(done && self.order.is_behind_gate(&self.order.past(stream))),
            "stream {stream} says that it is done, and waits for the held one"
        );
        Ok(())
    }

    /// Asks until a stream that nothing holds is done. If it never is, synchronising would hang.
    fn wait_until_done(&self, stream: usize) -> Result<()> {
        if !self.order.is_held() {
            return Ok(());
        }
        let start = std::time::Instant::now();
        while !self.ground.streams[stream].is_done()? {
            ensure!(
                start.elapsed().as_secs() < 10,
                "stream {stream} is not done, and nothing in it waits for the held one"
            );
            std::thread::yield_now();
        }
        Ok(())
    }

    fn synchronise(&mut self, stream: usize) -> Result<()> {
        self.wait_until_done(stream)?;
        self.ground.streams[stream].synchronize()?;
        self.order.synchronise(stream);
        Ok(())
    }

    fn synchronise_all(&mut self) -> Result<()> {
        self.ground.context.synchronize()?;
        self.order.synchronise_all();
        Ok(())
    }

    fn let_go(&mut self) {
        self.gate = None;
        self.order.let_go();
    }
}

/// Also after a failure, whatever was left: the gate first, because all else may wait for it, and the
/// pools last, when nothing of them is in use or still to be freed.
impl Drop for World<'_> {
    fn drop(&mut self) {
        self.gate = None;
        self.blocks.clear();
        self.witnesses.clear();
        // If even that fails there is nothing to be done.
        let _ = self.ground.context.synchronize();
    }
}

/// `wanted` as the number of one of `count` things.
fn number(wanted: u8, count: usize) -> usize {
    usize::from(wanted) % count
}

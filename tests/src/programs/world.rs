//! A program while it runs: what there is, and what each operation does with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Result, ensure};
use cuda_mem::{
    Context, Device, DeviceBuffer, DirectResource, ErrorKind, Event, MemoryResource as _, Resource,
    ScopedResource,
};
use cuda_sim::control::Live;

use super::Sabotage;
use super::graphs::GraphValue;
use super::play::lasting;
use super::site::Site;
use super::step::{NewStream, SiteSpec, Step};
use super::streams::Slot;
use super::tally::Tally;
use super::value::{Kind, Lent, Value};
use super::witness::Witness;
use crate::environment::Environment;
use crate::hold::Held;

/// So much of each there is at most.
const SITES: usize = 4;
const SCOPES: usize = 3;
pub(super) const VALUES: usize = 14;

/// What lives longer than a program.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) env: &'static Environment,
    pub(super) device: Device,
    pub(super) context: Context,
    /// What memory held at its free.
    pub(super) log: DeviceBuffer<u32>,
    pub(super) sabotage: Option<Sabotage>,
    /// The last pattern. None comes twice, also not in another program, which would find what this one left.
    last_word: AtomicU32,
    /// What there is on the simulator between two programs.
    pub(super) live: Option<Live>,
}

impl Ground {
    pub(super) fn new(
        env: &'static Environment,
        worlds: usize,
        sabotage: Option<Sabotage>,
    ) -> Result<Self> {
        let (device, context) = (env.device()?, env.context()?);
        let stream = context.stream()?;
        let plain = Resource::new(DirectResource::new(device));
        let log = plain.alloc_zeroed(&stream, worlds * Witness::WORDS)?;
        stream.synchronize()?;
        // What is made once in a process.
        device.default_resource()?;
        let control = env.control().ok();
        Ok(Self {
            env,
            device,
            context,
            log,
            sabotage,
            last_word: AtomicU32::new(1 << 20),
            live: control.map(lasting).transpose()?,
        })
    }
}

/// What stays on its thread.
#[derive(Default)]
pub(super) struct Local {
    pub(super) scopes: Vec<(ScopedResource, Arc<Site>)>,
}

/// Everything that a program has, or one of its threads where they run freely.
#[derive(Debug)]
pub(super) struct World<'a> {
    pub(super) ground: &'a Ground,
    /// The thread that has it now.
    pub(super) me: usize,
    /// No other thread uses what this one uses.
    pub(super) alone: bool,
    pub(super) slots: Vec<Slot>,
    pub(super) events: [Event; 2],
    pub(super) sites: Vec<Arc<Site>>,
    pub(super) values: Vec<Value>,
    pub(super) graphs: Vec<GraphValue>,
    pub(super) lent: Vec<Lent>,
    pub(super) held: Vec<Held>,
    pub(super) witness: Witness,
    /// Some thread used the default stream of its own.
    pub(super) had_own_streams: bool,
    names: usize,
    pub(super) tally: Tally,
    pub(super) story: Vec<String>,
}

/// `wanted` as the number of one of `count` things, from the last one on.
pub(super) fn pick(wanted: u8, count: usize) -> Option<usize> {
    let last = count.checked_sub(1)?;
    Some(last - usize::from(wanted) % count)
}

impl<'a> World<'a> {
    /// The `number`th of a program.
    pub(super) fn new(ground: &'a Ground, number: usize, alone: bool) -> Result<Self> {
        let mut world = Self {
            ground,
            me: number,
            alone,
            slots: Vec::new(),
            events: [ground.context.event()?, ground.context.event()?],
            sites: Vec::new(),
            values: Vec::new(),
            graphs: Vec::new(),
            lent: Vec::new(),
            held: Vec::new(),
            witness: Witness::new(number),
            had_own_streams: false,
            names: number * 1000,
            tally: Tally::default(),
            story: Vec::new(),
        };
        world.new_stream(NewStream::Own)?;
        world.new_stream(NewStream::Own)?;
        Ok(world)
    }

    pub(super) fn say(&mut self, line: impl Into<String>) {
        let line = format!("thread {}: {}", self.me, line.into());
        if crate::settings::is_loud() {
            eprintln!("    {line}");
        }
        self.story.push(line);
    }

    pub(super) fn name(&mut self) -> usize {
        self.names += 1;
        self.names
    }

    /// A pattern that nothing else has.
    pub(super) fn word(&self) -> u32 {
        self.ground.last_word.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// All held streams go on: something is about to wait for them.
    pub(super) fn let_go(&mut self) {
        self.held.clear();
    }

    pub(super) fn is_elsewhere(&self, owner: Option<usize>) -> bool {
        owner.is_some_and(|owner| owner != self.me)
    }

    pub(super) fn site(&self, wanted: u8) -> Option<Arc<Site>> {
        pick(wanted, self.sites.len()).map(|place| self.sites[place].clone())
    }

    /// Does one operation, and looks at all numbers afterwards.
    pub(super) fn step(&mut self, local: &mut Local, step: &Step) -> Result<()> {
        let lines = self.story.len();
        self.perform(local, step)?;
        self.tally.count(step, self.story.len() > lines);
        if self.alone {
            self.sites.iter().try_for_each(|site| site.check())?;
        }
        Ok(())
    }

    fn perform(&mut self, local: &mut Local, step: &Step) -> Result<()> {
        match *step {
            Step::Alloc {
                site,
                stream,
                words,
                make,
            } => self.alloc(local, (site, stream), words, make).map(drop),
            Step::End(value, end) => self.end(value, end),
            Step::Fill(value) => self.fill(value),
            Step::Write(value) => self.write(value),
            Step::Read(value) => self.read(value),
            Step::Copy { to, from } => self.copy(to, from),
            Step::Clone { from, site, stream } => self.duplicate(local, from, (site, stream)),
            Step::Lend(value, stream, lend) => self.lend(value, stream, lend),
            Step::Move(value, stream, how) => self.move_to(value, stream, how),
            Step::Resize(value, words, how) => self.resize(value, words, how),
            Step::LendHost(value, stream) => self.lend_host(value, stream),
            Step::TakeHost(lent) => self.take_host(lent),
            Step::Record(ref record) => self.record(record),
            Step::Graph(graph, step) => self.graph(graph, step),
            Step::NewSite(ref spec) => self.new_site(spec),
            Step::DropSite(site) => self.drop_site(site),
            Step::Trim(site, keep) => {
                let Some(site) = self.site(site) else {
                    return Ok(());
                };
                self.say(format!("trim resource {} to {keep} bytes", site.name));
                site.resource.trim_to(keep)?;
                // What a program would print.
                let _ = format!("{:?}", site.resource);
                Ok(())
            }
            Step::Tune(site, policy, threshold) => {
                let Some(site) = self.site(site) else {
                    return Ok(());
                };
                self.say(format!(
                    "tune resource {}: {policy}, {threshold}",
                    site.name
                ));
                if let Some(pool) = &site.pool {
                    pool.set_reuse_policy(policy)?;
                    pool.set_release_threshold(threshold)?;
                    pool.reset_high_marks()?;
                }
                if let Some(arena) = &site.arena {
                    arena.set_release_threshold(threshold);
                    arena.reset_peak();
                }
                Ok(())
            }
            Step::Sleep(site, contents, value) => self.sleep(site, contents, value),
            Step::Scope(site) => self.open_scope(local, site),
            Step::EndScope => {
                if local.scopes.pop().is_some() {
                    self.say("end a scope");
                }
                Ok(())
            }
            _ => self.perform_on_streams(step),
        }
    }

    pub(super) fn new_site(&mut self, spec: &SiteSpec) -> Result<()> {
        if self.sites.len() >= SITES {
            return Ok(());
        }
        let name = self.name();
        let site = Site::new(self.ground.env, name, spec)?;
        self.say(format!("{site:?}"));
        self.sites.push(Arc::new(site));
        Ok(())
    }

    /// The handle goes; the memory that is allocated from it lives on.
    fn drop_site(&mut self, site: u8) -> Result<()> {
        if self.sites.len() > 1
            && let Some(place) = pick(site, self.sites.len())
        {
            let site = self.sites.remove(place);
            self.say(format!("drop resource {}", site.name));
        }
        Ok(())
    }

    fn open_scope(&mut self, local: &mut Local, site: u8) -> Result<()> {
        let Some(site) = self.site(site).filter(|_| local.scopes.len() < SCOPES) else {
            return Ok(());
        };
        self.say(format!("resource {} is current from now on", site.name));
        let scope = self.ground.device.use_resource(&site.resource)?;
        local.scopes.push((scope, site));
        Ok(())
    }

    fn sleep(
        &mut self,
        site: u8,
        contents: cuda_mem::SleepContents,
        freed: Option<u8>,
    ) -> Result<()> {
        let site = self.site(site).filter(|site| site.is_free && self.alone);
        let Some((arena, site)) = site.and_then(|site| Some((site.arena.clone()?, site))) else {
            return Ok(());
        };
        self.let_go();
        self.say(format!("resource {} sleeps: {contents:?}", site.name));
        // SAFETY: all streams are of the context that this waits for, and nothing is submitted before it is awake.
        match unsafe { arena.sleep(contents) } {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::InUse && site.has_captures() => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
        self.tally.sleeps += 1;
        let stats = arena.stats();
        ensure!(stats.reserved == 0, "asleep: {stats}, {}", stats.asleep);
        if contents == cuda_mem::SleepContents::Discard {
            for value in &mut self.values {
                value.forget(&site.live);
            }
            for graph in &mut self.graphs {
                graph.forget(&site.live);
            }
        }
        let freed = freed.and_then(|freed| pick(freed, self.values.len()));
        if let Some(place) = freed
            && !self.is_elsewhere(self.values[place].owner)
            && !matches!(self.values[place].kind, Kind::Raw(_))
        {
            let value = self.values.swap_remove(place);
            self.say(format!("asleep, drop {value}"));
            value.let_drop();
        }
        arena.wake()?;
        let stats = arena.stats();
        ensure!(stats.asleep == 0, "awake: {stats}, {} asleep", stats.asleep);
        self.say("it is awake");
        Ok(())
    }
}

/// Also after a failure, whatever was left.
impl Drop for World<'_> {
    fn drop(&mut self) {
        self.held.clear();
        for value in self.values.drain(..) {
            if let Kind::Raw(raw) = value.kind {
                // If even that fails there is nothing to be done.
                let _ = raw.free();
            }
        }
        self.graphs.clear();
        self.lent.clear();
        let _ = self.ground.context.synchronize();
    }
}

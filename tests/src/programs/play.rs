//! One program, from its beginning to its end.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use cuda_mem::MemoryPool;
use cuda_sim::control::{Control, Live};

use super::graphs::GraphValue;
use super::site::Site;
use super::step::{End, Phrase, Program, Step};
use super::tally::Tally;
use super::team::Team;
use super::world::{Ground, World};

/// What an arena's own thread does, it does within this time.
const SOON: Duration = Duration::from_millis(300);

/// How the threads of a program go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// One after the other, in one order.
    InTurns,
    /// All concurrently, each with values of its own, from one barrier to the next.
    Freely,
}

/// What a program had done when it ended, or why it failed, with all its steps.
pub(super) fn play(
    ground: &Ground,
    program: &Program,
    mode: Mode,
    threads: usize,
) -> Result<Tally, String> {
    let before = match Before::new(ground) {
        Ok(before) => before,
        Err(error) => return Err(format!("{error:#}")),
    };
    let mut story = Vec::new();
    let mut tally = Tally::default();
    let outcome = thread::scope(|scope| {
        let mut team = Team::new(scope, threads);
        let world = World::new(ground, 0, true).map_err(|error| (error, Vec::new()))?;
        match mode {
            Mode::InTurns => in_turns(&mut team, world, &program.phrases, threads, program),
            Mode::Freely => freely(&mut team, world, threads, program),
        }
        // The other threads end here, and with them what stays on them.
    });
    let outcome = match outcome {
        Err((error, lines)) => {
            story = lines;
            Err(error)
        }
        Ok(worlds) => finish(worlds, &mut story, &mut tally),
    };
    outcome
        .and_then(|()| before.check(ground))
        .map(|()| tally)
        .map_err(|error| format!("{error:#}, after\n    {}", story.join("\n    ")))
}

type Worlds<'w> = Vec<World<'w>>;
type Failure = (anyhow::Error, Vec<String>);

/// Takes what a thread answered; a failure comes with the story so far.
fn taken<'w>(done: Result<(World<'w>, Result<()>)>) -> Result<World<'w>, Failure> {
    let (mut world, end) = done.map_err(|error| (error, Vec::new()))?;
    match end {
        Ok(()) => Ok(world),
        Err(error) => Err((error, std::mem::take(&mut world.story))),
    }
}

fn in_turns<'scope, 'w: 'scope>(
    team: &mut Team<'scope, '_, 'w>,
    world: World<'w>,
    phrases: &[Phrase],
    threads: usize,
    program: &Program,
) -> Result<Worlds<'w>, Failure> {
    let sites: Vec<Step> = program.sites.iter().cloned().map(Step::NewSite).collect();
    let mut world = taken(team.run(0, world, &sites))?;
    for Phrase { thread, steps } in phrases {
        let thread = usize::from(*thread) % threads;
        world = taken(team.run(thread, world, steps))?;
    }
    Ok(vec![world])
}

/// A third of the program is done in turns, so that there is something to share.
fn freely<'scope, 'w: 'scope>(
    team: &mut Team<'scope, '_, 'w>,
    world: World<'w>,
    threads: usize,
    program: &Program,
) -> Result<Worlds<'w>, Failure> {
    let phrases = &program.phrases;
    let (first, rest) = phrases.split_at(phrases.len() / 3);
    let mut worlds = in_turns(team, world, first, threads, program)?;
    share(&mut worlds, threads).map_err(|error| (error, Vec::new()))?;
    for (number, round) in (2..).zip(rest.chunks(threads)) {
        let mut steps = vec![Vec::new(); threads];
        for phrase in round {
            steps[usize::from(phrase.thread) % threads].extend(phrase.steps.iter().cloned());
        }
        let all = team.run_all(std::mem::take(&mut worlds), &steps);
        let all = all.map_err(|error| (error, Vec::new()))?;
        let (mut errors, mut story) = (Vec::new(), Vec::new());
        for (mut world, end) in all {
            errors.extend(end.err().map(|error| format!("{error:#}")));
            story.extend(world.story.iter().cloned());
            world.let_go();
            worlds.push(world);
        }
        let checked = if errors.is_empty() {
            meet(&mut worlds)
        } else {
            Err(anyhow!(errors.join("; and ")))
        };
        checked.map_err(|error| (error, story))?;
        for world in &mut worlds {
            world.say(format!("— round {number}"));
        }
    }
    Ok(worlds)
}

/// Each thread gets its part of what there is.
fn share(worlds: &mut Worlds<'_>, threads: usize) -> Result<()> {
    let first = &mut worlds[0];
    let (mut values, mut graphs) = (first.values.split_off(0), first.graphs.split_off(0));
    first.let_go();
    first.alone = false;
    let ground = first.ground;
    let (sites, streams) = (first.sites.clone(), first.shared_slots());
    for number in 1..threads {
        let mut world = World::new(ground, number, false)?;
        world.sites.clone_from(&sites);
        world.slots.extend(streams.iter().cloned());
        worlds.push(world);
    }
    for (place, value) in values.drain(..).enumerate() {
        worlds[place % threads].values.push(value);
    }
    for (place, graph) in graphs.drain(..).enumerate() {
        worlds[place % threads].graphs.push(graph);
    }
    Ok(())
}

/// At a barrier: the numbers are right, and each thread hands its newest value to the next one.
fn meet(worlds: &mut Worlds<'_>) -> Result<()> {
    check_sites(worlds, Site::check)?;
    check_apart(worlds)?;
    let newest: Vec<_> = worlds.iter_mut().map(|world| world.values.pop()).collect();
    let count = worlds.len();
    for (place, value) in newest.into_iter().enumerate() {
        worlds[(place + 1) % count].values.extend(value);
    }
    Ok(())
}

/// No byte is in two values, whichever threads have them.
fn check_apart(worlds: &Worlds<'_>) -> Result<()> {
    let values = worlds.iter().flat_map(|world| {
        let in_graphs = world.graphs.iter().flat_map(GraphValue::all_values);
        world.values.iter().chain(in_graphs)
    });
    let mut values: Vec<_> = values.filter(|value| value.bytes() > 0).collect();
    values.sort_unstable_by_key(|value| value.address());
    for pair in values.windows(2) {
        let [lower, upper] = [pair[0], pair[1]];
        ensure!(
            lower.address() + lower.bytes() as u64 <= upper.address(),
            "{upper} overlaps {lower}"
        );
    }
    Ok(())
}

fn check_sites(worlds: &Worlds<'_>, check: impl Fn(&Site) -> Result<()>) -> Result<()> {
    let mut seen: Vec<*const Site> = Vec::new();
    for site in worlds.iter().flat_map(|world| &world.sites) {
        if !seen.contains(&Arc::as_ptr(site)) {
            seen.push(Arc::as_ptr(site));
            check(site)?;
        }
    }
    Ok(())
}

/// Everything is freed, and every pattern was intact.
fn finish(mut worlds: Worlds<'_>, story: &mut Vec<String>, tally: &mut Tally) -> Result<()> {
    let done = worlds.iter_mut().try_for_each(|world| world.finish());
    for world in &mut worlds {
        story.append(&mut world.story);
        tally.add(&world.tally);
    }
    done?;
    let device = worlds[0].ground.device;
    let has_own = worlds.iter().any(|world| world.had_own_streams);
    check_sites(&worlds, |site| site.check_end(&device, has_own))
}

impl World<'_> {
    fn finish(&mut self) -> Result<()> {
        self.me = 0;
        self.let_go();
        while !self.lent.is_empty() {
            self.take_host(0)?;
        }
        while !self.graphs.is_empty() {
            self.graph(0, super::step::GraphStep::Read)?;
            self.graph(0, super::step::GraphStep::Drop)?;
        }
        while !self.values.is_empty() {
            self.end(0, End::Drop)?;
        }
        let context = &self.ground.context;
        context.synchronize()?;
        let stream = &self.slot(0)?.stream.clone();
        self.witness.check(&self.ground.log, stream)
    }
}

/// What there was before a program.
struct Before {
    live: Option<Live>,
    failures: u64,
}

impl Before {
    fn new(ground: &Ground) -> Result<Self> {
        let failures = cuda_mem::drop_counts().failures;
        let Ok(control) = ground.env.control() else {
            let live = None;
            return Ok(Self { live, failures });
        };
        // A program that failed may have left reports, and more; what of that ends late is not this one's.
        control.reset();
        eventually(|| Ok(Some(lasting(control)?) == ground.live))?;
        let live = Some(lasting(control)?);
        Ok(Self { live, failures })
    }

    /// All of that is there, and no more, and the simulator has seen nothing out of order.
    fn check(&self, ground: &Ground) -> Result<()> {
        ground.context.synchronize()?;
        let drops = cuda_mem::drop_counts();
        ensure!(
            drops.failures == self.failures,
            "{} destructors failed",
            drops.failures - self.failures
        );
        let Ok(control) = ground.env.control() else {
            return Ok(());
        };
        let reports = control.reports();
        // Counts go on for ever otherwise.
        control.reset();
        ensure!(reports.is_empty(), "out of order: {reports:#?}");
        // An arena's own thread ends after the last handle.
        let is_over = eventually(|| {
            ground.context.synchronize()?;
            let live = Some(lasting(control)?);
            Ok(live == self.live || live == ground.live)
        })?;
        let live = lasting(control)?;
        ensure!(is_over, "left over: {live:?}, before {:?}", self.live);
        Ok(())
    }
}

/// What another thread does soon.
pub(super) fn eventually(mut is_so: impl FnMut() -> Result<bool>) -> Result<bool> {
    let start = Instant::now();
    loop {
        if is_so()? {
            return Ok(true);
        }
        if start.elapsed() > SOON {
            return Ok(false);
        }
        thread::yield_now();
    }
}

/// What there is, without what is kept for the next time: events for waits, and pools that have ended.
pub(super) fn lasting(control: &Control) -> Result<Live> {
    // SAFETY: no program runs, and no other test of this suite.
    unsafe { MemoryPool::destroy_spares() }?;
    Ok(Live {
        events: 0,
        ..control.live()
    })
}

//! The execution of a program, from its first step to the checks at its end.

use std::sync::Arc;
use std::thread;

use anyhow::{Result, anyhow, ensure};
use cuda_sim::control::Live;

use super::eventually::eventually;
use super::fixture::{Fixture, live_objects};
use super::graph_value::GraphValue;
use super::resource::ModelResource;
use super::state::State;
use super::step::{Burst, End, GraphStep, Program, Step};
use super::tally::Tally;
use super::workers::Workers;

/// How the threads of a program run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// One at a time, in a fixed order.
    InTurns,
    /// Concurrently, each with its own values, from one barrier to the next.
    Freely,
}

/// Executes a program, and returns what it did, or why it failed with the trace of its steps.
pub(super) fn execute(
    fixture: &Fixture,
    program: &Program,
    mode: Mode,
    threads: usize,
) -> Result<Tally, String> {
    let baseline = match Baseline::new(fixture) {
        Ok(baseline) => baseline,
        Err(error) => return Err(format!("{error:#}")),
    };
    let mut trace = Vec::new();
    let mut tally = Tally::default();
    let outcome = thread::scope(|scope| {
        let mut workers = Workers::new(scope, threads);
        let state = State::new(fixture, 0, true).map_err(|error| (error, Vec::new()))?;
        match mode {
            Mode::InTurns => in_turns(&mut workers, state, &program.bursts, threads, program),
            Mode::Freely => freely(&mut workers, state, threads, program),
        }
        // The other threads end here, with what cannot leave them.
    });
    let outcome = match outcome {
        Err((error, lines)) => {
            trace = lines;
            Err(error)
        }
        Ok(states) => finish(states, &mut trace, &mut tally),
    };
    // What a wrong order does to contents is a matter of timing; the reports of it are not.
    let outcome = outcome.map_err(|error| match order_reports(fixture) {
        Ok(()) => error,
        Err(reports) => error.context(reports),
    });
    outcome
        .and_then(|()| baseline.check(fixture))
        .map(|()| tally)
        .map_err(|error| format!("{error:#}, after\n    {}", trace.join("\n    ")))
}

type States<'w> = Vec<State<'w>>;
type Failure = (anyhow::Error, Vec<String>);

/// The state that a thread returned; a failure comes with its trace.
fn returned<'w>(done: Result<(State<'w>, Result<()>)>) -> Result<State<'w>, Failure> {
    let (mut state, end) = done.map_err(|error| (error, Vec::new()))?;
    match end {
        Ok(()) => Ok(state),
        Err(error) => Err((error, std::mem::take(&mut state.trace))),
    }
}

fn in_turns<'scope, 'w: 'scope>(
    workers: &mut Workers<'scope, '_, 'w>,
    state: State<'w>,
    bursts: &[Burst],
    threads: usize,
    program: &Program,
) -> Result<States<'w>, Failure> {
    let resources: Vec<Step> = program
        .resources
        .iter()
        .cloned()
        .map(Step::NewResource)
        .collect();
    let mut state = returned(workers.run(0, state, &resources))?;
    for Burst { thread, steps } in bursts {
        let thread = usize::from(*thread) % threads;
        state = returned(workers.run(thread, state, steps))?;
    }
    Ok(vec![state])
}

/// Executes a third of the program in turns, so that there is something to distribute.
fn freely<'scope, 'w: 'scope>(
    workers: &mut Workers<'scope, '_, 'w>,
    state: State<'w>,
    threads: usize,
    program: &Program,
) -> Result<States<'w>, Failure> {
    let bursts = &program.bursts;
    let (first, rest) = bursts.split_at(bursts.len() / 3);
    let mut states = in_turns(workers, state, first, threads, program)?;
    distribute(&mut states, threads).map_err(|error| (error, Vec::new()))?;
    for (number, round) in (2..).zip(rest.chunks(threads)) {
        let mut steps = vec![Vec::new(); threads];
        for burst in round {
            steps[usize::from(burst.thread) % threads].extend(burst.steps.iter().cloned());
        }
        let all = workers.run_all(std::mem::take(&mut states), &steps);
        let all = all.map_err(|error| (error, Vec::new()))?;
        let (mut errors, mut trace) = (Vec::new(), Vec::new());
        for (mut state, end) in all {
            errors.extend(end.err().map(|error| format!("{error:#}")));
            trace.extend(state.trace.iter().cloned());
            state.release_held();
            states.push(state);
        }
        let checked = if errors.is_empty() {
            at_barrier(&mut states)
        } else {
            Err(anyhow!(errors.join("; and ")))
        };
        checked.map_err(|error| (error, trace))?;
        for state in &mut states {
            state.log(format!("— round {number}"));
        }
    }
    Ok(states)
}

/// Distributes the values and graphs among the threads.
fn distribute(states: &mut States<'_>, threads: usize) -> Result<()> {
    let first = &mut states[0];
    let (mut values, mut graphs) = (first.values.split_off(0), first.graphs.split_off(0));
    first.release_held();
    first.alone = false;
    let fixture = first.fixture;
    let (resources, streams) = (first.resources.clone(), first.shared_slots());
    for number in 1..threads {
        let mut state = State::new(fixture, number, false)?;
        state.resources.clone_from(&resources);
        state.slots.extend(streams.iter().cloned());
        states.push(state);
    }
    for (place, value) in values.drain(..).enumerate() {
        states[place % threads].values.push(value);
    }
    for (place, graph) in graphs.drain(..).enumerate() {
        states[place % threads].graphs.push(graph);
    }
    Ok(())
}

/// At a barrier: checks the resources, and hands the newest value of each thread to the next one.
fn at_barrier(states: &mut States<'_>) -> Result<()> {
    check_resources(states, ModelResource::check)?;
    check_overlaps(states)?;
    let newest: Vec<_> = states.iter_mut().map(|state| state.values.pop()).collect();
    let count = states.len();
    for (place, value) in newest.into_iter().enumerate() {
        states[(place + 1) % count].values.extend(value);
    }
    Ok(())
}

/// Checks that no two values overlap, on any threads.
fn check_overlaps(states: &States<'_>) -> Result<()> {
    let values = states.iter().flat_map(|state| {
        let in_graphs = state.graphs.iter().flat_map(GraphValue::all_values);
        state.values.iter().chain(in_graphs)
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

fn check_resources(
    states: &States<'_>,
    check: impl Fn(&ModelResource) -> Result<()>,
) -> Result<()> {
    let mut seen: Vec<*const ModelResource> = Vec::new();
    for resource in states.iter().flat_map(|state| &state.resources) {
        if !seen.contains(&Arc::as_ptr(resource)) {
            seen.push(Arc::as_ptr(resource));
            check(resource)?;
        }
    }
    Ok(())
}

/// Frees everything, and checks all contents.
fn finish(mut states: States<'_>, trace: &mut Vec<String>, tally: &mut Tally) -> Result<()> {
    let done = states.iter_mut().try_for_each(|state| state.finish());
    for state in &mut states {
        trace.append(&mut state.trace);
        tally.add(&state.tally);
    }
    done?;
    let device = states[0].fixture.device;
    let has_own = states.iter().any(|state| state.had_own_streams);
    check_resources(&states, |resource| resource.check_end(&device, has_own))
}

impl State<'_> {
    fn finish(&mut self) -> Result<()> {
        self.thread = 0;
        self.release_held();
        while !self.lent.is_empty() {
            self.take_host(0)?;
        }
        while !self.graphs.is_empty() {
            self.graph(0, GraphStep::Read)?;
            self.graph(0, GraphStep::Drop)?;
        }
        while !self.values.is_empty() {
            self.end(0, End::Drop)?;
        }
        let context = &self.fixture.context;
        context.synchronize()?;
        let stream = &self.slot(0)?.stream.clone();
        self.freed.check(&self.fixture.freed_words, stream)
    }
}

/// An error with what the simulator's order sanitizer has reported.
fn order_reports(fixture: &Fixture) -> Result<()> {
    let Ok(control) = fixture.env.control() else {
        return Ok(());
    };
    let reports = control.reports();
    ensure!(reports.is_empty(), "out of order: {reports:#?}");
    Ok(())
}

/// The live objects and failures before a program.
struct Baseline {
    live: Option<Live>,
    failures: u64,
}

impl Baseline {
    fn new(fixture: &Fixture) -> Result<Self> {
        let failures = cuda_mem::base::drop_counts().failures;
        let Ok(control) = fixture.env.control() else {
            let live = None;
            return Ok(Self { live, failures });
        };
        // A failed program may have left reports and objects, some of which are released late.
        control.reset();
        eventually(|| Ok(Some(live_objects(control)?) == fixture.live))?;
        let live = Some(live_objects(control)?);
        Ok(Self { live, failures })
    }

    /// Checks that the program left nothing, and that the simulator reported no wrong order.
    fn check(&self, fixture: &Fixture) -> Result<()> {
        fixture.context.synchronize()?;
        let drops = cuda_mem::base::drop_counts();
        ensure!(
            drops.failures == self.failures,
            "{} destructors failed",
            drops.failures - self.failures
        );
        let Ok(control) = fixture.env.control() else {
            return Ok(());
        };
        let ordered = order_reports(fixture);
        // Otherwise the counts grow without end.
        control.reset();
        ordered?;
        // An arena's background thread ends after the last handle.
        let is_over = eventually(|| {
            fixture.context.synchronize()?;
            let live = Some(live_objects(control)?);
            Ok(live == self.live || live == fixture.live)
        })?;
        let live = live_objects(control)?;
        ensure!(is_over, "left over: {live:?}, before {:?}", self.live);
        Ok(())
    }
}

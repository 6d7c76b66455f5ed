//! Captures, and the graphs that come of them.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::{
    Adopted, Capture, CapturePool, DeviceBuffer, ErrorKind, GraphBuffer, GraphExec, Instantiate,
    Left, Stream,
};

use super::content::Content;
use super::site::{Count, Site, is_of};
use super::step::{GraphStep, Record, Scratch};
use super::value::{Kind, LONG, Value};
use super::world::{World, pick};

/// So many there are at most.
const GRAPHS: usize = 4;

/// Words of scratch memory where a graph has no buffer.
const SCRATCH: usize = 100;

/// What a launch does.
#[derive(Clone, Copy, Debug)]
struct Effect {
    /// The scratch memory holds this, or what the first buffer holds.
    word: Option<u32>,
    /// It is copied to this buffer.
    target: Option<usize>,
    /// And is filled with this in the end.
    last: u32,
}

/// Memory that a launch leaves.
#[derive(Debug)]
struct Rest {
    left: Left<u32>,
    content: Content,
    /// The resource of which it is. Without one it is the graph's own, and not there before the first launch nor after
    /// it was freed.
    count: Option<Arc<Count>>,
    is_there: bool,
}

impl Rest {
    fn is_own(&self) -> bool {
        self.count.is_none()
    }
}

#[derive(Debug)]
pub(super) struct GraphValue {
    name: usize,
    exec: GraphExec,
    /// The memory is the graph's; the values only show it.
    adopted: Vec<(Adopted<u32>, Value)>,
    effect: Effect,
    rest: Option<Rest>,
    auto_free: bool,
}

impl GraphValue {
    pub(super) fn all_values(&self) -> impl Iterator<Item = &Value> {
        self.adopted.iter().map(|adopted| &adopted.1)
    }

    /// The memory of this resource has lost what it held.
    pub(super) fn forget(&mut self, count: &Arc<Count>) {
        for (_, value) in &mut self.adopted {
            value.forget(count);
        }
        if let Some(rest) = &mut self.rest
            && is_of(rest.count.as_ref(), count)
        {
            rest.content.forget();
        }
    }

    fn launched(&mut self) {
        let Effect { word, target, last } = self.effect;
        let first = self.adopted.first();
        let held = match (word, first) {
            (None, Some((_, first))) => first.content.clone(),
            (word, Some((_, first))) => Content::whole(first.content.len(), word),
            (word, None) => Content::whole(SCRATCH, word),
        };
        if let Some(target) = target {
            self.adopted[target].1.content = held.clone();
        }
        if let Some(rest) = &mut self.rest {
            rest.content = Content::whole(held.len(), Some(last));
            rest.is_there = true;
        }
    }
}

/// What a capture is made with.
struct Parts {
    len: usize,
    pool: Option<CapturePool>,
    buffers: Vec<DeviceBuffer<u32>>,
    dropped: Option<Value>,
}

type Recorded = (Vec<Adopted<u32>>, Option<Left<u32>>);

impl World<'_> {
    /// A value that a graph can have: of this length, if one is given.
    fn adoptable(&self, wanted: u8, len: Option<usize>) -> Option<usize> {
        let fits = |place: &usize| {
            let value = &self.values[*place];
            let right = len.map_or(1..=LONG, |len| len..=len).contains(&value.len());
            let is_buffer = matches!(value.kind, Kind::Buffer(_) | Kind::Plain(_));
            right && is_buffer && value.owner.is_none()
        };
        let all: Vec<usize> = (0..self.values.len()).filter(fits).collect();
        pick(wanted, all.len()).map(|place| all[place])
    }

    fn capture_pool(&self, wanted: u8) -> Result<Option<(CapturePool, Arc<Site>)>> {
        let free: Vec<_> = self.sites.iter().filter(|site| site.is_free).collect();
        let Some(site) = pick(wanted, free.len()).map(|place| free[place]) else {
            return Ok(None);
        };
        let pool = site.capture_pool()?;
        Ok(pool.map(|pool| (pool, Arc::clone(site))))
    }

    pub(super) fn record(&mut self, record: &Record) -> Result<()> {
        let all: Vec<_> = self
            .slots
            .iter()
            .filter(|it| it.can_be_captured())
            .collect();
        let slot = pick(record.stream, all.len()).map(|place| all[place]);
        let Some(slot) = slot.filter(|_| self.alone && self.graphs.len() < GRAPHS) else {
            return Ok(());
        };
        let (stream_name, stream) = (slot.name, slot.stream.clone());
        self.let_go();
        let found = match record.scratch {
            Scratch::Graph => None,
            Scratch::Pool(wanted) | Scratch::PoolAlone(wanted) => self.capture_pool(wanted)?,
        };
        let (pool, site) = found.unzip();
        let may_refuse = site.as_ref().is_some_and(|site| site.may_refuse());
        let count = site.map(|site| Arc::clone(&site.live));
        let (mut shadows, mut buffers) = (Vec::new(), Vec::new());
        for wanted in record.adopt.into_iter().flatten() {
            let len = shadows.first().map(Value::len);
            if let Some(place) = self.adoptable(wanted, len) {
                let value = self.values.swap_remove(place);
                let (shadow, buffer) = shadow(value)?;
                shadows.push(shadow);
                buffers.push(buffer);
            }
        }
        let dropped = record.drop.and_then(|drop| pick(drop, self.values.len()));
        let mut dropped = dropped.map(|place| self.values.swap_remove(place));
        if let Some(raw) = dropped.take_if(|value| matches!(value.kind, Kind::Raw(_))) {
            self.values.push(raw);
        }
        if let Some(value) = &mut dropped
            && !self.is_elsewhere(value.owner)
        {
            self.note(value)?;
        }
        let name = self.name();
        let texts: Vec<String> = shadows.iter().map(ToString::to_string).collect();
        self.say(format!(
            "graph {name} of stream {stream_name} with {texts:?}, dropping {:?}: {record:?}",
            dropped.as_ref().map(ToString::to_string)
        ));
        self.tally.captures += 1;
        self.tally.pairs += u64::from(shadows.len() == 2);
        let effect = Effect {
            word: (!record.copy_in || shadows.is_empty()).then(|| self.word()),
            target: shadows.len().checked_sub(1),
            last: self.word(),
        };
        let parts = Parts {
            len: shadows.first().map_or(SCRATCH, Value::len),
            pool,
            buffers,
            dropped,
        };
        let waits = parts.dropped.as_ref().map(|value| value.owner);
        let waits = waits.is_some_and(|owner| self.is_elsewhere(owner));
        let resource = self.site(0).map(|site| site.resource.clone());
        let mut provoked = Ok(());
        let recorded = stream.capture(record.mode, |capture| {
            if let Some(resource) = resource.filter(|_| record.provoke) {
                let stream = capture.stream();
                provoked = refuses(&resource.alloc::<u32>(stream, 10))
                    .and_then(|()| refuses(&stream.synchronize()))
                    .and_then(|()| refuses(&stream.is_done()));
            }
            recording(capture, record, effect, parts)
        });
        provoked.context("in a capture")?;
        if waits {
            // Nothing in a capture can wait for another thread's own stream: the free comes with the next wait.
            self.ground.context.synchronize()?;
        }
        let (graph, (adopted, left)) = match recorded {
            // The buffers went with the capture.
            Err(error) if may_refuse && error.kind() == ErrorKind::OutOfMemory => {
                self.tally.refused += 1;
                shadows.into_iter().for_each(Value::let_drop);
                return Ok(());
            }
            recorded => recorded?,
        };
        let kind = if record.auto_free {
            Instantiate::AutoFree
        } else {
            Instantiate::Plain
        };
        let rest = left.map(|left| Rest {
            content: Content::whole(left.len(), None),
            left,
            is_there: count.is_some(),
            count,
        });
        self.graphs.push(GraphValue {
            name,
            exec: graph.instantiate(kind).map_err(|failed| failed.error)?,
            adopted: adopted.into_iter().zip(shadows).collect(),
            effect,
            rest,
            auto_free: record.auto_free,
        });
        if record.launch {
            self.graph(0, GraphStep::Launch(record.stream))?;
        }
        Ok(())
    }

    pub(super) fn graph(&mut self, graph: u8, step: GraphStep) -> Result<()> {
        let Some(place) = pick(graph, self.graphs.len()) else {
            return Ok(());
        };
        let name = self.graphs[place].name;
        self.say(format!("graph {name}: {step:?}"));
        match step {
            GraphStep::Launch(slot) => {
                let Some(stream) = self.launching(slot) else {
                    return Ok(());
                };
                let is_launched = self.graphs[place].launch(&stream)?;
                self.tally.launches += u64::from(is_launched);
                Ok(())
            }
            GraphStep::Upload(slot) => {
                if let Some(stream) = self.launching(slot) {
                    self.graphs[place].exec.upload(&stream)?;
                }
                Ok(())
            }
            GraphStep::Read => {
                self.let_go();
                self.tally.checked += 1;
                self.graphs[place].read()
            }
            GraphStep::Write => {
                let word = self.word();
                let GraphValue { exec, adopted, .. } = &mut self.graphs[place];
                if let Some((adopted, value)) = adopted.first_mut() {
                    exec.buffer_mut(adopted)?.fill(word)?;
                    value.content = Content::whole(value.len(), Some(word));
                }
                Ok(())
            }
            GraphStep::ReadLeft => {
                self.let_go();
                self.graphs[place].read_left()
            }
            GraphStep::FreeLeft => {
                let graph = &mut self.graphs[place];
                graph.exec.free_left()?;
                if let Some(rest) = graph.rest.as_mut().filter(|rest| rest.is_own()) {
                    rest.is_there = false;
                }
                Ok(())
            }
            GraphStep::TakeApart => {
                self.let_go();
                let mut graph = self.graphs.swap_remove(place);
                if graph.adopted.is_empty() {
                    return Ok(());
                }
                let (adopted, mut value) = graph.adopted.swap_remove(0);
                let buffer = graph.exec.into_buffer(&adopted)?;
                value.kind = match value.kind {
                    Kind::Plain(_) => Kind::Plain(buffer),
                    _ => Kind::Buffer(buffer),
                };
                self.values.push(value);
                graph.adopted.into_iter().for_each(|it| it.1.let_drop());
                Ok(())
            }
            GraphStep::Drop => {
                self.let_go();
                let graph = self.graphs.swap_remove(place);
                drop(graph.exec);
                graph.adopted.into_iter().for_each(|it| it.1.let_drop());
                Ok(())
            }
        }
    }

    /// A stream that is no thread's own: what a launch leaves is used in it, on any thread.
    fn launching(&self, wanted: u8) -> Option<Stream> {
        let all: Vec<_> = self
            .slots
            .iter()
            .filter(|slot| slot.owner.is_none())
            .collect();
        pick(wanted, all.len()).map(|place| all[place].stream.clone())
    }
}

impl GraphValue {
    /// Says whether it was launched, and not refused for what it had left.
    fn launch(&mut self, stream: &Stream) -> Result<bool> {
        let rest = self.rest.as_ref();
        let is_left = rest.is_some_and(|rest| rest.is_own() && rest.is_there);
        match self.exec.launch(stream) {
            Ok(()) => ensure!(!is_left || self.auto_free, "launched over what it had left"),
            Err(error) if error.kind() == ErrorKind::StillAllocated && is_left => {
                ensure!(!self.auto_free, "{error}");
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
        self.launched();
        Ok(true)
    }

    fn read(&self) -> Result<()> {
        for (adopted, value) in &self.adopted {
            let found = self.exec.buffer(adopted)?.to_vec()?;
            value
                .content
                .check(&found)
                .with_context(|| format!("{value} in graph {}", self.name))?;
        }
        Ok(())
    }

    fn read_left(&mut self) -> Result<()> {
        let Some(rest) = &self.rest else {
            return Ok(());
        };
        match self.exec.left(&rest.left) {
            Ok(left) => {
                ensure!(rest.is_there, "memory that is not there is shown");
                let found = left.to_vec()?;
                rest.content
                    .check(&found)
                    .with_context(|| format!("left by graph {}", self.name))
            }
            Err(error) if error.kind() == ErrorKind::InvalidValue && !rest.is_there => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// What is recorded.
fn recording(
    capture: &Capture,
    record: &Record,
    effect: Effect,
    parts: Parts,
) -> cuda_mem::Result<Recorded> {
    let Parts {
        len,
        pool,
        buffers,
        dropped,
    } = parts;
    let adopted: Vec<_> = buffers.into_iter().map(|it| capture.adopt(it)).collect();
    let is_alone = matches!(record.scratch, Scratch::PoolAlone(_));
    let new = || -> cuda_mem::Result<GraphBuffer<'_, u32>> {
        match &pool {
            Some(pool) if is_alone => capture.alloc_alone_from(pool, len),
            Some(pool) => capture.alloc_from(pool, len),
            None => capture.alloc(len),
        }
    };
    let mut scratch = match new() {
        Ok(scratch) => scratch,
        Err(error) => {
            dropped.into_iter().for_each(Value::let_drop);
            return Err(error);
        }
    };
    match (effect.word, adopted.first()) {
        (Some(word), _) => scratch.fill(word)?,
        (None, Some(first)) => scratch.copy_in(first)?,
        (None, None) => {}
    }
    if let Some(value) = dropped {
        value.let_drop();
    }
    if let Some(target) = effect.target {
        if record.through {
            let mut second = new()?;
            second.copy_from(&scratch)?;
            second.copy_out(&adopted[target])?;
            second.free()?;
        } else {
            scratch.copy_out(&adopted[target])?;
        }
    }
    scratch.fill(effect.last)?;
    // Memory that graphs share holds what the last one of them wrote.
    let keeps = record.leave && (pool.is_none() || is_alone);
    let left = keeps.then(|| scratch.leave());
    Ok((adopted, left))
}

/// A captured stream is refused to everything else.
fn refuses<T>(answer: &cuda_mem::Result<T>) -> Result<()> {
    let kind = answer.as_ref().err().map(cuda_mem::Error::kind);
    ensure!(
        kind == Some(ErrorKind::Capturing),
        "it answered {:?}",
        answer.as_ref().err()
    );
    Ok(())
}

/// The buffer of a value, and a value that only shows it.
fn shadow(mut value: Value) -> Result<(Value, DeviceBuffer<u32>)> {
    let (stream, address, len) = (value.stream(), value.address(), value.len());
    // SAFETY: it is asked for its address and length only, which stay what they are.
    let view = unsafe { DeviceBuffer::borrow_raw(&stream, address, len, ()) };
    let (kind, buffer) = match value.kind {
        Kind::Plain(buffer) => (Kind::Plain(view), buffer),
        Kind::Buffer(buffer) => (Kind::Buffer(view), buffer),
        other => anyhow::bail!("a graph cannot have a {}", other.word()),
    };
    value.kind = kind;
    Ok((value, buffer))
}

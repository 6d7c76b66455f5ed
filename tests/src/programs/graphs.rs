//! Operations that capture streams and launch graphs.

use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::arena::CapturePool;
use cuda_mem::interop::{Capture, GraphBuffer, GraphOwned, Instantiate, PersistentAllocation};
use cuda_mem::{DeviceBuffer, ErrorKind, Stream};

use super::content::Content;
use super::graph_value::{Effect, GraphValue, Persistent, SCRATCH};
use super::resource::ModelResource;
use super::state::{State, pick};
use super::step::{GraphStep, Record, Scratch};
use super::value::{Kind, LONG, Value};

/// Maximum number of graphs.
const GRAPHS: usize = 4;

/// What a capture takes.
struct Input {
    len: usize,
    pool: Option<CapturePool>,
    buffers: Vec<DeviceBuffer<u32>>,
    dropped: Option<Value>,
}

type Recorded = (Vec<GraphOwned<u32>>, Option<PersistentAllocation<u32>>);

impl State<'_> {
    /// A value that a graph can adopt, of length `len` if given.
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

    fn capture_pool(&self, wanted: u8) -> Result<Option<(CapturePool, Arc<ModelResource>)>> {
        let free: Vec<_> = self
            .resources
            .iter()
            .filter(|resource| resource.is_free)
            .collect();
        let Some(resource) = pick(wanted, free.len()).map(|place| free[place]) else {
            return Ok(None);
        };
        let pool = resource.capture_pool()?;
        Ok(pool.map(|pool| (pool, Arc::clone(resource))))
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
        self.release_held();
        let found = match record.scratch {
            Scratch::Graph => None,
            Scratch::Pool(wanted) | Scratch::PoolAlone(wanted) => self.capture_pool(wanted)?,
        };
        let (pool, resource) = found.unzip();
        let may_refuse = resource
            .as_ref()
            .is_some_and(|resource| resource.may_refuse());
        let count = resource.map(|resource| Arc::clone(&resource.live));
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
            && !self.is_foreign(value.owner)
        {
            self.copy_freed(value)?;
        }
        let name = self.name();
        let texts: Vec<String> = shadows.iter().map(ToString::to_string).collect();
        self.log(format!(
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
        let input = Input {
            len: shadows.first().map_or(SCRATCH, Value::len),
            pool,
            buffers,
            dropped,
        };
        let waits = input.dropped.as_ref().map(|value| value.owner);
        let waits = waits.is_some_and(|owner| self.is_foreign(owner));
        let handle = self.resource(0).map(|resource| resource.handle.clone());
        let mut provoked = Ok(());
        let recorded = stream.capture(record.mode, |capture| {
            if let Some(handle) = handle.filter(|_| record.provoke) {
                let stream = capture.stream();
                provoked = check_refused(&handle.alloc::<u32>(stream, 10))
                    .and_then(|()| check_refused(&stream.synchronize()))
                    .and_then(|()| check_refused(&stream.is_done()));
            }
            record_work(capture, record, effect, input)
        });
        provoked.context("in a capture")?;
        if waits {
            // A capture cannot wait for the stream of another thread: the next wait for the context frees it.
            self.fixture.context.synchronize()?;
        }
        let (graph, (adopted, left)) = match recorded {
            // The capture has dropped the buffers.
            Err(error) if may_refuse && error.kind() == ErrorKind::OutOfMemory => {
                self.tally.refused += 1;
                shadows.into_iter().for_each(Value::discard);
                return Ok(());
            }
            recorded => recorded?,
        };
        let kind = if record.auto_free {
            Instantiate::AutoFree
        } else {
            Instantiate::Plain
        };
        let persistent = left.map(|left| Persistent {
            content: Content::whole(left.len(), None),
            handle: left,
            is_there: count.is_some(),
            count,
        });
        self.graphs.push(GraphValue {
            name,
            exec: graph.instantiate(kind).map_err(|failed| failed.error)?,
            adopted: adopted.into_iter().zip(shadows).collect(),
            effect,
            persistent,
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
        self.log(format!("graph {name}: {step:?}"));
        match step {
            GraphStep::Launch(slot) => {
                let Some(stream) = self.launch_stream(slot) else {
                    return Ok(());
                };
                let is_launched = self.graphs[place].launch(&stream)?;
                self.tally.launches += u64::from(is_launched);
                Ok(())
            }
            GraphStep::Upload(slot) => {
                if let Some(stream) = self.launch_stream(slot) {
                    self.graphs[place].exec.upload(&stream)?;
                }
                Ok(())
            }
            GraphStep::Read => {
                self.release_held();
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
                self.release_held();
                self.graphs[place].read_left()
            }
            GraphStep::FreeLeft => {
                let graph = &mut self.graphs[place];
                graph.exec.free_left()?;
                if let Some(left) = graph.persistent.as_mut().filter(|left| left.is_own()) {
                    left.is_there = false;
                }
                Ok(())
            }
            GraphStep::TakeApart => {
                self.release_held();
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
                graph.adopted.into_iter().for_each(|it| it.1.discard());
                Ok(())
            }
            GraphStep::Drop => {
                self.release_held();
                let graph = self.graphs.swap_remove(place);
                drop(graph.exec);
                graph.adopted.into_iter().for_each(|it| it.1.discard());
                Ok(())
            }
        }
    }

    /// A stream to launch in. It is no per-thread stream: any thread may use the memory that stays allocated.
    fn launch_stream(&self, wanted: u8) -> Option<Stream> {
        let all: Vec<_> = self
            .slots
            .iter()
            .filter(|slot| slot.owner.is_none())
            .collect();
        pick(wanted, all.len()).map(|place| all[place].stream.clone())
    }
}

/// Records the work of a graph.
fn record_work(
    capture: &Capture,
    record: &Record,
    effect: Effect,
    input: Input,
) -> cuda_mem::Result<Recorded> {
    let Input {
        len,
        pool,
        buffers,
        dropped,
    } = input;
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
            dropped.into_iter().for_each(Value::discard);
            return Err(error);
        }
    };
    match (effect.word, adopted.first()) {
        (Some(word), _) => scratch.as_mut_slice().fill(word)?,
        (None, Some(first)) => scratch.copy_in(first)?,
        (None, None) => {}
    }
    if let Some(value) = dropped {
        value.discard();
    }
    if let Some(target) = effect.target {
        if record.through {
            let mut second = new()?;
            second.as_mut_slice().copy_from_device(&scratch)?;
            second.copy_out(&adopted[target])?;
            second.free()?;
        } else {
            scratch.copy_out(&adopted[target])?;
        }
    }
    scratch.as_mut_slice().fill(effect.last)?;
    // Memory shared by graphs holds what the last launch of any of them wrote.
    let keeps = record.leave && (pool.is_none() || is_alone);
    let left = keeps.then(|| scratch.persist());
    Ok((adopted, left))
}

/// Checks that a use of a captured stream was refused.
fn check_refused<T>(answer: &cuda_mem::Result<T>) -> Result<()> {
    let kind = answer.as_ref().err().map(cuda_mem::Error::kind);
    ensure!(
        kind == Some(ErrorKind::Capturing),
        "it answered {:?}",
        answer.as_ref().err()
    );
    Ok(())
}

/// The buffer of a value, and a value that only describes it.
fn shadow(mut value: Value) -> Result<(Value, DeviceBuffer<u32>)> {
    let (stream, address, len) = (value.stream(), value.address(), value.len());
    // SAFETY: only its address and length are used, which do not change.
    let view = unsafe { DeviceBuffer::borrow_raw(&stream, address, len, ()) };
    let (kind, buffer) = match value.kind {
        Kind::Plain(buffer) => (Kind::Plain(view), buffer),
        Kind::Buffer(buffer) => (Kind::Buffer(view), buffer),
        other => bail!("a graph cannot adopt a {}", other.word()),
    };
    value.kind = kind;
    Ok((value, buffer))
}

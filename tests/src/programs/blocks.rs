//! Operations that allocate and free memory.

use std::alloc::Layout;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::mapped::{ManagedBuffer, MappedMemory};
use cuda_mem::memory::{DeviceScalar, DeviceVec};
use cuda_mem::{DeviceBuffer, Error, ErrorKind, MemoryResource as _, Stream};

use super::content::Content;
use super::fixture::Mistake;
use super::graph_value::GraphValue;
use super::resource::ModelResource;
use super::state::{Local, State, VALUES, pick};
use super::step::{End, Make};
use super::value::{EDGE, Kind, LONG, Raw, Value};

/// Bytes of addresses that a growable buffer reserves.
const GROWABLE_BYTES: u64 = 4 << 20;

/// Where memory comes from, and how.
struct Origin<'s> {
    resource: Option<&'s Arc<ModelResource>>,
    stream: Stream,
    owner: Option<usize>,
    words: usize,
}

impl State<'_> {
    /// Allocates, and returns whether there is a new value. It is the last one.
    pub(super) fn alloc(
        &mut self,
        local: &Local,
        (resource, slot): (u8, u8),
        words: usize,
        make: Make,
    ) -> Result<bool> {
        if self.values.len() >= VALUES {
            return Ok(false);
        }
        let Some(resource) = self.resource(resource) else {
            return Ok(false);
        };
        let Some(slot) = pick(slot, self.slots.len()).map(|place| &self.slots[place]) else {
            return Ok(false);
        };
        let (stream, stream_name, owner) = (slot.stream.clone(), slot.name, slot.owner);
        if self.is_foreign(owner) {
            return self.refused_foreign(&resource, &stream, words.max(1));
        }
        // The resource that counts it.
        let scope = local.scopes.last().map(|scope| &scope.1);
        let counts = match make {
            Make::Vec(true) => scope,
            Make::Current | Make::Managed | Make::Growable => None,
            _ => Some(&resource),
        };
        let make = match make {
            Make::Plain if !resource.is_plain_pool => Make::Uninit,
            // The free of a raw block cannot wait for the per-thread stream of another thread.
            Make::Raw(_) if owner.is_some() => Make::Uninit,
            make => make,
        };
        if matches!(make, Make::From | Make::Scalar) {
            self.release_held();
        }
        let word = self.word();
        let origin = Origin {
            resource: counts,
            stream,
            owner,
            words,
        };
        let made = self.allocate(&resource, &origin, make, word);
        let (kind, content) = match made {
            Ok(made) => made,
            Err(error) => {
                return self.refused(&origin, make, &error).map(|()| false);
            }
        };
        self.insert(&origin, kind, content, stream_name)?;
        if matches!(
            make,
            Make::Uninit | Make::Plain | Make::Raw(_) | Make::Current
        ) {
            self.fill(0)?;
        }
        Ok(true)
    }

    fn allocate(
        &self,
        resource: &ModelResource,
        origin: &Origin<'_>,
        make: Make,
        word: u32,
    ) -> cuda_mem::Result<(Kind, Content)> {
        let (handle, stream, words) = (&resource.handle, &origin.stream, origin.words);
        let unknown = Content::whole(words, None);
        let zero = Content::whole(words, Some(0));
        let pattern = Content::whole(words, Some(word));
        let pool = resource.pool.as_ref();
        Ok(match (make, pool) {
            (Make::Plain, Some(pool)) => (Kind::Plain(pool.alloc(stream, words)?), unknown),
            (Make::Uninit | Make::Plain, _) => {
                (Kind::Buffer(handle.alloc(stream, words)?), unknown)
            }
            (Make::Zeroed, _) => (Kind::Buffer(handle.alloc_zeroed(stream, words)?), zero),
            (Make::From, _) => {
                let buffer = handle.alloc_from(stream, &vec![word; words])?;
                (Kind::Buffer(buffer), pattern)
            }
            (Make::Vec(true), _) => (Kind::Vec(DeviceVec::zeroed(stream, words)?), zero),
            (Make::Vec(false), _) => {
                let vec = DeviceVec::uninit_in(handle, stream, words)?;
                (Kind::Vec(vec), unknown)
            }
            (Make::Scalar, _) => {
                let scalar = DeviceScalar::new_in(handle, stream, word)?;
                (Kind::Scalar(scalar), Content::whole(1, Some(word)))
            }
            (Make::Raw(alignment), _) => {
                let bytes = words.max(1) * 4;
                let layout = Layout::from_size_align(bytes, alignment);
                let layout = layout.unwrap_or(Layout::new::<u32>());
                let raw = Raw::new(handle, stream, layout)?;
                let content = Content::whole(raw.view.len(), None);
                (Kind::Raw(raw), content)
            }
            (Make::Current, _) => (Kind::Plain(stream.alloc(words)?), unknown),
            (Make::Managed, _) => {
                let managed = ManagedBuffer::zeroed(stream, words.min(LONG))?;
                let content = Content::whole(managed.len(), Some(0));
                (Kind::Managed(managed), content)
            }
            (Make::Growable, _) => {
                let words = words.min(LONG);
                let bytes = (words * 4).max(1) as u64;
                let device = self.fixture.device;
                let memory = MappedMemory::builder(&device).reserve(GROWABLE_BYTES);
                let buffer = memory.build(bytes)?.into_buffer(stream, words)?;
                (Kind::Growable(buffer), Content::whole(words, None))
            }
        })
    }

    /// Memory was refused, which must have a reason.
    fn refused(&mut self, origin: &Origin<'_>, make: Make, error: &Error) -> Result<()> {
        let resource = origin.resource.context("nothing limits it")?;
        if let Make::Raw(alignment) = make
            && alignment > resource.alignment
            && error.kind() == ErrorKind::InvalidValue
        {
            return Ok(());
        }
        let words = match make {
            Make::Scalar => 1,
            Make::Raw(_) => origin.words.max(1),
            _ => origin.words,
        };
        resource.allowed(words * 4, Some(error), self.alone)?;
        self.tally.refused += 1;
        self.log(format!(
            "{words} words of resource {} are refused",
            resource.name
        ));
        Ok(())
    }

    /// The per-thread stream of another thread cannot be used here.
    fn refused_foreign(
        &mut self,
        resource: &ModelResource,
        stream: &Stream,
        words: usize,
    ) -> Result<bool> {
        self.tally.foreign += 1;
        let Err(error) = resource.handle.alloc::<u32>(stream, words) else {
            bail!("{resource:?} gave memory on {stream} of another thread");
        };
        let is_full = error.kind() == ErrorKind::OutOfMemory && resource.may_refuse();
        ensure!(
            error.kind() == ErrorKind::InvalidValue || is_full,
            "{resource:?} on a stream of another thread: {error}"
        );
        Ok(false)
    }

    /// Checks a new value, and adds it.
    fn insert(
        &mut self,
        origin: &Origin<'_>,
        kind: Kind,
        content: Content,
        stream_name: usize,
    ) -> Result<()> {
        let mut value = Value {
            name: self.name(),
            kind,
            content,
            count: None,
            counted: 0,
            owner: origin.owner,
            waits: false,
            may_refuse: origin
                .resource
                .is_some_and(|resource| resource.may_refuse()),
        };
        value.waits = match value.kind {
            Kind::Managed(_) | Kind::Growable(_) => true,
            _ => origin.resource.is_some_and(|resource| resource.waits),
        };
        let (start, bytes) = (value.address(), value.bytes() as u64);
        self.log(format!(
            "{value} of {} in stream {stream_name}, at {start:#x}",
            origin
                .resource
                .map_or("no resource".to_owned(), |resource| format!(
                    "resource {}",
                    resource.name
                ))
        ));
        self.tally.blocks += 1;
        if let Some(resource) = origin.resource {
            resource.allowed(bytes as usize, None, self.alone)?;
            value.count = Some(resource.live.clone());
        }
        value.recount();
        // A growable buffer has addresses before it has memory.
        let has_address = match &value.kind {
            Kind::Growable(_) => bytes > 0,
            _ => start != 0,
        };
        let alignment = match &value.kind {
            Kind::Raw(raw) => raw.layout.align().max(256),
            _ => 256,
        };
        ensure!(
            start.is_multiple_of(alignment as u64) && has_address == (bytes > 0),
            "{value} at {start:#x}"
        );
        self.check_overlap(&value)?;
        self.values.push(value);
        if self.fixture.mistake == Some(Mistake::Byte) {
            self.overwrite_other()?;
        }
        Ok(())
    }

    /// Checks that no other value has a byte of it.
    fn check_overlap(&self, value: &Value) -> Result<()> {
        let (start, bytes) = (value.address(), value.bytes() as u64);
        let graphs = self.graphs.iter().flat_map(GraphValue::all_values);
        for other in self.values.iter().chain(graphs) {
            let at = other.address();
            ensure!(
                at >= start + bytes || start >= at + other.bytes() as u64,
                "{value} overlaps {other}"
            );
        }
        Ok(())
    }

    pub(super) fn duplicate(
        &mut self,
        local: &Local,
        from: u8,
        (resource, stream): (u8, u8),
    ) -> Result<()> {
        let Some(from) = self.usable(from)? else {
            return Ok(());
        };
        let value = &self.values[from];
        if let Kind::Vec(vec) = &value.kind {
            let clone = match vec.try_clone() {
                Err(error) if value.may_refuse && error.kind() == ErrorKind::OutOfMemory => {
                    self.tally.refused += 1;
                    return Ok(());
                }
                clone => clone?,
            };
            let mut clone = Value {
                name: 0,
                kind: Kind::Vec(clone),
                content: value.content.clone(),
                count: value.count.clone(),
                counted: 0,
                owner: value.owner,
                waits: value.waits,
                may_refuse: value.may_refuse,
            };
            clone.recount();
            clone.name = self.name();
            let line = format!("{clone} is a clone of {}", self.values[from]);
            self.log(line);
            self.values.push(clone);
            return Ok(());
        }
        let words = value.len();
        if self.alloc(local, (resource, stream), words, Make::Uninit)? {
            self.copy_between(self.values.len() - 1, from)?;
        }
        Ok(())
    }

    /// Frees a value.
    pub(super) fn end(&mut self, value: u8, how: End) -> Result<()> {
        let Some(place) = pick(value, self.values.len()) else {
            return Ok(());
        };
        let mut value = self.values.swap_remove(place);
        let foreign = self.is_foreign(value.owner);
        let how = match how {
            End::FreeOn(_) | End::FreeAfter(_) if foreign => End::Free,
            how => how,
        };
        if foreign || value.waits || matches!(how, End::FreeSync) {
            self.release_held();
        }
        if foreign {
            self.tally.foreign += 1;
        } else {
            self.copy_freed(&mut value)?;
        }
        let (name, other) = match how {
            End::FreeOn(slot) | End::FreeAfter(slot) => self.named(slot)?,
            _ => (0, value.stream()),
        };
        let (words, text, word) = (value.len(), value.to_string(), self.word());
        self.log(match how {
            End::Drop => format!("drop {value}"),
            End::Free => format!("free {value}"),
            End::FreeOn(_) => format!("free {value} on stream {name}"),
            End::FreeAfter(_) => {
                format!("fill {value} with {word:#x} in stream {name}, and free it after that")
            }
            End::FreeSync => format!("free {value} and wait"),
        });
        if matches!(how, End::FreeAfter(_)) && words > 0 {
            value.wait_for_pending_uses()?;
            other.wait_for(value.buffer().stream())?;
            let words = words.min(EDGE);
            // SAFETY: the memory is live, the other stream waits for its own, and the free is ordered after this.
            let mut there =
                unsafe { DeviceBuffer::<u32>::borrow_raw(&other, value.address(), words, ()) };
            there.fill(word)?;
        }
        free(value, how, &other).with_context(|| text)
    }
}

fn free(mut value: Value, how: End, other: &Stream) -> Result<()> {
    let failed = |failed: cuda_mem::base::Failed<_>| anyhow::Error::from(failed.error);
    let (count, counted) = (value.count.take(), value.counted);
    let buffer = match (value.kind, how) {
        (Kind::Raw(raw), End::FreeAfter(_)) => {
            let (address, stream) = (raw.view.as_raw(), raw.view.stream().clone());
            let (resource, layout) = (raw.resource.clone(), raw.layout);
            drop(raw);
            // SAFETY: the resource returned the address for this layout, and only the other stream still uses it.
            unsafe { resource.deallocate_after(address, layout, &stream, &[other]) }?;
            None
        }
        (Kind::Raw(raw), _) => {
            raw.free()?;
            None
        }
        (Kind::Growable(buffer), End::Free) => {
            buffer.free().map_err(|failed| failed.error)?;
            None
        }
        (Kind::Managed(buffer), End::Free) => {
            buffer.free().map_err(|failed| failed.error)?;
            None
        }
        (kind, End::Drop) => {
            drop(kind);
            None
        }
        (Kind::Buffer(buffer) | Kind::Plain(buffer), _) => Some(buffer),
        (Kind::Vec(vec), _) => Some(vec.into_buffer()),
        (Kind::Scalar(scalar), _) => Some(scalar.into_buffer()),
        (Kind::Growable(buffer), _) => Some(buffer.into_buffer()),
        (Kind::Managed(buffer), _) => Some(buffer.into_buffer()),
    };
    if let Some(buffer) = buffer {
        match how {
            End::FreeOn(_) => buffer.free_on(other).map_err(failed)?,
            End::FreeAfter(_) => buffer.free_after([other]).map_err(failed)?,
            End::FreeSync => buffer.free_sync().map_err(failed)?,
            End::Drop | End::Free => buffer.free().map_err(failed)?,
        }
    }
    if let Some(count) = count {
        count.take(counted);
    }
    Ok(())
}

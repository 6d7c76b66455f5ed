//! Allocating and freeing.

use std::alloc::Layout;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::{
    DeviceBuffer, DeviceScalar, DeviceVec, Error, ErrorKind, ManagedBuffer, MappedMemory,
    MemoryResource as _, Stream,
};

use super::Sabotage;
use super::content::Content;
use super::graphs::GraphValue;
use super::site::Site;
use super::step::{End, Make};
use super::value::{EDGE, Kind, LONG, Raw, Value};
use super::world::{Local, VALUES, World, pick};

/// Addresses of a buffer that grows.
const GROWABLE_BYTES: u64 = 4 << 20;

/// Where memory comes from, and how.
struct Origin<'s> {
    site: Option<&'s Arc<Site>>,
    stream: Stream,
    owner: Option<usize>,
    words: usize,
}

impl World<'_> {
    /// Allocates; answers whether there is a new value now, which is the last one then.
    pub(super) fn alloc(
        &mut self,
        local: &Local,
        (site, slot): (u8, u8),
        words: usize,
        make: Make,
    ) -> Result<bool> {
        if self.values.len() >= VALUES {
            return Ok(false);
        }
        let Some(site) = self.site(site) else {
            return Ok(false);
        };
        let Some(slot) = pick(slot, self.slots.len()).map(|place| &self.slots[place]) else {
            return Ok(false);
        };
        let (stream, stream_name, owner) = (slot.stream.clone(), slot.name, slot.owner);
        if self.is_elsewhere(owner) {
            return self.refused_elsewhere(&site, &stream, words.max(1));
        }
        // Whose numbers count it.
        let scope = local.scopes.last().map(|scope| &scope.1);
        let counts = match make {
            Make::Vec(true) => scope,
            Make::Current | Make::Managed | Make::Growable => None,
            _ => Some(&site),
        };
        let make = match make {
            Make::Plain if !site.is_plain_pool => Make::Uninit,
            // A block that is given back by hand cannot wait for another thread's stream.
            Make::Raw(_) if owner.is_some() => Make::Uninit,
            make => make,
        };
        if matches!(make, Make::From | Make::Scalar) {
            self.let_go();
        }
        let word = self.word();
        let origin = Origin {
            site: counts,
            stream,
            owner,
            words,
        };
        let made = self.make(&site, &origin, make, word);
        let (kind, content) = match made {
            Ok(made) => made,
            Err(error) => {
                return self.refused(&origin, make, &error).map(|()| false);
            }
        };
        self.keep(&origin, kind, content, stream_name)?;
        if matches!(
            make,
            Make::Uninit | Make::Plain | Make::Raw(_) | Make::Current
        ) {
            self.fill(0)?;
        }
        Ok(true)
    }

    fn make(
        &self,
        site: &Site,
        origin: &Origin<'_>,
        make: Make,
        word: u32,
    ) -> cuda_mem::Result<(Kind, Content)> {
        let (resource, stream, words) = (&site.resource, &origin.stream, origin.words);
        let unknown = Content::whole(words, None);
        let zero = Content::whole(words, Some(0));
        let pattern = Content::whole(words, Some(word));
        let pool = site.pool.as_ref();
        Ok(match (make, pool) {
            (Make::Plain, Some(pool)) => (Kind::Plain(pool.alloc(stream, words)?), unknown),
            (Make::Uninit | Make::Plain, _) => {
                (Kind::Buffer(resource.alloc(stream, words)?), unknown)
            }
            (Make::Zeroed, _) => (Kind::Buffer(resource.alloc_zeroed(stream, words)?), zero),
            (Make::From, _) => {
                let buffer = resource.alloc_from(stream, &vec![word; words])?;
                (Kind::Buffer(buffer), pattern)
            }
            (Make::Vec(true), _) => (Kind::Vec(DeviceVec::zeroed(stream, words)?), zero),
            (Make::Vec(false), _) => {
                let vec = DeviceVec::uninit_in(resource, stream, words)?;
                (Kind::Vec(vec), unknown)
            }
            (Make::Scalar, _) => {
                let scalar = DeviceScalar::new_in(resource, stream, word)?;
                (Kind::Scalar(scalar), Content::whole(1, Some(word)))
            }
            (Make::Raw(alignment), _) => {
                let bytes = words.max(1) * 4;
                let layout = Layout::from_size_align(bytes, alignment);
                let layout = layout.unwrap_or(Layout::new::<u32>());
                let raw = Raw::new(resource, stream, layout)?;
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
                let device = self.ground.device;
                let memory = MappedMemory::builder(&device).reserve(GROWABLE_BYTES);
                let buffer = memory.map(bytes)?.into_buffer(stream, words)?;
                (Kind::Growable(buffer), Content::whole(words, None))
            }
        })
    }

    /// Memory was refused: that has to be for a reason.
    fn refused(&mut self, origin: &Origin<'_>, make: Make, error: &Error) -> Result<()> {
        let site = origin.site.context("nothing limits it")?;
        if let Make::Raw(alignment) = make
            && alignment > site.alignment
            && error.kind() == ErrorKind::InvalidValue
        {
            return Ok(());
        }
        let words = match make {
            Make::Scalar => 1,
            Make::Raw(_) => origin.words.max(1),
            _ => origin.words,
        };
        site.allowed(words * 4, Some(error), self.alone)?;
        self.tally.refused += 1;
        self.say(format!(
            "{words} words of resource {} are refused",
            site.name
        ));
        Ok(())
    }

    /// Another thread's own stream cannot be used here.
    fn refused_elsewhere(&mut self, site: &Site, stream: &Stream, words: usize) -> Result<bool> {
        self.tally.elsewhere += 1;
        let Err(error) = site.resource.alloc::<u32>(stream, words) else {
            bail!("{site:?} gave memory on {stream}, which is another thread's");
        };
        let is_full = error.kind() == ErrorKind::OutOfMemory && site.may_refuse();
        ensure!(
            error.kind() == ErrorKind::InvalidValue || is_full,
            "{site:?} on another thread's own stream: {error}"
        );
        Ok(false)
    }

    /// Takes a new value in, if it is right.
    fn keep(
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
            may_refuse: origin.site.is_some_and(|site| site.may_refuse()),
        };
        value.waits = match value.kind {
            Kind::Managed(_) | Kind::Growable(_) => true,
            _ => origin.site.is_some_and(|site| site.waits),
        };
        let (start, bytes) = (value.address(), value.bytes() as u64);
        self.say(format!(
            "{value} of {} in stream {stream_name}, at {start:#x}",
            origin.site.map_or("no resource".to_owned(), |site| format!(
                "resource {}",
                site.name
            ))
        ));
        self.tally.blocks += 1;
        if let Some(site) = origin.site {
            site.allowed(bytes as usize, None, self.alone)?;
            value.count = Some(site.live.clone());
        }
        value.recount();
        // One that grows has addresses before it has memory.
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
        self.check_apart(&value)?;
        self.values.push(value);
        if self.ground.sabotage == Some(Sabotage::Byte) {
            self.spoil()?;
        }
        Ok(())
    }

    /// No other value has a byte of it.
    fn check_apart(&self, value: &Value) -> Result<()> {
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

    /// Frees a value, in one of the ways that there are.
    pub(super) fn end(&mut self, value: u8, how: End) -> Result<()> {
        let Some(place) = pick(value, self.values.len()) else {
            return Ok(());
        };
        let mut value = self.values.swap_remove(place);
        let elsewhere = self.is_elsewhere(value.owner);
        let how = match how {
            End::FreeOn(_) | End::FreeAfter(_) if elsewhere => End::Free,
            how => how,
        };
        if elsewhere || value.waits || matches!(how, End::FreeSync) {
            self.let_go();
        }
        if elsewhere {
            self.tally.elsewhere += 1;
        } else {
            self.note(&mut value)?;
        }
        let (name, other) = match how {
            End::FreeOn(slot) | End::FreeAfter(slot) => self.named(slot)?,
            _ => (0, value.stream()),
        };
        let (words, text, word) = (value.len(), value.to_string(), self.word());
        self.say(match how {
            End::Drop => format!("drop {value}"),
            End::Free => format!("free {value}"),
            End::FreeOn(_) => format!("free {value} on stream {name}"),
            End::FreeAfter(_) => {
                format!("fill {value} with {word:#x} in stream {name}, and free it after that")
            }
            End::FreeSync => format!("free {value} and wait"),
        });
        if matches!(how, End::FreeAfter(_)) && words > 0 {
            value.settle()?;
            other.wait_for(value.buffer().stream())?;
            let words = words.min(EDGE);
            // SAFETY: the memory is live, the other stream waits for its own, and the free comes after this.
            let mut there =
                unsafe { DeviceBuffer::<u32>::borrow_raw(&other, value.address(), words, ()) };
            there.fill(word)?;
        }
        free(value, how, &other).with_context(|| text)
    }

    /// Copies aside what a value holds.
    pub(super) fn note(&mut self, value: &mut Value) -> Result<()> {
        value.settle()?;
        let what = (value.name, &value.content);
        let noted = self.witness.note(&self.ground.log, value.buffer(), what)?;
        self.tally.checked += noted;
        Ok(())
    }
}

fn free(mut value: Value, how: End, other: &Stream) -> Result<()> {
    let failed = |failed: cuda_mem::Failed<_>| anyhow::Error::from(failed.error);
    let (count, counted) = (value.count.take(), value.counted);
    let buffer = match (value.kind, how) {
        (Kind::Raw(raw), End::FreeAfter(_)) => {
            let (address, stream) = (raw.view.as_raw(), raw.view.stream().clone());
            let (resource, layout) = (raw.resource.clone(), raw.layout);
            drop(raw);
            // SAFETY: this resource returned the address for this layout, and only the other stream uses it.
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

impl Value {
    /// Drops the memory, and keeps only what it was.
    pub(super) fn let_drop(self) {
        let (count, counted) = (self.count, self.counted);
        drop(self.kind);
        if let Some(count) = count {
            count.take(counted);
        }
    }
}

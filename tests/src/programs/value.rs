//! The values of a program: everything that owns memory.

use std::alloc::Layout;
use std::fmt;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use cuda_mem::mapped::{GrowableBuffer, InFlightBuffer, ManagedBuffer, PinnedBuffer};
use cuda_mem::memory::{DeviceScalar, DeviceVec};
use cuda_mem::{DeviceBuffer, DeviceSliceMut, MemoryResource, Resource, Stream};

use super::content::Content;
use super::count::{Count, is_of};
use super::step::Resize;

/// In longer memory, only [`EDGE`] words at the start, in the middle and at the end are written and read.
pub(super) const LONG: usize = 16 << 10;
pub(super) const EDGE: usize = 256;

/// Where the parts of long memory begin.
pub(super) fn edges_of(len: usize) -> [usize; 3] {
    [0, (len - EDGE) / 2, len - EDGE]
}

/// Memory allocated through the functions of a resource.
#[derive(Debug)]
pub(super) struct Raw {
    pub(super) view: DeviceBuffer<u32>,
    pub(super) layout: Layout,
    pub(super) resource: Resource,
}

#[derive(Debug)]
pub(super) enum Kind {
    Buffer(DeviceBuffer<u32>),
    /// Of a pool without adaptors: it can be turned into an address.
    Plain(DeviceBuffer<u32>),
    Vec(DeviceVec<u32>),
    Scalar(DeviceScalar<u32>),
    Growable(GrowableBuffer<u32>),
    Managed(ManagedBuffer<u32>),
    Raw(Raw),
}

/// Calls a function of any kind of buffer.
macro_rules! on_buffer {
    ($kind:expr, $buffer:ident => $call:expr) => {
        match $kind {
            Kind::Buffer($buffer) | Kind::Plain($buffer) => $call,
            Kind::Vec($buffer) => $call,
            Kind::Scalar($buffer) => $call,
            Kind::Growable($buffer) => $call,
            Kind::Managed($buffer) => $call,
            Kind::Raw(Raw { view: $buffer, .. }) => $call,
        }
    };
}
pub(super) use on_buffer;

impl Kind {
    pub(super) fn word(&self) -> &'static str {
        match self {
            Self::Buffer(_) => "buffer",
            Self::Plain(_) => "pool's buffer",
            Self::Vec(_) => "vector",
            Self::Scalar(_) => "scalar",
            Self::Growable(_) => "growable buffer",
            Self::Managed(_) => "managed buffer",
            Self::Raw(_) => "raw block",
        }
    }
}

/// Memory, and what the model knows about it.
#[derive(Debug)]
pub(super) struct Value {
    pub(super) name: usize,
    pub(super) kind: Kind,
    pub(super) content: Content,
    /// The count of its resource, and the bytes counted there.
    pub(super) count: Option<Arc<Count>>,
    pub(super) counted: usize,
    /// The thread, if it is in a per-thread stream.
    pub(super) owner: Option<usize>,
    /// Its free waits for its stream.
    pub(super) waits: bool,
    /// More memory for it may be refused.
    pub(super) may_refuse: bool,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} {} of {} words",
            self.kind.word(),
            self.name,
            self.len()
        )
    }
}

impl Value {
    pub(super) fn buffer(&self) -> &DeviceBuffer<u32> {
        on_buffer!(&self.kind, buffer => buffer)
    }

    /// The memory of this resource has lost its contents.
    pub(super) fn forget(&mut self, count: &Arc<Count>) {
        if is_of(self.count.as_ref(), count) {
            self.content.forget();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.buffer().len()
    }

    pub(super) fn address(&self) -> u64 {
        self.buffer().as_raw()
    }

    pub(super) fn stream(&self) -> Stream {
        self.buffer().stream().clone()
    }

    pub(super) fn wait_for_pending_uses(&mut self) -> cuda_mem::Result<()> {
        on_buffer!(&mut self.kind, buffer => buffer.as_mut_slice().wait_for_pending_uses())
    }

    pub(super) fn is_long(&self) -> bool {
        self.len() > LONG
    }

    /// All elements.
    pub(super) fn all(&mut self) -> DeviceSliceMut<'_, u32> {
        on_buffer!(&mut self.kind, buffer => buffer.as_mut_slice())
    }

    pub(super) fn fill(&mut self, word: u32) -> cuda_mem::Result<()> {
        if self.is_long() {
            for first in edges_of(self.len()) {
                self.all().slice_mut(first..first + EDGE)?.fill(word)?;
            }
            self.content = Content::parts(self.len(), &edges_of(self.len()), EDGE, word);
        } else {
            self.all().fill(word)?;
            self.content = Content::whole(self.len(), Some(word));
        }
        Ok(())
    }

    /// From the host.
    pub(super) fn write(&mut self, word: u32) -> cuda_mem::Result<()> {
        if self.is_long() {
            for first in edges_of(self.len()) {
                let mut all = self.all();
                all.slice_mut(first..first + EDGE)?
                    .copy_from(&[word; EDGE])?;
            }
            self.content = Content::parts(self.len(), &edges_of(self.len()), EDGE, word);
        } else {
            let words = vec![word; self.len()];
            self.all().copy_from(&words)?;
            self.content = Content::whole(self.len(), Some(word));
        }
        Ok(())
    }

    /// Checks the contents.
    pub(super) fn check(&mut self) -> Result<()> {
        let len = self.len();
        if self.is_long() {
            for first in edges_of(len) {
                let found = self.buffer().slice(first..first + EDGE)?.to_vec()?;
                let part = self.content.part(first, EDGE);
                part.check(&found)
                    .with_context(|| format!("from word {first} on"))?;
            }
            return Ok(());
        }
        let found = self.buffer().to_vec()?;
        self.content.check(&found)
    }

    /// The bytes that its resource counts.
    pub(super) fn bytes(&self) -> usize {
        match &self.kind {
            Kind::Vec(vec) => vec.capacity() * 4,
            Kind::Raw(raw) => raw.layout.size(),
            _ => self.len() * 4,
        }
    }

    /// Updates the count after a change of size.
    pub(super) fn recount(&mut self) {
        let bytes = self.bytes();
        if let Some(count) = &self.count {
            count.take(self.counted);
            count.add(bytes);
        }
        self.counted = bytes;
    }

    pub(super) fn resize(
        &mut self,
        (words, word): (usize, u32),
        how: Resize,
        source: Option<&Self>,
    ) -> cuda_mem::Result<()> {
        let content = &mut self.content;
        let (before, more) = (content.len(), words.min(300));
        match (&mut self.kind, how) {
            (Kind::Vec(vec), Resize::Value) => {
                vec.resize(words, word)?;
                content.resize(words, Some(word));
            }
            (Kind::Vec(vec), Resize::Zeroed) => {
                vec.resize_zeroed(words)?;
                content.resize(words, Some(0));
            }
            (Kind::Vec(vec), Resize::Uninit) => {
                vec.resize_uninit(words)?;
                content.resize(words, None);
            }
            (Kind::Vec(vec), Resize::Extend) => {
                vec.extend_from_slice(&vec![word; more])?;
                content.resize(before + more, Some(word));
            }
            (Kind::Vec(vec), Resize::ExtendFromBuffer(_)) => {
                // A vector that is to be extended by itself is left as it is.
                if let Some(source) = source.filter(|source| source.len() <= LONG) {
                    vec.extend_from_device(source.buffer())?;
                    content.append(&source.content);
                }
            }
            (Kind::Vec(vec), Resize::Truncate) => {
                vec.truncate(words);
                content.resize(before.min(words), None);
            }
            (Kind::Vec(vec), Resize::Shrink) => vec.shrink_to_fit()?,
            (Kind::Vec(vec), Resize::Reserve) => vec.reserve(words)?,
            (Kind::Growable(buffer), Resize::Value | Resize::Zeroed) => {
                buffer.resize_zeroed(words)?;
                content.resize(words, Some(0));
            }
            (Kind::Growable(buffer), Resize::Uninit | Resize::Truncate) => {
                buffer.resize_uninit(words)?;
                content.resize(words, None);
            }
            (Kind::Growable(buffer), Resize::Extend) => {
                buffer.extend_from_slice(&vec![word; more])?;
                content.resize(before + more, Some(word));
            }
            (Kind::Growable(buffer), Resize::Shrink) => buffer.shrink_to_fit()?,
            _ => {}
        }
        Ok(())
    }

    /// Drops the memory, and updates the count.
    pub(super) fn discard(self) {
        let (count, counted) = (self.count, self.counted);
        drop(self.kind);
        if let Some(count) = count {
            count.take(counted);
        }
    }
}

impl Raw {
    /// Allocates from a resource.
    pub(super) fn new(
        resource: &Resource,
        stream: &Stream,
        layout: Layout,
    ) -> cuda_mem::Result<Self> {
        let address = resource.allocate(layout, stream)?;
        // SAFETY: the memory has this size and alignment, is usable in this stream, and is freed only below.
        let view = unsafe { DeviceBuffer::borrow_raw(stream, address, layout.size() / 4, ()) };
        Ok(Self {
            view,
            layout,
            resource: resource.clone(),
        })
    }

    /// Frees it.
    pub(super) fn free(self) -> cuda_mem::Result<()> {
        let Self {
            mut view,
            layout,
            resource,
        } = self;
        view.wait_for_pending_uses()?;
        let (address, stream) = (view.as_raw(), view.stream().clone());
        drop(view);
        // SAFETY: the address comes from this resource for this layout, and the stream waits for all its uses.
        unsafe { resource.deallocate(address, layout, &stream) }
    }
}

/// Pinned memory lent to a stream, and its expected contents.
#[derive(Debug)]
pub(super) struct InFlightValue {
    pub(super) loan: InFlightBuffer<PinnedBuffer<u32>>,
    pub(super) content: Content,
}

//! What is done with memory: work in streams, loans, copies, other sizes.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::{DeviceBuffer, ErrorKind};

use super::Sabotage;
use super::content::Content;
use super::step::{Lend, Make, Move, Resize};
use super::value::{EDGE, Kind, LONG, Lent, Raw, Value, edges_of, on_buffer};
use super::world::{Local, World, pick};

/// So much pinned memory is lent at most.
const LENT: usize = 3;

impl World<'_> {
    /// A value that this thread may use. One of another thread's own stream is refused, which is looked at.
    fn usable(&mut self, value: u8) -> Result<Option<usize>> {
        let Some(place) = pick(value, self.values.len()) else {
            return Ok(None);
        };
        let value = &mut self.values[place];
        let owner = value.owner;
        if !self.is_elsewhere(owner) {
            return Ok(Some(place));
        }
        let value = &mut self.values[place];
        if value.len() > 0 {
            self.tally.elsewhere += 1;
            let found = on_buffer!(&mut value.kind, buffer => buffer.fill(0));
            let refused = found.is_err_and(|error| error.kind() == ErrorKind::InvalidValue);
            ensure!(refused, "{value} of another thread's own stream was filled");
        }
        Ok(None)
    }

    pub(super) fn fill(&mut self, value: u8) -> Result<()> {
        if let Some(place) = self.usable(value)? {
            let word = self.word();
            self.values[place].fill(word)?;
            let line = format!("fill {} with {word:#x}", self.values[place]);
            self.say(line);
        }
        Ok(())
    }

    pub(super) fn write(&mut self, value: u8) -> Result<()> {
        if let Some(place) = self.usable(value)? {
            self.let_go();
            let word = self.word();
            self.values[place].write(word)?;
            let line = format!("copy {word:#x} to {}", self.values[place]);
            self.say(line);
        }
        Ok(())
    }

    pub(super) fn read(&mut self, value: u8) -> Result<()> {
        if let Some(place) = self.usable(value)? {
            self.let_go();
            self.say(format!("read {}", self.values[place]));
            self.tally.checked += 1;
            let value = &mut self.values[place];
            value.check().with_context(|| value.to_string())?;
            if let Kind::Scalar(scalar) = &value.kind {
                value.content.check(&[scalar.value()?])?;
            }
        }
        Ok(())
    }

    pub(super) fn copy(&mut self, to: u8, from: u8) -> Result<()> {
        let (Some(to), Some(from)) = (self.usable(to)?, self.usable(from)?) else {
            return Ok(());
        };
        if to == from {
            return Ok(());
        }
        // Two of one length, if there are.
        let len = self.values[to].len();
        let same = |place: &usize| {
            let other = &self.values[*place];
            *place != to && other.len() == len && !self.is_elsewhere(other.owner)
        };
        let from = (0..self.values.len()).rev().find(same).unwrap_or(from);
        self.copy_between(to, from)
    }

    fn copy_between(&mut self, to: usize, from: usize) -> Result<()> {
        if self.values[to].waits && self.values[from].waits {
            // Memory of the host is copied on the host.
            self.let_go();
        }
        let nothing = nothing(self)?;
        let mut target = std::mem::replace(&mut self.values[to], nothing);
        let source = &self.values[from];
        let copied =
            on_buffer!(&mut target.kind, buffer => buffer.copy_from_buffer(source.buffer()));
        let (equal, text) = (target.len() == source.len(), source.to_string());
        if equal {
            target.content = source.content.clone();
            self.tally.copies += 1;
        }
        let line = format!("copy {text} to {target}");
        self.values[to] = target;
        self.say(line);
        match copied {
            Ok(()) => ensure!(equal, "a copy between two lengths was made"),
            Err(error) if !equal && error.kind() == ErrorKind::InvalidValue => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    pub(super) fn duplicate(
        &mut self,
        local: &Local,
        from: u8,
        (site, stream): (u8, u8),
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
            self.say(line);
            self.values.push(clone);
            return Ok(());
        }
        let words = value.len();
        if self.alloc(local, (site, stream), words, Make::Uninit)? {
            self.copy_between(self.values.len() - 1, from)?;
        }
        Ok(())
    }

    pub(super) fn lend(&mut self, value: u8, slot: u8, lend: Lend) -> Result<()> {
        let Some(place) = self.usable(value)? else {
            return Ok(());
        };
        let word = self.word();
        let slot = self.slot(slot)?;
        let (name, other, owner) = (slot.name, slot.stream.clone(), slot.owner);
        // Nothing could be ordered with a thread's own stream elsewhere.
        let lend = match lend {
            Lend::Leak if owner.is_some() => Lend::Guard,
            lend => lend,
        };
        let line = format!(
            "lend {} to stream {name} for {word:#x}: {lend:?}",
            self.values[place]
        );
        self.say(line);
        if matches!(lend, Lend::Read) {
            self.let_go();
            let value = &self.values[place];
            let loan = value.buffer().read_on(&other)?;
            if loan.len() <= LONG {
                let mut found = vec![0; loan.len()];
                loan.copy_to(&mut found)?;
                value
                    .content
                    .check(&found)
                    .with_context(|| value.to_string())?;
                self.tally.checked += 1;
            }
            return Ok(());
        }
        let value = &mut self.values[place];
        let len = value.len();
        if self.ground.sabotage == Some(Sabotage::Order) && other != value.stream() {
            // SAFETY: none; this is the mistake that is to be found. On the simulator it does no harm.
            let mut there = unsafe {
                DeviceBuffer::<u32>::borrow_raw(&other, value.address(), len.min(EDGE), ())
            };
            there.fill(word)?;
            value.content.forget();
            return Ok(());
        }
        let mut loan = on_buffer!(&mut value.kind, buffer => buffer.on(&other))?;
        if len > LONG {
            for first in edges_of(len) {
                let address = loan.as_raw() + 4 * first as u64;
                // SAFETY: a part of the memory that this stream has on loan.
                let mut edge =
                    unsafe { DeviceBuffer::<u32>::borrow_raw(&other, address, EDGE, ()) };
                edge.fill(word)?;
            }
            value.content = Content::parts(len, &edges_of(len), EDGE, word);
        } else {
            loan.fill(word)?;
            value.content = Content::whole(len, Some(word));
        }
        if matches!(lend, Lend::Leak) {
            std::mem::forget(loan);
        }
        Ok(())
    }

    pub(super) fn move_to(&mut self, value: u8, slot: u8, how: Move) -> Result<()> {
        let Some(place) = self.usable(value)? else {
            return Ok(());
        };
        let slot = self.slot(slot)?;
        let (name, other, owner) = (slot.name, slot.stream.clone(), slot.owner);
        let line = format!("move {} to stream {name}: {how:?}", self.values[place]);
        let mut value = self.values.swap_remove(place);
        let moves = match (&mut value.kind, how) {
            (Kind::Managed(_), _) => false,
            // A block that is given back by hand cannot wait for another thread's stream.
            (Kind::Raw(_), _) if owner.is_some() => false,
            (Kind::Raw(Raw { view, .. }), _) => view.set_stream(&other).map(|()| true)?,
            (Kind::Vec(vec), _) => vec.set_stream(&other).map(|()| true)?,
            (Kind::Scalar(scalar), _) => scalar.set_stream(&other).map(|()| true)?,
            (Kind::Growable(buffer), _) => buffer.set_stream(&other).map(|()| true)?,
            (Kind::Buffer(buffer) | Kind::Plain(buffer), Move::SetStream) => {
                buffer.set_stream(&other).map(|()| true)?
            }
            (Kind::Buffer(_) | Kind::Plain(_), Move::Raw) => {
                value.kind = self.by_hand(value.kind, &other)?;
                value.buffer().stream() == &other
            }
        };
        if moves {
            value.owner = owner;
            self.tally.moved += 1;
        }
        self.values.push(value);
        self.say(line);
        Ok(())
    }

    /// Out of the buffer and into a new one of another stream, where that is allowed.
    fn by_hand(&self, kind: Kind, other: &cuda_mem::Stream) -> Result<Kind> {
        let buffer = match kind {
            Kind::Buffer(buffer) | Kind::Plain(buffer) if buffer.is_empty() => {
                return Ok(Kind::Buffer(buffer));
            }
            Kind::Buffer(buffer) => {
                let Err(failed) = buffer.into_raw() else {
                    bail!("the address of a resource's buffer was taken out");
                };
                ensure!(failed.error.kind() == ErrorKind::InvalidValue, "{failed}");
                return Ok(Kind::Buffer(failed.object.context("the buffer is lost")?));
            }
            Kind::Plain(buffer) => buffer,
            kind => return Ok(kind),
        };
        let (stream, len) = (buffer.stream().clone(), buffer.len());
        let address = buffer.into_raw().map_err(|failed| failed.error)?;
        other.wait_for(&stream)?;
        // SAFETY: the memory was this buffer's a moment ago, and the other stream waits for all its uses.
        Ok(Kind::Plain(unsafe {
            DeviceBuffer::from_raw(other, address, len)
        }))
    }

    pub(super) fn resize(&mut self, value: u8, words: usize, how: Resize) -> Result<()> {
        let Some(place) = self.usable(value)? else {
            return Ok(());
        };
        let source = match how {
            Resize::ExtendFromBuffer(source) => self.usable(source)?,
            _ => None,
        };
        if matches!(self.values[place].kind, Kind::Growable(_)) || matches!(how, Resize::Extend) {
            self.let_go();
        }
        let (word, words) = (self.word(), words.min(LONG));
        let nothing = nothing(self)?;
        let mut value = std::mem::replace(&mut self.values[place], nothing);
        let source = source.map(|source| &self.values[source]);
        let line = format!("resize {value} to {words} words: {how:?}");
        let resized = value.resize((words, word), how, source);
        value.recount();
        let may_refuse = value.may_refuse;
        self.values[place] = value;
        self.say(line);
        match resized {
            Err(error) if may_refuse && error.kind() == ErrorKind::OutOfMemory => {
                self.tally.refused += 1;
                Ok(())
            }
            resized => Ok(resized?),
        }
    }

    pub(super) fn lend_host(&mut self, value: u8, slot: u8) -> Result<()> {
        let Some(place) = self.usable(value)? else {
            return Ok(());
        };
        let len = self.values[place].len();
        if self.lent.len() >= LENT || len > LONG {
            return Ok(());
        }
        let (name, stream) = self.named(slot)?;
        let pinned = self.ground.context.pinned::<u32>(len)?;
        let mut loan = pinned.lend(&stream).map_err(|failed| failed.error)?;
        let value = &self.values[place];
        if value.waits {
            self.let_go();
        }
        let value = &self.values[place];
        loan.copy_from(value.buffer())?;
        let content = value.content.clone();
        self.say(format!(
            "copy {} to pinned memory in stream {name}",
            self.values[place]
        ));
        self.lent.push(Lent { loan, content });
        Ok(())
    }

    pub(super) fn take_host(&mut self, lent: u8) -> Result<()> {
        if let Some(place) = pick(lent, self.lent.len()) {
            self.let_go();
            let Lent { loan, content } = self.lent.swap_remove(place);
            let pinned = loan.take_back().map_err(|failed| failed.error)?;
            self.say("take pinned memory back");
            self.tally.checked += 1;
            content.check(&pinned).context("pinned memory")?;
        }
        Ok(())
    }

    /// The mistake that is to be found: a word of some other memory is not what it was.
    pub(super) fn spoil(&mut self) -> Result<()> {
        let [.., other, newest] = self.values.as_slice() else {
            return Ok(());
        };
        if newest.len() >= 100 && other.len() > 0 && !self.is_elsewhere(other.owner) {
            let (stream, address) = (other.stream(), other.address());
            // SAFETY: the memory is live in its stream.
            let mut word = unsafe { DeviceBuffer::<u32>::borrow_raw(&stream, address, 1, ()) };
            word.fill(0xbad)?;
        }
        Ok(())
    }
}

/// Stands where a value is taken out for a moment.
fn nothing(world: &World<'_>) -> Result<Value> {
    let stream = &world.slot(0)?.stream;
    // SAFETY: it has no memory.
    let empty = unsafe { DeviceBuffer::borrow_raw(stream, 0, 0, ()) };
    Ok(Value {
        name: 0,
        kind: Kind::Buffer(empty),
        content: Content::default(),
        count: None,
        counted: 0,
        owner: None,
        waits: false,
        may_refuse: false,
    })
}

impl Value {
    fn resize(
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
                    vec.extend_from_buffer(source.buffer())?;
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
}

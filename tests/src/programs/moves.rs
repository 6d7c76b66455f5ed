//! Operations that move memory to another stream, or resize it.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::{DeviceBuffer, ErrorKind, Stream};

use super::state::State;
use super::step::{Move, Resize};
use super::value::{Kind, LONG, Raw};

impl State<'_> {
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
            // The free of a raw block cannot wait for the per-thread stream of another thread.
            (Kind::Raw(_), _) if owner.is_some() => false,
            (Kind::Raw(Raw { view, .. }), _) => view.set_stream(&other).map(|()| true)?,
            (Kind::Vec(vec), _) => vec.set_stream(&other).map(|()| true)?,
            (Kind::Scalar(scalar), _) => scalar.set_stream(&other).map(|()| true)?,
            (Kind::Growable(buffer), _) => buffer.set_stream(&other).map(|()| true)?,
            (Kind::Buffer(buffer) | Kind::Plain(buffer), Move::SetStream) => {
                buffer.set_stream(&other).map(|()| true)?
            }
            (Kind::Buffer(_) | Kind::Plain(_), Move::Raw) => {
                value.kind = self.through_raw(value.kind, &other)?;
                value.buffer().stream() == &other
            }
        };
        if moves {
            value.owner = owner;
            self.tally.moved += 1;
        }
        self.values.push(value);
        self.log(line);
        Ok(())
    }

    /// Through the address, into a new buffer of another stream, if the resource allows it.
    fn through_raw(&self, kind: Kind, other: &Stream) -> Result<Kind> {
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
        // SAFETY: the buffer owned the memory, and the other stream waits for all its uses.
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
            self.release_held();
        }
        let (word, words) = (self.word(), words.min(LONG));
        let placeholder = self.placeholder()?;
        let mut value = std::mem::replace(&mut self.values[place], placeholder);
        let source = source.map(|source| &self.values[source]);
        let line = format!("resize {value} to {words} words: {how:?}");
        let resized = value.resize((words, word), how, source);
        value.recount();
        let may_refuse = value.may_refuse;
        self.values[place] = value;
        self.log(line);
        match resized {
            Err(error) if may_refuse && error.kind() == ErrorKind::OutOfMemory => {
                self.tally.refused += 1;
                Ok(())
            }
            resized => Ok(resized?),
        }
    }
}

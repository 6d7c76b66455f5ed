//! Operations on the contents of values.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::{DeviceBuffer, ErrorKind};

use super::content::Content;
use super::state::{State, pick};
use super::value::{Kind, Raw, Value, on_buffer};

impl State<'_> {
    /// A value that this thread may use. The crate must refuse one of another thread's per-thread stream.
    pub(super) fn usable(&mut self, value: u8) -> Result<Option<usize>> {
        let Some(place) = pick(value, self.values.len()) else {
            return Ok(None);
        };
        let value = &mut self.values[place];
        let owner = value.owner;
        if !self.is_foreign(owner) {
            return Ok(Some(place));
        }
        let value = &mut self.values[place];
        if value.len() > 0 {
            self.tally.foreign += 1;
            let found = on_buffer!(&mut value.kind, buffer => buffer.as_mut_slice().fill(0));
            let refused = found.is_err_and(|error| error.kind() == ErrorKind::InvalidValue);
            ensure!(refused, "{value} of another thread's stream was filled");
        }
        Ok(None)
    }

    pub(super) fn fill(&mut self, value: u8) -> Result<()> {
        if let Some(place) = self.usable(value)? {
            let word = self.word();
            self.values[place].fill(word)?;
            let line = format!("fill {} with {word:#x}", self.values[place]);
            self.log(line);
        }
        Ok(())
    }

    pub(super) fn write(&mut self, value: u8) -> Result<()> {
        if let Some(place) = self.usable(value)? {
            self.release_held();
            let word = self.word();
            self.values[place].write(word)?;
            let line = format!("copy {word:#x} to {}", self.values[place]);
            self.log(line);
        }
        Ok(())
    }

    pub(super) fn read(&mut self, value: u8) -> Result<()> {
        if let Some(place) = self.usable(value)? {
            self.release_held();
            self.log(format!("read {}", self.values[place]));
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
        // Prefers two of the same length.
        let len = self.values[to].len();
        let same = |place: &usize| {
            let other = &self.values[*place];
            *place != to && other.len() == len && !self.is_foreign(other.owner)
        };
        let from = (0..self.values.len()).rev().find(same).unwrap_or(from);
        self.copy_between(to, from)
    }

    pub(super) fn copy_between(&mut self, to: usize, from: usize) -> Result<()> {
        if self.values[to].waits && self.values[from].waits {
            // Host memory is copied on the host, which waits.
            self.release_held();
        }
        let placeholder = self.placeholder()?;
        let mut target = std::mem::replace(&mut self.values[to], placeholder);
        let source = &self.values[from];
        let copied = on_buffer!(&mut target.kind, buffer => buffer.as_mut_slice().copy_from_device(source.buffer()));
        let (equal, text) = (target.len() == source.len(), source.to_string());
        if equal {
            target.content = source.content.clone();
            self.tally.copies += 1;
        }
        let line = format!("copy {text} to {target}");
        self.values[to] = target;
        self.log(line);
        match copied {
            Ok(()) => ensure!(equal, "a copy between different lengths was made"),
            Err(error) if !equal && error.kind() == ErrorKind::InvalidValue => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Copies the contents of a value before its free.
    pub(super) fn copy_freed(&mut self, value: &mut Value) -> Result<()> {
        value.wait_for_pending_uses()?;
        let what = (value.name, &value.content);
        let copies = self
            .freed
            .copy(&self.fixture.freed_words, value.buffer(), what)?;
        self.tally.checked += copies;
        Ok(())
    }

    /// The mistake to be found: overwrites a word of another value, after all uses that were left on other streams.
    /// Otherwise it could come before one of those, which would hide it.
    pub(super) fn overwrite_other(&mut self) -> Result<()> {
        let [.., other, newest] = self.values.as_slice() else {
            return Ok(());
        };
        if newest.len() < 100 || other.len() == 0 || self.is_foreign(other.owner) {
            return Ok(());
        }
        let place = self.values.len() - 2;
        let other = &mut self.values[place];
        other.wait_for_pending_uses()?;
        let (stream, address) = (other.stream(), other.address());
        // SAFETY: the memory is live in its stream.
        let mut word = unsafe { DeviceBuffer::<u32>::borrow_raw(&stream, address, 1, ()) };
        Ok(word.fill(0xbad)?)
    }

    /// Takes the place of a value that is being worked on.
    pub(super) fn placeholder(&self) -> Result<Value> {
        let stream = &self.slot(0)?.stream;
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
}

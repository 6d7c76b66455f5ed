//! A graph of a program, and the model of its launches.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::interop::{GraphExec, GraphOwned, PersistentAllocation};
use cuda_mem::{ErrorKind, Stream};

use super::content::Content;
use super::count::{Count, is_of};
use super::value::Value;

/// Words of the scratch memory of a graph without buffers.
pub(super) const SCRATCH: usize = 100;

/// What a launch does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effect {
    /// The scratch memory is filled with this word, or with the contents of the first buffer.
    pub(super) word: Option<u32>,
    /// The scratch memory is then copied to this buffer.
    pub(super) target: Option<usize>,
    /// At the end the scratch memory is filled with this word.
    pub(super) last: u32,
}

/// Memory that stays allocated after a launch.
#[derive(Debug)]
pub(super) struct Persistent {
    pub(super) handle: PersistentAllocation<u32>,
    pub(super) content: Content,
    /// Its resource. Without one the memory belongs to the graph, and exists from a launch to its free.
    pub(super) count: Option<Arc<Count>>,
    pub(super) is_there: bool,
}

impl Persistent {
    pub(super) fn is_own(&self) -> bool {
        self.count.is_none()
    }
}

#[derive(Debug)]
pub(super) struct GraphValue {
    pub(super) name: usize,
    pub(super) exec: GraphExec,
    /// The graph owns the memory; the values only describe it.
    pub(super) adopted: Vec<(GraphOwned<u32>, Value)>,
    pub(super) effect: Effect,
    pub(super) persistent: Option<Persistent>,
    pub(super) auto_free: bool,
}

impl GraphValue {
    pub(super) fn all_values(&self) -> impl Iterator<Item = &Value> {
        self.adopted.iter().map(|adopted| &adopted.1)
    }

    /// The memory of this resource has lost its contents.
    pub(super) fn forget(&mut self, count: &Arc<Count>) {
        for (_, value) in &mut self.adopted {
            value.forget(count);
        }
        if let Some(left) = &mut self.persistent
            && is_of(left.count.as_ref(), count)
        {
            left.content.forget();
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
        if let Some(left) = &mut self.persistent {
            left.content = Content::whole(held.len(), Some(last));
            left.is_there = true;
        }
    }

    /// Whether it was launched: the launch is refused while memory of an earlier one is allocated.
    pub(super) fn launch(&mut self, stream: &Stream) -> Result<bool> {
        let left = self.persistent.as_ref();
        let is_left = left.is_some_and(|left| left.is_own() && left.is_there);
        match self.exec.launch(stream) {
            Ok(()) => ensure!(
                !is_left || self.auto_free,
                "launched while its memory was allocated"
            ),
            Err(error) if error.kind() == ErrorKind::StillAllocated && is_left => {
                ensure!(!self.auto_free, "{error}");
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        }
        self.launched();
        Ok(true)
    }

    pub(super) fn read(&self) -> Result<()> {
        for (adopted, value) in &self.adopted {
            let found = self.exec.buffer(adopted)?.to_vec()?;
            value
                .content
                .check(&found)
                .with_context(|| format!("{value} in graph {}", self.name))?;
        }
        Ok(())
    }

    pub(super) fn read_left(&mut self) -> Result<()> {
        let Some(left) = &self.persistent else {
            return Ok(());
        };
        match self.exec.left(&left.handle) {
            Ok(buffer) => {
                ensure!(left.is_there, "freed memory is shown");
                let found = buffer.to_vec()?;
                left.content
                    .check(&found)
                    .with_context(|| format!("left by graph {}", self.name))
            }
            Err(error) if error.kind() == ErrorKind::InvalidValue && !left.is_there => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

//! What is done with blocks, and the patterns in them.

use anyhow::{Result, bail, ensure};
use cuda_mem::{DeviceBuffer, ErrorKind};

use super::super::model::Effect;
use super::super::order::STREAMS;
use super::super::step::{End, LARGE, Lend};
use super::{World, number};

/// What a sequence may ask for in all: memory must not run out, because then the driver takes back
/// what every pool of the device keeps.
const BUDGET: u64 = 1 << 30;

/// Patterns are written to and read from this much at both ends of a block.
const EDGE: usize = 1 << 10;

/// A buffer and what is known of it.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) buffer: DeviceBuffer<u8>,
    /// In `World::pools`.
    pub(super) pool: usize,
    stream: usize,
    /// Streams whose loan was leaked.
    owed: Vec<usize>,
    pattern: u8,
    name: usize,
}

impl Block {
    fn end(&self) -> u64 {
        self.buffer.as_raw() + self.buffer.len() as u64
    }
}

impl World<'_> {
    /// What an allocation from this pool may have done to all pools.
    pub(super) fn pressure_of(&self, pool: usize) -> Effect {
        match self.pools[pool].model.max_size {
            Some(_) => Effect::Pressure,
            None => Effect::None,
        }
    }

    /// Allocates, and checks where: invariants 5 and 8. `None` beyond the budget, or beyond what the
    /// pool may hold.
    pub(super) fn alloc(
        &mut self,
        pool: usize,
        stream: usize,
        bytes: usize,
    ) -> Result<Option<usize>> {
        if self.asked + bytes as u64 > BUDGET {
            return Ok(None);
        }
        let Some(handle) = self.pools[pool].handle.clone() else {
            return Ok(None);
        };
        self.asked += bytes as u64;
        let what = format!("{bytes} bytes of pool {pool} on stream {stream}");
        let buffer = match handle.alloc::<u8>(&self.ground.streams[stream], bytes) {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == ErrorKind::OutOfMemory => {
                self.say(format!("no {what}: out of memory"));
                self.pools[pool].model.refused(bytes as u64)?;
                return Ok(None);
            }
            Err(error) => return Err(error.into()),
        };
        let name = self.names;
        self.names += 1;
        let start = buffer.as_raw();
        self.say(format!("block {name}: {what}, at {start:#x}"));
        let block = Block {
            buffer,
            pool,
            stream,
            owed: Vec::new(),
            pattern: 0,
            name,
        };
        if bytes > 0 {
            self.handed_out(&block)?;
        } else {
            ensure!(start == 0, "no bytes have an address");
        }
        self.blocks.push(block);
        Ok(Some(self.blocks.len() - 1))
    }

    fn handed_out(&mut self, block: &Block) -> Result<()> {
        let (start, end, stream) = (block.buffer.as_raw(), block.end(), block.stream);
        let overlapped = self
            .blocks
            .iter()
            .find(|other| other.buffer.as_raw() < end && start < other.end());
        if let Some(other) = overlapped {
            bail!("invariant 5: it overlaps block {}, which lives", other.name);
        }
        self.order.submit(stream);
        let model = &mut self.pools[block.pool].model;
        let behind_gate = model.allocated(&mut self.order, stream, start, end - start)?;
        ensure!(
            !behind_gate || !self.ground.streams[stream].is_done()?,
            "invariant 8: the memory is freed behind the held stream, and stream {stream} does not \
             wait for it"
        );
        Ok(())
    }

    /// Runs `work` on the checked parts of a block: all of it, or both ends.
    fn on_edges(
        &mut self,
        block: usize,
        mut work: impl FnMut(&mut DeviceBuffer<u8>) -> Result<()>,
    ) -> Result<()> {
        self.wait_for_pending_uses(block)?;
        let block = &mut self.blocks[block];
        if block.buffer.len() <= 2 * EDGE {
            return work(&mut block.buffer);
        }
        for offset in [0, block.buffer.len() - EDGE] {
            // SAFETY: a part of the live block, used in its stream while nobody else can use the
            // block; a borrowed part is not freed.
            let mut edge = unsafe {
                DeviceBuffer::borrow_raw(
                    block.buffer.stream(),
                    block.buffer.as_raw() + offset as u64,
                    EDGE,
                    (),
                )
            };
            work(&mut edge)?;
        }
        Ok(())
    }

    fn wait_for_pending_uses(&mut self, block: usize) -> Result<()> {
        let block = &mut self.blocks[block];
        block.buffer.wait_for_pending_uses()?;
        for other in block.owed.drain(..) {
            self.order.join(block.stream, other);
        }
        Ok(())
    }

    fn next_pattern(&mut self) -> u8 {
        self.names += 1;
        (self.names % 251) as u8
    }

    pub(super) fn fill(&mut self, block: usize) -> Result<()> {
        let pattern = self.next_pattern();
        self.on_edges(block, |edge| Ok(edge.fill_bytes(pattern)?))?;
        let block = &mut self.blocks[block];
        block.pattern = pattern;
        self.order.submit(block.stream);
        let line = format!("fill block {} with {pattern}", block.name);
        self.say(line);
        Ok(())
    }

    pub(super) fn write(&mut self, block: u8) -> Result<(Option<usize>, Effect)> {
        let Some(block) = self.ready(block) else {
            return Ok((None, Effect::None));
        };
        let pattern = self.next_pattern();
        self.wait_until_done(self.blocks[block].stream)?;
        self.on_edges(
            block,
            |edge| Ok(edge.copy_from(&vec![pattern; edge.len()])?),
        )?;
        self.blocks[block].pattern = pattern;
        self.seen(block, "write to")
    }

    pub(super) fn read(&mut self, block: u8) -> Result<(Option<usize>, Effect)> {
        let Some(block) = self.ready(block) else {
            return Ok((None, Effect::None));
        };
        self.wait_until_done(self.blocks[block].stream)?;
        let (name, pattern) = (self.blocks[block].name, self.blocks[block].pattern);
        self.on_edges(block, |edge| {
            ensure!(
                edge.to_vec()? == vec![pattern; edge.len()],
                "invariant 6: block {name} does not hold its pattern"
            );
            Ok(())
        })?;
        self.seen(block, "read")
    }

    /// A block with bytes whose stream flows once its debts are paid.
    fn ready(&mut self, block: u8) -> Option<usize> {
        let index = self.block(block)?;
        let block = &self.blocks[index];
        let mut streams = block.owed.iter().chain([&block.stream]);
        (!block.buffer.is_empty() && streams.all(|stream| self.order.flows(*stream)))
            .then_some(index)
    }

    /// A copy from or to the host has synchronised the block's stream.
    fn seen(&mut self, block: usize, what: &str) -> Result<(Option<usize>, Effect)> {
        let line = format!("{what} block {}", self.blocks[block].name);
        self.say(line);
        self.order.submit(self.blocks[block].stream);
        self.order.synchronise(self.blocks[block].stream);
        Ok((None, Effect::Synchronise))
    }

    pub(super) fn copy(&mut self, from: usize, stream: usize) -> Result<()> {
        let (pool, bytes) = (self.blocks[from].pool, self.blocks[from].buffer.len());
        if bytes == 0 || bytes > LARGE {
            return Ok(());
        }
        let Some(to) = self.alloc(pool, stream, bytes)? else {
            return Ok(());
        };
        let mut target = self.blocks.swap_remove(to);
        let source = &mut self.blocks[from];
        target.buffer.copy_from_device(&source.buffer)?;
        target.pattern = source.pattern;
        // The source's stream waits for its debts, but may not strike them off.
        for other in &source.owed {
            self.order.join(source.stream, *other);
        }
        self.order.join(stream, source.stream);
        self.order.submit(stream);
        self.order.join(source.stream, stream);
        let line = format!("copy block {} to block {}", source.name, target.name);
        self.blocks.push(target);
        self.say(line);
        Ok(())
    }

    pub(super) fn lend(&mut self, block: usize, stream: usize, lend: Lend) -> Result<()> {
        self.wait_for_pending_uses(block)?;
        let pattern = self.next_pattern();
        let other = self.ground.streams[stream].clone();
        let block = &mut self.blocks[block];
        let has_bytes = !block.buffer.is_empty();
        let fill = block.buffer.len() <= LARGE;
        let mut loan = block.buffer.on(&other)?;
        if fill {
            loan.fill_bytes(pattern)?;
            block.pattern = pattern;
        }
        match lend {
            Lend::Guard => drop(loan),
            Lend::Leak => std::mem::forget(loan),
        }
        if has_bytes && stream != block.stream {
            self.order.join(stream, block.stream);
            self.order.submit(stream);
            match lend {
                Lend::Guard => self.order.join(block.stream, stream),
                Lend::Leak => block.owed.push(stream),
            }
        }
        let how = match lend {
            Lend::Guard => "and take it back",
            Lend::Leak => "and leak the loan",
        };
        let line = format!("lend block {} to stream {stream} {how}", block.name);
        self.say(line);
        Ok(())
    }

    pub(super) fn rehome(&mut self, block: usize, stream: usize) -> Result<()> {
        self.wait_for_pending_uses(block)?;
        let mut block = self.blocks.swap_remove(block);
        let line = format!("take block {} by hand to stream {stream}", block.name);
        self.say(line);
        let other = &self.ground.streams[stream];
        other.wait_for(block.buffer.stream())?;
        self.order.join(stream, block.stream);
        let len = block.buffer.len();
        let address = block.buffer.into_raw().map_err(|failed| failed.error)?;
        // SAFETY: the address was this block's a moment ago, and the other stream waits for all its
        // uses; nobody else frees it.
        block.buffer = unsafe { DeviceBuffer::from_raw(other, address, len) };
        block.stream = stream;
        self.blocks.push(block);
        Ok(())
    }

    /// Frees a block, after taking down in its stream what it holds.
    pub(super) fn end(&mut self, index: usize, how: End) -> Result<Effect> {
        self.wait_for_pending_uses(index)?;
        let (name, pattern) = (self.blocks[index].name, self.blocks[index].pattern);
        let witnesses = &self.ground.witnesses;
        let mut taken = Vec::new();
        self.on_edges(index, |edge| {
            if !edge.is_empty() {
                let mut witness = witnesses.alloc::<u8>(edge.stream(), edge.len())?;
                witness.copy_from_device(edge)?;
                taken.push((witness, pattern, name));
            }
            Ok(())
        })?;
        self.witnesses.append(&mut taken);
        let block = self.blocks.swap_remove(index);
        let (start, bytes) = (block.buffer.as_raw(), block.buffer.len() as u64);
        let mut stream = block.stream;
        let mut effect = Effect::None;
        let how = match how {
            End::FreeSync if !self.order.flows(stream) => End::Free,
            how => how,
        };
        self.say(match how {
            End::Drop => format!("drop block {name}"),
            End::Free => format!("free block {name}"),
            End::FreeOn(other) => {
                format!("free block {name} on stream {}", number(other, STREAMS))
            }
            End::FreeSync => format!("free block {name} and wait"),
        });
        match how {
            End::Drop => drop(block.buffer),
            End::Free => block.buffer.free().map_err(|failed| failed.error)?,
            End::FreeOn(other) => {
                let other = number(other, STREAMS);
                let freed = block.buffer.free_on(&self.ground.streams[other]);
                freed.map_err(|failed| failed.error)?;
                self.order.join(other, stream);
                stream = other;
            }
            End::FreeSync => {
                self.wait_until_done(stream)?;
                block.buffer.free_sync().map_err(|failed| failed.error)?;
                effect = Effect::Synchronise;
            }
        }
        if bytes > 0 {
            let model = &mut self.pools[block.pool].model;
            model.freed(&mut self.order, stream, start, bytes);
        }
        if effect == Effect::Synchronise {
            self.order.synchronise(stream);
        }
        Ok(effect)
    }
}

//! Graph memory: addresses fixed when a node is created, and the device memory behind them from the first launch on.

use std::collections::BTreeMap;
use std::ffi::c_int;

use cuda_driver_sys::{CUgraphMem_attribute, CUresult};
use rustc_hash::FxHashSet;

use super::{ExecId, GraphId, NodeId};
use crate::clock::{Point, StreamId};
use crate::export::{Answer, INVALID_VALUE, Value, exports};
use crate::memory::Mapping;
use crate::pool::Block;
use crate::queue::Mark;
use crate::sanitizer;
use crate::state::{State, state};

/// Larger requests are refused when the node is created.
const LARGEST: u64 = 1 << 46;

/// Addresses, blocks, and the device memory that backs them.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    spaces: BTreeMap<GraphId, Vec<Region>>,
    blocks: BTreeMap<u64, GraphBlock>,
    backings: Vec<Backing>,
    next_backing: u64,
    /// High-water marks of used and reserved bytes, per device.
    high: BTreeMap<usize, [u64; 2]>,
}

/// A region of a graph's address space.
#[derive(Debug)]
struct Region {
    mapping: Mapping,
    device: usize,
    len: u64,
    /// Bytes handed out from its start.
    end: u64,
}

/// The block of an allocation node.
#[derive(Debug)]
pub(super) struct GraphBlock {
    pub(super) graph: GraphId,
    pub(super) size: u64,
    pub(super) device: usize,
    /// The rounded size of the address's first block.
    len: u64,
    /// The node in its own graph that frees it.
    pub(super) freed_by: Option<NodeId>,
    pub(super) freed_elsewhere: bool,
    life: Option<Life>,
}

/// State between the launch and the free.
#[derive(Debug)]
struct Life {
    block: Block,
    backing: u64,
}

/// Device memory behind one executable graph at a time. Measured: it counts as used until trimmed. Another executable
/// graph takes it over in the same stream, or once its last work is done.
#[derive(Debug)]
struct Backing {
    id: u64,
    device: usize,
    size: Footprint,
    exec: Option<ExecId>,
    live: usize,
    last: (StreamId, Mark),
}

/// Bytes that a graph takes from one device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Footprint {
    used: u64,
    reserved: u64,
}

impl GraphBlock {
    pub(super) fn is_live(&self) -> bool {
        self.life.is_some()
    }
}

impl Memory {
    pub(super) fn live_blocks(&self) -> usize {
        self.blocks.values().filter(|block| block.is_live()).count()
    }

    /// The block that contains an address.
    pub(super) fn block(&self, address: u64) -> Option<(u64, &GraphBlock)> {
        let (&start, block) = self.blocks.range(..=address).next_back()?;
        (address < start + block.size).then_some((start, block))
    }

    pub(super) fn block_mut(&mut self, start: u64) -> Option<&mut GraphBlock> {
        self.blocks.get_mut(&start)
    }

    /// A device's counters: used, its high-water mark, reserved, its high-water mark.
    fn numbers(&self, device: usize) -> [u64; 4] {
        let here = self.backings.iter().filter(|it| it.device == device);
        let (used, reserved) = here.fold((0, 0), |sum, it| {
            (sum.0 + it.size.used, sum.1 + it.size.reserved)
        });
        let [used_high, reserved_high] = self.high.get(&device).copied().unwrap_or_default();
        [
            used,
            used_high.max(used),
            reserved,
            reserved_high.max(reserved),
        ]
    }

    fn note_high(&mut self, device: usize) {
        let [_, used, _, reserved] = self.numbers(device);
        self.high.insert(device, [used, reserved]);
    }

    /// The bytes that an executable graph's graphs take from each device.
    pub(super) fn footprints(&self, graphs: &[GraphId], chunk: u64) -> BTreeMap<usize, Footprint> {
        let mut all: BTreeMap<usize, Footprint> = BTreeMap::new();
        for region in graphs.iter().filter_map(|id| self.spaces.get(id)).flatten() {
            let footprint = all.entry(region.device).or_default();
            footprint.used += region.end;
            footprint.reserved += region.len;
        }
        for footprint in all.values_mut() {
            footprint.used = footprint.used.next_multiple_of(chunk);
        }
        all
    }
}

impl State {
    /// The address for a new block of a graph: that of a block freed by an earlier node, or a new one.
    pub(super) fn place_block(
        &mut self,
        graph: GraphId,
        size: u64,
        device: usize,
        before: &FxHashSet<NodeId>,
    ) -> Answer<u64> {
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        if size >= LARGEST {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let (granule, chunk) = (self.configuration.granule, self.configuration.chunk);
        let memory = &mut self.graphs.memory;
        let reusable = memory.blocks.iter_mut().find(|(_, block)| {
            let is_freed = block.freed_by.is_some_and(|node| before.contains(&node));
            block.graph == graph && block.device == device && block.len >= size && is_freed
        });
        if let Some((&address, block)) = reusable {
            block.size = size;
            block.freed_by = None;
            return Ok(address);
        }
        let len = size.next_multiple_of(granule);
        let regions = memory.spaces.entry(graph).or_default();
        let fits = |region: &Region| region.device == device && region.end + len <= region.len;
        let index = match regions.iter().position(fits) {
            Some(index) => index,
            None => {
                let room = len.next_multiple_of(chunk);
                regions.push(Region {
                    mapping: Mapping::reserve(room)?,
                    device,
                    len: room,
                    end: 0,
                });
                regions.len() - 1
            }
        };
        let region = &mut regions[index];
        let address = region.mapping.base() + region.end;
        region.end += len;
        let block = GraphBlock {
            graph,
            size,
            device,
            len,
            freed_by: None,
            freed_elsewhere: false,
            life: None,
        };
        memory.blocks.insert(address, block);
        Ok(address)
    }

    /// Provides device memory for everything that an executable graph allocates.
    pub(super) fn back(&mut self, exec: ExecId, stream: StreamId) -> Answer {
        let Some(it) = self.graphs.execs.get(&exec) else {
            return Err(INVALID_VALUE);
        };
        let wanted = self
            .graphs
            .memory
            .footprints(&it.graphs, self.configuration.chunk);
        for (device, size) in wanted {
            let backings = &mut self.graphs.memory.backings;
            let its = backings
                .iter()
                .any(|it| it.device == device && it.exec == Some(exec));
            if its {
                continue;
            }
            let idle = backings.iter_mut().find(|it| {
                let (last, mark) = &it.last;
                it.device == device
                    && it.live == 0
                    && it.size.reserved >= size.reserved
                    && (*last == stream || mark.is_reached())
            });
            if let Some(idle) = idle {
                idle.exec = Some(exec);
                continue;
            }
            if self.devices[device].available() < size.reserved {
                self.take_back_unused(Some(device), None);
            }
            if self.devices[device].available() < size.reserved {
                return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            }
            self.devices[device].taken += size.reserved;
            let mark = self.stream(stream)?.queue.mark();
            let memory = &mut self.graphs.memory;
            memory.next_backing += 1;
            memory.backings.push(Backing {
                id: memory.next_backing,
                device,
                size,
                exec: Some(exec),
                live: 0,
                last: (stream, mark),
            });
            memory.note_high(device);
        }
        Ok(())
    }

    /// A launch has reached this point: its memory stays in use until here.
    pub(super) fn touch_backings(&mut self, exec: ExecId, stream: StreamId) -> Answer {
        let mark = self.stream(stream)?.queue.mark();
        for backing in &mut self.graphs.memory.backings {
            if backing.exec == Some(exec) {
                backing.last = (stream, mark.clone());
            }
        }
        Ok(())
    }

    /// Makes a block live.
    pub(super) fn begin_block(
        &mut self,
        exec: ExecId,
        address: u64,
        size: u64,
        at: Point,
    ) -> Answer {
        let memory = &mut self.graphs.memory;
        let block = memory.blocks.get_mut(&address).ok_or(INVALID_VALUE)?;
        let backing = memory
            .backings
            .iter_mut()
            .find(|it| it.device == block.device && it.exec == Some(exec))
            .ok_or(INVALID_VALUE)?;
        backing.live += 1;
        block.life = Some(Life {
            block: Block::new(size, at),
            backing: backing.id,
        });
        let regions = memory.spaces.get(&block.graph);
        let region = regions
            .into_iter()
            .flatten()
            .find(|region| region.mapping.contains(address))
            .ok_or(INVALID_VALUE)?;
        region.mapping.commit(0, region.len)
    }

    /// Frees a live block, in stream order or immediately. False if there is none.
    pub(crate) fn free_graph_block(&mut self, address: u64, at: Option<Point>) -> Answer<bool> {
        let Some(block) = self.graphs.memory.blocks.get_mut(&address) else {
            return Ok(false);
        };
        let Some(life) = block.life.take() else {
            return Ok(false);
        };
        match at {
            Some(at) => {
                let (reports, clocks) = (&mut self.reports, &self.clocks);
                sanitizer::free(reports, clocks, address, &life.block, at.stream);
            }
            None => sanitizer::free_now(&mut self.reports, &self.clocks, address, &life.block),
        }
        let last = match at {
            Some(at) => Some((at.stream, self.stream(at.stream)?.queue.mark())),
            None => None,
        };
        let backings = &mut self.graphs.memory.backings;
        if let Some(backing) = backings.iter_mut().find(|it| it.id == life.backing) {
            backing.live -= 1;
            if let Some(last) = last {
                backing.last = last;
            }
        }
        self.forget_graph_memory();
        Ok(true)
    }

    /// The block of an address in graph memory, for the sanitizer if it is live.
    pub(crate) fn graph_block(&mut self, address: u64) -> Option<(u64, Option<&mut Block>)> {
        let memory = &mut self.graphs.memory;
        let (&start, block) = memory.blocks.range_mut(..=address).next_back()?;
        if address >= start + block.len {
            return None;
        }
        Some((start, block.life.as_mut().map(|life| &mut life.block)))
    }

    /// The live blocks of graph memory, by address.
    pub(crate) fn live_graph_memory(&self) -> impl Iterator<Item = (u64, &Block)> {
        let blocks = self.graphs.memory.blocks.iter();
        blocks.filter_map(|(start, block)| Some((*start, &block.life.as_ref()?.block)))
    }

    /// Start, size and device of a live block of graph memory.
    pub(crate) fn live_graph_block(&self, address: u64) -> Option<(u64, &Block, usize)> {
        let (start, found) = self.graphs.memory.block(address)?;
        let life = found.life.as_ref()?;
        Some((start, &life.block, found.device))
    }

    /// Releases addresses that nothing can refer to any more.
    pub(super) fn forget_graph_memory(&mut self) {
        let graphs = &self.graphs;
        let used: FxHashSet<GraphId> = graphs
            .execs
            .values()
            .flat_map(|exec| exec.graphs.iter().copied())
            .chain(graphs.graphs.keys().copied())
            .chain(
                graphs
                    .memory
                    .blocks
                    .values()
                    .filter(|block| block.is_live())
                    .map(|block| block.graph),
            )
            .collect();
        let spaces = graphs.memory.spaces.keys().copied();
        let gone: Vec<GraphId> = spaces.filter(|id| !used.contains(id)).collect();
        let memory = &mut self.graphs.memory;
        memory
            .blocks
            .retain(|_, block| !gone.contains(&block.graph));
        let regions: Vec<Region> = gone
            .iter()
            .filter_map(|id| memory.spaces.remove(id))
            .flatten()
            .collect();
        for region in regions {
            self.bury(region.mapping);
        }
    }

    /// The executable graph was destroyed; its device memory stays until trimmed.
    pub(super) fn orphan_backings(&mut self, exec: ExecId) {
        for backing in &mut self.graphs.memory.backings {
            if backing.exec == Some(exec) {
                backing.exec = None;
            }
        }
    }

    /// Measured: releases memory without live blocks whose last work is done, whether the host synchronised or not.
    fn trim_graphs(&mut self, device: usize) {
        let mut freed = 0;
        self.graphs.memory.backings.retain(|backing| {
            let is_idle = backing.live == 0 && backing.last.1.is_reached();
            let goes = backing.device == device && is_idle;
            if goes {
                freed += backing.size.reserved;
            }
            !goes
        });
        self.devices[device].taken -= freed;
    }
}

exports! {
    plain fn cuDeviceGetGraphMemAttribute(
        _, device: c_int, attribute: CUgraphMem_attribute, value: Value
    ) {
        let state = state()?;
        let device = state.ordinal(device)?;
        value.required()?;
        let numbers = state.graphs.memory.numbers(device);
        let number = numbers.get(attribute.0 as usize).ok_or(INVALID_VALUE)?;
        value.write(*number)
    }

    plain fn cuDeviceSetGraphMemAttribute(
        _, device: c_int, attribute: CUgraphMem_attribute, value: Value
    ) {
        let mut state = state()?;
        let device = state.ordinal(device)?;
        value.required()?;
        let number: u64 = value.read()?;
        let index = match attribute.0 {
            1 if number == 0 => 0,
            3 if number == 0 => 1,
            _ => return Err(INVALID_VALUE),
        };
        let high = state.graphs.memory.high.entry(device).or_default();
        high[index] = 0;
        state.graphs.memory.note_high(device);
        Ok(())
    }

    plain fn cuDeviceGraphMemTrim(_, device: c_int) {
        let mut state = state()?;
        let device = state.ordinal(device)?;
        state.trim_graphs(device);
        Ok(())
    }
}

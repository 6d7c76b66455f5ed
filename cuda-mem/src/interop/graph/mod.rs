//! Graphs: work that is recorded once and launched many times, with memory of its own.

mod adopted;
mod capture;
mod exec;
mod graph_owned;
mod memory;
mod nodes;
mod persistent;

pub use adopted::AdoptedMut;
pub use capture::{Capture, CaptureMode, GraphBuffer};
pub use exec::{GraphExec, Instantiate};
pub(crate) use graph_owned::AnyBuffer;
pub use graph_owned::GraphOwned;
pub use memory::GraphMemoryStats;
pub use nodes::{Node, NodeMemory};
pub use persistent::PersistentAllocation;

use crate::base::error::Bytes;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;
use cuda_driver_sys::{CUdeviceptr, CUgraph};

use crate::base::error::{Error, Result};
use crate::base::report;
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::stream::context::Context;
use crate::stream::recording::Dependencies;

use graph_owned::OwnedBuffer;

/// Ordered work, recorded to be launched as a whole.
///
/// A graph comes from [`Stream::capture`](crate::Stream::capture), or is built node by node. Its allocations are *graph
/// memory*: the addresses are fixed when the graph is built and are the same in all launches, and the memory exists
/// from the moment that a launch reaches the allocation. Memory of pools gets into a graph only through
/// [`adopt`](Self::adopt), which gives the buffer to the graph: so it exists as long as the graph can be launched.
///
/// ```
/// # use cuda_mem::Driver;
/// # use cuda_mem::interop::{Graph, Instantiate};
/// # cuda_sim::use_if_no_driver();
/// # let device = Driver::load()?.device(0)?;
/// # let context = device.primary_context()?;
/// # let stream = context.stream()?;
/// # let pool = device.default_pool()?;
/// let mut graph = Graph::new(&context)?;
/// let result = graph.adopt(pool.alloc::<u32>(&stream, 100)?);
/// let mut numbers = graph.alloc::<u32>(100, &[])?; // exists only while the graph runs
/// graph.fill(&mut numbers, 7, &[])?;
/// graph.copy_out(&mut numbers, &result, &[])?; // after the fill: both use the same memory
/// graph.free(numbers, &[])?;
///
/// let mut exec = graph.instantiate(Instantiate::default())?;
/// exec.launch(&stream)?;
/// assert_eq!(exec.buffer(&result)?.to_vec()?, [7; 100]);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct Graph {
    /// Null only while the graph is being moved into an instance or another graph.
    raw: CUgraph,
    context: Context,
    parts: Parts,
}

/// What a graph owns besides its nodes.
struct Parts {
    /// Identifies the graph: tokens of other graphs are refused.
    id: u64,
    blocks: Vec<Block>,
    owned: Vec<OwnedBuffer>,
    /// What else the work uses.
    dependencies: Dependencies,
}

/// An allocation of a node.
#[derive(Clone, Copy, Debug)]
struct Block {
    address: CUdeviceptr,
    bytes: usize,
    /// A node of the same graph frees it.
    is_freed: bool,
    /// The owned memory that contains the block: the graph keeps it, and no node allocates or frees it.
    owned: Option<usize>,
    /// No other graph uses it while this one exists.
    is_alone: bool,
}

// SAFETY: graph handles may be used from any thread, by one at a time, which `&mut self` sees to.
unsafe impl Send for Graph {}
// SAFETY: what can be called through a shared reference only reads the fields.
unsafe impl Sync for Graph {}

impl Parts {
    fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            blocks: Vec::new(),
            owned: Vec::new(),
            dependencies: Dependencies::default(),
        }
    }

    fn check_owner(&self, owner: u64) -> Result<()> {
        if owner == self.id {
            return Ok(());
        }
        Err(Error::invalid(
            "this memory belongs to another graph".to_owned(),
        ))
    }

    /// Blocks that a launch leaves allocated.
    fn left(&self) -> impl Iterator<Item = &Block> {
        self.blocks
            .iter()
            .filter(|block| !block.is_freed && block.address != 0 && block.owned.is_none())
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        for block in self.blocks.iter().filter(|block| !block.is_freed) {
            let owned = block.owned.and_then(|owned| self.owned.get(owned));
            if let Some(owned) = owned {
                owned.buffer.take_back(block.address);
            }
        }
    }
}

impl Graph {
    /// An empty graph, for work on the device of `context`. Needs CUDA 11.4.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuGraphCreate")]
    #[track_caller]
    pub fn new(context: &Context) -> Result<Self> {
        // SAFETY: the driver is initialised.
        let raw = unsafe { raw::graph::create(context.driver().table()) }?;
        Ok(Self::own(context, raw, Parts::new()))
    }

    /// Wraps the handle; dropping the result destroys the graph.
    #[track_caller]
    fn own(context: &Context, raw: CUgraph, parts: Parts) -> Self {
        let graph = Self {
            raw,
            context: context.clone(),
            parts,
        };
        ledger::insert(graph.item());
        graph
    }

    fn item(&self) -> Item {
        let device = self.context.device();
        Item::new(LedgerKind::Graph, self.raw)
            .of(device.driver())
            .on(device)
    }

    /// The context of the graph's work.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The driver's handle. It stays valid while the graph lives.
    #[must_use]
    pub fn as_raw(&self) -> CUgraph {
        self.raw
    }

    /// Bytes that a launch leaves allocated, because no node of this graph frees them.
    #[must_use]
    pub fn left_bytes(&self) -> usize {
        self.parts.left().map(|block| block.bytes).sum()
    }

    /// The block that a token stands for.
    fn block<T: Pod>(parts: &Parts, left: &PersistentAllocation<T>) -> Result<Block> {
        parts.check_owner(left.owner)?;
        let block = parts.blocks.get(left.index);
        block
            .copied()
            .ok_or_else(|| Error::invalid("this graph has no such memory".to_owned()))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        ledger::remove(&self.item());
        let table = self.context.driver().table();
        // SAFETY: the graph is this value's, and no instance has been made of it.
        report::release("graph", || unsafe { raw::graph::destroy(table, self.raw) });
    }
}

impl Graph {
    pub(super) fn in_words(&self) -> String {
        let (blocks, left) = (self.parts.blocks.len(), Bytes(self.left_bytes() as u64));
        format!("a graph with {blocks} allocations, which leaves {left}")
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("raw", &self.raw)
            .field("blocks", &self.parts.blocks.len())
            .field("left_bytes", &self.left_bytes())
            .field("adopted", &self.parts.owned.len())
            .finish()
    }
}

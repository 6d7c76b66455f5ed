//! Graph instances.

use std::fmt;

use cuda_driver_sys::{CUdeviceptr, CUgraphExec, CUgraphInstantiate_flags};

use super::{Block, Graph, Parts};
use crate::base::error::{Error, ErrorKind, Failed, Result, took_effect};
use crate::base::report;
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::memory::pool;
use crate::memory::slice::wait_for_use;
use crate::stream::context::Context;
use crate::stream::{OrderedRelease, Stream, StreamRef};
use crate::stream::{launches, recording};

/// How to instantiate a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Instantiate {
    /// Memory that a launch leaves allocated must be freed before the next launch.
    #[default]
    Plain,
    /// Each launch first frees the memory that the previous one left.
    AutoFree,
}

/// An instance of a graph, ready to be launched. It holds the graph, which can have only one instance at a time (R73),
/// and the buffers that the graph has adopted.
///
/// Memory that a launch leaves allocated belongs to the instance: [`left`](Self::left) gives access to it, and
/// [`free_left`](Self::free_left) or dropping the instance frees it, in the order of the stream of that launch. The
/// driver alone would keep it for ever (R70).
pub struct GraphExec {
    raw: CUgraphExec,
    kind: Instantiate,
    /// Dropped after the instance, and before the parts: a communicator among them waits at its end until the graph is
    /// gone (N5).
    graph: Graph,
    pub(super) parts: Parts,
    pub(super) alive: Option<Alive>,
}

/// Memory that a launch has left.
pub(super) struct Alive {
    pub(super) stream: Stream,
    pub(super) blocks: Vec<Block>,
}

// SAFETY: handles of instances may be used from any thread, by one at a time, which `&mut self` sees
// to.
unsafe impl Send for GraphExec {}
// SAFETY: what can be called through a shared reference only reads the fields.
unsafe impl Sync for GraphExec {}

impl Graph {
    /// Instantiates a graph for launching. Needs CUDA 11.4.
    ///
    /// # Errors
    ///
    /// Any driver error; the graph comes back with the error.
    #[doc(alias("cuGraphInstantiate", "cuGraphInstantiateWithFlags"))]
    #[track_caller]
    pub fn instantiate(self, kind: Instantiate) -> Result<GraphExec, Failed<Self>> {
        let flags = match kind {
            Instantiate::Plain => 0,
            Instantiate::AutoFree => {
                CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH.0
            }
        };
        let table = self.context.driver().table();
        let made = self.context.bind().and_then(|_current| {
            // SAFETY: the graph is live and has no instance, since that would own it (R73); its context
            // is current. Of the flags at most one is set, so none excludes another (R74).
            recording::relaxed_while_capturing(table, || unsafe {
                raw::graph::instantiate(table, self.raw, flags.into())
            })
        });
        match made {
            Err(error) => Err(Failed::new(error, self)),
            Ok(raw) => {
                let mut graph = self;
                let parts = std::mem::replace(&mut graph.parts, Parts::new());
                let exec = GraphExec {
                    raw,
                    kind,
                    parts,
                    alive: None,
                    graph,
                };
                ledger::insert(exec.item());
                Ok(exec)
            }
        }
    }
}

impl GraphExec {
    fn item(&self) -> Item {
        let device = self.context().device();
        Item::new(LedgerKind::GraphExec, self.raw)
            .of(device.driver())
            .on(device)
    }

    /// The context of the graph's work.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.graph.context
    }

    /// The driver's handle. It stays valid while the instance lives. Code that launches it directly must free what the
    /// launch leaves, and order the launch with the adopted buffers.
    #[must_use]
    pub fn as_raw(&self) -> CUgraphExec {
        self.raw
    }

    /// Bytes that the last launch left allocated and that have not been freed since.
    #[must_use]
    pub fn left_bytes(&self) -> usize {
        let blocks = self.alive.iter().flat_map(|alive| &alive.blocks);
        blocks.map(|block| block.bytes).sum()
    }

    /// Submits the whole graph to a stream, ordered with all other work on the adopted buffers. Does not
    /// synchronise. Launches of one instance run one after another, in whatever streams.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the device of the stream, or that of the graph, has no
    /// access to an adopted buffer; also in a stream of another device than the graph's, if the graph leaves memory, or
    /// allocates any and the devices are not peers: launch it in a stream of the graph's device then, and let the other
    /// stream [wait](Stream::wait_for) for it. [`StillAllocated`](crate::ErrorKind::StillAllocated) if the last launch
    /// left memory that was not freed since, unless the instance was made with [`Instantiate::AutoFree`];
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory), since graph memory is taken from the device here or in
    /// [`upload`](Self::upload); the error of a communicator that has failed, or was aborted, if the graph has operations of it;
    /// otherwise any driver error.
    #[doc(alias = "cuGraphLaunch")]
    pub fn launch(&mut self, stream: &Stream) -> Result<()> {
        if let Some(alive) = &self.alive
            && !alive.blocks.is_empty()
            && self.kind == Instantiate::Plain
        {
            let bytes = self.left_bytes() as u64;
            return Err(Error::still_allocated(alive.blocks.len(), bytes));
        }
        stream.as_ref().refuse_recorded()?;
        self.check_driver(stream)?;
        self.parts.require_reach(self.context(), stream)?;
        // Earlier work on the memory that this launch frees comes before it.
        if let Some(before) = &self.alive {
            wait_for_use(&before.stream, stream)?;
        }
        self.parts.wait_for_pending_uses()?;
        // Launches on other threads that use the same memory come entirely before or after this one.
        let turns = self.parts.turns();
        let _turns: Vec<_> = turns
            .iter()
            .map(|turn| turn.lock())
            .collect::<Result<_>>()?;
        self.parts.enter(stream)?;
        let open = stream.as_ref().submit_bound()?;
        let launched = {
            // Another thread may end one at any time.
            let _in_use = self.parts.dependencies.begin_use(stream.progress())?;
            let _turn = launches::launch(stream.as_ref())?;
            // SAFETY: the instance and the stream are live; the adopted buffers are valid here, as the stream
            // waits for theirs. Nothing of the last launch is left unless the driver frees it (R71).
            unsafe { raw::graph::launch(open.queue(), self.raw) }
        };
        // An error may report an earlier fault, so it does not prove that nothing was launched.
        if took_effect(&launched) {
            self.parts.leave(stream);
        }
        launched.map_err(|error| error.asked(|| self.graph.in_words()))?;
        let blocks: Vec<Block> = self.parts.left().copied().collect();
        self.alive = (!blocks.is_empty()).then(|| Alive {
            stream: stream.clone(),
            blocks,
        });
        Ok(())
    }

    /// Allocates the device memory that a launch needs, so that the launch itself does not. Does not synchronise. After
    /// this call, waits between streams cost more; see [`Stream::wait_for`].
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the graph could not be [launched](Self::launch) in this
    /// stream; [`OutOfMemory`](crate::ErrorKind::OutOfMemory); otherwise any driver error.
    #[doc(alias = "cuGraphUpload")]
    pub fn upload(&mut self, stream: &Stream) -> Result<()> {
        self.check_driver(stream)?;
        self.parts.require_reach(self.context(), stream)?;
        let _in_use = self.parts.dependencies.begin_use(stream.progress())?;
        let open = stream.as_ref().submit_bound()?;
        let _turn = launches::launch(stream.as_ref())?;
        // SAFETY: the instance and the stream are live.
        unsafe { raw::graph::upload(open.queue(), self.raw) }
    }

    fn check_driver(&self, stream: &Stream) -> Result<()> {
        let driver = self.context().driver();
        driver.require_same(
            stream.context().driver(),
            format_args!("the graph and the stream"),
        )
    }

    /// Frees the memory that the last launch left, in the order of its stream. Does nothing if there is none. Does not
    /// synchronise, unless that stream is another thread's [own](Context::per_thread_stream): then this waits for the context.
    ///
    /// # Errors
    ///
    /// Any driver error for the first block that could not be freed. Blocks that could not be freed remain.
    #[doc(alias = "cuMemFreeAsync")]
    pub fn free_left(&mut self) -> Result<()> {
        while let Some(alive) = &mut self.alive {
            let Some(block) = alive.blocks.last() else {
                // The stream stays recorded as a user: the next launch uses the memory again.
                break;
            };
            let freed = free(block.address, alive.stream.as_ref());
            if took_effect(&freed) {
                alive.blocks.pop();
            }
            freed?;
        }
        Ok(())
    }

    /// Frees on drop: a block that cannot be freed because the stream is captured is left to the stream; any other
    /// failure is reported, and the next block tried.
    fn free_at_last(&mut self) {
        while let Some(alive) = &mut self.alive {
            let Some(block) = alive.blocks.pop() else {
                self.alive = None;
                break;
            };
            report::release("graph memory", || {
                let freed = free(block.address, alive.stream.as_ref());
                match freed {
                    Err(error) if error.kind() == ErrorKind::Capturing => {
                        alive.stream.release_later(LeftMemory(block.address));
                        Ok(())
                    }
                    freed => freed,
                }
            });
        }
    }
}

/// Memory that the last launch of an instance left, after the instance was dropped.
struct LeftMemory(CUdeviceptr);

impl OrderedRelease for LeftMemory {
    fn waits_for_stream(&self) -> bool {
        false
    }

    fn release(&mut self, stream: StreamRef<'_>, _: Option<&Stream>) -> Result<()> {
        free(self.0, stream)
    }
}

/// Frees one block outside its graph. If it was left in another thread's own stream, waits for the whole context first.
fn free(address: CUdeviceptr, stream: StreamRef<'_>) -> Result<()> {
    if stream.is_foreign() {
        stream.wait_foreign()?;
        return free(address, stream.context().per_thread_stream().as_ref());
    }
    let open = stream.submit()?;
    // The driver would record the free instead of executing it. No capture of this crate begins while `open` lives.
    open.refuse_captured(
        "the stream in which the graph left memory is being captured; free it afterwards",
    )?;
    // SAFETY: the last launch left the block in this stream, and it was not freed since (R70).
    unsafe { pool::free_harmlessly(address, stream) }
}

impl Drop for GraphExec {
    fn drop(&mut self) {
        self.free_at_last();
        ledger::remove(&self.item());
        let table = self.graph.context.driver().table();
        report::release("graph instance", || {
            recording::relaxed_if_possible(table, || {
                // SAFETY: the instance is this value's.
                unsafe { raw::graph::destroy_exec(table, self.raw) }
            })
        });
    }
}

impl fmt::Debug for GraphExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GraphExec")
            .field("raw", &self.raw)
            .field("kind", &self.kind)
            .field("left_bytes", &self.left_bytes())
            .field("adopted", &self.parts.owned.len())
            .finish()
    }
}

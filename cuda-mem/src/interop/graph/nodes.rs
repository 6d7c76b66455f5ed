//! Graphs built node by node. Memory is ordered automatically: each use of a block comes after the previous one, the
//! first after its allocation, and the free after all of them.

use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use cuda_driver_sys::{CUdeviceptr, CUgraphNode, CudaVersion};

use super::{Block, Graph, GraphOwned, PersistentAllocation};
use crate::base::error::{Error, Result};
use crate::driver::raw;
use crate::ledger;
use crate::memory::buffer::bytes_of;
use crate::memory::slice::pattern;

/// A node of a graph, on which other nodes can depend.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    owner: u64,
    raw: CUgraphNode,
}

// SAFETY: a node's handle is only a name; calls that take it want the graph exclusively.
unsafe impl Send for Node {}
// SAFETY: as for `Send`.
unsafe impl Sync for Node {}

/// Graph memory in a graph that is being built by hand, between its allocation and its free.
///
/// If it is dropped, a launch leaves the memory allocated: [`persist`](Self::persist) does the same and returns a token
/// for it.
pub struct NodeMemory<T> {
    owner: u64,
    index: usize,
    address: CUdeviceptr,
    len: usize,
    /// The nodes that the next use depends on.
    last: Vec<CUgraphNode>,
    element: PhantomData<fn() -> T>,
}

// SAFETY: as for `Node`.
unsafe impl<T> Send for NodeMemory<T> {}
// SAFETY: as for `Node`.
unsafe impl<T> Sync for NodeMemory<T> {}

impl<T> NodeMemory<T> {
    /// The address, fixed from now on; 0 if there are no bytes. It is valid only in graph order, between the allocation
    /// and the free.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.address
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Leaves the memory allocated after a launch; the token gives access to it in the instance.
    #[must_use]
    pub fn persist(self) -> PersistentAllocation<T> {
        PersistentAllocation {
            owner: self.owner,
            index: self.index,
            address: self.address,
            len: self.len,
            element: PhantomData,
        }
    }
}

impl<T> fmt::Debug for NodeMemory<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "NodeMemory({} elements at {:#x})",
            self.len, self.address
        )
    }
}

fn check_len(to: usize, from: usize) -> Result<()> {
    if to == from {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the target has {to} elements, and the source {from}; they must be equal"
    )))
}

impl Graph {
    /// The dependencies of a node: the given nodes, and the last users of its memory.
    fn after(&self, named: &[Node], used: &[&[CUgraphNode]]) -> Result<Vec<CUgraphNode>> {
        for node in named {
            self.parts.check_owner(node.owner)?;
        }
        let named = named.iter().map(|node| node.raw);
        let mut all: Vec<CUgraphNode> = named
            .chain(used.iter().copied().flatten().copied())
            .collect();
        // The driver refuses a node that is named twice.
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    fn node(&self, raw: CUgraphNode) -> Node {
        Node {
            owner: self.parts.id,
            raw,
        }
    }

    /// Adds an allocation of `len` elements on the graph's device, after the nodes `after`. The contents are
    /// unspecified. The address may be reused from a block that another node freed, if `after` orders this allocation
    /// after that free.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](crate::ErrorKind::OutOfMemory) if the address space cannot hold it; device memory is only
    /// checked at the launch. [`InvalidValue`](crate::ErrorKind::InvalidValue) if the size overflows or a node is
    /// another graph's.
    #[doc(alias = "cuGraphAddMemAllocNode")]
    pub fn alloc<T: Pod>(&mut self, len: usize, after: &[Node]) -> Result<NodeMemory<T>> {
        let bytes = bytes_of::<T>(len)?;
        let after = self.after(after, &[])?;
        let (address, last) = if bytes == 0 {
            (0, after)
        } else {
            let (table, device) = (self.context.driver().table(), self.context.device());
            // SAFETY: the graph is live, and the nodes are its.
            let (node, address) =
                unsafe { raw::graph::add_alloc(table, self.raw, &after, bytes, device.as_raw()) }
                    .map_err(|error| error.asked(|| format!("{bytes} bytes of graph memory")))?;
            (address, vec![node])
        };
        let index = self.parts.blocks.len();
        self.parts.blocks.push(Block {
            address,
            bytes,
            is_freed: false,
            owned: None,
            is_alone: false,
        });
        Ok(NodeMemory {
            owner: self.parts.id,
            index,
            address,
            len,
            last,
            element: PhantomData,
        })
    }

    /// Adds a free, after all uses of the memory in the graph, and after the nodes `after`.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the memory or a node is another graph's.
    #[doc(alias = "cuGraphAddMemFreeNode")]
    pub fn free<T: Pod>(&mut self, memory: NodeMemory<T>, after: &[Node]) -> Result<Node> {
        self.parts.check_owner(memory.owner)?;
        let after = self.after(after, &[&memory.last])?;
        let node = if memory.address == 0 {
            self.add_nothing(&after)?
        } else {
            let table = self.context.driver().table();
            // SAFETY: the graph is live and the nodes are its; all uses come before, and the memory has no
            // other free, since that consumes it (R72).
            unsafe { raw::graph::add_free(table, self.raw, &after, memory.address) }?
        };
        if let Some(block) = self.parts.blocks.get_mut(memory.index) {
            block.is_freed = true;
        }
        Ok(self.node(node))
    }

    /// Adds a fill of all elements with `value`, of 1, 2 or 4 bytes (others do not compile).
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the memory or a node is another graph's.
    #[doc(alias = "cuGraphAddMemsetNode")]
    pub fn fill<T: Pod>(
        &mut self,
        memory: &mut NodeMemory<T>,
        value: T,
        after: &[Node],
    ) -> Result<Node> {
        self.parts.check_owner(memory.owner)?;
        let after = self.after(after, &[&memory.last])?;
        let node = if memory.address == 0 {
            self.add_nothing(&after)?
        } else {
            let table = self.context.driver().table();
            let range = (memory.address, memory.len);
            let context = self.context.as_raw();
            let _current = self.context.bind()?;
            // SAFETY: the graph is live and the nodes are its; the memory exists after the last of them,
            // which comes after its allocation and before its free. The context is current.
            unsafe {
                raw::graph::add_fill(table, self.raw, &after, range, pattern(value), context)
            }?
        };
        memory.last = vec![node];
        Ok(self.node(node))
    }

    /// Adds a copy between two blocks of this graph, of the same length.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the lengths differ, or the memory or a node
    /// is another graph's.
    #[doc(alias = "cuGraphAddMemcpyNode")]
    pub fn copy<T: Pod>(
        &mut self,
        to: &mut NodeMemory<T>,
        from: &mut NodeMemory<T>,
        after: &[Node],
    ) -> Result<Node> {
        self.parts.check_owner(to.owner)?;
        self.parts.check_owner(from.owner)?;
        check_len(to.len, from.len)?;
        let after = self.after(after, &[&to.last, &from.last])?;
        let node = self.add_copy::<T>(&after, to.address, from.address, to.len)?;
        to.last = vec![node];
        from.last = vec![node];
        Ok(self.node(node))
    }

    /// Adds a copy of graph memory into an adopted buffer of the same length.
    ///
    /// # Errors
    ///
    /// As [`copy`](Self::copy), and if the graph's device has no access to the buffer.
    #[doc(alias = "cuGraphAddMemcpyNode")]
    pub fn copy_out<T: Pod>(
        &mut self,
        from: &mut NodeMemory<T>,
        to: &GraphOwned<T>,
        after: &[Node],
    ) -> Result<Node> {
        self.beside(from, to, after, |memory, adopted| (adopted, memory))
    }

    /// Adds a copy of an adopted buffer into graph memory of the same length.
    ///
    /// # Errors
    ///
    /// As [`copy_out`](Self::copy_out).
    #[doc(alias = "cuGraphAddMemcpyNode")]
    pub fn copy_in<T: Pod>(
        &mut self,
        to: &mut NodeMemory<T>,
        from: &GraphOwned<T>,
        after: &[Node],
    ) -> Result<Node> {
        self.beside(to, from, after, |memory, adopted| (memory, adopted))
    }

    /// A copy between graph memory and an adopted buffer; `ends` returns target and source.
    fn beside<T: Pod>(
        &mut self,
        memory: &mut NodeMemory<T>,
        adopted: &GraphOwned<T>,
        after: &[Node],
        ends: impl FnOnce(CUdeviceptr, CUdeviceptr) -> (CUdeviceptr, CUdeviceptr),
    ) -> Result<Node> {
        self.parts.check_owner(memory.owner)?;
        self.parts.require_reach_of(adopted, &self.context)?;
        check_len(memory.len, adopted.len)?;
        if !adopted.on_device {
            return Err(Error::not_supported(
                "a copy node takes memory of a device; capture a copy of host memory instead"
                    .to_owned(),
            ));
        }
        let owned = self.parts.owned.get(adopted.index);
        if owned.is_some_and(|owned| owned.is_captured) {
            return Err(Error::not_supported(
                "the buffer was adopted in a capture, and a node made by hand cannot be ordered with \
                 what was captured; record the copy too"
                    .to_owned(),
            ));
        }
        let used = owned.map_or(&[][..], |owned| &owned.last);
        let after = self.after(after, &[&memory.last, used])?;
        let (to, from) = ends(memory.address, adopted.address);
        let node = self.add_copy::<T>(&after, to, from, memory.len)?;
        memory.last = vec![node];
        if let Some(owned) = self.parts.owned.get_mut(adopted.index) {
            owned.last = vec![node];
        }
        Ok(self.node(node))
    }

    fn add_copy<T>(
        &self,
        after: &[CUgraphNode],
        to: CUdeviceptr,
        from: CUdeviceptr,
        len: usize,
    ) -> Result<CUgraphNode> {
        let bytes = bytes_of::<T>(len)?;
        if bytes == 0 {
            return self.add_nothing(after);
        }
        let (table, context) = (self.context.driver().table(), self.context.as_raw());
        let _current = self.context.bind()?;
        // SAFETY: the graph is live and the nodes are its; its own memory exists after them, adopted
        // buffers during every launch, and no two of these overlap. The context is current.
        unsafe { raw::graph::add_copy(table, self.raw, after, (to, from), bytes, context) }
    }

    /// A node without work, for ordering only.
    fn add_nothing(&self, after: &[CUgraphNode]) -> Result<CUgraphNode> {
        let table = self.context.driver().table();
        // SAFETY: the graph is live and the nodes are its.
        unsafe { raw::graph::add_empty(table, self.raw, after) }
    }

    /// Adds another graph, with its memory, to this one as a single node. Needs CUDA 12.9.
    ///
    /// The driver takes ownership of the graph: it cannot be instantiated or added to a graph again (R79), which is why
    /// it is consumed. It must leave no memory allocated and own no adopted buffers, since they would become
    /// inaccessible.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) with an older driver; otherwise any driver error, for
    /// example for a graph that contains a child already. The child comes back with the error.
    #[doc(alias = "cuGraphAddNode")]
    pub fn add_child(
        &mut self,
        child: Self,
        after: &[Node],
    ) -> Result<Node, crate::base::error::Failed<Self>> {
        let failed = |error, child| Err(crate::base::error::Failed::new(error, child));
        let (since, found) = (CudaVersion::new(12, 9), self.context.driver().version());
        if found < since {
            return failed(
                Error::too_old("a graph inside another", since, found),
                child,
            );
        }
        if child.left_bytes() > 0 || !child.parts.owned.is_empty() {
            let text = "a graph that leaves memory or has adopted buffers cannot go into another";
            return failed(Error::invalid(text.to_owned()), child);
        }
        if child.context.driver() != self.context.driver() {
            let text = "the two graphs belong to two drivers";
            return failed(Error::invalid(text.to_owned()), child);
        }
        let after = match self.after(after, &[]) {
            Ok(after) => after,
            Err(error) => return failed(error, child),
        };
        let table = self.context.driver().table();
        let item = child.item();
        let ended = ledger::remove(&item);
        // SAFETY: both graphs are live and the nodes are this one's; the child is given up below.
        match unsafe { raw::graph::add_child(table, self.raw, &after, child.raw) } {
            Err(error) => {
                ledger::restore(&item, ended);
                failed(error, child)
            }
            Ok(node) => {
                let mut child = child;
                child.raw = std::ptr::null_mut();
                let (parts, inner) = (&mut self.parts, &mut child.parts);
                parts.dependencies.append(&mut inner.dependencies);
                if child.context == self.context {
                    // All are freed in the child, so they count for what a launch reaches only.
                    parts.blocks.append(&mut inner.blocks);
                } else {
                    // Its nodes run there.
                    parts.dependencies.add(child.context.as_dependency());
                }
                Ok(self.node(node))
            }
        }
    }
}

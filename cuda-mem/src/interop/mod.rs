//! Memory shared with others: graphs, other processes, other devices of the machine, other libraries.
//!
//! A [`Capture`] records a stream into a [`Graph`]. On Linux a `Channel` shares pools, buffers and events with other
//! processes; on Windows handles do, which the program duplicates into them. [`GpuDirect`] and `DmaBuf` give network
//! cards and storage access to GPU memory. [`dlpack`] exchanges tensors with Python libraries and others.

pub mod dlpack;
pub(crate) mod gpu_direct;
pub(crate) mod graph;
#[cfg(any(target_os = "linux", windows))]
pub(crate) mod ipc;

#[cfg(target_os = "linux")]
pub use gpu_direct::DmaBuf;
pub use gpu_direct::{FlushOptions, FlushScope, GpuDirect, WritesOrdering};
pub use graph::{
    AdoptedMut, Capture, CaptureMode, Graph, GraphBuffer, GraphExec, GraphMemoryStats, GraphOwned,
    Instantiate, Node, NodeMemory, PersistentAllocation,
};
#[cfg(target_os = "linux")]
pub use ipc::{Channel, ExportedBuffer, Listener, Message, Peers};
#[cfg(any(target_os = "linux", windows))]
pub use ipc::{EventHandle, FabricHandle, ImportedPool, PointerToken, SharedBuffer};

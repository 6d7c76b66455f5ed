//! Sharing memory with other processes: pools, buffers, events, and a channel to pass them through.
//!
//! A pool that was built with [`HandleTypes`](crate::driver::HandleTypes) is exported once, as a descriptor or, on
//! Windows, as a handle; then each buffer as a few bytes that give its location in the pool. The other process imports
//! the pool, and then each buffer. The chapter on sharing in the book explains the required order.

#[cfg(target_os = "linux")]
mod channel;
mod event;
#[cfg(target_os = "linux")]
mod exported;
mod handles;
#[cfg(target_os = "linux")]
mod message;
mod pointer;
mod pool;
mod registry;
#[cfg_attr(windows, path = "no_reply.rs")]
mod reply;
#[cfg(target_os = "linux")]
mod returns;
#[cfg(target_os = "linux")]
mod socket;
mod wire;

#[cfg(target_os = "linux")]
pub use channel::{Channel, Listener, Message, Peers};
#[cfg(target_os = "linux")]
pub use exported::ExportedBuffer;
pub use handles::{EventHandle, FabricHandle, PointerToken, SharedBuffer};
pub use pool::ImportedPool;

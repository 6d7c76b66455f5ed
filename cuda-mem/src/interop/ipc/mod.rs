//! Sharing memory with other processes: pools, buffers, events, and a channel to pass them through.
//!
//! A pool that was built with [`HandleTypes`](crate::driver::HandleTypes) is exported once, as a descriptor; then each
//! buffer as a few bytes that give its location in the pool. The other process imports the pool, and then each buffer.
//! The chapter on sharing in the book explains the required order.

mod channel;
mod event;
mod exported;
mod handles;
mod message;
mod pointer;
mod pool;
mod registry;
mod reply;
mod returns;
mod socket;
mod wire;

pub use channel::{Channel, Listener, Message, Peers};
pub use exported::ExportedBuffer;
pub use handles::{EventHandle, FabricHandle, PointerToken, SharedBuffer};
pub use pool::ImportedPool;

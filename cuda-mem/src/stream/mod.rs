//! Contexts, streams and events.
//!
//! A [`Context`] is created by [`Device::primary_context`](crate::Device::primary_context), or borrowed from another
//! library. It makes streams and events. Work in one [`Stream`] runs in order; an [`Event`] orders streams with each
//! other and with the host. A [`Completion`] is the future of either.

pub(crate) mod after_wait;
pub(crate) mod completion;
pub(crate) mod context;
pub(crate) mod deferred;
pub(crate) mod epoch;
pub(crate) mod event;
pub(crate) mod handle;
pub(crate) mod join;
pub(crate) mod launches;
pub(crate) mod name;
pub(crate) mod recording;
pub(crate) mod stage;
pub(crate) mod waits;
mod watcher;

pub use completion::Completion;
pub use context::{Context, Current, MemoryInfo};
pub use event::Event;
pub use handle::{Stream, StreamRef};

pub(crate) use handle::{DropObserver, OrderedRelease, Reach, Submission, WeakStream, is_default};

//! A handle that does not keep its context alive.

use std::sync::{Arc, Weak};

use super::{Context, Retained};

/// A handle that does not keep its context alive.
pub(crate) struct WeakContext(Weak<Retained>);

impl WeakContext {
    pub(crate) fn is_of(&self, context: &Context) -> bool {
        self.0.as_ptr() == Arc::as_ptr(&context.0)
    }

    /// The context, if a handle of it still exists.
    pub(crate) fn upgrade(&self) -> Option<Context> {
        self.0.upgrade().map(Context)
    }
}

impl Context {
    pub(crate) fn downgrade(&self) -> WeakContext {
        WeakContext(Arc::downgrade(&self.0))
    }
}

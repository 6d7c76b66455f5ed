//! A resource that fails when a test wants it to.

use std::alloc::Layout;
use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};

use cuda_mem::memory::MemoryProperties;
use cuda_mem::{Error, ErrorKind, MemoryResource, Resource, Stream};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    Error,
    /// A panic that prints nothing.
    Panic,
}

/// Allocates from its upstream, unless the next allocation is to fail.
#[derive(Debug)]
pub(crate) struct Failing {
    upstream: Resource,
    next: Mutex<Option<Failure>>,
}

impl Failing {
    pub(crate) fn new(upstream: impl Into<Resource>) -> Self {
        Self {
            upstream: upstream.into(),
            next: Mutex::default(),
        }
    }

    pub(crate) fn fail_next(&self, failure: Failure) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
    }
}

// SAFETY: all memory comes from upstream and goes back there.
unsafe impl MemoryResource for Failing {
    fn allocate(&self, layout: Layout, stream: &Stream) -> cuda_mem::Result<u64> {
        let next = self
            .next
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match next {
            Some(Failure::Error) => Err(Error::new(ErrorKind::Other, "as the test wants")),
            Some(Failure::Panic) => resume_unwind(Box::new("as the test wants")),
            None => self.upstream.allocate(layout, stream),
        }
    }

    unsafe fn deallocate(
        &self,
        address: u64,
        layout: Layout,
        stream: &Stream,
    ) -> cuda_mem::Result<()> {
        // SAFETY: the caller's.
        unsafe { self.upstream.deallocate(address, layout, stream) }
    }

    fn memory_properties(&self) -> MemoryProperties {
        self.upstream.memory_properties()
    }
}

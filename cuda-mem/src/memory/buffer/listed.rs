//! Buffers in the ledger.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::DeviceBuffer;
use super::deallocator::Deallocator;
use crate::base::error::Result;
use crate::driver::device::Device;
use crate::driver::pointer::MemoryKind;
use crate::ledger::{self, Item, LedgerKind};
use crate::memory::resource::MemoryResource;
use crate::stream::{Stream, StreamRef};

/// The memory of a buffer, for the ledger.
fn item(kind: LedgerKind, address: CUdeviceptr, bytes: usize, stream: StreamRef<'_>) -> Item {
    Item::new(kind, address)
        .of(stream.context().driver())
        .bytes(bytes)
}

/// What a resource's memory is listed as. In a destructor too, so a panic there ends here.
pub(super) fn kind_from(resource: &dyn MemoryResource) -> LedgerKind {
    let ask = || resource.memory_properties().kind;
    match catch_unwind(AssertUnwindSafe(ask)) {
        Ok(MemoryKind::Managed) => LedgerKind::ManagedMemory,
        _ => LedgerKind::Buffer,
    }
}

/// What memory with this deallocator is listed as. The driver's own is a buffer, also that of a managed pool.
pub(super) fn kind_of(deallocator: &Deallocator) -> LedgerKind {
    match deallocator {
        Deallocator::Resource(resource, _) => kind_from(&***resource),
        _ => LedgerKind::Buffer,
    }
}

/// Notes memory that becomes a buffer's. Before there is the buffer: one whose address was taken would be
/// copied into its place.
#[cold]
#[track_caller]
pub(super) fn insert(
    kind: LedgerKind,
    (address, bytes): (CUdeviceptr, usize),
    stream: &Stream,
    device: Option<Device>,
) {
    if address != 0 {
        let item = item(kind, address, bytes, stream.as_ref());
        ledger::insert(item.on(device));
    }
}

impl<T: Pod> DeviceBuffer<T> {
    /// Bytes that go back at the end: there may be room for more than the buffer shows.
    pub(super) fn held_bytes(&self) -> usize {
        match &*self.deallocator {
            Deallocator::Resource(_, layout) => layout.size(),
            _ => self.size_bytes(),
        }
    }

    /// What the ledger lists: memory that is the buffer's to give back.
    pub(super) fn item(&self) -> Option<Item> {
        if self.address == 0 || matches!(*self.deallocator, Deallocator::External(_)) {
            return None;
        }
        let bytes = self.held_bytes();
        let item = item(
            kind_of(&self.deallocator),
            self.address,
            bytes,
            self.stream.as_ref(),
        );
        Some(item.on(self.device))
    }

    /// The memory goes out of hand.
    #[cold]
    pub(super) fn leave_ledger(&self) {
        if let Some(item) = self.item() {
            ledger::remove(&item);
        }
    }

    /// As [`release_memory`](Self::release_memory), and the ledger is told.
    #[cold]
    pub(super) fn release_listed(&mut self) -> Result<()> {
        let Some(item) = self.item() else {
            return self.release_memory();
        };
        // Before the memory goes: from then on another thread may get the same address.
        let ended = ledger::remove(&item);
        let released = self.release_memory();
        if self.address != 0 {
            ledger::restore(&item, ended);
        }
        released
    }
}

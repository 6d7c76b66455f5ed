//! Buffers in the ledger.

use bytemuck::Pod;
use cuda_driver_sys::CUdeviceptr;

use super::DeviceBuffer;
use super::deallocator::Deallocator;
use crate::base::error::Result;
use crate::base::report::caught;
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

/// The kind under which a resource's memory is listed. Also called in a destructor, so panics are caught here.
pub(super) fn kind_from(resource: &dyn MemoryResource) -> LedgerKind {
    let ask = || resource.memory_kind();
    match caught(ask) {
        Some(MemoryKind::Managed) => LedgerKind::ManagedMemory,
        _ => LedgerKind::Buffer,
    }
}

/// The kind under which memory with this deallocator is listed. Memory freed by the driver is listed as a buffer,
/// even that of a managed pool.
pub(super) fn kind_of(deallocator: &Deallocator) -> LedgerKind {
    match deallocator {
        Deallocator::Resource(resource, _) => kind_from(&***resource),
        _ => LedgerKind::Buffer,
    }
}

/// Records memory for a buffer, before the buffer is constructed: a buffer whose address had been taken would have
/// to be copied into its place.
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
    /// The bytes that are freed with the buffer: the capacity, which may exceed its length.
    pub(super) fn held_bytes(&self) -> usize {
        match &*self.deallocator {
            Deallocator::Resource(_, layout) => layout.size(),
            _ => self.size_bytes(),
        }
    }

    /// The ledger entry: memory that the buffer must free.
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

    /// Removes the memory from the ledger, because its ownership is released.
    #[cold]
    pub(super) fn leave_ledger(&self) {
        if let Some(item) = self.item() {
            ledger::remove(&item);
        }
    }

    /// Like [`release_memory`](Self::release_memory), and updates the ledger.
    #[cold]
    pub(super) fn release_listed(&mut self) -> Result<()> {
        let Some(item) = self.item() else {
            return self.release_memory();
        };
        // Before the memory is freed: from then on another thread may get the same address.
        let ended = ledger::remove(&item);
        let released = self.release_memory();
        if self.address != 0 {
            ledger::restore(&item, ended);
        }
        released
    }
}

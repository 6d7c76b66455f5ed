//! What memory is shared through: descriptors, or handles of Windows.

pub(crate) use system::*;

#[cfg(unix)]
mod system {
    use std::os::fd::{AsFd as _, OwnedFd};

    use cuda_mem::driver::HandleTypes;
    use cuda_mem::interop::ImportedPool;
    use cuda_mem::mapped::{GrowableBuffer, PhysicalMemory};
    use cuda_mem::{Device, Driver, MemoryPool, Result};

    /// The kind of handle.
    pub(crate) const KIND: HandleTypes = HandleTypes::POSIX_FILE_DESCRIPTOR;

    pub(crate) fn of_pool(pool: &MemoryPool) -> Result<OwnedFd> {
        pool.export_fd()
    }

    #[track_caller]
    pub(crate) fn import_pool(device: &Device, handle: &OwnedFd) -> Result<ImportedPool> {
        ImportedPool::from_fd(device, handle)
    }

    pub(crate) fn of_memory(memory: &PhysicalMemory) -> Result<OwnedFd> {
        memory.export_fd()
    }

    /// Of each part of a buffer, with its bytes.
    pub(crate) fn of_parts(buffer: &GrowableBuffer<u8>) -> Result<Vec<(OwnedFd, u64)>> {
        buffer.export_fds()
    }

    #[track_caller]
    pub(crate) fn import_memory(
        driver: Driver,
        handle: &OwnedFd,
        bytes: u64,
    ) -> Result<PhysicalMemory> {
        PhysicalMemory::import_fd(driver, handle.as_fd(), bytes)
    }
}

#[cfg(windows)]
mod system {
    use std::os::windows::io::{AsHandle as _, OwnedHandle};

    use cuda_mem::driver::HandleTypes;
    use cuda_mem::interop::ImportedPool;
    use cuda_mem::mapped::{GrowableBuffer, PhysicalMemory};
    use cuda_mem::{Device, Driver, MemoryPool, Result};

    /// The kind of handle.
    pub(crate) const KIND: HandleTypes = HandleTypes::WIN32;

    pub(crate) fn of_pool(pool: &MemoryPool) -> Result<OwnedHandle> {
        pool.export_handle()
    }

    #[track_caller]
    pub(crate) fn import_pool(device: &Device, handle: &OwnedHandle) -> Result<ImportedPool> {
        ImportedPool::from_handle(device, handle)
    }

    pub(crate) fn of_memory(memory: &PhysicalMemory) -> Result<OwnedHandle> {
        memory.export_handle()
    }

    /// Of each part of a buffer, with its bytes.
    pub(crate) fn of_parts(buffer: &GrowableBuffer<u8>) -> Result<Vec<(OwnedHandle, u64)>> {
        buffer.export_handles()
    }

    #[track_caller]
    pub(crate) fn import_memory(
        driver: Driver,
        handle: &OwnedHandle,
        bytes: u64,
    ) -> Result<PhysicalMemory> {
        PhysicalMemory::import_handle(driver, handle.as_handle(), bytes)
    }
}

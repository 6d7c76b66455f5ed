//! What memory is shared through: descriptors, or handles of Windows.

pub use system::*;

#[cfg(unix)]
mod system {
    use std::os::fd::OwnedFd;

    use cuda_mem::driver::HandleTypes;
    use cuda_mem::interop::ImportedPool;
    use cuda_mem::mapped::{GrowableBuffer, PhysicalMemory};
    use cuda_mem::placement::Export;
    use cuda_mem::{Device, Driver, MemoryPool, Result};

    /// The kind of handle.
    pub const KIND: HandleTypes = HandleTypes::POSIX_FILE_DESCRIPTOR;

    /// What asks a placement for it.
    pub const EXPORT: Export = Export::PosixFd;

    /// Exports a pool.
    pub fn of_pool(pool: &MemoryPool) -> Result<OwnedFd> {
        pool.export_fd()
    }

    /// Imports a pool.
    #[track_caller]
    pub fn import_pool(device: &Device, handle: &OwnedFd) -> Result<ImportedPool> {
        ImportedPool::from_fd(device, handle)
    }

    /// Exports physical memory.
    pub fn of_memory(memory: &PhysicalMemory) -> Result<OwnedFd> {
        memory.export_fd()
    }

    /// Exports each part of a buffer, with its size in bytes.
    pub fn of_parts(buffer: &GrowableBuffer<u8>) -> Result<Vec<(OwnedFd, u64)>> {
        buffer.export_fds()
    }

    /// Imports physical memory of `bytes` bytes.
    #[track_caller]
    pub fn import_memory(driver: Driver, handle: &OwnedFd, bytes: u64) -> Result<PhysicalMemory> {
        PhysicalMemory::import_fd(driver, handle, bytes)
    }
}

#[cfg(windows)]
mod system {
    use std::os::windows::io::OwnedHandle;

    use cuda_mem::driver::HandleTypes;
    use cuda_mem::interop::ImportedPool;
    use cuda_mem::mapped::{GrowableBuffer, PhysicalMemory};
    use cuda_mem::placement::Export;
    use cuda_mem::{Device, Driver, MemoryPool, Result};

    /// The kind of handle.
    pub const KIND: HandleTypes = HandleTypes::WIN32;

    /// What asks a placement for it.
    pub const EXPORT: Export = Export::Win32;

    /// Exports a pool.
    pub fn of_pool(pool: &MemoryPool) -> Result<OwnedHandle> {
        pool.export_handle()
    }

    /// Imports a pool.
    #[track_caller]
    pub fn import_pool(device: &Device, handle: &OwnedHandle) -> Result<ImportedPool> {
        ImportedPool::from_handle(device, handle)
    }

    /// Exports physical memory.
    pub fn of_memory(memory: &PhysicalMemory) -> Result<OwnedHandle> {
        memory.export_handle()
    }

    /// Exports each part of a buffer, with its size in bytes.
    pub fn of_parts(buffer: &GrowableBuffer<u8>) -> Result<Vec<(OwnedHandle, u64)>> {
        buffer.export_handles()
    }

    /// Imports physical memory of `bytes` bytes.
    #[track_caller]
    pub fn import_memory(
        driver: Driver,
        handle: &OwnedHandle,
        bytes: u64,
    ) -> Result<PhysicalMemory> {
        PhysicalMemory::import_handle(driver, handle, bytes)
    }
}

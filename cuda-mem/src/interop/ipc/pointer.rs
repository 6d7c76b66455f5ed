//! Exporting a buffer, and importing one.

use bytemuck::Pod;
use cuda_driver_sys::{CUdeviceptr, CUmemorytype, CUpointer_attribute};

use super::handles::{PointerToken, SharedBuffer};
use super::pool::ImportedPool;
use super::registry;
use super::reply::Received;
use crate::base::error::{Error, Result};
use crate::base::report;
use crate::driver::device::Device;
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::memory::buffer::{DeviceBuffer, ExternalOwner};
use crate::memory::pool;
use crate::stream::Stream;

impl<T: Pod> DeviceBuffer<T> {
    /// Says where this buffer lies, for another process that imports it with [`ImportedPool::import`].
    /// Its pool must have been exported before (measured).
    ///
    /// The other process may import it at once, but may use the memory only when the allocation is
    /// done, and must have freed it before it is freed here;
    /// [`Channel::lend`](super::Channel::lend) takes care of both.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the buffer is empty, not from the start of an
    /// allocation, or from a pool that was not exported.
    #[doc(alias = "cuMemPoolExportPointer")]
    pub fn export(&self) -> Result<SharedBuffer> {
        if self.as_raw() == 0 {
            return Err(Error::invalid(
                "an empty buffer has no memory to share".to_owned(),
            ));
        }
        let _ends = pool::no_pool_ends()?;
        let table = self.stream().device().driver().table();
        // SAFETY: the memory is live, and no pool ends meanwhile.
        let token = unsafe { raw::ipc::export_pointer(table, self.as_raw()) }.map_err(|error| {
            error.asked(|| {
                format!(
                    "{}, which must be memory of a pool that was exported before",
                    self.in_words()
                )
            })
        })?;
        Ok(SharedBuffer {
            token: PointerToken(token),
            len: self.len() as u64,
            element_size: size_of::<T>() as u64,
        })
    }
}

impl ImportedPool {
    /// Imports a buffer of the other process, to use it in the order of `stream`. Importing one buffer
    /// twice gives two views of one mapping, which ends with the last of them, after the work of both.
    ///
    /// Dropping the view ends the mapping in the order of its stream and frees nothing of the other
    /// process.
    ///
    /// # Safety
    ///
    /// - The description was made by [`export`](DeviceBuffer::export) of a buffer of this very pool.
    ///   The driver believes what it is given, and other bytes can crash the process (measured).
    /// - The exporter's allocation is done before what comes to `stream` from now on, by word of the
    ///   exporter or by an event of it (R55), and the exporter frees the memory only after the end of
    ///   this view has been reached in its stream (R56).
    /// - Whoever else uses the memory meanwhile, in whatever process, is ordered with this view's
    ///   stream, if one of them writes.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the elements are of another size, if the
    /// buffer is not as large as it says, if it is no buffer of this pool, or if the stream's device has
    /// no access; else as the driver answers. Nothing stays imported then.
    #[doc(alias = "cuMemPoolImportPointer")]
    #[track_caller]
    pub unsafe fn import<T: Pod>(
        &self,
        stream: &Stream,
        shared: &SharedBuffer,
    ) -> Result<DeviceBuffer<T>> {
        // SAFETY: the caller vouches for it.
        unsafe { self.import_as(stream, shared, None) }
    }

    /// As [`import`](Self::import), of a buffer that came through a channel.
    ///
    /// # Safety
    ///
    /// As there.
    #[track_caller]
    pub(super) unsafe fn import_as<T: Pod>(
        &self,
        stream: &Stream,
        shared: &SharedBuffer,
        received: Option<Received>,
    ) -> Result<DeviceBuffer<T>> {
        let len = shared.len_of::<T>()?;
        // SAFETY: the caller vouches for it.
        unsafe { self.import_with(stream, &shared.token, len, received) }
    }

    /// As [`import`](Self::import), for a token that came without its length.
    ///
    /// # Safety
    ///
    /// As there.
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias = "cuMemPoolImportPointer")]
    #[track_caller]
    pub unsafe fn import_token<T: Pod>(
        &self,
        stream: &Stream,
        token: &PointerToken,
        len: usize,
    ) -> Result<DeviceBuffer<T>> {
        // SAFETY: the caller vouches for it.
        unsafe { self.import_with(stream, token, len, None) }
    }

    /// # Safety
    ///
    /// As [`import`](Self::import).
    #[track_caller]
    unsafe fn import_with<T: Pod>(
        &self,
        stream: &Stream,
        token: &PointerToken,
        len: usize,
        received: Option<Received>,
    ) -> Result<DeviceBuffer<T>> {
        let Some(bytes) = len.checked_mul(size_of::<T>()).filter(|bytes| *bytes > 0) else {
            return Err(Error::invalid(format!(
                "{len} elements of {} bytes cannot be imported",
                size_of::<T>()
            )));
        };
        if !self.reaches(&stream.device())? {
            return Err(Error::invalid(format!(
                "{} has no access to the {self}; call `accessible_from` first",
                stream.device()
            )));
        }
        let (driver, raw_pool) = (self.driver(), self.as_raw());
        let address = registry::import_pointer(driver, raw_pool, || {
            // SAFETY: the pool is live, the caller vouches for the token, and no pool ends meanwhile.
            unsafe { raw::ipc::import_pointer(driver.table(), raw_pool, token.0) }
                .map_err(|error| error.asked(|| format!("{bytes} bytes of the {self}")))
        })?;
        let mapping = Box::new(Mapping {
            pool: self.clone(),
            address,
            bytes,
            received,
        });
        ledger::insert(mapping.item());
        match self.look_at(address, bytes) {
            // SAFETY: the caller vouches for the memory, which stays mapped until the mapping is
            // released, and that is in the order of this stream and of all others that have it.
            Ok(device) => Ok(unsafe { DeviceBuffer::kept(stream, device, address, len, mapping) }),
            Err(error) => {
                report::release("imported buffer", || mapping.release(stream));
                Err(error)
            }
        }
    }

    /// Refuses a length that is not the exporter's; answers whose memory it is.
    fn look_at(&self, address: CUdeviceptr, bytes: usize) -> Result<Option<Device>> {
        use CUpointer_attribute as A;
        let table = self.driver().table();
        // SAFETY: the attribute is 8 bytes wide.
        let found =
            unsafe { raw::pointer::wide(table, A::CU_POINTER_ATTRIBUTE_RANGE_SIZE, address) }?;
        if found != bytes as u64 {
            return Err(Error::invalid(format!(
                "the buffer of the other process has {found} bytes, not {bytes}"
            )));
        }
        // SAFETY: the attribute is 4 bytes wide.
        let kind =
            unsafe { raw::pointer::narrow(table, A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) }?;
        if CUmemorytype(kind) != CUmemorytype::CU_MEMORYTYPE_DEVICE {
            return Ok(None);
        }
        // SAFETY: the attribute is 4 bytes wide.
        let ordinal = unsafe {
            raw::pointer::narrow(table, A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)
        }?;
        if ordinal == self.device().ordinal() {
            return Ok(Some(self.device()));
        }
        // A device that is not visible here has no ordinal.
        Ok(self.driver().device(ordinal as usize).ok())
    }
}

/// What an imported buffer keeps.
struct Mapping {
    pool: ImportedPool,
    address: CUdeviceptr,
    bytes: usize,
    /// If it came through a channel.
    received: Option<Received>,
}

impl Mapping {
    /// By its own place: a buffer that is imported twice has one address.
    fn item(&self) -> Item {
        Item::new(LedgerKind::ImportedBuffer, std::ptr::from_ref(self))
            .on(self.pool.device())
            .bytes(self.bytes)
    }
}

impl ExternalOwner for Mapping {
    fn loan_number(&self) -> Option<u64> {
        self.received.as_ref().map(|received| received.number)
    }

    fn note_failed_return(&self, failure: Option<String>) {
        if let Some(received) = &self.received {
            received.set_failure(failure);
        }
    }

    fn abandon(&self) {
        if let Some(received) = &self.received {
            received.end(None);
        }
    }

    fn release(self: Box<Self>, stream: &Stream) -> Result<()> {
        ledger::remove(&self.item());
        let pool = &self.pool;
        let freed = registry::release_pointer(pool.driver(), pool.as_raw(), self.address, stream);
        if let Some(received) = &self.received {
            received.end(Some(stream));
        }
        freed
    }
}

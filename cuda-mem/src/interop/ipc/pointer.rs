//! Exporting a buffer, and importing one.

use bytemuck::Pod;
use cuda_driver_sys::{CUdeviceptr, CUmemorytype, CUpointer_attribute};

use super::handles::{PointerToken, SharedBuffer};
use super::pool::ImportedPool;
use super::registry;
use super::reply::Received;
use crate::base::error::{Error, ErrorKind, Result};
use crate::driver::device::Device;
use crate::driver::raw;
use crate::ledger::{self, Item, LedgerKind};
use crate::memory::buffer::{DeviceBuffer, ExternalOwner, Refused};
#[cfg(target_os = "linux")]
use crate::memory::buffer::{Loan, ReturnAttempt};
use crate::memory::pool;
use crate::memory::resource::CAPTURED;
use crate::stream::{Stream, StreamRef, recording};

impl<T: Pod> DeviceBuffer<T> {
    /// The location of this buffer, for another process that imports it with [`ImportedPool::import`]. The pool must
    /// have been exported before (measured).
    ///
    /// The other process may import the buffer at once, but may use the memory only after the allocation is complete,
    /// and must free its mapping before the buffer is freed here; `Channel::lend` ensures both on Linux.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the buffer is empty, does not start at an allocation, or is
    /// from a pool that was not exported.
    #[doc(alias = "cuMemPoolExportPointer")]
    pub fn export(&self) -> Result<SharedBuffer> {
        if self.as_raw() == 0 {
            return Err(Error::invalid(
                "an empty buffer has no memory to share".to_owned(),
            ));
        }
        let _ends = pool::no_pool_ends()?;
        let table = self.stream().device().driver().table();
        let token = recording::relaxed_while_capturing(table, || {
            // SAFETY: the memory is live, and no pool ends meanwhile.
            unsafe { raw::ipc::export_pointer(table, self.as_raw()) }
        })
        .map_err(|error| {
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
    /// Imports a buffer of the other process, to use it in the order of `stream`. Importing one buffer twice gives two
    /// views of one mapping, which ends with the last of them, after the work of both.
    ///
    /// Dropping the view ends the mapping in the order of its stream and frees nothing in the other process.
    ///
    /// # Safety
    ///
    /// - The description was made by [`export`](DeviceBuffer::export) of a buffer of this very pool. The driver does
    ///   not validate it, and other bytes can crash the process (measured).
    /// - The exporter's allocation is complete before any work that is submitted to `stream` from now on, as confirmed
    ///   by the exporter or by one of its events (R55), and the exporter frees the memory only after the end of this
    ///   view has been reached in its stream (R56).
    /// - All other uses of the memory meanwhile, in any process, are ordered with this view's stream, if one of them
    ///   writes.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the elements have another size, if the buffer is not as
    /// large as its description says, if it does not belong to this pool, or if the stream's device has no access;
    /// otherwise any driver error. Nothing stays imported then.
    #[doc(alias = "cuMemPoolImportPointer")]
    #[track_caller]
    pub unsafe fn import<T: Pod>(
        &self,
        stream: &Stream,
        shared: &SharedBuffer,
    ) -> Result<DeviceBuffer<T>> {
        // SAFETY: the caller vouches for it.
        unsafe { self.import_with(stream, &shared.token, shared.len_of::<T>()?, None) }
    }

    /// As [`import`](Self::import), for a buffer that was received through a channel. That is not answered if the import
    /// fails.
    ///
    /// # Safety
    ///
    /// The same conditions.
    #[cfg(target_os = "linux")]
    #[track_caller]
    pub(super) unsafe fn import_as<T: Pod>(
        &self,
        stream: &Stream,
        shared: &SharedBuffer,
        received: Received,
    ) -> Result<DeviceBuffer<T>> {
        let len = shared.len_of::<T>()?;
        // SAFETY: the caller vouches for it.
        unsafe { self.import_with(stream, &shared.token, len, Some(received)) }
    }

    /// As [`import`](Self::import), for a token without a length.
    ///
    /// # Safety
    ///
    /// The same conditions.
    ///
    /// # Errors
    ///
    /// The same errors.
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
            recording::relaxed_while_capturing(driver.table(), || {
                // SAFETY: the pool is live, the caller vouches for the token, and no pool ends meanwhile.
                unsafe { raw::ipc::import_pointer(driver.table(), raw_pool, token.0) }
            })
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
                #[cfg(target_os = "linux")]
                mapping.note_return(ReturnAttempt::Begun);
                // Its end frees the memory, now or after a capture of the stream.
                //
                // SAFETY: the import has succeeded, so the owner keeps the memory mapped (R26). Nothing has used it.
                drop(unsafe { DeviceBuffer::<u8>::kept(stream, None, address, bytes, mapping) });
                Err(error)
            }
        }
    }

    /// Refuses a length that is not the exporter's; returns the device of the memory.
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

/// The owner of an imported buffer's memory.
struct Mapping {
    pool: ImportedPool,
    address: CUdeviceptr,
    bytes: usize,
    /// Set if it was received through a channel.
    received: Option<Received>,
}

impl Mapping {
    /// Identified by its own address: a buffer that is imported twice has one device address.
    fn item(&self) -> Item {
        Item::new(LedgerKind::ImportedBuffer, std::ptr::from_ref(self))
            .on(self.pool.device())
            .bytes(self.bytes)
    }
}

impl ExternalOwner for Mapping {
    /// Does not wait. Once the release has begun it cannot be put off, so a captured stream is refused before.
    fn wait(&self, stream: StreamRef<'_>) -> Result<bool> {
        stream.refuse_captured(CAPTURED)?;
        Ok(false)
    }

    #[cfg(target_os = "linux")]
    fn loan(&self) -> Option<Loan> {
        self.received.as_ref().map(Received::loan)
    }

    #[cfg(target_os = "linux")]
    fn note_return(&self, what: ReturnAttempt) {
        if let Some(received) = &self.received {
            received.note_return(what);
        }
    }

    fn abandon(&self, failure: &Error) {
        if let Some(received) = &self.received {
            received.abandon(failure);
        }
    }

    fn waits_for_stream(&self) -> bool {
        self.received.as_ref().is_some_and(Received::waits_to_end)
    }

    fn release(self: Box<Self>, stream: &Stream) -> Result<(), Refused> {
        let item = self.item();
        let ended = ledger::remove(&item);
        let (driver, pool) = (self.pool.driver(), self.pool.as_raw());
        let freed = registry::release_pointer(driver, pool, self.address, stream);
        let freed = match freed {
            Err(error) if error.kind() == ErrorKind::Capturing => {
                ledger::restore(&item, ended);
                let owner: Option<Box<dyn ExternalOwner>> = Some(self);
                return Err(Refused { error, owner });
            }
            freed => freed,
        };
        if let Some(received) = self.received {
            let in_use = match freed {
                Ok(users @ 1..) => Some(Error::in_use("the other process's memory", users)),
                _ => None,
            };
            received.end(stream, freed.as_ref().err().or(in_use.as_ref()));
        }
        freed
            .map(drop)
            .map_err(|error| Refused { error, owner: None })
    }
}

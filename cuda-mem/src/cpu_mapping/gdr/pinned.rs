//! Memory pinned and mapped through gdrcopy.

use std::ffi::c_void;
use std::ptr::NonNull;

use cuda_driver_sys::CUdeviceptr;
use cuda_driver_sys::gdr::{
    GDR_MAP_FLAG_DEFAULT, GDR_PIN_FLAG_DEFAULT, GDR_PIN_FLAG_FORCE_PCIE, GPU_PAGE_SIZE,
    gdr_info_v2_t, gdr_mapping_type_t, gdr_mh_t,
};

use super::Gdr;
use crate::base::error::{Error, Result};
use crate::base::{pages, report};
use crate::driver::raw;

/// Device memory, pinned and mapped. Dropping it unmaps and unpins, in this order.
#[derive(Debug)]
pub(crate) struct GdrMapping {
    gdr: Gdr,
    /// `None` once closed.
    pinned: Option<gdr_mh_t>,
    /// Null until it is mapped.
    mapped: *mut c_void,
    /// Bytes pinned and mapped: whole GPU pages.
    bytes: usize,
    /// Offset of the requested range in the mapping.
    offset: usize,
    kind: gdr_mapping_type_t,
}

// SAFETY: the mapping belongs to the process, not to a thread, and each call of the library holds its lock.
unsafe impl Send for GdrMapping {}

impl GdrMapping {
    /// Pins the pages around a range and maps them. Fails if the mapping is not of kind `wanted`; 0 accepts any kind.
    ///
    /// # Safety
    ///
    /// The range is device memory that stays valid until this is dropped.
    pub(crate) unsafe fn new(
        gdr: Gdr,
        (address, bytes): (CUdeviceptr, usize),
        wanted: gdr_mapping_type_t,
        force_pcie: bool,
    ) -> Result<Self> {
        let too_large = || Error::invalid(format!("{bytes} bytes at {address:#x} are too many"));
        let (first, whole) =
            pages::around((address, bytes), GPU_PAGE_SIZE).ok_or_else(too_large)?;
        let flags = if force_pcie {
            GDR_PIN_FLAG_FORCE_PCIE
        } else {
            GDR_PIN_FLAG_DEFAULT
        };
        let map_flags = GDR_MAP_FLAG_DEFAULT + wanted.0.cast_signed();
        let lock = gdr.handle()?;
        let table = gdr.table();
        // SAFETY: the handle is open and this thread holds its lock; the caller guarantees the memory.
        let handle = unsafe { raw::gdr::pin(table, lock.0, (first, whole), flags) }
            .map_err(|error| error.asked(|| format!("{whole} bytes at {first:#x}")))?;
        let mut mapping = Self {
            gdr,
            pinned: Some(handle),
            mapped: std::ptr::null_mut(),
            bytes: whole,
            offset: (address - first) as usize,
            kind: wanted,
        };
        // SAFETY: as above; the handle was pinned just now.
        let mapped = unsafe { raw::gdr::map(table, lock.0, handle, whole, map_flags) };
        drop(lock); // dropping `mapping` takes it
        mapping.mapped = mapped.map_err(|error| {
            error.asked(|| format!("{whole} bytes, mapped as {}", in_words(wanted)))
        })?;
        mapping.kind = mapping.info()?.mapping_type;
        Ok(mapping)
    }

    /// Host address of the requested range.
    pub(crate) fn start(&self) -> NonNull<u8> {
        // SAFETY: the offset is less than a page, and whole pages are mapped.
        let at = unsafe { self.mapped.cast::<u8>().add(self.offset) };
        NonNull::new(at).unwrap_or(NonNull::dangling())
    }

    /// The kind of the mapping.
    pub(crate) fn kind(&self) -> gdr_mapping_type_t {
        self.kind
    }

    /// What the library reports about the mapping.
    pub(crate) fn info(&self) -> Result<gdr_info_v2_t> {
        let lock = self.gdr.handle()?;
        let handle = self.pinned.unwrap_or_default();
        // SAFETY: the handle is open and this thread holds its lock; the memory stays pinned while this lives.
        unsafe { raw::gdr::info(self.gdr.table(), lock.0, handle) }
    }

    /// Whether the driver revoked the mapping.
    pub(crate) fn is_revoked(&self) -> Result<bool> {
        let lock = self.gdr.handle()?;
        let handle = self.pinned.unwrap_or_default();
        // SAFETY: as above.
        unsafe { raw::gdr::callback_flag(self.gdr.table(), lock.0, handle) }
    }

    /// Unmaps and unpins, and returns any error. The drop does not repeat it.
    pub(crate) fn close(mut self) -> Result<()> {
        self.end()
    }

    fn end(&mut self) -> Result<()> {
        let Some(handle) = self.pinned else {
            return Ok(());
        };
        let lock = self.gdr.handle()?;
        self.pinned = None;
        let (table, mapped) = (
            self.gdr.table(),
            std::mem::replace(&mut self.mapped, std::ptr::null_mut()),
        );
        let unmapped = if mapped.is_null() {
            Ok(())
        } else {
            // SAFETY: this is the handle's mapping, and every `CpuMapping` over it is gone or unused by now.
            unsafe { raw::gdr::unmap(table, lock.0, handle, mapped, self.bytes) }
        };
        // SAFETY: the handle is not used again. Also done if unmapping failed: unpinned memory is not mapped.
        let unpinned = unsafe { raw::gdr::unpin(table, lock.0, handle) };
        unmapped.and(unpinned)
    }
}

impl Drop for GdrMapping {
    fn drop(&mut self) {
        report::release("CPU mapping", || self.end());
    }
}

/// How the processor treats accesses.
fn in_words(kind: gdr_mapping_type_t) -> &'static str {
    match kind {
        gdr_mapping_type_t::GDR_MAPPING_TYPE_WC => "write-combining",
        gdr_mapping_type_t::GDR_MAPPING_TYPE_CACHING => "cached",
        gdr_mapping_type_t::GDR_MAPPING_TYPE_DEVICE => "device",
        _ => "the library likes",
    }
}

//! Memory that the processor accesses directly, through any back end.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use cuda_driver_sys::gdr::gdr_mapping_type_t;

#[cfg(target_os = "linux")]
use super::dma_buf::DmaBufMapping;
use super::kind::MappingKind;
use super::mmio::{self, Routine};
use crate::base::error::Result;
use crate::cpu_mapping::gdr::GdrMapping;

/// Up to this size, writes to host memory use ordinary stores.
const CACHED: usize = 64 << 10;

/// Kinds of mapping that this process has had, one bit each. With several, stores need the full fence.
static KINDS: AtomicU8 = AtomicU8::new(0);

#[derive(Debug)]
pub(super) enum Backend {
    /// Host memory at this address.
    Host(NonNull<u8>, MappingKind),
    #[cfg(target_os = "linux")]
    DmaBuf(DmaBufMapping),
    Gdr(GdrMapping),
}

/// A mapped range and its back end. Dropping it unmaps.
#[derive(Debug)]
pub(super) struct View {
    at: NonNull<u8>,
    bytes: usize,
    backend: Backend,
    routine: Routine,
}

// SAFETY: the addresses belong to the process, not to a thread. The `CpuMapping` controls their use and admits one
// thread at a time.
unsafe impl Send for View {}

impl View {
    pub(super) fn new(backend: Backend, bytes: usize) -> Self {
        let at = match &backend {
            Backend::Host(at, _) => *at,
            #[cfg(target_os = "linux")]
            Backend::DmaBuf(mapping) => mapping.start(),
            Backend::Gdr(mapping) => mapping.start(),
        };
        let view = Self {
            at,
            bytes,
            backend,
            routine: Routine::best(),
        };
        KINDS.fetch_or(1 << view.kind() as u8, Ordering::Relaxed);
        view
    }

    /// How the processor treats accesses.
    pub(super) fn kind(&self) -> MappingKind {
        match &self.backend {
            Backend::Host(_, kind) => *kind,
            #[cfg(target_os = "linux")]
            Backend::DmaBuf(_) => MappingKind::Unknown,
            Backend::Gdr(mapping) => match mapping.kind() {
                gdr_mapping_type_t::GDR_MAPPING_TYPE_WC => MappingKind::WriteCombining,
                gdr_mapping_type_t::GDR_MAPPING_TYPE_CACHING => MappingKind::Cached,
                gdr_mapping_type_t::GDR_MAPPING_TYPE_DEVICE => MappingKind::Device,
                _ => MappingKind::Unknown,
            },
        }
    }

    pub(super) fn backend(&self) -> &Backend {
        &self.backend
    }

    fn is_mixed() -> bool {
        KINDS.load(Ordering::Relaxed).count_ones() > 1
    }

    /// Address of a range that was checked to lie in the mapping.
    fn at(&self, offset: usize, bytes: usize) -> *mut u8 {
        debug_assert!(
            offset
                .checked_add(bytes)
                .is_some_and(|end| end <= self.bytes)
        );
        // SAFETY: callers stay within the mapping.
        unsafe { self.at.as_ptr().add(offset) }
    }

    /// Whether this is ordinary memory for the processor, where an extra access does no harm.
    fn is_host(&self) -> bool {
        matches!(self.backend, Backend::Host(_, MappingKind::Cached))
    }

    pub(super) fn write(&mut self, offset: usize, from: &[u8]) {
        let to = self.at(offset, from.len());
        // Streaming stores bypass the caches: right for data that leaves them anyway, slow for a few bytes of host
        // memory.
        let routine = if self.is_host() && from.len() <= CACHED {
            Routine::Plain
        } else {
            self.routine
        };
        // SAFETY: the range is inside; a slice of the program overlaps neither a mapping nor host memory that a buffer
        // owns; the `CpuMapping` has exclusive access except for devices; the fence follows.
        unsafe { mmio::store(routine, to, from.as_ptr(), from.len()) };
        mmio::fence_after_store(Self::is_mixed());
    }

    pub(super) fn read(&self, offset: usize, to: &mut [u8]) {
        let from = self.at(offset, to.len());
        mmio::fence_around_load();
        // SAFETY: as in `write`; nothing stores through the mapping while it is borrowed here.
        unsafe { mmio::load(self.routine, to.as_mut_ptr(), from, to.len()) };
        if !self.is_host() {
            mmio::fence_around_load();
        }
    }

    /// One store if the address is a multiple of the size, otherwise a copy of bytes.
    pub(super) fn store<T: bytemuck::Pod>(&mut self, offset: usize, value: T) {
        let to = self.at(offset, size_of::<T>());
        if to.addr().is_multiple_of(size_of::<T>()) {
            // SAFETY: as in `write`, and the address is a multiple of the size.
            unsafe { mmio::store_once(to.cast::<T>(), value) };
            mmio::fence_after_store(Self::is_mixed());
        } else {
            self.write(offset, bytemuck::bytes_of(&value));
        }
    }

    /// One load if the address is a multiple of the size, otherwise a copy of bytes.
    pub(super) fn load<T: bytemuck::Pod>(&self, offset: usize) -> T {
        let from = self.at(offset, size_of::<T>());
        if from.addr().is_multiple_of(size_of::<T>()) {
            // Ordinary memory does without: there the program's own acquire orders the load.
            if !self.is_host() {
                mmio::fence_around_load();
            }
            // SAFETY: as in `read`, and the address is a multiple of the size.
            let value = unsafe { mmio::load_once(from.cast::<T>()) };
            // Later loads must not return older data.
            if self.is_host() {
                std::sync::atomic::fence(Ordering::Acquire);
            } else {
                mmio::fence_around_load();
            }
            return value;
        }
        let mut value = T::zeroed();
        self.read(offset, bytemuck::bytes_of_mut(&mut value));
        value
    }

    /// Loads after the stores: the result cannot arrive before they have.
    pub(super) fn flush(&mut self) {
        mmio::fence_after_store(true);
        if !self.is_host() && self.bytes > 0 {
            // SAFETY: there is at least one byte.
            let _arrived: u8 = unsafe { mmio::load_once(self.at(0, 1)) };
            mmio::fence_around_load();
        }
    }

    pub(super) fn close(self) -> Result<()> {
        match self.backend {
            Backend::Host(..) => Ok(()),
            #[cfg(target_os = "linux")]
            Backend::DmaBuf(mapping) => mapping.close(),
            Backend::Gdr(mapping) => mapping.close(),
        }
    }
}

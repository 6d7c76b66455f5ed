//! System-allocated memory: what the program has from `malloc`, `mmap`, its stack or its image. Documented: where devices
//! use the page tables of the host, kernels, copies and memsets take it as they take managed memory, and so do advice,
//! prefetches, discards and attachment. Nothing of this is measured.

use crate::state::State;
use crate::system::is_program_memory;

impl State {
    /// Whether devices may access a range because it is memory of the program, which they may also write if asked for.
    pub(crate) fn is_system_allocated(&self, address: u64, len: u64, writes: bool) -> bool {
        self.knobs.is_coherent() && is_program_memory(address, len, writes)
    }

    /// Whether such a range is pageable. A guess: what begins in registered memory is not.
    pub(crate) fn is_pageable(&self, address: u64, len: usize) -> bool {
        len > 0
            && self.registration(address).is_none()
            && self.is_system_allocated(address, len as u64, false)
    }
}

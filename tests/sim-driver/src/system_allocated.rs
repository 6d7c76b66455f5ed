//! System-allocated memory: what the program has from `malloc`, `mmap`, its stack or its image. Documented: where devices
//! use the page tables of the host, kernels, copies and memsets take it as they take managed memory, and so do advice,
//! prefetches, discards and attachment. Nothing of this is measured.

use crate::configuration::Configuration;
use crate::state::{State, state};
use crate::system::{is_own_memory, is_program_memory};

impl State {
    /// Whether devices may access a range because it is memory of the program, which they may also write if asked for.
    pub(crate) fn is_system_allocated(&self, address: u64, len: u64, writes: bool) -> bool {
        self.configuration.is_coherent() && is_program_memory(address, len, writes)
    }

    /// Whether devices would access memory of the program there, and there is none.
    pub(crate) fn is_gone(&self, address: u64, len: usize, writes: bool) -> bool {
        let bytes = len as u64;
        self.configuration.is_coherent()
            && !is_own_memory(address, bytes)
            && !is_program_memory(address, bytes, writes)
    }

    /// Whether such a range is pageable. A guess: what begins in registered memory is not.
    pub(crate) fn is_pageable(&self, address: u64, len: usize) -> bool {
        len > 0
            && self.registration(address).is_none()
            && self.is_system_allocated(address, len as u64, false)
    }
}

/// A range that work accesses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Accessed {
    pub(crate) address: u64,
    pub(crate) len: usize,
    pub(crate) writes: bool,
}

/// The memory of the program that submitted work accesses. Unlike memory of the driver it may be gone when the work runs.
#[derive(Debug, Default)]
pub(crate) struct ProgramMemory(Vec<Accessed>);

impl ProgramMemory {
    /// What is none of the simulator's at submission. Only coherent machines look at it.
    pub(crate) fn among(accessed: impl FnOnce() -> Vec<Accessed>) -> Self {
        if !Configuration::get().is_coherent() {
            return Self::default();
        }
        let mut accessed = accessed();
        accessed.retain(|it| it.len > 0 && !is_own_memory(it.address, it.len as u64));
        Self(accessed)
    }

    /// The first range that the program has taken back.
    pub(crate) fn missing(&self) -> Option<Accessed> {
        let mut all = self.0.iter();
        let is_there = |it: &Accessed| is_program_memory(it.address, it.len as u64, it.writes);
        all.find(|it| !is_there(it)).copied()
    }
}

impl Accessed {
    /// Reports work that found nothing there.
    pub(crate) fn report_missing(self) {
        let Self {
            address,
            len,
            writes,
        } = self;
        let what = if writes { "write" } else { "read" };
        if let Ok(mut state) = state() {
            state.reports.add(format!(
                "illegal address: {what} {len} bytes at {address:#x} finds no memory of the program any more; the work \
                 was left out, a device would stop the context"
            ));
        }
    }
}

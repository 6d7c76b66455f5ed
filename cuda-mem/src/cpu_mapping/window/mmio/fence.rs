//! Orders accesses to a mapping among others.
//!
//! Write-combining memory is weakly ordered, and so are streaming stores to any memory: a store waits in a processor
//! buffer, and only a fence guarantees that it has left. Streaming loads are weakly ordered too, and may be served from
//! a buffer that device stores do not reach. Ordinary memory is unaffected: there a streaming load is a plain load, and
//! a fence costs some nanoseconds for nothing.

#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
use std::sync::atomic::{Ordering, fence};

/// Follows stores to a mapping, single ones and copies alike: later accesses of this thread become visible after them,
/// and they no longer wait in the processor. They may still be on the bus.
///
/// `mixed` means that the process accesses the same memory through mappings of several kinds. A load through one must
/// then not overtake a store through another, which takes a full fence.
#[inline]
pub(in crate::cpu_mapping::window) fn fence_after_store(mixed: bool) {
    if mixed {
        full();
    } else {
        stores();
    }
}

/// Goes before loads from a mapping and again after them.
///
/// Before: the loads see what a device had written when the program learned of it, not an older line in a buffer, and
/// do not overtake stores to the same memory. After: no later access overtakes the loads, such as the store that lets
/// the device write again. Intel's manual demands MFENCE in both places (Software Developer's Manual, volume 1,
/// "Streaming Load Hint Instruction": only that instruction orders streaming loads among themselves and with other
/// accesses). LFENCE would leave earlier stores in their buffers. AMD's manual (Architecture Programmer's Manual,
/// volume 1, "Forcing Memory Order") agrees: LFENCE orders loads only, MFENCE orders every earlier access before every
/// later one.
///
/// On aarch64 a barrier that completes takes the place of one that only orders, and it is one for the whole system: a
/// mapping may be of a kind that lies outside the domain that processors share (Arm Architecture Reference Manual,
/// "Memory barriers"). Linux takes the same ones for its `mb` and `wmb`.
///
/// Ordinary loads of write-combining memory are weakly ordered too, so single ones have both fences: they cost tens of
/// nanoseconds, a load over the bus about a microsecond. A single load of ordinary memory has neither.
///
/// One fence between two consecutive copies serves both.
#[inline]
pub(in crate::cpu_mapping::window) fn fence_around_load() {
    full();
}

/// SFENCE also drains write-combining buffers.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn stores() {
    // SAFETY: the instruction changes no register and no memory, and every x86-64 processor has it.
    unsafe { std::arch::asm!("sfence", options(nostack, preserves_flags)) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn full() {
    // SAFETY: as in `stores`.
    unsafe { std::arch::asm!("mfence", options(nostack, preserves_flags)) }
}

/// DSB returns when the stores are complete, so that none waits in the processor; DMB would only order them.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline]
fn stores() {
    // SAFETY: the instruction changes no register and no memory, and every aarch64 processor has it.
    unsafe { std::arch::asm!("dsb st", options(nostack, preserves_flags)) }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline]
fn full() {
    // SAFETY: as in `stores`.
    unsafe { std::arch::asm!("dsb sy", options(nostack, preserves_flags)) }
}

#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
#[inline]
fn stores() {
    full();
}

#[cfg(any(not(any(target_arch = "x86_64", target_arch = "aarch64")), miri))]
#[inline]
fn full() {
    fence(Ordering::SeqCst);
}

//! The order of accesses to a mapping among others.
//!
//! Write-combining memory is weakly ordered, and so are streaming stores to any memory: a store waits in a
//! buffer of the processor, and only a fence says when it must have left. Streaming loads are weakly
//! ordered too, and may take their bytes from a buffer that no device's store reaches. Ordinary memory
//! knows none of that: there a streaming load is a load, and a fence costs some nanoseconds for nothing.

#[cfg(any(not(target_arch = "x86_64"), miri))]
use std::sync::atomic::{Ordering, fence};

/// Follows stores to a mapping, single ones as well as copies: what comes later on this thread is seen
/// after them, and they do not wait in the processor any longer. They may still be on the bus.
///
/// `mixed` is for a process that reaches the same memory through mappings of several kinds. Then a load
/// through one must not overtake a store through another, and only a full fence prevents that.
#[inline]
pub(in crate::cpu_mapping::window) fn fence_after_store(mixed: bool) {
    if mixed {
        full();
    } else {
        stores();
    }
}

/// Comes before loads from a mapping and again after them.
///
/// Before: the loads see what a device had written when the program learned of it, rather than an older
/// line in a buffer, and do not overtake stores to the same memory. After: nothing that follows overtakes
/// the loads, such as the store that lets the device write again. Intel's manual demands MFENCE in both
/// places (Software Developer's Manual, volume 1, "Streaming Load Hint Instruction": order among streaming
/// loads, and between them and other accesses, is kept by that instruction only). LFENCE would leave
/// earlier stores in their buffers. AMD's manual (Architecture Programmer's Manual, volume 1, "Forcing
/// Memory Order") has the same: LFENCE orders loads alone, MFENCE every access before it with every one
/// after it.
///
/// Between two copies one after the other, one is enough for both.
#[inline]
pub(in crate::cpu_mapping::window) fn fence_around_load() {
    full();
}

/// SFENCE also empties the buffers that combine stores.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn stores() {
    // SAFETY: the instruction changes no register and no memory, and every x86-64 has it.
    unsafe { std::arch::asm!("sfence", options(nostack, preserves_flags)) }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn full() {
    // SAFETY: as in `stores`.
    unsafe { std::arch::asm!("mfence", options(nostack, preserves_flags)) }
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
#[inline]
fn stores() {
    full();
}

#[cfg(any(not(target_arch = "x86_64"), miri))]
#[inline]
fn full() {
    fence(Ordering::SeqCst);
}

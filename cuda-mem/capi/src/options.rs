//! Options of pools and arenas, as callers pass them.

use cuda_mem::{Error, ReleaseThreshold, ReusePolicy};

use crate::status::{LARGEST_STRUCT, Plain, invalid};

/// Options that the caller may have from an older or newer header.
///
/// # Safety
///
/// `options` is null, or a struct that begins with its own size, of which all bytes are set.
pub(crate) unsafe fn options<T: Plain + Default>(options: *const T) -> Result<T, Error> {
    let mut all = T::default();
    if options.is_null() {
        return Ok(all);
    }
    // SAFETY: not null, so it begins with its size by the contract of this function.
    let size = unsafe { options.cast::<usize>().read() };
    if size < T::FIRST_SIZE || size > LARGEST_STRUCT {
        return Err(invalid(format!(
            "`size` of the options is {size}; set the options with the function whose name ends in _init"
        )));
    }
    let from = options.cast::<u8>();
    if size > size_of::<T>() {
        let tail = from.wrapping_add(size_of::<T>());
        // SAFETY: the struct has this many bytes behind the fields that are known here, all of them set.
        let tail = unsafe { std::slice::from_raw_parts(tail, size - size_of::<T>()) };
        if tail.iter().any(|byte| *byte != 0) {
            let text = "the options have fields that this version of the library does not know";
            return Err(invalid(text));
        }
    }
    let len = size.min(size_of::<T>());
    // SAFETY: both have this many bytes, and a `Plain` may have any of their values.
    unsafe { std::ptr::copy_nonoverlapping(from, (&raw mut all).cast::<u8>(), len) };
    Ok(all)
}

pub(crate) fn threshold(bytes: u64) -> ReleaseThreshold {
    match bytes {
        u64::MAX => ReleaseThreshold::Never,
        bytes => ReleaseThreshold::Bytes(bytes),
    }
}

pub(crate) fn reuse(bits: u32) -> Result<Option<ReusePolicy>, Error> {
    let policy = ReusePolicy::from_bits(bits);
    let policy =
        policy.ok_or_else(|| invalid(format!("`reuse` is {bits}; it has bits 1, 2 and 4")))?;
    Ok((!policy.is_empty()).then_some(policy))
}

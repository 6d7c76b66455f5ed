//! Managed memory: what is in it, who may have it, and what is told of it.

mod contents;
mod places;
mod told;

use anyhow::Result;
use cuda_mem::mapped::ManagedBuffer;
use cuda_mem::sys::CUdevice_attribute;

use crate::environment::{Environment, Skip};

/// In bytes: of the sizes that memory is tested with, all that are not large, and those about a page.
const SIZES: [usize; 9] = [1, 4, 16, 1024, 4095, 4096, 4097, 1 << 20, (7 << 20) + 17];

/// Larger than what shares pages with others.
const LARGE: usize = 4 << 20;

/// A skip where there is no managed memory that host and devices may use at once.
fn need_concurrent(env: &Environment) -> Result<()> {
    let concurrent = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
    for device in env.driver.devices()? {
        if device.attribute(concurrent)?.unwrap_or(0) == 0 {
            let reason = format!("{device:?} has no concurrent managed access");
            return Err(Skip(reason).into());
        }
    }
    Ok(())
}

/// A large buffer on a new stream.
fn large(env: &Environment) -> Result<ManagedBuffer<u8>> {
    need_concurrent(env)?;
    Ok(ManagedBuffer::uninit(&env.stream()?, LARGE)?)
}

/// The place of the first byte that differs from `expected`. Compares pieces, because single bytes are slow under a sanitizer.
fn first_other(bytes: &[u8], expected: u8) -> Option<usize> {
    const PIECE: usize = 1 << 20;
    let same = vec![expected; PIECE];
    let mut pieces = bytes.chunks(PIECE).enumerate();
    pieces.find_map(|(index, piece)| {
        if piece == &same[..piece.len()] {
            return None;
        }
        let within = piece.iter().position(|byte| *byte != expected)?;
        Some(index * PIECE + within)
    })
}

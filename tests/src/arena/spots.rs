//! Large blocks that are written and looked at in spots: physical memory moves in pieces that are larger by far, and the
//! simulated driver touches every page of what is filled.

use anyhow::{Result, ensure};
use cuda_mem::DeviceBuffer;

/// Bytes of a spot.
const SPOT: usize = 4096;
/// Where one begins; and one is at the end.
const STEP: usize = 1 << 20;

/// Calls with each spot in turn.
fn each(
    block: &DeviceBuffer<u8>,
    mut call: impl FnMut(&mut DeviceBuffer<u8>, usize) -> Result<()>,
) -> Result<()> {
    let (len, last) = (block.len().min(SPOT), block.len().saturating_sub(SPOT));
    for first in (0..last).step_by(STEP).chain([last]) {
        let address = block.as_raw() + first as u64;
        // SAFETY: a part of memory that lives, in its own stream; whoever writes has the block for itself.
        let mut spot = unsafe { DeviceBuffer::<u8>::borrow_raw(block.stream(), address, len, ()) };
        call(&mut spot, first)?;
    }
    Ok(())
}

/// Writes a number to every spot.
pub(super) fn write(block: &mut DeviceBuffer<u8>, number: u8) -> Result<()> {
    each(block, |spot, _| Ok(spot.fill(number)?))
}

/// Every spot has the number still.
pub(super) fn have(block: &DeviceBuffer<u8>, number: u8) -> Result<()> {
    each(block, |spot, first| {
        let found = spot.to_vec()?;
        ensure!(
            found == vec![number; found.len()],
            "not {number} at byte {first}"
        );
        Ok(())
    })
}

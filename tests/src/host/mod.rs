//! Memory of the host that devices reach: pinned, registered, and of pools.
//!
//! These bodies run in a program of their own: freeing pinned memory holds up every other call of the
//! process until the device is idle (R131), so a test that holds a stream beside it would wait for ever.

mod in_place;
mod leaks;
mod loans;
mod pinned;
mod pools;
mod registered;

/// Lengths in bytes around those of pages.
const SIZES: [usize; 10] = [0, 1, 4, 16, 1024, 4095, 4096, 4097, 1 << 20, (7 << 20) + 17];

/// Bytes that are different from place to place.
fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let byte = |at: usize| (at.wrapping_mul(31) ^ (at >> 8)) as u8 ^ seed;
    (0..len).map(byte).collect()
}

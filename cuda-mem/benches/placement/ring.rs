//! Rings of words, for walks in which each step depends on the previous one.

/// Words per device cache line; the ring uses one word of each.
const LINE: usize = 128 / size_of::<u32>();

/// A ring through one word of each line, in an order that no cache can predict: each word holds the index of the next.
/// The number of lines must be a power of two.
pub(crate) fn ring(len: usize) -> Vec<u32> {
    let lines = (len / LINE) as u64;
    assert!(lines.is_power_of_two(), "{len} words");
    let mut ring = vec![0; len];
    let mut line = 0;
    for _ in 0..lines {
        let next = after(line, lines);
        ring[line as usize * LINE] = next as u32 * LINE as u32;
        line = next;
    }
    ring
}

/// The index after `steps` steps from the first word.
pub(crate) fn end(len: usize, steps: u64) -> u32 {
    let lines = (len / LINE) as u64;
    let line = (0..steps).fold(0, |line, _| after(line, lines));
    line as u32 * LINE as u32
}

/// A congruential sequence that visits every line once: the factor is 1 more than a multiple of 4, the summand odd.
fn after(line: u64, lines: u64) -> u64 {
    (line
        .wrapping_mul(0x5851_f42d_4c95_7f2d)
        .wrapping_add(0x1405_7b7e_f767_814f))
        & (lines - 1)
}

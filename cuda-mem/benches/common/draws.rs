//! Pseudo-random numbers for the benchmarks compared with other allocators.

/// A linear congruential generator modulo 2⁶⁴; the upper 31 bits are a draw. Short enough to write identically in every
/// language.
#[derive(Debug)]
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[inline]
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        self.0 >> 33
    }
}

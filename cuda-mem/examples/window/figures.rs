//! Statistics of samples: pure functions.

/// The value below which this part of the samples lies: 0.5 is the median. Sorts them. NaN without samples.
pub(crate) fn quantile(samples: &mut [f64], part: f64) -> f64 {
    samples.sort_by(f64::total_cmp);
    let last = samples.len().saturating_sub(1);
    let at = (last as f64 * part).round() as usize;
    samples.get(at.min(last)).copied().unwrap_or(f64::NAN)
}

/// The times of a mapping and of a copy for `bytes` bytes, in the same unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pair {
    pub(crate) bytes: usize,
    pub(crate) window: f64,
    pub(crate) copy: f64,
}

impl Pair {
    /// Positive where the copy is faster.
    fn lead_of_the_copy(&self) -> f64 {
        (self.window / self.copy).ln()
    }
}

/// The size from which a mapping is no longer better than a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crossover {
    /// The copy is faster from the smallest size on.
    AtOnce,
    /// The copy is faster from about this size on.
    At(usize),
    /// The mapping is better at all measured sizes.
    Never,
}

/// Expects ascending sizes. The copy must be faster at two consecutive sizes, or at the largest: one slow sample is not
/// a crossover. Between two sizes, the crossover is where straight lines through the times meet, all on logarithmic
/// scales.
pub(crate) fn crossover(pairs: &[Pair]) -> Crossover {
    let wins = |at: usize| {
        pairs
            .get(at)
            .is_none_or(|pair| pair.lead_of_the_copy() > 0.0)
    };
    let Some(first) = (0..pairs.len()).find(|at| wins(*at) && wins(at + 1)) else {
        return Crossover::Never;
    };
    let Some(before) = first.checked_sub(1) else {
        return Crossover::AtOnce;
    };
    let (before, after) = (pairs[before], pairs[first]);
    let (low, high) = (before.lead_of_the_copy(), after.lead_of_the_copy());
    let [from, to] = [before, after].map(|pair| (pair.bytes as f64).ln());
    let at = from + (to - from) * (-low / (high - low));
    Crossover::At(at.exp().round() as usize)
}

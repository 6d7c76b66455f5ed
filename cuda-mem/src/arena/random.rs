//! Random cases for the tests of the bookkeeping: the same ones in every run.

#![forbid(unsafe_code)]

use std::fmt::Debug;

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// Runs a test on `count` values, fewer under Miri. A failing value is shrunk.
pub(crate) fn cases<S: Strategy>(
    count: u32,
    strategy: &S,
    test: impl Fn(S::Value) -> Result<(), TestCaseError>,
) where
    S::Value: Debug,
{
    let config = Config {
        cases: if cfg!(miri) {
            count.div_ceil(200)
        } else {
            count
        },
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::XorShift, &[0x5a; 16]);
    match TestRunner::new_with_rng(config, rng).run(strategy, test) {
        Ok(()) => {}
        Err(TestError::Fail(reason, value)) => panic!("{reason}\nwith {value:#?}"),
        Err(TestError::Abort(reason)) => panic!("given up: {reason}"),
    }
}

/// Random numbers for long runs.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }
}

//! Where third parties cannot map the simulated memory.

use crate::export::Answer;
use crate::system::Range;

/// No pieces.
#[derive(Debug, Default)]
pub(crate) struct Pieces {}

impl Pieces {
    pub(crate) fn carve_from(&mut self, _range: &Range, _offset: u64, _len: u64) {}

    pub(crate) fn place(&self, _base: u64) -> Answer {
        Ok(())
    }
}

//! The recorded training run.

use anyhow::Result;
use cuda_mem_trace::Trace;

/// The log in the bundle that contains this program, or else in the repository.
pub(crate) fn read() -> Result<Trace> {
    Ok(Trace::read(&cuda_mem_trace::recorded())?)
}

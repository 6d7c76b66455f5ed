//! The recorded training run.

use anyhow::Result;
use cuda_mem_trace::Trace;

/// The log of the bundle that this program lies in, or else that of the repository.
pub(crate) fn read() -> Result<Trace> {
    Ok(Trace::read(&cuda_mem_trace::recorded())?)
}

//! What the examples of collective operations share: ranks in threads, in processes or on several machines, and the lines above
//! their tables.

mod failure;
mod heading;
mod meet;
mod processes;
mod ranks;

pub(crate) use heading::Heading;
pub(crate) use ranks::{RankOptions, open_nccl, synchronize};

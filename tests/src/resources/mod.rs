//! Memory resources: what every one must do, over every resource and every stack of two adaptors, and what
//! each adds.
//!
//! These bodies run in a program of their own: freeing memory that is no pool's holds up every other
//! call of the process until the device is idle (R96), so a test that holds a stream beside it would
//! wait for ever.

mod adaptors;
mod bodies;
mod checked;
mod containers;
mod counting;
mod current_resource;
pub(crate) mod failing;
mod keeping;
mod late_releases;
mod misuse;
mod own;
mod reclaim;
mod recovery_policy;
mod subjects;
mod waiting;
mod words;

pub(crate) use subjects::ADAPTORS;
pub use subjects::{Subject, subjects};

//! Errors, and the handling of failures in destructors.
//!
//! Every fallible call returns a [`Result`]. An [`Error`] has a [kind](ErrorKind), the driver function that was
//! called, and the driver's result code. Out-of-memory errors include the [numbers](OutOfMemory) at that moment and
//! the remedies that were tried. A method that consumes its object and fails returns the object in [`Failed`].
//!
//! Destructors cannot return errors and never panic: their failures are [counted](drop_counts) and passed to a
//! [hook](on_drop_failure).

pub(crate) mod atomic;
pub(crate) mod barrier;
pub(crate) mod biased;
pub(crate) mod error;
pub(crate) mod exit;
pub(crate) mod lock;
pub(crate) mod origin;
pub(crate) mod pages;
pub(crate) mod report;
pub(crate) mod table;
pub(crate) mod telemetry;

pub use error::{Attempt, Error, ErrorKind, Failed, OutOfMemory, Remedy, Result};
pub use report::{DropCounts, DropFailure, drop_counts, is_forked, on_drop_failure};

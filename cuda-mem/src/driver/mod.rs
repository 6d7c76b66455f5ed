//! The driver and its devices.
//!
//! [`Driver::load`] finds and opens the driver at run time. A [`Device`] reports its [`Capabilities`], and its
//! [`Support`] for each [`Capability`], without creating a context. [`Location`] says where memory is, and
//! [`PointerInfo`] what the driver knows about an address.

pub(crate) mod capabilities;
pub(crate) mod device;
pub(crate) mod load;
pub(crate) mod location;
pub(crate) mod pointer;
pub(crate) mod raw;
pub(crate) mod security;
#[cfg(feature = "sim")]
mod simulated;

pub use capabilities::{Capabilities, Capability, Reason, Support};
pub use device::{Device, HandleTypes, PciId, Uuid};
pub use load::Driver;
pub use location::{AllocationType, Location};
pub use pointer::{MemoryKind, PointerInfo};

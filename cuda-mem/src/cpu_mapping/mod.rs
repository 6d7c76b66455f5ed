//! Device memory that the processor reads and writes.
//!
//! A [`CpuMapping`] maps a part of a device's memory into the process, through dma-buf or gdrcopy's kernel module
//! ([`Gdr`]) or by copies, and says which of these it is.

pub(crate) mod gdr;
pub(crate) mod window;

pub use gdr::{Gdr, GdrKernelInfo};
pub use window::{
    CpuMapping, CpuMappingChoice, CpuMappingInfo, CpuMappingKind, CpuMappingOptions,
    CpuMappingReason, Mappable, MappingKind,
};

//! Device memory that the processor loads and stores directly.
//!
//! A [`CpuMapping`] maps a part of a device's memory into the process, through dma-buf, gdrcopy's kernel module
//! ([`Gdr`]) or driver copies, and reports which.

pub(crate) mod gdr;
pub(crate) mod window;

pub use gdr::{Gdr, GdrKernelInfo};
pub use window::{
    CpuMapping, CpuMappingChoice, CpuMappingInfo, CpuMappingKind, CpuMappingOptions,
    CpuMappingReason, Mappable, MappingKind,
};

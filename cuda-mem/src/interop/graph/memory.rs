//! Device memory that is held for graphs.

use std::fmt;

use cuda_driver_sys::CUgraphMem_attribute;

use crate::base::error::Result;
use crate::driver::device::Device;
use crate::driver::raw;
use crate::memory::stats::{Usage, write_line};

/// Device memory held for the graphs of this process. It is a pool of its own, which trimming other pools does not
/// affect. The values are read one by one, so they are not a consistent snapshot while other threads launch.
///
/// The driver counts in large steps (32 MiB on an H200), and freed memory counts as used until it is trimmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphMemoryStats {
    /// Device memory that is reserved.
    pub reserved: Usage,
    /// The part of it that graphs use.
    pub used: Usage,
}

/// One line: `reserved 32.0 MiB (high 32.0 MiB), used 32.0 MiB (high 32.0 MiB)`.
impl fmt::Display for GraphMemoryStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_line(f, self.reserved, self.used)
    }
}

impl Device {
    /// The memory of this device that graphs hold. Four driver calls. Needs CUDA 11.4.
    ///
    /// # Errors
    ///
    /// Any driver error.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// let device = cuda_mem::Driver::load()?.device(0)?;
    /// println!("{}", device.graph_memory()?);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias = "cuDeviceGetGraphMemAttribute")]
    pub fn graph_memory(&self) -> Result<GraphMemoryStats> {
        let read = |attribute| {
            // SAFETY: the driver is initialised, and the device is its.
            unsafe { raw::graph::memory_attribute(self.driver().table(), self.as_raw(), attribute) }
        };
        Ok(GraphMemoryStats {
            reserved: Usage {
                current: read(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT)?,
                high: read(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)?,
            },
            used: Usage {
                current: read(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT)?,
                high: read(CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)?,
            },
        })
    }

    /// Resets the high-water marks to what is reserved and used now.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuDeviceSetGraphMemAttribute")]
    pub fn reset_graph_memory_high_marks(&self) -> Result<()> {
        let marks = [
            CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH,
            CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH,
        ];
        marks.into_iter().try_for_each(|mark| {
            // SAFETY: as in `graph_memory`.
            unsafe {
                raw::graph::reset_memory_attribute(self.driver().table(), self.as_raw(), mark)
            }
        })
    }

    /// Returns memory that no running graph and no live allocation needs to the system. Instances stay, and allocate
    /// memory again when they are launched.
    ///
    /// Trimming pools does not affect graph memory: when memory runs out, both may help.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuDeviceGraphMemTrim")]
    pub fn trim_graph_memory(&self) -> Result<()> {
        // SAFETY: as in `graph_memory`.
        unsafe { raw::graph::trim_memory(self.driver().table(), self.as_raw()) }
    }
}

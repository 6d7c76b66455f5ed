//! Options for a CPU mapping.

use std::ops::Range;

use bytemuck::Pod;

use super::CpuMapping;
use super::kind::{CpuMappingKind, MappingKind};
use crate::base::error::Result;
use crate::mapped::managed::ManagedBuffer;
use crate::mapped::vmm::GrowableBuffer;
use crate::memory::buffer::DeviceBuffer;
use crate::placement::PlacedBuffer;

/// Stores of up to this size through a mapping are assumed to be faster than a driver copy.
///
/// From the figures of gdrcopy's authors: 64 KiB take 6.5 µs, as long as a driver copy of any size up to that. This
/// crate's authors have not measured a direct mapping; `cargo run --release -p cuda-mem --example window -- latency`
/// does.
pub(super) const WRITE_LIMIT: usize = 64 << 10;

/// The same for loads, which wait for the bus: 4 KiB take 8 µs.
pub(super) const READ_LIMIT: usize = 4 << 10;

/// Which kinds of CPU mapping are allowed, and how to open them. The default takes the best available kind.
///
/// ```
/// use cuda_mem::Driver;
/// use cuda_mem::cpu_mapping::{CpuMappingKind, CpuMappingOptions};
///
/// # cuda_sim::use_if_no_driver();
/// let stream = Driver::load()?.device(0)?.primary_context()?.stream()?;
/// let options = CpuMappingOptions::new().refuse([CpuMappingKind::Gdrcopy]);
/// let mut flags = options.alloc::<u32>(&stream, 16)?; // memory that suits such a mapping
/// let mut mapping = options.open(&mut flags)?;
/// mapping.store(3, 7)?;
/// assert_eq!(mapping.load(3)?, 7);
/// println!("{}", mapping.choice()); // which kind, and why not another one
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct CpuMappingOptions {
    pub(super) preferred: Vec<CpuMappingKind>,
    pub(super) refused: Vec<CpuMappingKind>,
    pub(super) mapping: Option<MappingKind>,
    pub(super) force_pcie: bool,
    pub(super) range: Option<Range<usize>>,
    pub(super) write_limit: Option<usize>,
    pub(super) read_limit: Option<usize>,
}

impl CpuMappingOptions {
    /// Any kind of mapping, of the whole buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tries these kinds first, in this order. The others follow if none of them is available.
    pub fn prefer(mut self, kinds: impl IntoIterator<Item = CpuMappingKind>) -> Self {
        self.preferred.extend(kinds);
        self
    }

    /// Excludes these kinds.
    pub fn refuse(mut self, kinds: impl IntoIterator<Item = CpuMappingKind>) -> Self {
        self.refused.extend(kinds);
        self
    }

    /// Allows only these kinds.
    pub fn only(self, kinds: impl IntoIterator<Item = CpuMappingKind>) -> Self {
        let kinds: Vec<CpuMappingKind> = kinds.into_iter().collect();
        let others = CpuMappingKind::ALL.into_iter();
        self.refuse(others.filter(|kind| !kinds.contains(kind)))
    }

    /// Only a mapping of this kind. gdrcopy honours this from version 2.5 on; host memory is
    /// [`Cached`](MappingKind::Cached), or [`WriteCombining`](MappingKind::WriteCombining) if it was
    /// [made so](crate::memory::HostFlags::WRITE_COMBINED); dma-bufs guarantee no kind.
    #[doc(alias("gdr_map_v2", "GDR_MAP_FLAG_REQ_WC_MAPPING"))]
    pub fn mapping(mut self, kind: MappingKind) -> Self {
        self.mapping = (kind != MappingKind::Unknown).then_some(kind);
        self
    }

    /// Maps over PCIe even where a coherent link exists. Needs gdrcopy 2.5, or CUDA 12.8 for dma-bufs; both may refuse.
    #[doc(alias(
        "GDR_PIN_FLAG_FORCE_PCIE",
        "CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE"
    ))]
    pub fn force_pcie(mut self, wanted: bool) -> Self {
        self.force_pcie = wanted;
        self
    }

    /// Maps only these elements of the buffer.
    pub fn range(mut self, elements: Range<usize>) -> Self {
        self.range = Some(elements);
        self
    }

    /// Larger writes are driver copies. The default is 64 KiB for device memory, and no limit for host memory.
    /// `usize::MAX` means no limit.
    pub fn write_limit(mut self, bytes: usize) -> Self {
        self.write_limit = Some(bytes);
        self
    }

    /// Larger reads are driver copies. The default is 4 KiB for device memory, and no limit for host memory.
    pub fn read_limit(mut self, bytes: usize) -> Self {
        self.read_limit = Some(bytes);
        self
    }

    /// Opens the mapping. Waits for the streams that use the buffer. A mapping of device memory [makes its copies
    /// synchronous](DeviceBuffer::set_sync_memops), for the whole allocation and permanently.
    ///
    /// # Errors
    ///
    /// [`NoCpuMapping`](crate::ErrorKind::NoCpuMapping) if no allowed kind is available, with the reason for each;
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) for a range outside the buffer;
    /// [`Capturing`](crate::ErrorKind::Capturing) while the buffer's stream is captured; otherwise any error of the
    /// wait.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::cpu_mapping::CpuMappingOptions;
    /// use cuda_mem::placement::{AccessPattern, Topology, PlacementRequest};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let devices = Driver::load()?.devices()?;
    /// let stream = devices[0].primary_context()?.stream()?;
    /// let machine = Topology::gather(&devices)?;
    ///
    /// // A flag that both sides use at any time.
    /// let request = PlacementRequest::elements::<u32>(1).access(AccessPattern::Shared).zeroed();
    /// let mut flag = request.place(&machine)?.allocate::<u32>(&stream)?;
    /// let mut mapping = CpuMappingOptions::new().open(&mut flag)?;
    /// assert_eq!(mapping.load(0)?, 0);
    /// mapping.store(0, 1)?; // a kernel that runs sees it
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[track_caller]
    pub fn open<'a, B: Mappable>(&self, buffer: &'a mut B) -> Result<CpuMapping<'a, B::Element>> {
        buffer.open_mapping(self)
    }
}

#[allow(
    unreachable_pub,
    reason = "named by a public trait, and older compilers do not see that"
)]
mod sealed {
    use super::*;

    pub trait Buffer {
        type Element: Pod;

        // Not the buffer inside: it could be exchanged for another one through a bound on this trait.
        fn open_mapping(
            &mut self,
            options: &CpuMappingOptions,
        ) -> Result<CpuMapping<'_, Self::Element>>;
    }
}

/// A buffer that can be mapped: [`DeviceBuffer`], [`GrowableBuffer`], [`ManagedBuffer`] and [`PlacedBuffer`]. For a
/// [`DeviceVec`](crate::memory::DeviceVec), pass `&mut *vec`.
///
/// This trait is sealed.
///
/// The buffer inside of another one cannot be taken out through it:
///
/// ```compile_fail,E0599
/// # use cuda_mem::DeviceBuffer;
/// # use cuda_mem::cpu_mapping::Mappable;
/// fn inner<B: Mappable>(buffer: &mut B) -> &mut DeviceBuffer<B::Element> {
///     buffer.device_buffer() // error: no such method
/// }
/// ```
pub trait Mappable: sealed::Buffer {}

macro_rules! mappable {
    ($($name:ident by $inner:expr;)*) => {$(
        impl<T: Pod> sealed::Buffer for $name<T> {
            type Element = T;

            #[track_caller]
            fn open_mapping(&mut self, options: &CpuMappingOptions) -> Result<CpuMapping<'_, T>> {
                CpuMapping::open($inner(self), options)
            }
        }

        impl<T: Pod> Mappable for $name<T> {}
    )*};
}

mappable! {
    DeviceBuffer by std::convert::identity;
    GrowableBuffer by GrowableBuffer::inner;
    ManagedBuffer by ManagedBuffer::inner;
    PlacedBuffer by PlacedBuffer::inner;
}

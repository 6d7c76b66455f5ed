//! Memory allocated as a placement decided.

use std::fmt;
use std::ops::Deref;

use bytemuck::Pod;

use crate::base::error::{Error, Failed, Result};
use crate::mapped::managed::ManagedBuffer;
use crate::mapped::vmm::GrowableBuffer;
use crate::memory::buffer::DeviceBuffer;
use crate::memory::pool::MemoryPool;
use crate::memory::slice::{DeviceMemoryMut, DeviceSliceMut};

/// Memory allocated as a [`Placement`](super::Placement) decided. From
/// [`Placement::allocate`](super::Placement::allocate).
///
/// Whatever its kind, streams use it like a [`DeviceBuffer`], to which it dereferences for read-only operations, and it
/// can be an [argument](crate::kernel::Argument) of a launch. Memory that the host can access is also available as a
/// slice, by [`host`](Self::host) and [`host_mut`](Self::host_mut).
///
/// What the host waits for when the buffer is dropped or [freed](Self::free), by [kind](super::PlacementKind):
///
/// | kind | waits for |
/// |---|---|
/// | memory of a pool: `Pool`, `HostPool`, `HostNuma` with a pool | nothing: it is freed in the order of its stream. A [pool](Self::pool) of its own goes when the host has seen that |
/// | mapped memory: `Vmm`, `VmmStriped`, `HostVmm`, `HostNuma` | its stream. If that cannot be waited for, it leaks |
/// | `Device`, `PinnedHost`, `Managed` | its stream, and then the driver for the other streams of the device, also those that never used it |
///
/// A drop while its stream is captured waits for nothing: the memory is freed after the capture.
///
/// ```
/// use cuda_mem::Driver;
/// use cuda_mem::placement::{AccessPattern, Topology, PlacementRequest};
///
/// # cuda_sim::use_if_no_driver();
/// let devices = Driver::load()?.devices()?;
/// let stream = devices[0].primary_context()?.stream()?;
/// let machine = Topology::gather(&devices)?;
///
/// let results = PlacementRequest::elements::<u32>(1000).access(AccessPattern::GpuWritesCpuReads);
/// let mut results = results.place(&machine)?.allocate::<u32>(&stream)?;
/// results.as_mut_slice().fill(7)?;           // by the device
/// assert_eq!(results.host()?[999], 7);       // waits, and copies nothing
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct PlacedBuffer<T: Pod> {
    /// Never exposed as `&mut` if plain: a caller could replace it with a buffer that the host cannot access.
    memory: Memory<T>,
    /// Whether the host can access a plain buffer at its address.
    is_of_host: bool,
    pool: Option<MemoryPool>,
}

enum Memory<T: Pod> {
    Plain(DeviceBuffer<T>),
    Growable(GrowableBuffer<T>),
    Managed(ManagedBuffer<T>),
}

impl<T: Pod> PlacedBuffer<T> {
    /// Memory of a device.
    pub(super) fn of_device(buffer: DeviceBuffer<T>, pool: Option<MemoryPool>) -> Self {
        Self {
            memory: Memory::Plain(buffer),
            is_of_host: false,
            pool,
        }
    }

    /// Memory of the host that is not mapped.
    ///
    /// # Safety
    ///
    /// The host must reach the memory at the buffer's address as long as that lives.
    pub(super) unsafe fn of_host(buffer: DeviceBuffer<T>, pool: Option<MemoryPool>) -> Self {
        Self {
            memory: Memory::Plain(buffer),
            is_of_host: true,
            pool,
        }
    }

    pub(super) fn mapped(buffer: GrowableBuffer<T>) -> Self {
        Self {
            memory: Memory::Growable(buffer),
            is_of_host: false,
            pool: None,
        }
    }

    pub(super) fn managed(buffer: ManagedBuffer<T>) -> Self {
        Self {
            memory: Memory::Managed(buffer),
            is_of_host: false,
            pool: None,
        }
    }

    /// Submits a fill with zero, including the bytes after the elements if the memory is not shared.
    pub(super) fn zero_all(&mut self) -> Result<()> {
        match &mut self.memory {
            Memory::Plain(buffer) => {
                let len = buffer.len();
                buffer.set_len(buffer.room());
                let zeroed = buffer.zero();
                buffer.set_len(len);
                zeroed
            }
            Memory::Growable(buffer) => buffer.zero_all(),
            Memory::Managed(buffer) => buffer.inner().zero(),
        }
    }

    /// For operations that write in stream order. The buffer must not be replaced.
    pub(crate) fn inner(&mut self) -> &mut DeviceBuffer<T> {
        match &mut self.memory {
            Memory::Plain(buffer) => buffer,
            Memory::Growable(buffer) => buffer.inner(),
            Memory::Managed(buffer) => buffer.inner(),
        }
    }

    /// The elements, for the host to read in place. Makes the buffer's stream wait for writes of other streams, then
    /// synchronises it. While the slice is borrowed nothing writes to the memory; devices may also read it.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for device memory, which [`to_vec`](DeviceBuffer::to_vec) and
    /// [`copy_to`](DeviceBuffer::copy_to) can copy; for managed memory as [`ManagedBuffer::host`]; otherwise any error
    /// that the driver reports.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn host(&self) -> Result<&[T]> {
        match &self.memory {
            Memory::Plain(buffer) => {
                self.require_host()?;
                // SAFETY: of memory that the host reaches, as was asked just now; buffers are aligned to 256 bytes, and
                // resources refuse elements that want more.
                unsafe { buffer.host_slice() }
            }
            Memory::Growable(buffer) => buffer.host(),
            Memory::Managed(buffer) => buffer.host(),
        }
    }

    /// The elements, for the host to modify in place. Makes the buffer's stream wait for other streams that still use
    /// the memory, then synchronises it. While the slice is borrowed no device uses the memory.
    ///
    /// # Errors
    ///
    /// As [`host`](Self::host).
    #[doc(alias = "cuStreamSynchronize")]
    pub fn host_mut(&mut self) -> Result<&mut [T]> {
        if let Memory::Plain(_) = self.memory {
            self.require_host()?;
        }
        match &mut self.memory {
            // SAFETY: as in `host`.
            Memory::Plain(buffer) => unsafe { buffer.host_slice_mut() },
            Memory::Growable(buffer) => buffer.host_mut(),
            Memory::Managed(buffer) => buffer.host_mut(),
        }
    }

    fn require_host(&self) -> Result<()> {
        if self.is_of_host {
            return Ok(());
        }
        let text = "the host does not reach the memory of this placement; copy it, or ask for memory of the host";
        Err(Error::not_supported(text.to_owned()))
    }

    /// All elements, to be written in the order of the stream, or of another stream, possibly of another device.
    pub fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        self.inner().as_mut_slice()
    }

    /// The pool that this memory comes from. If an [export](crate::placement::Export) was requested, the pool serves
    /// this memory alone and can export it. Otherwise all placements with the same
    /// location and users share the pool within a context. The access of a shared pool is fixed:
    /// [`set_access`](crate::Pool::set_access) returns [`NotPermitted`](crate::ErrorKind::NotPermitted), because it
    /// would change the access of every other placement too. Its other settings can be changed, and apply to all
    /// placements that share it.
    ///
    /// `None` for memory that comes from no pool, or from the pool of the [device's default
    /// resource](crate::Device::default_resource).
    #[must_use]
    pub fn pool(&self) -> Option<&MemoryPool> {
        self.pool.as_ref()
    }

    /// Mapped memory, which can move, and can grow in place if the
    /// [request](crate::placement::PlacementRequest::growable) asked for it; `None` for any other kind.
    pub fn growable(&mut self) -> Option<&mut GrowableBuffer<T>> {
        match &mut self.memory {
            Memory::Growable(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// Managed memory, for advice and prefetching; `None` for any other kind.
    pub fn as_managed(&mut self) -> Option<&mut ManagedBuffer<T>> {
        match &mut self.memory {
            Memory::Managed(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// Converts mapped memory into a buffer of its own type, for example for [export](GrowableBuffer::into_memory). Any
    /// other kind is returned as the error.
    #[expect(clippy::result_large_err, reason = "the memory comes back as it is")]
    pub fn into_growable(self) -> Result<GrowableBuffer<T>, Self> {
        match self.memory {
            Memory::Growable(buffer) => Ok(buffer),
            memory => Err(Self { memory, ..self }),
        }
    }

    /// Converts managed memory into a buffer of its own type. Any other kind is returned as the error.
    #[expect(clippy::result_large_err, reason = "the memory comes back as it is")]
    pub fn into_managed(self) -> Result<ManagedBuffer<T>, Self> {
        match self.memory {
            Memory::Managed(buffer) => Ok(buffer),
            memory => Err(Self { memory, ..self }),
        }
    }

    /// Frees the memory, as dropping does, and returns any error. What it waits for depends on the kind, as described
    /// [above](Self).
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::free`]. The error returns the memory, unless the driver may have freed it nevertheless.
    /// Mapped memory that cannot be unmapped after the wait is reported to
    /// [`on_drop_failure`](crate::base::on_drop_failure).
    ///
    /// ```
    /// # use cuda_mem::Driver;
    /// # use cuda_mem::placement::{Topology, PlacementRequest};
    /// # cuda_sim::use_if_no_driver();
    /// # let devices = Driver::load()?.devices()?;
    /// # let stream = devices[0].primary_context()?.stream()?;
    /// # let machine = Topology::gather(&devices)?;
    /// let placement = PlacementRequest::bytes(4000).place(&machine)?;
    /// let numbers = placement.allocate::<u32>(&stream)?;
    /// numbers.free()?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuMemFreeAsync", "cuMemFree", "cuMemFreeHost"))]
    #[expect(clippy::result_large_err, reason = "the memory comes back as it is")]
    pub fn free(self) -> Result<(), Failed<Self>> {
        let Self {
            memory,
            is_of_host,
            pool,
        } = self;
        let freed = match memory {
            Memory::Plain(buffer) => buffer.free().map_err(|it| it.map(Memory::Plain)),
            Memory::Growable(buffer) => buffer.free().map_err(|it| it.map(Memory::Growable)),
            Memory::Managed(buffer) => buffer.free().map_err(|it| it.map(Memory::Managed)),
        };
        freed.map_err(|it| {
            it.map(|memory| Self {
                memory,
                is_of_host,
                pool,
            })
        })
    }

    /// Converts into a buffer that only streams use. Mapped memory is returned as the error: it has a [different buffer
    /// type](Self::into_growable).
    #[expect(clippy::result_large_err, reason = "the memory comes back as it is")]
    pub fn into_buffer(self) -> Result<DeviceBuffer<T>, Self> {
        match self.memory {
            Memory::Plain(buffer) => Ok(buffer),
            Memory::Managed(buffer) => Ok(buffer.into_buffer()),
            memory => Err(Self { memory, ..self }),
        }
    }
}

/// Read-only operations.
impl<T: Pod> Deref for PlacedBuffer<T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        match &self.memory {
            Memory::Plain(buffer) => buffer,
            Memory::Growable(buffer) => buffer,
            Memory::Managed(buffer) => buffer,
        }
    }
}

impl<T: Pod> DeviceMemoryMut for PlacedBuffer<T> {
    fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        self.as_mut_slice()
    }
}

impl<T: Pod> fmt::Debug for PlacedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory: &dyn fmt::Debug = match &self.memory {
            Memory::Plain(buffer) => buffer,
            Memory::Growable(buffer) => buffer,
            Memory::Managed(buffer) => buffer,
        };
        let mut f = f.debug_struct("PlacedBuffer");
        f.field("memory", memory);
        if let Some(pool) = &self.pool {
            f.field("pool", pool);
        }
        f.finish()
    }
}

//! Memory that a placement decided on.

use std::fmt;
use std::ops::Deref;

use bytemuck::Pod;

use crate::base::error::{Error, Failed, Result};
use crate::mapped::managed::ManagedBuffer;
use crate::mapped::vmm::GrowableBuffer;
use crate::memory::buffer::{DeviceBuffer, Loan};
use crate::memory::pool::MemoryPool;
use crate::stream::Stream;

/// Memory that a [`Placement`](super::Placement) decided on. From [`Placement::allocate`](super::Placement::allocate).
///
/// Whatever it is, streams use it as they use a [`DeviceBuffer`], to which it dereferences for all that does not
/// write, and it is an [argument](crate::kernel::Argument) of a launch. Memory that the host reaches is also a slice of the
/// host, by [`host`](Self::host) and [`host_mut`](Self::host_mut).
///
/// What its end waits for on the host, by [kind](super::PlacementKind), dropped or [freed](Self::free):
///
/// | kind | waits for |
/// |---|---|
/// | memory of a pool: `Pool`, `HostPool`, `HostNuma` with a pool | nothing: it is freed in the order of its stream. A [pool](Self::pool) of its own goes when the host has seen that |
/// | mapped memory: `Vmm`, `VmmStriped`, `HostVmm`, `HostNuma` | its stream. If that cannot be waited for, it leaks |
/// | `Device`, `PinnedHost`, `Managed` | its stream, and then the driver for the other streams of the device, also those that never used it |
///
/// Dropped while its stream is captured, it waits for nothing: the memory goes after the capture.
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
/// let results = PlacementRequest::bytes(4000).access(AccessPattern::GpuWritesCpuReads);
/// let mut results = results.place(&machine)?.allocate::<u32>(&devices, &stream, 1000)?;
/// results.fill(7)?;                          // by the device
/// assert_eq!(results.host()?[999], 7);       // waits, and copies nothing
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct PlacedBuffer<T: Pod> {
    /// Nobody gets a plain one to change: another buffer could be put in its place, which the host does not reach.
    memory: Memory<T>,
    /// Whether the host reaches a plain buffer at its address.
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

    /// As [`zero`](Self::zero), and also what is behind the elements in memory of its own.
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
            Memory::Managed(buffer) => buffer.zero(),
        }
    }

    /// For what writes in the order of streams. It must stay the buffer that it is.
    pub(crate) fn inner(&mut self) -> &mut DeviceBuffer<T> {
        match &mut self.memory {
            Memory::Plain(buffer) => buffer,
            Memory::Growable(buffer) => buffer,
            Memory::Managed(buffer) => buffer.inner(),
        }
    }

    /// The elements, for the host to read in their place. Synchronises the buffer's stream, after it waits for what
    /// other streams still write. While the slice is borrowed nothing writes to the memory; devices may read it too.
    ///
    /// # Errors
    ///
    /// [`NotSupported`](crate::ErrorKind::NotSupported) for memory of devices, which
    /// [`to_vec`](DeviceBuffer::to_vec) and [`copy_to`](DeviceBuffer::copy_to) copy; for managed memory as
    /// [`ManagedBuffer::host`]; else as the driver answers.
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

    /// The elements, for the host to change in their place. Synchronises the buffer's stream, after it waits for other
    /// streams that still use the memory. While the slice is borrowed no device uses it.
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

    /// See [`DeviceBuffer::fill`].
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias("cuMemsetD8Async", "cuMemsetD16Async", "cuMemsetD32Async"))]
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.inner().fill(value)
    }

    /// See [`DeviceBuffer::zero`].
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias = "cuMemsetD8Async")]
    pub fn zero(&mut self) -> Result<()> {
        self.inner().zero()
    }

    /// See [`DeviceBuffer::copy_from`]. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias = "cuMemcpyHtoDAsync")]
    pub fn copy_from(&mut self, from: &[T]) -> Result<()> {
        self.inner().copy_from(from)
    }

    /// See [`DeviceBuffer::copy_from_buffer`].
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias("cuMemcpyDtoDAsync", "cuMemcpyPeerAsync"))]
    pub fn copy_from_buffer(&mut self, from: &DeviceBuffer<T>) -> Result<()> {
        self.inner().copy_from_buffer(from)
    }

    /// Lends it to another stream, which may be of another device. See [`DeviceBuffer::on`].
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn on<'a>(&'a mut self, other: &'a Stream) -> Result<Loan<'a, T>> {
        self.inner().on(other)
    }

    /// See [`DeviceBuffer::wait_for_pending_uses`].
    ///
    /// # Errors
    ///
    /// As there.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub fn wait_for_pending_uses(&mut self) -> Result<()> {
        self.inner().wait_for_pending_uses()
    }

    /// The pool that this memory is of. If the memory was [asked for to be exported](crate::placement::Export), it is this memory's
    /// own, and [exports](crate::MemoryPool::export_fd) it; else all placements of this place and these
    /// users share it in a context. The access of a shared pool is fixed:
    /// [`set_access`](crate::Pool::set_access) answers [`NotPermitted`](crate::ErrorKind::NotPermitted), because
    /// every other placement would lose, or gain, that access too. Its other settings can be changed, and hold for
    /// all that share it.
    ///
    /// `None` for memory of no pool, or of the one that [serves the device](crate::Device::default_resource) anyway.
    #[must_use]
    pub fn pool(&self) -> Option<&MemoryPool> {
        self.pool.as_ref()
    }

    /// Mapped memory, which moves, and grows in its place if the [request](crate::placement::PlacementRequest::growable) said so;
    /// `None` for any other.
    pub fn growable(&mut self) -> Option<&mut GrowableBuffer<T>> {
        match &mut self.memory {
            Memory::Growable(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// Managed memory, to be advised about and prefetched; `None` for any other.
    pub fn as_managed(&mut self) -> Option<&mut ManagedBuffer<T>> {
        match &mut self.memory {
            Memory::Managed(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// Mapped memory as a buffer of its own type, such as for
    /// [what exports it](GrowableBuffer::into_memory). Any other comes back.
    #[expect(clippy::result_large_err, reason = "the memory comes back as it is")]
    pub fn into_growable(self) -> Result<GrowableBuffer<T>, Self> {
        match self.memory {
            Memory::Growable(buffer) => Ok(buffer),
            memory => Err(Self { memory, ..self }),
        }
    }

    /// Managed memory as a buffer of its own type. Any other comes back.
    #[expect(clippy::result_large_err, reason = "the memory comes back as it is")]
    pub fn into_managed(self) -> Result<ManagedBuffer<T>, Self> {
        match self.memory {
            Memory::Managed(buffer) => Ok(buffer),
            memory => Err(Self { memory, ..self }),
        }
    }

    /// Frees the memory, as dropping does, and says how it went. What it waits for depends on the
    /// kind, as [above](Self).
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::free`]. The memory comes back with the error, unless the driver may have freed it
    /// nevertheless. What of mapped memory cannot be unmapped after the wait is told to [`on_drop_failure`](crate::base::on_drop_failure).
    ///
    /// ```
    /// # use cuda_mem::Driver;
    /// # use cuda_mem::placement::{Topology, PlacementRequest};
    /// # cuda_sim::use_if_no_driver();
    /// # let devices = Driver::load()?.devices()?;
    /// # let stream = devices[0].primary_context()?.stream()?;
    /// # let machine = Topology::gather(&devices)?;
    /// let placement = PlacementRequest::bytes(4000).place(&machine)?;
    /// let numbers = placement.allocate::<u32>(&devices, &stream, 1000)?;
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

    /// The same memory as a buffer that only streams use. Mapped memory
    /// comes back: its buffer is [another](Self::into_growable).
    #[expect(clippy::result_large_err, reason = "the memory comes back as it is")]
    pub fn into_buffer(self) -> Result<DeviceBuffer<T>, Self> {
        match self.memory {
            Memory::Plain(buffer) => Ok(buffer),
            Memory::Managed(buffer) => Ok(buffer.into_buffer()),
            memory => Err(Self { memory, ..self }),
        }
    }
}

/// All that does not write.
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

impl<T: Pod> fmt::Debug for PlacedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory: &dyn fmt::Debug = match &self.memory {
            Memory::Plain(buffer) => buffer,
            Memory::Growable(buffer) => buffer,
            Memory::Managed(buffer) => buffer,
        };
        let mut f = f.debug_struct("Placed");
        f.field("memory", memory);
        if let Some(pool) = &self.pool {
            f.field("pool", pool);
        }
        f.finish()
    }
}

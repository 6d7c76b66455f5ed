//! Managed memory: one address for the host and all devices, with advice about its use and control of its location.

mod advice;
mod host;
mod info;
mod pages;
mod range;
mod work;

pub use advice::Advice;
pub use info::RangeInfo;
pub use range::ManagedRange;

use std::fmt;
use std::ops::Deref;
use std::sync::OnceLock;

use bytemuck::Pod;

use crate::base::error::{Error, Failed, Result};
use crate::base::lock::Lock;
use crate::driver::location::Location;
use crate::driver::pointer::MemoryKind;
use crate::mapped::migration_stats::{MigrationStats, Places};
use crate::memory::buffer::DeviceBuffer;
use crate::memory::resource::{ManagedResource, MemoryResource as _, Resource};
use crate::stream::Stream;

/// `len` elements of managed memory, which the host and all devices use at one address.
///
/// Streams use it as they use a [`DeviceBuffer`], to which it dereferences for everything that does not write. The host
/// uses it as a slice: [`host`](Self::host) and [`host_mut`](Self::host_mut) wait for the work on devices, and while
/// the slice is borrowed no new work can be submitted. The driver migrates pages on access;
/// [`prefetch`](Self::prefetch) moves them in advance, and [`advise`](Self::advise) tells the driver how they will be
/// used. [`range`](Self::range) does the same for a part.
///
/// Dropping it waits for its stream and the device, as described at [`ManagedResource`]. For other methods that consume
/// a buffer, such as [`free_on`](DeviceBuffer::free_on), call [`into_buffer`](Self::into_buffer) first.
///
/// ```
/// use cuda_mem::Driver;
/// use cuda_mem::driver::Location;
/// use cuda_mem::mapped::{Advice, ManagedBuffer};
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
///
/// let mut numbers = ManagedBuffer::<u32>::zeroed(&stream, 1000)?;
/// numbers.host_mut()?[0] = 7;                      // waits for the zeroes
/// numbers.advise(Advice::PreferredLocation(Location::Device(device)))?;
/// numbers.prefetch(Location::Device(device))?;     // in the order of the stream
/// assert_eq!(numbers.host()?[..2], [7, 0]);        // waits for the prefetch
/// println!("{}", numbers.migrations());
/// # Ok::<(), cuda_mem::Error>(())
/// ```
///
/// While the host holds the slice, no device can use the buffer:
///
/// ```compile_fail,E0502
/// # use cuda_mem::mapped::ManagedBuffer;
/// # fn example(mut numbers: ManagedBuffer<u32>) -> Result<(), cuda_mem::Error> {
/// let slice = numbers.host()?;
/// numbers.as_mut_slice().fill(1)?; // error: already borrowed
/// println!("{slice:?}");
/// # Ok(())
/// # }
/// ```
pub struct ManagedBuffer<T: Pod> {
    /// A buffer of managed memory that the host can access. Other crates get no `&mut` to it: they could put another
    /// buffer in its place.
    buffer: DeviceBuffer<T>,
    migrations: Lock<Places<Location>>,
    /// Set once it is known that the host may use the memory.
    is_open: OnceLock<()>,
}

impl<T: Pod> ManagedBuffer<T> {
    /// `len` elements of unspecified contents, from `cuMemAllocManaged`. No physical memory is taken and nothing moves
    /// yet. Does not synchronise. If there are no elements, or they have size zero, no driver call is made.
    ///
    /// # Errors
    ///
    /// As [`Resource::alloc`]; [`NotSupported`](crate::ErrorKind::NotSupported) on a device without managed
    /// memory.
    #[doc(alias = "cuMemAllocManaged")]
    #[track_caller]
    pub fn uninit(stream: &Stream, len: usize) -> Result<Self> {
        let managed = ManagedResource::new(stream.device().driver());
        Self::uninit_in(&Resource::new(managed), stream, len)
    }

    /// As [`uninit`](Self::uninit), from the given resource, which must allocate managed memory: a [`ManagedResource`],
    /// also under adaptors, or a managed pool.
    ///
    /// # Errors
    ///
    /// The same, and [`InvalidValue`](crate::ErrorKind::InvalidValue) for a resource of other memory.
    #[track_caller]
    pub fn uninit_in(resource: &Resource, stream: &Stream, len: usize) -> Result<Self> {
        let found = resource.memory_properties();
        if found.kind != MemoryKind::Managed || !found.host {
            return Err(Error::invalid(format!(
                "a managed buffer needs managed memory, and {resource:?} has {} memory; take a \
                 `ManagedResource`, or a pool of `AllocationType::Managed`",
                found.kind
            )));
        }
        Ok(Self {
            buffer: resource.alloc(stream, len)?,
            migrations: Lock::new(Places::new()),
            is_open: OnceLock::new(),
        })
    }

    /// `len` zeroed elements, written by the stream's device. Does not synchronise.
    ///
    /// # Errors
    ///
    /// As [`uninit`](Self::uninit).
    #[doc(alias("cuMemAllocManaged", "cuMemsetD8Async"))]
    #[track_caller]
    pub fn zeroed(stream: &Stream, len: usize) -> Result<Self> {
        let mut managed = Self::uninit(stream, len)?;
        managed.buffer.zero()?;
        Ok(managed)
    }

    /// The elements of a host slice, copied by the driver. Synchronises the stream.
    ///
    /// # Errors
    ///
    /// As [`uninit`](Self::uninit).
    #[doc(alias("cuMemAllocManaged", "cuMemcpyHtoDAsync"))]
    #[track_caller]
    pub fn from_slice(stream: &Stream, from: &[T]) -> Result<Self> {
        let mut managed = Self::uninit(stream, from.len())?;
        managed.buffer.copy_from(from)?;
        Ok(managed)
    }

    /// Frees the memory, as dropping does, and returns the result. Waits for the stream and the device.
    ///
    /// # Errors
    ///
    /// As [`DeviceBuffer::free`]. The buffer comes back with the error, unless the driver may have freed it anyway.
    #[doc(alias = "cuMemFree")]
    #[expect(clippy::result_large_err, reason = "the buffer comes back as it is")]
    pub fn free(self) -> Result<(), Failed<Self>> {
        let Self {
            buffer,
            migrations,
            is_open,
        } = self;
        buffer.free().map_err(|failed| {
            failed.map(|buffer| Self {
                buffer,
                migrations,
                is_open,
            })
        })
    }

    /// The same memory as a buffer that only streams use. Its migration statistics end.
    #[must_use]
    pub fn into_buffer(self) -> DeviceBuffer<T> {
        self.buffer
    }

    /// Statistics of all prefetches.
    #[must_use]
    pub fn migrations(&self) -> MigrationStats {
        self.noted(|places| places.total())
    }

    /// Statistics of prefetches to this location. Memory that moves back and forth shows as growth of both counts.
    #[must_use]
    pub fn migrations_to(&self, place: Location) -> MigrationStats {
        let place = place.known(self.driver());
        self.noted(|places| places.to(place))
    }

    /// The result of `ask` on the statistics; `ask` does not call the driver. The default value in a forked process.
    fn noted<A: Default>(&self, ask: impl FnOnce(&mut Places<Location>) -> A) -> A {
        let places = self.migrations.lock_unless_forked();
        places
            .map(|mut places| ask(&mut places))
            .unwrap_or_default()
    }
}

/// Everything that does not write.
impl<T: Pod> Deref for ManagedBuffer<T> {
    type Target = DeviceBuffer<T>;

    fn deref(&self) -> &DeviceBuffer<T> {
        &self.buffer
    }
}

impl<T: Pod> fmt::Debug for ManagedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagedBuffer")
            .field("buffer", &self.buffer)
            .field("migrations", &self.migrations())
            .finish()
    }
}

// Through a shared reference it is only read, moved and advised about; the driver locks internally.
const _: () = {
    const fn assert<T: Send + Sync>() {}
    assert::<ManagedBuffer<u8>>();
    assert::<ManagedRange<'_, u8>>();
};

//! A part of a managed buffer: advice, prefetches, and a query of both.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use bytemuck::Pod;
use cuda_driver_sys::{CUdeviceptr, CUresult};

use super::pages::{last_apart, pieces};
use super::{Advice, ManagedBuffer, RangeInfo};
use crate::base::error::{Error, ErrorKind, Result};
use crate::base::pages::host_page;
use crate::driver::location::Location;
use crate::driver::raw;
use crate::mapped::migration_stats::{self, MigrationStats};
use crate::stream::Stream;

/// A range of elements of a [`ManagedBuffer`]. From [`ManagedBuffer::range`].
///
/// The driver works on whole pages of the host (usually 4 KiB), so an operation on a range applies to every page that
/// it touches, including the first and the last. Small buffers share pages, so advice for one may also apply to its
/// neighbours. A range that starts with a small buffer in the middle of a page, and extends past that page, takes two
/// requests to the driver.
pub struct ManagedRange<'a, T: Pod> {
    buffer: &'a ManagedBuffer<T>,
    start: usize,
    len: usize,
}

impl<T: Pod> ManagedBuffer<T> {
    /// The elements of a range, such as `..100` or `100..200`.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](ErrorKind::InvalidValue) if the range exceeds the buffer, or ends before it begins.
    ///
    /// ```
    /// # use cuda_mem::Driver;
    /// # use cuda_mem::driver::Location;
    /// # use cuda_mem::mapped::{Advice, ManagedBuffer};
    /// # cuda_sim::use_if_no_driver();
    /// # let stream = Driver::load()?.device(0)?.primary_context()?.stream()?;
    /// let table = ManagedBuffer::<f32>::zeroed(&stream, 1 << 20)?;
    /// let constants = table.range(..1 << 19)?;
    /// constants.advise(Advice::ReadMostly)?;
    /// assert!(constants.info()?.read_mostly);
    /// assert!(!table.info()?.read_mostly, "not all of it");
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn range(&self, elements: impl RangeBounds<usize>) -> Result<ManagedRange<'_, T>> {
        let all = self.buffer.len();
        let start = match elements.start_bound() {
            Bound::Included(&at) => Some(at),
            Bound::Excluded(&at) => at.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match elements.end_bound() {
            Bound::Included(&at) => at.checked_add(1),
            Bound::Excluded(&at) => Some(at),
            Bound::Unbounded => Some(all),
        };
        match (start, end) {
            (Some(start), Some(end)) if start <= end && end <= all => Ok(ManagedRange {
                buffer: self,
                start,
                len: end - start,
            }),
            _ => {
                let number =
                    |at: Option<usize>| at.map_or("the end".to_owned(), |at| at.to_string());
                let (start, end) = (number(start), number(end));
                Err(Error::invalid(format!(
                    "elements {start} to {end} are no range of a buffer of {all}"
                )))
            }
        }
    }

    fn whole(&self) -> ManagedRange<'_, T> {
        ManagedRange {
            buffer: self,
            start: 0,
            len: self.buffer.len(),
        }
    }

    /// Advises the driver how the whole buffer will be used. See [`ManagedRange::advise`].
    ///
    /// # Errors
    ///
    /// The same errors.
    #[doc(alias = "cuMemAdvise")]
    pub fn advise(&self, advice: Advice) -> Result<()> {
        self.whole().advise(advice)
    }

    /// Withdraws advice for the whole buffer. See [`ManagedRange::unadvise`].
    ///
    /// # Errors
    ///
    /// The same errors.
    #[doc(alias = "cuMemAdvise")]
    pub fn unadvise(&self, advice: Advice) -> Result<()> {
        self.whole().unadvise(advice)
    }

    /// Moves the whole buffer to a location. See [`ManagedRange::prefetch`].
    ///
    /// # Errors
    ///
    /// The same errors.
    #[doc(alias = "cuMemPrefetchAsync")]
    pub fn prefetch(&self, to: Location) -> Result<()> {
        self.whole().prefetch(to)
    }

    /// Moves the whole buffer to a location, in the order of another stream. See [`ManagedRange::prefetch_on`].
    ///
    /// # Errors
    ///
    /// The same errors.
    #[doc(alias = "cuMemPrefetchAsync")]
    pub fn prefetch_on(&self, other: &Stream, to: Location) -> Result<()> {
        self.whole().prefetch_on(other, to)
    }

    /// The advice and the last prefetch of the whole buffer. See [`ManagedRange::info`].
    ///
    /// # Errors
    ///
    /// The same errors.
    #[doc(alias = "cuMemRangeGetAttributes")]
    pub fn info(&self) -> Result<RangeInfo> {
        self.whole().info()
    }
}

impl<T: Pod> ManagedRange<'_, T> {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of bytes.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Advises the driver how the range will be used, from now on and independently of any stream. Nothing moves,
    /// nothing waits. An empty range makes no driver call.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](ErrorKind::InvalidValue) for a location that is not valid for this advice, or belongs to
    /// another driver; [`NotSupported`](ErrorKind::NotSupported) for a device without concurrent managed access, and for
    /// memory of a pool, which takes no advice; [`SymbolMissing`](ErrorKind::SymbolMissing) for a NUMA node before CUDA 12.2. Otherwise any driver error.
    #[doc(alias = "cuMemAdvise")]
    pub fn advise(&self, advice: Advice) -> Result<()> {
        self.tell(advice, true)
    }

    /// Withdraws advice. Withdrawing advice that was never given is not an error; for a
    /// [preferred location](Advice::PreferredLocation), the location is ignored.
    ///
    /// # Errors
    ///
    /// As [`advise`](Self::advise).
    #[doc(alias = "cuMemAdvise")]
    pub fn unadvise(&self, advice: Advice) -> Result<()> {
        self.tell(advice, false)
    }

    fn tell(&self, advice: Advice, is_set: bool) -> Result<()> {
        let place = self.checked(advice.place(is_set)?)?;
        if self.size_bytes() == 0 {
            return Ok(());
        }
        let (table, word) = (self.buffer.driver().table(), advice.to_raw(is_set));
        let _current = self.buffer.stream().context().bind()?;
        self.pieces().try_for_each(|piece| {
            // SAFETY: the piece is of managed memory that the buffer has not freed.
            unsafe { raw::managed::advise(table, piece, word, place.to_raw()) }
                .map_err(|error| explain_advice(error, || format!("{advice} for {self:?}")))
        })
    }

    /// Moves the range to a location, in the order of the buffer's stream. Does not synchronise. The contents do not
    /// change. An empty range makes no driver call.
    ///
    /// # Errors
    ///
    /// As [`advise`](Self::advise); [`Capturing`](ErrorKind::Capturing) if the stream is being captured into a graph,
    /// which cannot record prefetches.
    #[doc(alias = "cuMemPrefetchAsync")]
    pub fn prefetch(&self, to: Location) -> Result<()> {
        self.send(self.buffer.stream(), to)
    }

    /// As [`prefetch`](Self::prefetch), in the order of another stream, which waits for the buffer's stream first; the
    /// buffer's stream waits for it afterwards.
    ///
    /// # Errors
    ///
    /// The same, and as [`DeviceBuffer::read_on`](crate::DeviceBuffer::read_on).
    #[doc(alias("cuMemPrefetchAsync", "cuEventRecord", "cuStreamWaitEvent"))]
    pub fn prefetch_on(&self, other: &Stream, to: Location) -> Result<()> {
        let _lent = self.buffer.read_on(other)?;
        self.send(other, to)
    }

    fn send(&self, stream: &Stream, to: Location) -> Result<()> {
        let to = self.checked(to)?;
        let bytes = self.size_bytes();
        if bytes == 0 {
            return Ok(());
        }
        let open = stream.as_ref().submit_bound()?;
        // The driver would refuse it, and the capture would be lost (R134).
        open.refuse_captured(
            "the stream is being captured into a graph, which takes no prefetch; prefetch before or after, or on \
             another stream",
        )?;
        self.pieces().try_for_each(|piece| {
            // SAFETY: the piece is of managed memory, valid in this stream, which is the buffer's or has the buffer
            // in use on another stream.
            unsafe { raw::managed::prefetch(open.queue(), piece, to.to_raw()) }
                .map_err(|error| explain(error, || format!("{self:?} to {to}")))
        })?;
        let migrations = MigrationStats::of_prefetch(bytes);
        self.buffer.noted(|places| places.note(to, migrations));
        migration_stats::note(self.buffer.driver(), to, migrations);
        Ok(())
    }

    /// The advice and the last prefetch that the driver has on record for the range, as far as they hold for all pages
    /// that it touches. Does not wait. For an empty range there is none.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias("cuMemRangeGetAttributes", "cuMemRangeGetAttribute"))]
    pub fn info(&self) -> Result<RangeInfo> {
        if self.size_bytes() == 0 {
            return Ok(RangeInfo::default());
        }
        let driver = self.buffer.driver();
        let devices = driver.device_count()?;
        let _current = self.buffer.stream().context().bind()?;
        let mut common: Option<RangeInfo> = None;
        for piece in self.pieces() {
            // SAFETY: the piece is of managed memory that the buffer has not freed.
            let found = unsafe { raw::managed::range(driver.table(), piece, devices) }
                .map_err(|error| error.asked(|| format!("{self:?}")))?;
            let found = RangeInfo::from_raw(driver, &found);
            common = Some(match common {
                Some(before) => before.common(&found),
                None => found,
            });
        }
        Ok(common.unwrap_or_default())
    }

    /// The location, if memory can be sent there.
    fn checked(&self, place: Location) -> Result<Location> {
        let driver = self.buffer.driver();
        let place = place.known(driver);
        match place {
            Location::Device(device) => {
                driver.require_same(
                    device.driver(),
                    format_args!("the managed buffer and {device}"),
                )?;
                Ok(place)
            }
            Location::Anywhere | Location::Invisible => Err(Error::invalid(format!(
                "managed memory cannot be told about the place \"{place}\"; name a device, the host or a NUMA node \
                 of it"
            ))),
            place => Ok(place),
        }
    }

    /// The address ranges passed to the driver. Cannot overflow: the memory was allocated with this size.
    fn pieces(&self) -> impl Iterator<Item = (CUdeviceptr, usize)> {
        let own = self.buffer.as_raw();
        let start = own + (self.start * size_of::<T>()) as u64;
        last_apart(
            pieces(own, (start, self.size_bytes()), host_page()),
            host_page(),
        )
    }
}

/// Names the request and the reason a device is refused: the driver reports an invalid device.
#[cold]
fn explain(error: Error, asked: impl FnOnce() -> String) -> Error {
    error.asked(asked).meaning(
        CUresult::CUDA_ERROR_INVALID_DEVICE,
        ErrorKind::NotSupported,
        "the device, or that of the stream, has no concurrent managed access (attribute 89): there the driver \
         alone moves managed memory, all of it, when a kernel is launched",
    )
}

/// As [`explain`], for advice.
#[cold]
fn explain_advice(error: Error, asked: impl FnOnce() -> String) -> Error {
    explain(error, asked).meaning(
        CUresult::CUDA_ERROR_NOT_SUPPORTED,
        ErrorKind::NotSupported,
        "memory of a pool takes no advice (R191); allocate the buffer without a pool",
    )
}

impl<T: Pod> Clone for ManagedRange<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Pod> Copy for ManagedRange<'_, T> {}

impl<T: Pod> fmt::Debug for ManagedRange<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "elements {} to {} of a managed buffer of {} at {:#x}",
            self.start,
            self.start + self.len,
            self.buffer.len(),
            self.buffer.as_raw()
        )
    }
}

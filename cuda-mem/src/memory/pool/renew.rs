//! Memory of managed pools that are at no location.
//!
//! When such a pool releases memory that is on a device, the driver marks the pages as discarded and leaves them mapped
//! there. If the memory is allocated again, what the device writes does not clear the mark: the host never sees it
//! (R190). A prefetch clears it. So does a discard in the usual sense, which unmaps the pages, and a device then takes
//! milliseconds for each MiB that it touches. But it needs no memory, so it is for blocks that hardly fit on the device;
//! it takes whole pages only, and the ends of the block are prefetched.

use cuda_driver_sys::{CUdevice_attribute, CUdeviceptr};

use super::Pool;
use super::free::free;
use crate::base::error::Result;
use crate::base::pages::host_page;
use crate::base::report;
use crate::driver::location::{AllocationType, Location};
use crate::driver::raw::{self, Queue};
use crate::stream::{Stream, is_default};

impl Pool {
    /// Whether new memory of this pool has to be [renewed](Self::renewed).
    #[inline]
    pub(super) fn may_lose_writes(&self) -> bool {
        self.0.allocation_type == AllocationType::Managed && self.0.location == Location::Anywhere
    }

    /// An error if any code captures the stream. Must come before the allocation: what renews memory is refused in a
    /// capture, which is then lost (R134, R182).
    #[cold]
    pub(super) fn refuse_captured(&self, stream: &Stream) -> Result<()> {
        stream.as_ref().refuse_captured(
            "the stream is being captured into a graph, which takes no memory of managed pools that are at no \
             location; allocate before, or from a pool at a device or the host",
        )
    }

    /// Makes memory that was allocated just now safe to write. If that fails, the memory is freed.
    #[cold]
    #[inline(never)]
    pub(super) fn renewed(
        &self,
        address: CUdeviceptr,
        bytes: usize,
        stream: &Stream,
    ) -> Result<CUdeviceptr> {
        let renewed = renew(address, bytes, stream);
        if renewed.is_err() {
            // SAFETY: allocated just now in this stream; no other code has the address.
            report::release("buffer", || unsafe { free(address, stream) });
        }
        renewed
            .map(|()| address)
            .map_err(|error| error.asked(|| format!("{bytes} bytes of {self}, to be renewed")))
    }
}

fn renew(address: CUdeviceptr, bytes: usize, stream: &Stream) -> Result<()> {
    let device = stream.device();
    // Such a device reaches managed memory by other means, and takes no prefetch.
    if !device.has_attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)? {
        return Ok(());
    }
    let open = stream.as_ref().submit_bound()?;
    let queue = open.queue();
    let prefetch = |(start, end): (CUdeviceptr, CUdeviceptr)| match end - start {
        0 => Ok(()),
        // SAFETY: a part of memory that was allocated in this stream just now; its context is current.
        len => unsafe {
            raw::managed::prefetch(
                queue,
                (start, len as usize),
                Location::Device(device).to_raw(),
            )
        },
    };
    let end = address + bytes as u64;
    let is_large = bytes as u64 > device.total_memory()? / 2;
    let pages = whole_pages(address, end, host_page());
    let Some((first, last)) = pages.filter(|_| is_large && takes_discards(queue)) else {
        return prefetch((address, end));
    };
    prefetch((address, first))?;
    // SAFETY: as for the prefetch; the bytes have no value yet, and no other block has a part of these pages.
    unsafe { raw::managed::discard(queue, (first, (last - first) as usize)) }?;
    prefetch((last, end))
}

/// The driver refuses discards in the legacy stream (R182). A thread's own stream is treated likewise.
fn takes_discards(queue: Queue<'_>) -> bool {
    raw::managed::has_discard(queue.table()) && !is_default(queue.stream())
}

/// Beginning and end of the pages within a range, if there are any.
fn whole_pages(
    start: CUdeviceptr,
    end: CUdeviceptr,
    page: u64,
) -> Option<(CUdeviceptr, CUdeviceptr)> {
    let (first, last) = (start.checked_next_multiple_of(page)?, end - end % page);
    (first < last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_whole_or_none() {
        let whole = |start, end| whole_pages(start, end, 4096);
        assert_eq!(whole(0x1000, 0x3000), Some((0x1000, 0x3000)));
        assert_eq!(whole(0x1200, 0x3400), Some((0x2000, 0x3000)));
        assert_eq!(whole(0x1200, 0x2000), None);
        assert_eq!(whole(0x1200, 0x1400), None);
        assert_eq!(whole(0x1000, 0x1fff), None);
        assert_eq!(whole(u64::MAX - 5, u64::MAX), None);
    }
}

//! Advice and queries about managed memory. All calls need a current context (R162); a prefetch needs that of its
//! stream.
//!
//! From CUDA 12.2 on a place is a [`CUmemLocation`]. Older drivers take the number of a device, or −1 for the
//! host, and cannot name a NUMA node.

use std::ffi::{c_int, c_void};

use cuda_driver_sys::{
    CU_DEVICE_CPU, CU_DEVICE_INVALID, CUdevice, CUdeviceptr, CUmem_advise, CUmem_range_attribute,
    CUmemLocation, CUmemLocationType, location, location_parts,
};

use super::{Queue, Table, call, missing};
use crate::base::error::Result;

const NOWHERE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID;
const DEVICE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
const HOST: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;

/// A place in the form of older drivers, if they have one.
fn number_of(place: CUmemLocation) -> Option<CUdevice> {
    match location_parts(place) {
        (DEVICE, id) => Some(id),
        (HOST, _) => Some(CU_DEVICE_CPU),
        _ => None,
    }
}

/// The meaning of a number in older drivers.
fn place_of(number: CUdevice) -> CUmemLocation {
    match number {
        CU_DEVICE_CPU => location(HOST, 0),
        CU_DEVICE_INVALID => location(NOWHERE, 0),
        device => location(DEVICE, device),
    }
}

/// Moves managed memory to a place, in the order of a stream.
///
/// # Safety
/// The range must be managed memory, valid at this point of the stream, which is live and whose context is
/// current.
pub(crate) unsafe fn prefetch(
    queue: Queue<'_>,
    (address, bytes): (CUdeviceptr, usize),
    to: CUmemLocation,
) -> Result<()> {
    if queue.table.cuMemPrefetchAsync_v2.is_some() {
        // SAFETY: the caller vouches for range and queue.stream; no flag is defined.
        return unsafe {
            call!(
                queue.table,
                cuMemPrefetchAsync_v2(address, bytes, to, 0, queue.stream)
            )
        };
    }
    let to = number_of(to).ok_or_else(|| missing("cuMemPrefetchAsync_v2"))?;
    // SAFETY: the caller vouches for range and queue.stream.
    unsafe {
        call!(
            queue.table,
            cuMemPrefetchAsync(address, bytes, to, queue.stream)
        )
    }
}

/// Whether the driver has [`discard`].
pub(crate) fn has_discard(table: &Table) -> bool {
    table.cuMemDiscardBatchAsync.is_some()
}

/// Makes the contents of managed memory undefined, in the order of a stream that is not the legacy one. Needs CUDA 13.0.
///
/// # Safety
/// As [`prefetch`].
pub(crate) unsafe fn discard(
    queue: Queue<'_>,
    (mut address, mut bytes): (CUdeviceptr, usize),
) -> Result<()> {
    // SAFETY: lists of one, and the caller vouches for range and stream; no flag is defined.
    unsafe {
        call!(
            queue.table,
            cuMemDiscardBatchAsync(&raw mut address, &raw mut bytes, 1, 0, queue.stream)
        )
    }
}

/// Advises the driver how a range will be used. For advice without a place, any place will do.
///
/// # Safety
/// The range must be managed memory that is not freed, and a context current.
pub(crate) unsafe fn advise(
    table: &Table,
    (address, bytes): (CUdeviceptr, usize),
    advice: CUmem_advise,
    place: CUmemLocation,
) -> Result<()> {
    if table.cuMemAdvise_v2.is_some() {
        // SAFETY: the caller vouches for the range.
        return unsafe { call!(table, cuMemAdvise_v2(address, bytes, advice, place)) };
    }
    let place = number_of(place).ok_or_else(|| missing("cuMemAdvise_v2"))?;
    // SAFETY: the caller vouches for the range.
    unsafe { call!(table, cuMemAdvise(address, bytes, advice, place)) }
}

/// What all pages of a range have in common.
#[derive(Debug)]
pub(crate) struct Range {
    pub(crate) read_mostly: bool,
    /// INVALID if there is none for all pages.
    pub(crate) preferred: CUmemLocation,
    /// As `preferred`.
    pub(crate) prefetched: CUmemLocation,
    /// Device numbers; −1 is the host, −2 none.
    pub(crate) accessed_by: Vec<CUdevice>,
}

/// # Safety
/// As [`advise`]. `devices` is how many the driver has.
pub(crate) unsafe fn range(
    table: &Table,
    (address, bytes): (CUdeviceptr, usize),
    devices: usize,
) -> Result<Range> {
    use CUmem_range_attribute as A;
    let mut numbers: [c_int; 5] = [0, CU_DEVICE_INVALID, 0, CU_DEVICE_INVALID, 0];
    // One for each device, and one for the host.
    let mut accessed_by = vec![CU_DEVICE_INVALID; devices + 1];
    let has_places = table.cuMemAdvise_v2.is_some();
    let wanted: &[A] = if has_places {
        &[
            A::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
            A::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE,
            A::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID,
            A::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE,
            A::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID,
        ]
    } else {
        &[
            A::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
            A::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
            A::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
        ]
    };
    let mut attributes = wanted.to_vec();
    let mut sizes = vec![size_of::<c_int>(); wanted.len()];
    let mut places: Vec<*mut c_void> = numbers
        .iter_mut()
        .take(wanted.len())
        .map(|number| std::ptr::from_mut(number).cast())
        .collect();
    attributes.push(A::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY);
    sizes.push(size_of_val(accessed_by.as_slice()));
    places.push(accessed_by.as_mut_ptr().cast());
    // SAFETY: three lists of one length; each place is valid for a write of the size beside it, and a kind
    // of place is as wide as a number.
    unsafe {
        call!(
            table,
            cuMemRangeGetAttributes(
                places.as_mut_ptr(),
                sizes.as_mut_ptr(),
                attributes.as_mut_ptr(),
                attributes.len(),
                address,
                bytes
            )
        )
    }?;
    let kind = |number: c_int| CUmemLocationType(number.cast_unsigned());
    let [read_mostly, a, b, c, d] = numbers;
    let (preferred, prefetched) = if has_places {
        (location(kind(a), b), location(kind(c), d))
    } else {
        (place_of(a), place_of(b))
    };
    Ok(Range {
        read_mostly: read_mostly != 0,
        preferred,
        prefetched,
        accessed_by,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_drivers_name_devices_and_the_host_by_numbers() {
        let node = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
        for (kind, id, number) in [(DEVICE, 3, Some(3)), (HOST, 0, Some(-1)), (node, 0, None)] {
            assert_eq!(number_of(location(kind, id)), number);
            if let Some(number) = number {
                assert_eq!(location_parts(place_of(number)), (kind, id));
            }
        }
        assert_eq!(location_parts(place_of(CU_DEVICE_INVALID)), (NOWHERE, 0));
    }
}

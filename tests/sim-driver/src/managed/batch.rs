//! Many prefetches and discards in one call, and the attachment of managed memory to streams.

use std::ffi::{c_uint, c_ulonglong};

use cuda_driver_sys::{CUdeviceptr, CUmemLocation, CUstream};

use super::{ATTACH_GLOBAL, ATTACH_HOST};
use crate::copy::{By, Side};
use crate::export::{Answer, Call, INVALID_VALUE, Out, exports};
use crate::state::{State, state};
use crate::stream::Kind;

/// For one stream alone.
const ATTACH_SINGLE: c_uint = 4;

/// Ranges of managed memory.
#[derive(Clone, Copy)]
struct Ranges {
    addresses: Out<CUdeviceptr>,
    sizes: Out<usize>,
    count: usize,
}

/// Locations, each with the index of the first range that goes there.
#[derive(Clone, Copy)]
struct Places {
    locations: Out<CUmemLocation>,
    first: Out<usize>,
    count: usize,
}

impl Ranges {
    fn read(self) -> Answer<Vec<(CUdeviceptr, usize)>> {
        let addresses = self.addresses.as_input().required()?.read_all(self.count)?;
        let sizes = self.sizes.as_input().required()?.read_all(self.count)?;
        if addresses.is_empty() {
            return Err(INVALID_VALUE);
        }
        Ok(addresses.into_iter().zip(sizes).collect())
    }
}

impl Places {
    /// The location of each range.
    fn read(self, ranges: usize) -> Answer<Vec<CUmemLocation>> {
        let locations = self.locations.as_input().required()?.read_all(self.count)?;
        let first = self.first.as_input().required()?.read_all(self.count)?;
        // Measured: the first index is 0, and indices may be equal but not fall. Of equal ones the first location counts.
        let is_ordered = first.first() == Some(&0) && first.is_sorted();
        if !is_ordered || self.count > ranges || first.iter().any(|index| *index >= ranges) {
            return Err(INVALID_VALUE);
        }
        let mut places = Vec::with_capacity(ranges);
        for range in 0..ranges {
            let begun = first.iter().rposition(|index| *index <= range).unwrap_or(0);
            let index = first[begun];
            let place = first.iter().position(|other| *other == index).unwrap_or(0);
            places.push(locations[place]);
        }
        Ok(places)
    }
}

impl State {
    fn discard(
        &mut self,
        stream: (CUstream, Call),
        (address, len): (CUdeviceptr, usize),
    ) -> Answer {
        let id = self.resolve(stream.0, stream.1)?;
        let is_managed = self.is_managed(address);
        if len == 0 || !is_managed && !self.is_pageable(address, len) {
            return Err(INVALID_VALUE);
        }
        // Only the order is checked: what a discarded byte reads as is not defined, so it may as well stay.
        let at = self.begin(id)?;
        if !is_managed {
            return Ok(());
        }
        self.touch("discard", at, By::Stream(id), Side::Device(address), len)?;
        self.renew_within(address, len);
        Ok(())
    }

    /// Measured: the legacy stream is refused, and a capture is lost.
    fn check_batch_stream(
        &mut self,
        (stream, call): (CUstream, Call),
        flags: c_ulonglong,
    ) -> Answer {
        let id = self.resolve(stream, call)?;
        if self.stream(id)?.kind == Kind::Legacy || flags != 0 {
            return Err(INVALID_VALUE);
        }
        if self.is_recording(id)? {
            return self.refuse_on_recorded(id);
        }
        Ok(())
    }
}

impl State {
    /// Measured: accepted for whole blocks of `cuMemAllocManaged`. Every device here reaches managed memory at any time,
    /// so nothing changes.
    fn attach(
        &mut self,
        (stream, call): (CUstream, Call),
        (address, len): (CUdeviceptr, usize),
        flags: c_uint,
    ) -> Answer {
        let id = self.resolve(stream, call)?;
        let is_known = match flags {
            ATTACH_GLOBAL | ATTACH_HOST => true,
            // Measured: the null handle is no single stream, although the stream that it means is.
            ATTACH_SINGLE => !stream.is_null(),
            // The driver crashes at 0.
            _ => false,
        };
        let found = self.allocation(address);
        let is_whole = found.is_some_and(|(start, found)| {
            let is_managed = found.kind == crate::alloc::Kind::Managed;
            is_managed && start == address && (len == 0 || len as u64 == found.size)
        });
        // Documented: of the program's memory a part may be attached, but not nothing.
        if !is_known || !is_whole && !self.is_pageable(address, len) {
            return Err(INVALID_VALUE);
        }
        if self.is_recording(id)? {
            return self.refuse_on_recorded(id);
        }
        self.begin(id).map(|_| ())
    }
}

/// Runs the ranges one by one. Measured: those before a wrong one have been prefetched.
fn submit(
    stream: (CUstream, Call),
    ranges: Ranges,
    places: Option<Places>,
    flags: c_ulonglong,
    discards: bool,
) -> Answer {
    let mut state = state()?;
    let ranges = ranges.read()?;
    let places = places.map(|places| places.read(ranges.len())).transpose()?;
    state.check_batch_stream(stream, flags)?;
    for place in places.iter().flatten() {
        state.destination(*place).map_err(|_| INVALID_VALUE)?;
    }
    for (index, range) in ranges.into_iter().enumerate() {
        if discards {
            state.discard(stream, range)?;
        }
        if let Some(places) = &places {
            state.prefetch(range, places[index], 0, stream)?;
        }
    }
    Ok(())
}

exports! {
    plain fn cuStreamAttachMemAsync(
        call, stream: CUstream, address: CUdeviceptr, len: usize, flags: c_uint
    ) twin cuStreamAttachMemAsync_ptsz {
        state()?.attach((stream, call), (address, len), flags)
    }

    plain fn cuMemPrefetchBatchAsync(
        call, addresses: Out<CUdeviceptr>, sizes: Out<usize>, count: usize,
        locations: Out<CUmemLocation>, first: Out<usize>, places: usize, flags: c_ulonglong,
        stream: CUstream
    ) twin cuMemPrefetchBatchAsync_ptsz {
        let places = Places { locations, first, count: places };
        submit((stream, call), Ranges { addresses, sizes, count }, Some(places), flags, false)
    }

    plain fn cuMemDiscardBatchAsync(
        call, addresses: Out<CUdeviceptr>, sizes: Out<usize>, count: usize, flags: c_ulonglong,
        stream: CUstream
    ) twin cuMemDiscardBatchAsync_ptsz {
        submit((stream, call), Ranges { addresses, sizes, count }, None, flags, true)
    }

    plain fn cuMemDiscardAndPrefetchBatchAsync(
        call, addresses: Out<CUdeviceptr>, sizes: Out<usize>, count: usize,
        locations: Out<CUmemLocation>, first: Out<usize>, places: usize, flags: c_ulonglong,
        stream: CUstream
    ) twin cuMemDiscardAndPrefetchBatchAsync_ptsz {
        let places = Places { locations, first, count: places };
        submit((stream, call), Ranges { addresses, sizes, count }, Some(places), flags, true)
    }
}

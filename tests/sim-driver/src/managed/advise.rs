//! Advice on managed memory, and the attributes that it and prefetches set. None of it changes the simulator's
//! behaviour; it is only reported.

use std::ffi::{c_int, c_void};

use cuda_driver_sys::{
    CU_DEVICE_INVALID, CUdeviceptr, CUmem_advise, CUmem_range_attribute, CUmemLocation,
    CUmemLocationType, CUresult, location_parts,
};

use super::told::{Spot, Told, common, number};
use super::{CPU, DEVICE, HOST, HOST_NUMA, HOST_NUMA_CURRENT, place_of};
use crate::export::{Answer, INVALID_VALUE, Out, Value, exports};
use crate::state::{State, state};

/// The first version with locations in advice and attributes.
const WITH_PLACES: u32 = 12020;

impl State {
    /// INVALID_VALUE unless the range lies in one block of managed memory. Measured: a context must be current.
    fn require_managed(&mut self, address: CUdeviceptr, len: usize) -> Answer {
        self.current()?;
        let end = address.checked_add(len as u64).ok_or(INVALID_VALUE)?;
        if len == 0 || !self.is_managed(address) {
            return Err(INVALID_VALUE);
        }
        let (start, size) = self.range_of(address).ok_or(INVALID_VALUE)?;
        if end > start + size {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }

    fn advise(
        &mut self,
        (address, len): (CUdeviceptr, usize),
        advice: CUmem_advise,
        place: CUmemLocation,
    ) -> Answer {
        use CUmem_advise as A;
        let is_pageable = self.is_pageable(address, len);
        if is_pageable {
            self.current()?;
        } else {
            self.require_managed(address, len)?;
        }
        // Measured: memory of pools takes no advice.
        if self.pool_at(address).is_some() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        // Measured: advice that names a NUMA node of the host is accepted, but has no effect.
        // Documented: no attribute tells of the program's memory.
        let is_node = matches!(location_parts(place).0, HOST_NUMA | HOST_NUMA_CURRENT);
        let is_told = !is_node && !is_pageable;
        let change: Box<dyn Fn(&mut Told)> = match advice {
            A::CU_MEM_ADVISE_SET_READ_MOSTLY => Box::new(|told| told.read_mostly = true),
            A::CU_MEM_ADVISE_UNSET_READ_MOSTLY => Box::new(|told| told.read_mostly = false),
            A::CU_MEM_ADVISE_SET_PREFERRED_LOCATION => {
                self.destination(place)?;
                let spot = spot(place);
                Box::new(move |told| told.preferred = Some(spot))
            }
            A::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => Box::new(|told| told.preferred = None),
            A::CU_MEM_ADVISE_SET_ACCESSED_BY => {
                let who = self.user(place)?;
                Box::new(move |told| {
                    told.accessed_by.insert(who);
                })
            }
            A::CU_MEM_ADVISE_UNSET_ACCESSED_BY => {
                let who = self.user(place)?;
                Box::new(move |told| {
                    told.accessed_by.remove(&who);
                })
            }
            _ => return Err(INVALID_VALUE),
        };
        if is_told {
            self.hearsay.tell(address, len as u64, change);
        }
        Ok(())
    }

    /// The number of an accessor: a device or the host.
    fn user(&self, place: CUmemLocation) -> Answer<c_int> {
        self.destination(place)?;
        match location_parts(place) {
            (DEVICE, id) => Ok(id),
            (HOST, _) => Ok(CPU),
            _ => Err(INVALID_VALUE),
        }
    }

    fn answer(
        &self,
        all: &[Told],
        attribute: CUmem_range_attribute,
        (out, size): (*mut c_void, usize),
    ) -> Answer {
        use CUmem_range_attribute as A;
        let value = Value::new(out).required()?;
        if attribute == A::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY {
            return accessed_by(all, out, size);
        }
        let preferred = || common(all, |told| told.preferred);
        let prefetched = || common(all, |told| told.prefetched);
        let has_places = self.configuration.version >= WITH_PLACES;
        if size != size_of::<c_int>() {
            return Err(INVALID_VALUE);
        }
        match attribute {
            A::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => {
                value.write(c_int::from(all.iter().all(|told| told.read_mostly)))
            }
            A::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION => value.write(number(preferred())),
            A::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => value.write(number(prefetched())),
            A::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE if has_places => {
                value.write(kind(preferred()))
            }
            A::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID if has_places => {
                value.write(id(preferred()))
            }
            A::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE if has_places => {
                value.write(kind(prefetched()))
            }
            A::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID if has_places => {
                value.write(id(prefetched()))
            }
            _ => Err(INVALID_VALUE),
        }
    }
}

/// A location as stored. Measured: the calling thread's node is stored as such, not by its number.
pub(super) fn spot(place: CUmemLocation) -> Spot {
    match location_parts(place) {
        (HOST, _) => (HOST, 0),
        (HOST_NUMA_CURRENT, _) => (HOST_NUMA_CURRENT, 0),
        spot => spot,
    }
}

fn kind(spot: Option<Spot>) -> CUmemLocationType {
    let none = CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID;
    spot.map_or(none, |(kind, _)| kind)
}

/// A guess: a location without a number reports an invalid device.
fn id(spot: Option<Spot>) -> c_int {
    match spot {
        None => CU_DEVICE_INVALID,
        Some((HOST, _)) => CPU,
        Some((_, id)) => id,
    }
}

/// The accessors common to all parts, as many as fit; the rest is filled with an invalid device. Measured: devices come
/// first, then the host.
fn accessed_by(all: &[Told], out: *mut c_void, size: usize) -> Answer {
    let room = size / size_of::<c_int>();
    if room == 0 || !size.is_multiple_of(size_of::<c_int>()) {
        return Err(INVALID_VALUE);
    }
    let (first, rest) = all.split_first().ok_or(INVALID_VALUE)?;
    let all_have = |who: &&c_int| rest.iter().all(|told| told.accessed_by.contains(*who));
    let users = first.accessed_by.iter().filter(all_have).copied();
    let (hosts, devices): (Vec<_>, Vec<_>) = users.partition(|who| *who == CPU);
    let users = devices.into_iter().chain(hosts);
    let padded = users.chain(std::iter::repeat(CU_DEVICE_INVALID));
    for (index, who) in padded.take(room).enumerate() {
        Value::new(out.wrapping_byte_add(index * size_of::<c_int>())).write(who)?;
    }
    Ok(())
}

exports! {
    plain fn cuMemAdvise(
        _, address: CUdeviceptr, len: usize, advice: CUmem_advise, device: c_int
    ) {
        state()?.advise((address, len), advice, place_of(device))
    }

    plain fn cuMemAdvise_v2(
        _, address: CUdeviceptr, len: usize, advice: CUmem_advise, place: CUmemLocation
    ) {
        state()?.advise((address, len), advice, place)
    }

    plain fn cuMemRangeGetAttribute(
        _, out: Value, size: usize, attribute: CUmem_range_attribute, address: CUdeviceptr,
        len: usize
    ) {
        let mut state = state()?;
        state.require_managed(address, len)?;
        let all = state.hearsay.of(address, len as u64);
        state.answer(&all, attribute, (out.address(), size))
    }

    plain fn cuMemRangeGetAttributes(
        _, outs: Out<*mut c_void>, sizes: Out<usize>, attributes: Out<CUmem_range_attribute>,
        count: usize, address: CUdeviceptr, len: usize
    ) {
        let mut state = state()?;
        state.require_managed(address, len)?;
        let attributes = attributes.as_input().required()?.read_all(count)?;
        let outs = outs.as_input().required()?.read_all(count)?;
        let sizes = sizes.as_input().required()?.read_all(count)?;
        // A guess: an empty query is an error.
        if attributes.is_empty() {
            return Err(INVALID_VALUE);
        }
        let all = state.hearsay.of(address, len as u64);
        for (attribute, place) in attributes.iter().zip(outs.into_iter().zip(sizes)) {
            state.answer(&all, *attribute, place)?;
        }
        Ok(())
    }
}

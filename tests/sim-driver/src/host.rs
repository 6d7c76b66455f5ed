//! Pinned host memory, and registered memory of the program.

use std::ffi::{c_uint, c_void};

use cuda_driver_sys::{
    CU_MEMHOSTALLOC_DEVICEMAP, CU_MEMHOSTREGISTER_IOMEMORY, CU_MEMHOSTREGISTER_PORTABLE,
    CU_MEMHOSTREGISTER_READ_ONLY, CUdeviceptr, CUresult,
};

use crate::alloc::{Kind, free_waiting, wait_for_streams_of};
use crate::buffer_id::BufferId;
use crate::context::ContextId;
use crate::export::{Answer, INVALID_VALUE, Out, exports};
use crate::sanitizer::Access;
use crate::state::{State, state};

/// Flags that `cuMemHostAlloc` knows.
const HOST_FLAGS: c_uint = 7;

/// Flags that `cuMemHostRegister` knows.
const REGISTER_FLAGS: c_uint = 15;

const NOT_REGISTERED: CUresult = CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;

/// Memory of the program that devices can access.
#[derive(Debug)]
pub(crate) struct Registration {
    pub(crate) id: BufferId,
    pub(crate) size: u64,
    pub(crate) context: ContextId,
    pub(crate) device: usize,
    flags: c_uint,
}

impl Registration {
    pub(crate) fn is_read_only(&self) -> bool {
        self.flags & CU_MEMHOSTREGISTER_READ_ONLY != 0
    }
}

impl State {
    /// The registered range that contains `address`, and its start.
    pub(crate) fn registration(&self, address: u64) -> Option<(u64, &Registration)> {
        let (&start, found) = self.registrations.range(..=address).next_back()?;
        (address - start < found.size).then_some((start, found))
    }

    fn register(&mut self, address: u64, size: u64, flags: c_uint) -> Answer {
        let context = self.current()?;
        let device = self.context(context)?.device;
        let end = address.checked_add(size).ok_or(INVALID_VALUE)?;
        // Measured, except for the I/O flag on memory that is not I/O memory: INVALID_VALUE.
        let is_io = flags & CU_MEMHOSTREGISTER_IOMEMORY != 0;
        if address == 0 || size == 0 || flags & !REGISTER_FLAGS != 0 || is_io {
            return Err(INVALID_VALUE);
        }
        self.refuse_while_recording()?;
        // Measured: overlap is by bytes, not pages, and memory that the driver pinned itself is INVALID_VALUE.
        let overlaps = |at: u64, len: u64| at < end && address < at + len;
        let last = self.registrations.range(..end).next_back();
        let pinned = self.allocations.range(..end).next_back();
        if pinned.is_some_and(|(at, found)| overlaps(*at, found.size)) {
            return Err(INVALID_VALUE);
        }
        if last.is_some_and(|(at, found)| overlaps(*at, found.size)) {
            return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        let registration = Registration {
            id: BufferId::next(),
            size,
            context,
            device,
            flags,
        };
        self.registrations.insert(address, registration);
        Ok(())
    }

    /// An access to registered memory by a device; `None` unless all of it is registered. A guess: a range that only
    /// begins in registered memory is treated as unregistered. Measured for copies: writing read-only memory is
    /// INVALID_VALUE. Fills and kernels might stop the context of a real device.
    pub(crate) fn touch_registered(&self, access: Access) -> Option<Answer> {
        let (start, found) = self.registration(access.address)?;
        if access.address + access.len > start + found.size {
            return None;
        }
        Some(if found.is_read_only() && access.writes() {
            Err(INVALID_VALUE)
        } else {
            Ok(())
        })
    }

    /// A guess: registrations end with their context.
    pub(crate) fn end_registrations_of(&mut self, context: ContextId) {
        self.registrations
            .retain(|_, found| found.context != context);
    }
}

fn allocate(out: Out<*mut c_void>, size: usize, flags: c_uint) -> Answer {
    // Measured: a failed call writes null.
    out.write(std::ptr::null_mut())?;
    if flags & !HOST_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let mut state = state()?;
    state.refuse_while_recording()?;
    // Measured: size 0 yields null without an error, unlike on the device.
    let address = if size == 0 {
        state.current().map(|_| 0)?
    } else {
        state.allocate(size, Kind::Pinned)?
    };
    if let Some(allocation) = state.allocations.get_mut(&address) {
        allocation.flags = flags;
    }
    out.write(std::ptr::with_exposed_provenance_mut(address as usize))
}

exports! {
    plain fn cuMemHostAlloc(_, out: Out<*mut c_void>, size: usize, flags: c_uint) {
        allocate(out, size, flags)
    }

    plain fn cuMemAllocHost_v2(_, out: Out<*mut c_void>, size: usize) {
        allocate(out, size, 0)
    }

    release fn cuMemFreeHost(_, address: *mut c_void) {
        if address.is_null() {
            return Ok(());
        }
        state()?.refuse_while_recording()?;
        free_waiting(address.expose_provenance() as u64, true)
    }

    plain fn cuMemHostGetDevicePointer_v2(
        _, out: Out<CUdeviceptr>, address: *mut c_void, flags: c_uint
    ) {
        out.required()?;
        let address = address.expose_provenance() as u64;
        let state = state()?;
        let is_host = state.allocation(address).is_some_and(|(_, found)| found.is_host());
        // Measured: registered memory has a device address whatever its flags, equal to the host's.
        if flags != 0 || !is_host && state.registration(address).is_none() {
            return Err(INVALID_VALUE);
        }
        out.write(address)
    }

    plain fn cuMemHostGetFlags(_, out: Out<c_uint>, address: *mut c_void) {
        out.required()?;
        let state = state()?;
        state.current()?;
        let address = address.expose_provenance() as u64;
        let pinned = state.allocation(address).filter(|(_, found)| found.is_host());
        let given = match (pinned, state.registration(address)) {
            (Some((_, found)), _) => found.flags,
            // Measured: the read-only flag is not reported.
            (None, Some((_, found))) => found.flags & CU_MEMHOSTREGISTER_PORTABLE,
            (None, None) => return Err(INVALID_VALUE),
        };
        // Measured: everything is mapped.
        out.write(given | CU_MEMHOSTALLOC_DEVICEMAP)
    }

    plain fn cuMemHostRegister_v2(_, address: *mut c_void, size: usize, flags: c_uint) {
        state()?.register(address.expose_provenance() as u64, size as u64, flags)
    }

    release fn cuMemHostUnregister(_, address: *mut c_void) {
        let address = address.expose_provenance() as u64;
        let device = {
            let mut state = state()?;
            state.refuse_while_recording()?;
            // Measured: INVALID_VALUE for any other address of it, and for memory that the driver pinned itself.
            let is_known = state.registration(address).is_some()
                || state.allocation(address).is_some_and(|(_, found)| found.is_host());
            let code = if is_known { INVALID_VALUE } else { NOT_REGISTERED };
            state.registrations.get(&address).ok_or(code)?.device
        };
        // Measured: waits like the free of pinned memory.
        wait_for_streams_of(Some(device))?;
        state()?.registrations.remove(&address).map(|_| ()).ok_or(NOT_REGISTERED)
    }
}

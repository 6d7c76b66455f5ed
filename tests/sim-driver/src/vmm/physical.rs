//! Physical memory: creation, handles, and release.

use std::ffi::{c_ulonglong, c_void};

use cuda_driver_sys::{
    CUmemAllocationGranularity_flags, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUresult,
};

use super::{Bytes, FABRIC, Physical, PhysicalId, Place, Properties, granularity};
use crate::alloc::{Kind, TOO_LARGE};
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::pieces::Pieces;
use crate::state::{HandleKind, State, state};
use crate::system::{FOREIGN_HANDLES, Memory, SHARED_HANDLE};

impl State {
    /// The location of requested memory, if such memory exists.
    fn check(&self, prop: &CUmemAllocationProp) -> Answer<Place> {
        if prop.type_ != CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED {
            return Err(INVALID_VALUE);
        }
        // Measured: unknown kinds of handle are ignored.
        let types = prop.requestedHandleTypes.0;
        let is_missing =
            types & (SHARED_HANDLE | FABRIC) & !self.configuration.shared_handle_types() != 0;
        // Documented: Windows has to be told who may open its handles.
        let is_open =
            cfg!(windows) && types & SHARED_HANDLE != 0 && prop.win32HandleMetaData.is_null();
        if types & FOREIGN_HANDLES != 0 || is_missing || is_open {
            return Err(INVALID_VALUE);
        }
        let place = self.memory_place(prop)?;
        if types & FABRIC != 0 {
            // Measured: without fabric, pools with such handles can be created, memory cannot.
            return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
        }
        Ok(place)
    }

    fn create(&mut self, size: usize, prop: CUmemAllocationProp) -> Answer<PhysicalId> {
        let place = self.check(&prop)?;
        let size = size as u64;
        if size == 0 || !size.is_multiple_of(granularity()) {
            return Err(INVALID_VALUE);
        }
        match place.device() {
            Some(device) => self.make_room(device, size, Kind::Device)?,
            // A guess: the same maximum for host memory as for other kinds.
            None if size >= TOO_LARGE => return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY),
            None => {}
        }
        let bytes = if prop.requestedHandleTypes.0 & SHARED_HANDLE != 0 {
            Bytes::Shared(super::share::file(size, prop.location)?)
        } else {
            let memory = match &mut self.vmm.memory {
                Some(memory) => memory,
                none => none.insert(Memory::new()?),
            };
            Bytes::Part(memory.take(size)?)
        };
        let physical = Physical {
            size,
            place,
            prop: Properties(prop),
            bytes,
            pieces: Pieces::default(),
            is_imported: false,
            handles: 1,
            views: 0,
        };
        if let Some(device) = place.device() {
            self.devices[device].taken += size;
        }
        let id = self.new_handle(HandleKind::Physical);
        self.vmm.physicals.insert(id, physical);
        Ok(id)
    }

    /// The memory of a handle that the program has not released.
    pub(super) fn physical(&mut self, handle: PhysicalId) -> Answer<&mut Physical> {
        let physical = self.vmm.physicals.get_mut(&handle);
        physical
            .filter(|physical| physical.handles > 0)
            .ok_or(INVALID_VALUE)
    }

    /// Releases memory without a handle or a mapping.
    pub(super) fn end_unused(&mut self, id: PhysicalId) {
        let vmm = &mut self.vmm;
        let Some(physical) = vmm.physicals.get(&id) else {
            return;
        };
        if physical.handles > 0 || physical.views > 0 {
            return;
        }
        if let (Some(memory), Bytes::Part(part)) = (&vmm.memory, &physical.bytes) {
            memory.give_back(part);
        }
        if let (Some(device), false) = (physical.place.device(), physical.is_imported) {
            self.devices[device].taken -= physical.size;
        }
        self.vmm.physicals.remove(&id);
    }
}

exports! {
    plain fn cuMemGetAllocationGranularity(
        _, out: Out<usize>, prop: In<CUmemAllocationProp>, option: CUmemAllocationGranularity_flags
    ) {
        out.required()?;
        // Measured: the location is ignored.
        prop.read()?;
        state()?.check_vmm()?;
        if option.0 > 1 {
            return Err(INVALID_VALUE);
        }
        out.write(granularity() as usize)
    }

    plain fn cuMemCreate(
        _, out: Out<CUmemGenericAllocationHandle>, size: usize, prop: In<CUmemAllocationProp>,
        flags: c_ulonglong
    ) {
        out.required()?;
        let prop = prop.read()?;
        let mut state = state()?;
        state.check_vmm()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        out.write(state.create(size, prop)?)
    }

    release fn cuMemRelease(_, handle: CUmemGenericAllocationHandle) {
        let mut state = state()?;
        state.check_vmm()?;
        state.physical(handle)?.handles -= 1;
        state.end_unused(handle);
        Ok(())
    }

    plain fn cuMemRetainAllocationHandle(
        _, out: Out<CUmemGenericAllocationHandle>, address: *mut c_void
    ) {
        out.required()?;
        let mut state = state()?;
        state.check_vmm()?;
        let address = address.addr() as u64;
        let id = state.view(address).map(|(_, view)| view.physical);
        let id = id.ok_or(INVALID_VALUE)?;
        state.vmm.physicals.get_mut(&id).ok_or(INVALID_VALUE)?.handles += 1;
        out.write(id)
    }

    plain fn cuMemGetAllocationPropertiesFromHandle(
        _, out: Out<CUmemAllocationProp>, handle: CUmemGenericAllocationHandle
    ) {
        out.required()?;
        let mut state = state()?;
        state.check_vmm()?;
        out.write(state.physical(handle)?.prop.0)
    }
}

//! Physical memory shareable with other processes through a handle of the system.

use std::ffi::{c_ulonglong, c_void};

use cuda_driver_sys::{
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUresult, location,
    location_parts,
};

use super::{Bytes, Physical, Properties};
use crate::export::{Answer, INVALID_VALUE, Out, Value, exports};
use crate::pieces::Pieces;
use crate::state::{HandleKind, state};
use crate::system::{SHARED_HANDLE, SharedFile, shared_handle};

/// The last header word of the file: a pool has another one.
const TAG: u64 = 0x7068_7973;

/// A file for memory at a location.
pub(super) fn file(len: u64, place: CUmemLocation) -> Answer<SharedFile> {
    let (kind, id) = location_parts(place);
    let words = [kind.0.into(), u64::from(id.cast_unsigned()), 0, TAG];
    SharedFile::create(c"cuda-sim physical", len, words)
}

exports! {
    plain fn cuMemExportToShareableHandle(
        _, out: Value, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType,
        flags: c_ulonglong
    ) {
        out.required()?;
        let mut state = state()?;
        state.check_vmm()?;
        let physical = state.physical(handle)?;
        // Measured: an import has no handle type.
        match &physical.bytes {
            Bytes::Shared(file) if flags == 0 && kind.0 == SHARED_HANDLE && !physical.is_imported => {
                out.write(file.export()?)
            }
            _ => Err(INVALID_VALUE),
        }
    }

    plain fn cuMemImportFromShareableHandle(
        _, out: Out<CUmemGenericAllocationHandle>, handle: *mut c_void,
        kind: CUmemAllocationHandleType
    ) {
        out.required()?;
        let mut state = state()?;
        state.check_vmm()?;
        if kind.0 != SHARED_HANDLE || !state.configuration.has_shared_handles() {
            return Err(INVALID_VALUE);
        }
        // Measured: UNKNOWN for anything but shared memory, NOT_SUPPORTED for a pool.
        let file = SharedFile::import(shared_handle(handle)).ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
        let [kind, id, _, tag] = file.words;
        if tag != TAG {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let prop = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: location(CUmemLocationType(kind as u32), (id as u32).cast_signed()),
            ..CUmemAllocationProp::default()
        };
        let physical = Physical {
            size: file.len(),
            // A guess: a device has the same number in both processes.
            place: state.memory_place(&prop)?,
            prop: Properties(prop),
            bytes: Bytes::Shared(file),
            pieces: Pieces::default(),
            is_imported: true,
            handles: 1,
            views: 0,
        };
        let id = state.new_handle(HandleKind::Physical);
        state.vmm.physicals.insert(id, physical);
        out.write(id)
    }
}

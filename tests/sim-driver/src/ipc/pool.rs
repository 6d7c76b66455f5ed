//! Pools that other processes can import, and imported pools.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_void;

use cuda_driver_sys::{CUmemAllocationHandleType, CUmemLocationType, CUmemoryPool, CUresult};

use crate::export::{Answer, INVALID_VALUE, Out, Value, exports};
use crate::memory::Mapping;
use crate::pool::{Block, PoolId, Properties};
use crate::state::{HandleKind, State, from_handle, state, to_handle};
use crate::system::{
    FOREIGN_HANDLE, Range, SHARED_HANDLE, SharedFile, SharedHandle, Words, openable, shared_handle,
};

const FABRIC: u32 = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC.0;

/// The last header word of the file: other files have another one.
const TAG: u64 = 0x706f_6f6c;

/// The memory file of a shareable pool.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) file: SharedFile,
    /// Whether the pool was exported. Measured: its pointers can be exported only then.
    pub(crate) is_exported: bool,
    /// Whether a fabric export failed before. Measured: the second failure has a different code.
    fabric_failed: bool,
    /// Whether its first export failed for want of any descriptor. Measured: later ones fail too.
    pub(crate) is_broken: bool,
    /// Ranges with exported pointers. Measured: other processes can still read them after the pool released the memory.
    /// Here the bytes stay until the pool reuses any of the range or ends.
    kept: BTreeSet<(u64, u64)>,
}

impl Backing {
    pub(crate) fn create(len: u64, properties: &Properties, index: Option<usize>) -> Answer<Self> {
        let (kind, id) = properties.location;
        let index = index.map_or(0, |index| index as u64 + 1);
        let words: Words = [u64::from(kind.0), u64::from(id.cast_unsigned()), index, TAG];
        Ok(Self {
            file: SharedFile::create(c"cuda-sim pool", len, words)?,
            is_exported: false,
            fabric_failed: false,
            is_broken: false,
            kept: BTreeSet::new(),
        })
    }

    pub(super) fn keep(&mut self, offset: u64, len: u64) {
        self.kept.insert((offset, len));
    }

    /// The pool has a range for another block.
    pub(crate) fn reuse(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        self.kept
            .retain(|(start, len)| *start >= end || start + len <= offset);
    }

    /// The pool releases a range.
    pub(crate) fn discard(&self, view: &Range, offset: u64, len: u64) {
        let end = offset + len;
        let mut kept = self.kept.iter();
        let is_kept = kept.any(|(start, len)| *start < end && start + len > offset);
        if !is_kept {
            self.file.forget(view, offset, len);
        }
    }
}

/// A pool imported from another process, or from this one.
#[derive(Debug)]
pub(crate) struct Imported {
    /// The identity of its file.
    pub(crate) identity: u64,
    /// Measured: it must be destroyed as often as it was imported.
    imports: u64,
    /// `None` on the host.
    pub(crate) device: Option<usize>,
    pub(crate) mapping: Mapping,
    /// Imported blocks, by offset.
    pub(crate) pointers: BTreeMap<u64, Block>,
    pub(crate) access: BTreeMap<usize, u32>,
}

impl State {
    fn export_pool(&mut self, pool: CUmemoryPool, kind: u32, handle: Value) -> Answer {
        let types = self.pool(pool)?.properties.handle_types;
        if ![SHARED_HANDLE, FABRIC].contains(&kind) || types & kind == 0 {
            return Err(INVALID_VALUE);
        }
        let backing = self.pool(pool)?.mapping.backing();
        let backing = backing.ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
        // Measured on a machine without fabric: the pool is created, but cannot be exported.
        if types & FABRIC != 0 {
            return Err(if std::mem::replace(&mut backing.fabric_failed, true) {
                CUresult::CUDA_ERROR_OPERATING_SYSTEM
            } else {
                CUresult::CUDA_ERROR_NOT_PERMITTED
            });
        }
        // Measured: only the first export takes two.
        if !backing.is_exported {
            let openable = openable(2);
            backing.is_broken |= openable == 0;
            if backing.is_broken || openable < 2 {
                return Err(CUresult::CUDA_ERROR_OPERATING_SYSTEM);
            }
        }
        let exported = backing.file.export()?;
        backing.is_exported = true;
        handle.write::<SharedHandle>(exported)
    }

    /// Measured: importing a pool again returns the same one.
    fn import_pool(&mut self, handle: SharedHandle) -> Answer<PoolId> {
        let unknown = CUresult::CUDA_ERROR_UNKNOWN;
        let file = SharedFile::import(handle).ok_or(unknown)?;
        let [kind, _, index, tag] = file.words;
        // Measured: physical memory is no pool.
        if tag != TAG {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let known = self.sharing.imported.iter_mut();
        let mut known = known.filter(|(_, pool)| pool.identity == file.identity);
        if let Some((id, pool)) = known.next() {
            pool.imports += 1;
            return Ok(*id);
        }
        let is_device = kind == u64::from(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE.0);
        let device = if is_device {
            let mut devices = self.devices.iter();
            let found = devices.position(|device| device.index as u64 + 1 == index);
            let found = found.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
            self.check_pools(found)?;
            Some(found)
        } else {
            self.check_any_pools()?;
            None
        };
        let imported = Imported {
            identity: file.identity,
            imports: 1,
            device,
            mapping: Mapping::of_file(&file)?,
            pointers: BTreeMap::new(),
            access: BTreeMap::new(),
        };
        let id = self.new_handle(HandleKind::Pool);
        self.sharing.imported.insert(id, imported);
        Ok(id)
    }

    /// Destroys an imported pool; `None` if the handle is not of one.
    pub(crate) fn end_import(&mut self, pool: CUmemoryPool) -> Option<Answer> {
        let id = from_handle(pool);
        if self.sharing.ended.contains(&id) {
            return Some(Ok(()));
        }
        let imported = self.sharing.imported.get_mut(&id)?;
        if imported.imports > 1 {
            imported.imports -= 1;
            return Some(Ok(()));
        }
        if !imported.pointers.is_empty() {
            return Some(Err(INVALID_VALUE));
        }
        if let Some(imported) = self.sharing.imported.remove(&id) {
            self.bury(imported.mapping);
        }
        self.sharing.ended.insert(id);
        Some(Ok(()))
    }
}

exports! {
    plain fn cuMemPoolExportToShareableHandle(
        _, handle: Value, pool: CUmemoryPool, kind: CUmemAllocationHandleType, flags: u64
    ) {
        handle.required()?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        state.refuse_while_recording()?;
        state.export_pool(pool, kind.0, handle)
    }

    plain fn cuMemPoolImportFromShareableHandle(
        _, out: Out<CUmemoryPool>, handle: *mut c_void, kind: CUmemAllocationHandleType, flags: u64
    ) {
        out.required()?;
        let not_supported = CUresult::CUDA_ERROR_NOT_SUPPORTED;
        match kind.0 {
            _ if flags != 0 => Err(INVALID_VALUE),
            SHARED_HANDLE => {
                let mut state = state()?;
                if !state.configuration.has_shared_handles() {
                    return Err(not_supported);
                }
                state.refuse_while_recording()?;
                let id = state.import_pool(shared_handle(handle))?;
                out.write(to_handle(id))
            }
            // Measured on a machine without fabric.
            FABRIC if !handle.is_null() => Err(not_supported),
            FOREIGN_HANDLE => Err(not_supported),
            _ => Err(INVALID_VALUE),
        }
    }
}

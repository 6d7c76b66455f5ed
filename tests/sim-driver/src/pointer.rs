//! What the driver reports about an address.

use std::ffi::{c_int, c_uint, c_void};

use cuda_driver_sys::{CUcontext, CUdeviceptr, CUmemoryPool, CUpointer_attribute, CUresult};

use crate::alloc::Kind;
use crate::buffer_id::BufferId;
use crate::export::{Answer, INVALID_VALUE, Out, Value, exports};
use crate::state::{State, state, to_handle};

/// `CU_DEVICE_INVALID`.
const NO_DEVICE: c_int = -2;

const HOST: c_uint = 1;
const DEVICE: c_uint = 2;

/// All attributes of one address.
#[derive(Clone, Copy, Debug)]
struct Facts {
    id: BufferId,
    address: u64,
    start: u64,
    size: u64,
    context: u64,
    memory_type: c_uint,
    is_managed: bool,
    device: c_int,
    pool: u64,
    handle_types: u64,
    is_legacy_ipc: bool,
    /// Whether third parties may access it.
    is_direct: bool,
    /// Graph memory, between its launch and its free.
    is_graph: bool,
    access: c_uint,
    is_sync: bool,
    /// Whether the current context may use the address.
    reach: Answer,
    /// Whether another process allocated it.
    is_imported: bool,
    /// Start and size of the mapping, if it is not the whole range.
    mapping: Option<(u64, u64)>,
}

/// The result of the plural query for memory unknown to the driver.
const NOTHING: Facts = Facts {
    id: BufferId::NONE,
    address: 0,
    start: 0,
    size: 0,
    context: 0,
    memory_type: 0,
    is_managed: false,
    device: NO_DEVICE,
    pool: 0,
    handle_types: 0,
    is_legacy_ipc: false,
    is_direct: false,
    is_graph: false,
    access: 0,
    is_sync: false,
    reach: Ok(()),
    is_imported: false,
    mapping: None,
};

impl State {
    fn facts(&mut self, address: u64) -> Option<Facts> {
        if let Some((start, allocation)) = self.allocation(address) {
            let device = c_int::try_from(allocation.device).unwrap_or(NO_DEVICE);
            let reach = self.current().and_then(|current| {
                let is_near = self.context(current)?.device == allocation.device;
                let is_open = is_near
                    || allocation.kind != Kind::Device
                    || self.has_opened(current, allocation.context);
                if is_open { Ok(()) } else { Err(INVALID_VALUE) }
            });
            let is_shareable = allocation.kind == Kind::Device
                && !allocation.is_variable
                && self.configuration.has_legacy_sharing();
            return Some(Facts {
                id: allocation.id,
                address,
                start,
                size: allocation.size,
                context: allocation.context,
                memory_type: if allocation.is_host() { HOST } else { DEVICE },
                is_managed: allocation.kind == Kind::Managed,
                device,
                is_legacy_ipc: is_shareable,
                is_direct: is_shareable,
                access: 3,
                is_sync: allocation.is_sync,
                reach,
                ..NOTHING
            });
        }
        if let Some((start, found)) = self.registration(address) {
            // A guess: like pinned memory.
            return Some(Facts {
                id: found.id,
                address,
                start,
                size: found.size,
                context: found.context,
                memory_type: HOST,
                device: c_int::try_from(found.device).unwrap_or(NO_DEVICE),
                access: 3,
                reach: self.current().map(|_| ()),
                ..NOTHING
            });
        }
        if let Some(facts) = self.mapped_facts(address) {
            return Some(facts);
        }
        if let Some((id, imported, start, block)) = self.imported_block(address) {
            let device = imported.device.unwrap_or(0);
            let is_host = imported.device.is_none();
            return Some(Facts {
                id: block.id,
                address,
                start,
                size: block.size,
                memory_type: if is_host { HOST } else { DEVICE },
                device: c_int::try_from(device).unwrap_or(NO_DEVICE),
                pool: id,
                access: 3,
                is_sync: true,
                is_imported: true,
                ..NOTHING
            });
        }
        if let Some((start, block, device)) = self.live_graph_block(address) {
            return Some(Facts {
                id: block.id,
                address,
                start,
                size: block.size,
                memory_type: DEVICE,
                device: c_int::try_from(device).unwrap_or(NO_DEVICE),
                is_graph: true,
                access: 3,
                ..NOTHING
            });
        }
        let current = self.current().and_then(|current| {
            let context = self.context(current)?;
            Ok(context.device)
        });
        let (pool_id, _) = self.pool_at(address)?;
        let pool = self.pools.get_mut(&pool_id)?;
        let base = pool.base();
        let (start, id, size, is_sync) = pool
            .space
            .block(address - base)
            .map(|(start, block)| (base + start, block.id, block.size, block.is_sync))?;
        let device = pool.device.unwrap_or(0);
        Some(Facts {
            id,
            address,
            start,
            size,
            context: 0,
            memory_type: if pool.is_host() { HOST } else { DEVICE },
            is_managed: pool.properties.is_managed(),
            device: c_int::try_from(device).unwrap_or(NO_DEVICE),
            pool: pool_id,
            handle_types: pool.properties.handle_types.into(),
            is_legacy_ipc: false,
            is_direct: false,
            is_graph: false,
            access: 3,
            is_sync,
            reach: current.and_then(|device| {
                if pool.is_open_to(device) {
                    Ok(())
                } else {
                    Err(INVALID_VALUE)
                }
            }),
            is_imported: false,
            mapping: None,
        })
    }

    /// For mapped memory: the range is the whole reservation, however much of it is mapped.
    fn mapped_facts(&self, address: u64) -> Option<Facts> {
        let current = self.current().and_then(|current| self.context(current));
        let current = current.map(|context| context.device);
        let found = self.mapped_at(address, current.ok())?;
        let (start, size) = found.reservation;
        Some(Facts {
            id: found.id,
            address,
            start,
            size,
            memory_type: if found.device.is_some() { DEVICE } else { HOST },
            // Measured: host memory belongs to device 0.
            device: c_int::try_from(found.device.unwrap_or(0)).unwrap_or(NO_DEVICE),
            handle_types: found.handle_types,
            is_direct: self.mapped_directness(address, address + 1) == Some(true),
            access: found.access as c_uint,
            reach: match current {
                Ok(_) if found.access == 0 => Err(INVALID_VALUE),
                current => current.map(|_| ()),
            },
            mapping: Some(found.range),
            ..NOTHING
        })
    }

    /// Whether there is memory at the address.
    pub(crate) fn is_known(&mut self, address: u64) -> bool {
        self.facts(address).is_some()
    }

    /// Start and size of the block that contains an address, if the current context can access it.
    pub(crate) fn range_of(&mut self, address: u64) -> Option<(u64, u64)> {
        let facts = self.facts(address)?;
        facts.reach.ok()?;
        Self::known_range(&facts)
    }

    /// The same without a current context, for calls that need none.
    pub(crate) fn range_without_context(&mut self, address: u64) -> Option<(u64, u64)> {
        if self.current().is_ok() {
            return self.range_of(address);
        }
        let facts = self.facts(address)?;
        Self::known_range(&facts)
    }

    fn known_range(facts: &Facts) -> Option<(u64, u64)> {
        // Measured: the mapping, for mapped memory.
        Some(facts.mapping.unwrap_or((facts.start, facts.size)))
    }

    /// Stores whether copies of a block are synchronous. The simulator only reports it.
    fn set_sync(&mut self, address: u64, is_sync: bool) -> Answer {
        let start = self.allocation(address).map(|(start, _)| start);
        if let Some(allocation) = start.and_then(|start| self.allocations.get_mut(&start)) {
            allocation.is_sync = is_sync;
            return Ok(());
        }
        // Measured: even if it was created for GPUDirect.
        if self.mapped_at(address, None).is_some() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let (id, base) = self
            .pool_at(address)
            .map(|(id, pool)| (id, pool.base()))
            .ok_or(INVALID_VALUE)?;
        let pool = self.pools.get_mut(&id).ok_or(INVALID_VALUE)?;
        let (_, block) = pool.space.block(address - base).ok_or(INVALID_VALUE)?;
        block.is_sync = is_sync;
        Ok(())
    }
}

/// Writes one attribute with the width defined in the header.
fn write(facts: &Facts, version: u32, attribute: CUpointer_attribute, out: Value) -> Answer {
    let flag = |value: bool| out.write(c_uint::from(value));
    match attribute.0 {
        1 => out.write::<CUcontext>(to_handle(facts.context)),
        2 => out.write(facts.memory_type),
        3 if facts.reach.is_err() => facts.reach,
        3 => out.write::<CUdeviceptr>(facts.address),
        4 if facts.memory_type == DEVICE && !facts.is_managed => Err(INVALID_VALUE),
        4 => out.write::<*mut c_void>(to_handle(facts.address)),
        5 if facts.is_graph => out.write(0_u64),
        5 if facts.memory_type == DEVICE => Ok(()),
        6 => flag(facts.is_sync || facts.is_graph),
        7 => out.write(facts.id.get()),
        20 => out.write(facts.start),
        8 => flag(facts.is_managed),
        9 => out.write(facts.device),
        10 => flag(facts.is_legacy_ipc),
        // Measured: nothing is reported about the mapping of imported memory.
        18 if facts.is_imported => out.write(0_usize),
        19 if facts.is_imported => out.write::<CUdeviceptr>(0),
        11 => out.write::<CUdeviceptr>(facts.start),
        12 => out.write(facts.size as usize),
        18 => out.write(facts.mapping.map_or(facts.size, |(_, size)| size) as usize),
        19 => out.write::<CUdeviceptr>(facts.mapping.map_or(facts.start, |(start, _)| start)),
        13 => flag(facts.size > 0),
        14 => out.write(facts.handle_types),
        // Measured: memory of `cuMemAlloc`, and mapped memory created for GPUDirect.
        15 => flag(facts.is_direct),
        16 => out.write(facts.access),
        17 => out.write::<CUmemoryPool>(to_handle(facts.pool)),
        21 if version >= 12080 => flag(facts.is_legacy_ipc),
        22 if version >= 13040 => out.write(0 as c_int),
        _ => Err(INVALID_VALUE),
    }
}

exports! {
    plain fn cuPointerSetAttribute(
        _, value: *const c_void, attribute: CUpointer_attribute, address: CUdeviceptr
    ) {
        let wanted = Value::new(value.cast_mut()).read::<c_uint>()?;
        if attribute.0 != 6 {
            return Err(INVALID_VALUE);
        }
        state()?.set_sync(address, wanted != 0)
    }

    plain fn cuPointerGetAttribute(
        _, out: Value, attribute: CUpointer_attribute, address: CUdeviceptr
    ) {
        out.required()?;
        let mut state = state()?;
        let facts = state.facts(address).ok_or(INVALID_VALUE)?;
        write(&facts, state.configuration.version, attribute, out)
    }

    plain fn cuPointerGetAttributes(
        _, count: c_uint, attributes: Out<CUpointer_attribute>,
        outs: Out<*mut c_void>, address: CUdeviceptr
    ) {
        let attributes = attributes.as_input().read_all(count as usize)?;
        let outs = outs.as_input().read_all(count as usize)?;
        if attributes.is_empty() {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        let facts = state.facts(address);
        let is_foreign = facts.is_none();
        let facts = facts.unwrap_or(Facts { address, ..NOTHING });
        for (attribute, out) in attributes.iter().zip(outs) {
            let out = Value::new(out).required()?;
            match attribute.0 {
                // Memory unknown to the driver is host memory, without a range.
                4 if is_foreign => {
                    out.write::<*mut c_void>(to_handle(address))?;
                    continue;
                }
                11 | 12 if is_foreign => continue,
                _ => {}
            }
            match write(&facts, state.configuration.version, *attribute, out) {
                // For a device address the host pointer is null, not an error.
                Err(CUresult::CUDA_ERROR_INVALID_VALUE) if attribute.0 == 4 => {
                    out.write::<*mut c_void>(std::ptr::null_mut())?;
                }
                answer => answer?,
            }
        }
        Ok(())
    }
}

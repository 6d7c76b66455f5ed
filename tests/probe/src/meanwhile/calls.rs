//! The calls that are made during a capture.

use std::ffi::c_void;
use std::os::fd::AsRawFd as _;

use cuda_driver_sys::*;

use super::scene::{Scene, Shared, mapping};
use crate::environment::{Environment, OK, cu};
use crate::ipc_events;
use crate::recorder::{begin, try_instantiate, try_launch};
use crate::share::{self, DESCRIPTOR};
use crate::vmm::{self, STEP};

pub(super) type Call = fn(&Environment, &Scene) -> CUresult;

unsafe extern "C" fn nothing(_: *mut c_void) {}

fn get_attribute(env: &Environment, pool: CUmemoryPool, id: u32) -> CUresult {
    let mut value = 0_u64;
    let (id, place) = (CUmemPool_attribute(id), (&raw mut value).cast());
    cu!(env, cuMemPoolGetAttribute(pool, id, place))
}

/// Joins another stream, and joins back if wanted.
fn join(env: &Environment, scene: &Scene, back: bool) -> CUresult {
    let code = cu!(env, cuEventRecord(scene.fresh, scene.stream));
    if code != OK {
        return code;
    }
    let code = cu!(env, cuStreamWaitEvent(scene.other, scene.fresh, 0));
    if code != OK {
        return code;
    }
    let code = cu!(env, cuMemsetD8Async(scene.plain, 1, 64, scene.other));
    if code != OK || !back {
        return code;
    }
    let code = cu!(env, cuEventRecord(scene.event, scene.other));
    if code != OK {
        return code;
    }
    cu!(env, cuStreamWaitEvent(scene.stream, scene.event, 0))
}

/// A call with what is shared, which is there for it.
fn sharing(scene: &Scene, call: impl FnOnce(&Shared) -> CUresult) -> CUresult {
    scene
        .shared
        .as_ref()
        .map_or(CUresult::CUDA_ERROR_UNKNOWN, call)
}

pub(super) const CALLS: [(&str, Call); 91] = [
    ("nothing", |_, _| OK),
    ("alloc", |env, s| {
        let mut out = 0;
        cu!(env, cuMemAllocAsync(&raw mut out, 1000, s.stream))
    }),
    ("alloc from a pool", |env, s| {
        env.try_alloc(s.pool, 1000, s.stream).0
    }),
    ("alloc of nothing", |env, s| {
        env.try_alloc(s.pool, 0, s.stream).0
    }),
    ("alloc of too much", |env, s| {
        env.try_alloc(s.pool, 1 << 50, s.stream).0
    }),
    ("free of captured", |env, s| {
        cu!(env, cuMemFreeAsync(s.captured, s.stream))
    }),
    ("free of captured twice", |env, s| {
        let _ = cu!(env, cuMemFreeAsync(s.captured, s.stream));
        cu!(env, cuMemFreeAsync(s.captured, s.stream))
    }),
    ("free of the middle of captured", |env, s| {
        cu!(env, cuMemFreeAsync(s.captured + 16, s.stream))
    }),
    ("free of captured elsewhere", |env, s| {
        cu!(env, cuMemFreeAsync(s.captured, s.other))
    }),
    ("cuMemFree of captured", |env, s| {
        cu!(env, cuMemFree_v2(s.captured))
    }),
    ("memset of captured", |env, s| {
        cu!(env, cuMemsetD8Async(s.captured, 1, 1000, s.stream))
    }),
    ("memset past captured", |env, s| {
        cu!(env, cuMemsetD8Async(s.captured, 1, 1001, s.stream))
    }),
    ("memset of freed captured", |env, s| {
        let _ = cu!(env, cuMemFreeAsync(s.captured, s.stream));
        cu!(env, cuMemsetD8Async(s.captured, 1, 1000, s.stream))
    }),
    ("memset of captured elsewhere", |env, s| {
        cu!(env, cuMemsetD8Async(s.captured, 1, 1000, s.other))
    }),
    ("free of null", |env, s| {
        cu!(env, cuMemFreeAsync(0, s.stream))
    }),
    ("free of pool memory", |env, s| {
        cu!(env, cuMemFreeAsync(s.block, s.stream))
    }),
    ("free of pool memory elsewhere", |env, s| {
        cu!(env, cuMemFreeAsync(s.block, s.other))
    }),
    ("cuMemFree of pool memory", |env, s| {
        cu!(env, cuMemFree_v2(s.block))
    }),
    ("free of plain memory", |env, s| {
        cu!(env, cuMemFreeAsync(s.plain, s.stream))
    }),
    ("free of plain memory elsewhere", |env, s| {
        cu!(env, cuMemFreeAsync(s.plain, s.other))
    }),
    ("cuMemFree of plain memory", |env, s| {
        cu!(env, cuMemFree_v2(s.plain))
    }),
    ("cuMemFreeHost", |env, s| cu!(env, cuMemFreeHost(s.pinned))),
    ("free of no memory", |env, s| {
        cu!(env, cuMemFreeAsync(4096, s.stream))
    }),
    ("alloc elsewhere", |env, s| {
        env.try_alloc(s.pool, 1000, s.other).0
    }),
    ("cuMemAlloc", |env, _| {
        let mut out = 0;
        cu!(env, cuMemAlloc_v2(&raw mut out, 64))
    }),
    ("cuMemHostAlloc", |env, _| {
        let mut out = std::ptr::null_mut();
        cu!(env, cuMemHostAlloc(&raw mut out, 64, 0))
    }),
    ("memset of pool memory", |env, s| {
        cu!(env, cuMemsetD8Async(s.block, 1, 1000, s.stream))
    }),
    ("memset past pool memory", |env, s| {
        cu!(env, cuMemsetD8Async(s.block, 1, 1001, s.stream))
    }),
    ("memset of plain memory", |env, s| {
        cu!(env, cuMemsetD8Async(s.plain, 1, 64, s.stream))
    }),
    ("memset of nothing", |env, s| {
        cu!(env, cuMemsetD8Async(s.plain, 1, 0, s.stream))
    }),
    ("memset elsewhere", |env, s| {
        cu!(env, cuMemsetD8Async(s.block, 1, 1000, s.other))
    }),
    ("memset on the null stream", |env, s| {
        cu!(env, cuMemsetD8Async(s.plain, 1, 64, std::ptr::null_mut()))
    }),
    ("cuMemsetD8", |env, s| {
        cu!(env, cuMemsetD8_v2(s.plain, 1, 64))
    }),
    ("copy within the device", |env, s| {
        cu!(env, cuMemcpyDtoDAsync_v2(s.block, s.plain, 64, s.stream))
    }),
    ("copy from pinned", |env, s| {
        cu!(env, cuMemcpyHtoDAsync_v2(s.plain, s.pinned, 64, s.stream))
    }),
    ("copy to pinned", |env, s| {
        cu!(env, cuMemcpyDtoHAsync_v2(s.pinned, s.plain, 64, s.stream))
    }),
    ("copy from pageable", |env, s| {
        let bytes = [1_u8; 64];
        cu!(
            env,
            cuMemcpyHtoDAsync_v2(s.plain, bytes.as_ptr().cast(), 64, s.stream)
        )
    }),
    ("copy to pageable", |env, s| {
        let mut bytes = [1_u8; 64];
        cu!(
            env,
            cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), s.plain, 64, s.stream)
        )
    }),
    ("copy of any kind", |env, s| {
        cu!(env, cuMemcpyAsync(s.block, s.plain, 64, s.stream))
    }),
    ("cuMemcpyDtoH", |env, s| {
        let mut bytes = [1_u8; 64];
        cu!(env, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), s.plain, 64))
    }),
    ("host function", |env, s| {
        cu!(
            env,
            cuLaunchHostFunc(s.stream, Some(nothing), std::ptr::null_mut())
        )
    }),
    ("record", |env, s| {
        cu!(env, cuEventRecord(s.fresh, s.stream))
    }),
    ("record, then query the event", |env, s| {
        let _ = cu!(env, cuEventRecord(s.fresh, s.stream));
        cu!(env, cuEventQuery(s.fresh))
    }),
    ("record, then synchronise with the event", |env, s| {
        let _ = cu!(env, cuEventRecord(s.fresh, s.stream));
        cu!(env, cuEventSynchronize(s.fresh))
    }),
    ("wait for an event of before", |env, s| {
        cu!(env, cuStreamWaitEvent(s.stream, s.event, 0))
    }),
    ("wait for an event never recorded", |env, s| {
        cu!(env, cuStreamWaitEvent(s.stream, s.fresh, 0))
    }),
    ("join and back", |env, s| join(env, s, true)),
    ("join only", |env, s| join(env, s, false)),
    ("synchronise", |env, s| {
        cu!(env, cuStreamSynchronize(s.stream))
    }),
    ("query", |env, s| cu!(env, cuStreamQuery(s.stream))),
    ("synchronise elsewhere", |env, s| {
        cu!(env, cuStreamSynchronize(s.other))
    }),
    ("query elsewhere", |env, s| cu!(env, cuStreamQuery(s.other))),
    ("cuCtxSynchronize", |env, _| cu!(env, cuCtxSynchronize())),
    ("query an event of before", |env, s| {
        cu!(env, cuEventQuery(s.event))
    }),
    ("synchronise with an event of before", |env, s| {
        cu!(env, cuEventSynchronize(s.event))
    }),
    ("cuMemPoolTrimTo", |env, s| {
        cu!(env, cuMemPoolTrimTo(s.pool, 0))
    }),
    ("cuMemPoolGetAttribute", |env, s| {
        get_attribute(env, s.pool, 7)
    }),
    ("cuMemPoolGetAccess", |env, s| {
        let mut flags = CUmemAccess_flags(0);
        let mut place = location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0);
        cu!(
            env,
            cuMemPoolGetAccess(&raw mut flags, s.pool, &raw mut place)
        )
    }),
    ("cuDeviceGetAttribute", |env, _| {
        let mut value = 0;
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        cu!(env, cuDeviceGetAttribute(&raw mut value, attribute, 0))
    }),
    ("cuMemPoolSetAttribute", |env, s| env.try_set(s.pool, 4, 0)),
    ("cuMemPoolCreate", |env, _| {
        env.pool_with(&Environment::props()).0
    }),
    ("cuStreamCreate", |env, _| {
        let mut out = std::ptr::null_mut();
        cu!(env, cuStreamCreate(&raw mut out, 1))
    }),
    ("cuEventCreate and destroy", |env, _| match env.event() {
        Ok(event) => cu!(env, cuEventDestroy_v2(event)),
        Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
    }),
    ("cuMemGetInfo", |env, _| {
        let (mut free, mut total) = (0, 0);
        cu!(env, cuMemGetInfo_v2(&raw mut free, &raw mut total))
    }),
    ("begin again", |env, s| begin(env, s.stream, 2)),
    ("cuDeviceGraphMemTrim", |env, _| {
        cu!(env, cuDeviceGraphMemTrim(0))
    }),
    ("cuStreamDestroy of another", |env, s| {
        cu!(env, cuStreamDestroy_v2(s.other))
    }),
    ("cuDeviceGetMemPool", |env, _| {
        let mut pool = std::ptr::null_mut();
        cu!(env, cuDeviceGetMemPool(&raw mut pool, 0))
    }),
    ("cuDeviceGetDefaultMemPool", |env, _| {
        let mut pool = std::ptr::null_mut();
        cu!(env, cuDeviceGetDefaultMemPool(&raw mut pool, 0))
    }),
    ("cuDeviceSetMemPool to the same", |env, _| {
        let mut pool = std::ptr::null_mut();
        let code = cu!(env, cuDeviceGetMemPool(&raw mut pool, 0));
        if code != OK {
            return code;
        }
        cu!(env, cuDeviceSetMemPool(0, pool))
    }),
    ("cuMemSetMemPool to the same", |env, _| {
        let (mut pool, kind) = (
            std::ptr::null_mut(),
            CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        );
        let mut place = location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0);
        let code = cu!(env, cuMemGetMemPool(&raw mut pool, &raw mut place, kind));
        if code != OK {
            return code;
        }
        cu!(env, cuMemSetMemPool(&raw mut place, kind, pool))
    }),
    ("cuMemPoolSetAccess", |env, s| {
        let access = CUmemAccessDesc {
            location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0),
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        cu!(env, cuMemPoolSetAccess(s.pool, &raw const access, 1))
    }),
    ("cuMemPoolDestroy", |env, s| {
        cu!(env, cuMemPoolDestroy(s.unused))
    }),
    ("cuGraphInstantiateWithFlags", |env, s| {
        try_instantiate(env, s.graph, 0).0
    }),
    ("cuGraphLaunch elsewhere", |env, s| {
        try_launch(env, s.exec, s.other)
    }),
    ("cuGraphExecDestroy", |env, s| {
        cu!(env, cuGraphExecDestroy(s.exec))
    }),
    ("cuGraphDestroy", |env, s| cu!(env, cuGraphDestroy(s.graph))),
    ("cuMemAddressReserve", |env, _| {
        let mut address = 0;
        cu!(env, cuMemAddressReserve(&raw mut address, 2 << 20, 0, 0, 0))
    }),
    ("cuMemCreate", |env, _| {
        let mut handle = 0;
        let props = crate::vmm::prop(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE.0, 0);
        cu!(
            env,
            cuMemCreate(&raw mut handle, 2 << 20, &raw const props, 0)
        )
    }),
    ("cuMemMap", |env, s| {
        mapping(s, |it| vmm::map(env, it.unmapped, STEP, it.handle))
    }),
    ("cuMemSetAccess", |env, s| {
        mapping(s, |it| vmm::allow(env, (it.mapped, STEP), (1, 0), 3))
    }),
    ("cuMemUnmap", |env, s| {
        mapping(s, |it| vmm::unmap(env, it.mapped, STEP))
    }),
    ("cuMemRelease", |env, s| {
        mapping(s, |it| vmm::release(env, it.handle))
    }),
    ("cuMemAddressFree", |env, s| {
        mapping(s, |it| vmm::address_free(env, it.unmapped, STEP))
    }),
    ("cuDevicePrimaryCtxRetain", |env, _| {
        let mut context = std::ptr::null_mut();
        cu!(env, cuDevicePrimaryCtxRetain(&raw mut context, 0))
    }),
    ("cuMemPoolExportToShareableHandle", |env, s| {
        sharing(s, |it| {
            let (code, descriptor) = share::export(env, it.pool, DESCRIPTOR, 0);
            if code == OK {
                drop(share::own(descriptor));
            }
            code
        })
    }),
    ("cuMemPoolImportFromShareableHandle", |env, s| {
        sharing(s, |it| {
            share::import(env, it.descriptor.as_raw_fd(), DESCRIPTOR, 0).0
        })
    }),
    ("cuMemPoolExportPointer", |env, s| {
        sharing(s, |it| share::token(env, it.block).0)
    }),
    ("cuMemPoolImportPointer", |env, s| {
        sharing(s, |it| share::open(env, it.imported, &it.token).0)
    }),
    ("cuIpcGetEventHandle", |env, s| {
        sharing(s, |it| ipc_events::handle(env, it.event).0)
    }),
    // Refused in any case: the event is this process's own. A capture that forbids the call is lost all the same.
    ("cuIpcOpenEventHandle of an own event", |env, s| {
        sharing(s, |it| ipc_events::open(env, it.handle).0)
    }),
];

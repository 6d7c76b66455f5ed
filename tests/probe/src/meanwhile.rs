//! What may be done while a stream is recorded, and what makes the recording worthless.

use std::ffi::c_void;

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, OK, cu, name, size};
use crate::recorder::{begin, ended, status};

/// What a call during a capture has at hand: made before it, but for `captured`.
struct Scene {
    /// The stream that is captured, and one that is not.
    stream: CUstream,
    other: CUstream,
    pool: CUmemoryPool,
    /// Memory of the pool, and memory of none.
    block: CUdeviceptr,
    plain: CUdeviceptr,
    pinned: *mut c_void,
    /// Recorded in `other` before the capture.
    event: CUevent,
    fresh: CUevent,
    /// Allocated in the capture.
    captured: CUdeviceptr,
}

// SAFETY: handles of the driver may be used from any thread.
unsafe impl Send for Scene {}
// SAFETY: as above.
unsafe impl Sync for Scene {}

type Call = fn(&Lab, &Scene) -> CUresult;

unsafe extern "C" fn nothing(_: *mut c_void) {}

fn get_attribute(lab: &Lab, pool: CUmemoryPool, id: u32) -> CUresult {
    let mut value = 0_u64;
    let (id, place) = (CUmemPool_attribute(id), (&raw mut value).cast());
    cu!(lab, cuMemPoolGetAttribute(pool, id, place))
}

/// Joins another stream, and joins back if wanted.
fn join(lab: &Lab, scene: &Scene, back: bool) -> CUresult {
    let code = cu!(lab, cuEventRecord(scene.fresh, scene.stream));
    if code != OK {
        return code;
    }
    let code = cu!(lab, cuStreamWaitEvent(scene.other, scene.fresh, 0));
    if code != OK {
        return code;
    }
    let code = cu!(lab, cuMemsetD8Async(scene.plain, 1, 64, scene.other));
    if code != OK || !back {
        return code;
    }
    let code = cu!(lab, cuEventRecord(scene.event, scene.other));
    if code != OK {
        return code;
    }
    cu!(lab, cuStreamWaitEvent(scene.stream, scene.event, 0))
}

const CALLS: [(&str, Call); 67] = [
    ("nothing", |_, _| OK),
    ("alloc", |lab, s| {
        let mut out = 0;
        cu!(lab, cuMemAllocAsync(&raw mut out, 1000, s.stream))
    }),
    ("alloc from a pool", |lab, s| {
        lab.try_alloc(s.pool, 1000, s.stream).0
    }),
    ("alloc of nothing", |lab, s| {
        lab.try_alloc(s.pool, 0, s.stream).0
    }),
    ("alloc of too much", |lab, s| {
        lab.try_alloc(s.pool, 1 << 50, s.stream).0
    }),
    ("free of captured", |lab, s| {
        cu!(lab, cuMemFreeAsync(s.captured, s.stream))
    }),
    ("free of captured twice", |lab, s| {
        let _ = cu!(lab, cuMemFreeAsync(s.captured, s.stream));
        cu!(lab, cuMemFreeAsync(s.captured, s.stream))
    }),
    ("free of the middle of captured", |lab, s| {
        cu!(lab, cuMemFreeAsync(s.captured + 16, s.stream))
    }),
    ("free of captured elsewhere", |lab, s| {
        cu!(lab, cuMemFreeAsync(s.captured, s.other))
    }),
    ("cuMemFree of captured", |lab, s| {
        cu!(lab, cuMemFree_v2(s.captured))
    }),
    ("memset of captured", |lab, s| {
        cu!(lab, cuMemsetD8Async(s.captured, 1, 1000, s.stream))
    }),
    ("memset past captured", |lab, s| {
        cu!(lab, cuMemsetD8Async(s.captured, 1, 1001, s.stream))
    }),
    ("memset of freed captured", |lab, s| {
        let _ = cu!(lab, cuMemFreeAsync(s.captured, s.stream));
        cu!(lab, cuMemsetD8Async(s.captured, 1, 1000, s.stream))
    }),
    ("memset of captured elsewhere", |lab, s| {
        cu!(lab, cuMemsetD8Async(s.captured, 1, 1000, s.other))
    }),
    ("free of null", |lab, s| {
        cu!(lab, cuMemFreeAsync(0, s.stream))
    }),
    ("free of pool memory", |lab, s| {
        cu!(lab, cuMemFreeAsync(s.block, s.stream))
    }),
    ("free of pool memory elsewhere", |lab, s| {
        cu!(lab, cuMemFreeAsync(s.block, s.other))
    }),
    ("cuMemFree of pool memory", |lab, s| {
        cu!(lab, cuMemFree_v2(s.block))
    }),
    ("free of plain memory", |lab, s| {
        cu!(lab, cuMemFreeAsync(s.plain, s.stream))
    }),
    ("free of plain memory elsewhere", |lab, s| {
        cu!(lab, cuMemFreeAsync(s.plain, s.other))
    }),
    ("cuMemFree of plain memory", |lab, s| {
        cu!(lab, cuMemFree_v2(s.plain))
    }),
    ("cuMemFreeHost", |lab, s| cu!(lab, cuMemFreeHost(s.pinned))),
    ("free of no memory", |lab, s| {
        cu!(lab, cuMemFreeAsync(4096, s.stream))
    }),
    ("alloc elsewhere", |lab, s| {
        lab.try_alloc(s.pool, 1000, s.other).0
    }),
    ("cuMemAlloc", |lab, _| {
        let mut out = 0;
        cu!(lab, cuMemAlloc_v2(&raw mut out, 64))
    }),
    ("cuMemHostAlloc", |lab, _| {
        let mut out = std::ptr::null_mut();
        cu!(lab, cuMemHostAlloc(&raw mut out, 64, 0))
    }),
    ("memset of pool memory", |lab, s| {
        cu!(lab, cuMemsetD8Async(s.block, 1, 1000, s.stream))
    }),
    ("memset past pool memory", |lab, s| {
        cu!(lab, cuMemsetD8Async(s.block, 1, 1001, s.stream))
    }),
    ("memset of plain memory", |lab, s| {
        cu!(lab, cuMemsetD8Async(s.plain, 1, 64, s.stream))
    }),
    ("memset of nothing", |lab, s| {
        cu!(lab, cuMemsetD8Async(s.plain, 1, 0, s.stream))
    }),
    ("memset elsewhere", |lab, s| {
        cu!(lab, cuMemsetD8Async(s.block, 1, 1000, s.other))
    }),
    ("memset on the null stream", |lab, s| {
        cu!(lab, cuMemsetD8Async(s.plain, 1, 64, std::ptr::null_mut()))
    }),
    ("cuMemsetD8", |lab, s| {
        cu!(lab, cuMemsetD8_v2(s.plain, 1, 64))
    }),
    ("copy within the device", |lab, s| {
        cu!(lab, cuMemcpyDtoDAsync_v2(s.block, s.plain, 64, s.stream))
    }),
    ("copy from pinned", |lab, s| {
        cu!(lab, cuMemcpyHtoDAsync_v2(s.plain, s.pinned, 64, s.stream))
    }),
    ("copy to pinned", |lab, s| {
        cu!(lab, cuMemcpyDtoHAsync_v2(s.pinned, s.plain, 64, s.stream))
    }),
    ("copy from pageable", |lab, s| {
        let bytes = [1_u8; 64];
        cu!(
            lab,
            cuMemcpyHtoDAsync_v2(s.plain, bytes.as_ptr().cast(), 64, s.stream)
        )
    }),
    ("copy to pageable", |lab, s| {
        let mut bytes = [1_u8; 64];
        cu!(
            lab,
            cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), s.plain, 64, s.stream)
        )
    }),
    ("copy of any kind", |lab, s| {
        cu!(lab, cuMemcpyAsync(s.block, s.plain, 64, s.stream))
    }),
    ("cuMemcpyDtoH", |lab, s| {
        let mut bytes = [1_u8; 64];
        cu!(lab, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), s.plain, 64))
    }),
    ("host function", |lab, s| {
        cu!(
            lab,
            cuLaunchHostFunc(s.stream, Some(nothing), std::ptr::null_mut())
        )
    }),
    ("record", |lab, s| {
        cu!(lab, cuEventRecord(s.fresh, s.stream))
    }),
    ("record, then query the event", |lab, s| {
        let _ = cu!(lab, cuEventRecord(s.fresh, s.stream));
        cu!(lab, cuEventQuery(s.fresh))
    }),
    ("record, then synchronise with the event", |lab, s| {
        let _ = cu!(lab, cuEventRecord(s.fresh, s.stream));
        cu!(lab, cuEventSynchronize(s.fresh))
    }),
    ("wait for an event of before", |lab, s| {
        cu!(lab, cuStreamWaitEvent(s.stream, s.event, 0))
    }),
    ("wait for an event never recorded", |lab, s| {
        cu!(lab, cuStreamWaitEvent(s.stream, s.fresh, 0))
    }),
    ("join and back", |lab, s| join(lab, s, true)),
    ("join only", |lab, s| join(lab, s, false)),
    ("synchronise", |lab, s| {
        cu!(lab, cuStreamSynchronize(s.stream))
    }),
    ("query", |lab, s| cu!(lab, cuStreamQuery(s.stream))),
    ("synchronise elsewhere", |lab, s| {
        cu!(lab, cuStreamSynchronize(s.other))
    }),
    ("query elsewhere", |lab, s| cu!(lab, cuStreamQuery(s.other))),
    ("cuCtxSynchronize", |lab, _| cu!(lab, cuCtxSynchronize())),
    ("query an event of before", |lab, s| {
        cu!(lab, cuEventQuery(s.event))
    }),
    ("synchronise with an event of before", |lab, s| {
        cu!(lab, cuEventSynchronize(s.event))
    }),
    ("cuMemPoolTrimTo", |lab, s| {
        cu!(lab, cuMemPoolTrimTo(s.pool, 0))
    }),
    ("cuMemPoolGetAttribute", |lab, s| {
        get_attribute(lab, s.pool, 7)
    }),
    ("cuMemPoolGetAccess", |lab, s| {
        let mut flags = CUmemAccess_flags(0);
        let mut place = location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0);
        cu!(
            lab,
            cuMemPoolGetAccess(&raw mut flags, s.pool, &raw mut place)
        )
    }),
    ("cuDeviceGetAttribute", |lab, _| {
        let mut value = 0;
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED;
        cu!(lab, cuDeviceGetAttribute(&raw mut value, attribute, 0))
    }),
    ("cuMemPoolSetAttribute", |lab, s| lab.try_set(s.pool, 4, 0)),
    ("cuMemPoolCreate", |lab, _| lab.pool_with(&Lab::props()).0),
    ("cuStreamCreate", |lab, _| {
        let mut out = std::ptr::null_mut();
        cu!(lab, cuStreamCreate(&raw mut out, 1))
    }),
    ("cuEventCreate and destroy", |lab, _| match lab.event() {
        Ok(event) => cu!(lab, cuEventDestroy_v2(event)),
        Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
    }),
    ("cuMemGetInfo", |lab, _| {
        let (mut free, mut total) = (0, 0);
        cu!(lab, cuMemGetInfo_v2(&raw mut free, &raw mut total))
    }),
    ("begin again", |lab, s| begin(lab, s.stream, 2)),
    ("cuDeviceGraphMemTrim", |lab, _| {
        cu!(lab, cuDeviceGraphMemTrim(0))
    }),
    ("cuStreamDestroy of another", |lab, s| {
        cu!(lab, cuStreamDestroy_v2(s.other))
    }),
];

/// Each call once while a stream is captured, by the capturing thread or by another.
fn meanwhile(lab: &Lab, mode: u32, elsewhere: bool) -> Result<()> {
    for (part, call) in CALLS {
        let (stream, other, pool) = (lab.stream()?, lab.stream()?, lab.pool(0)?);
        let mut scene = Scene {
            block: lab.alloc(pool, 1000, stream)?,
            plain: lab.plain(64)?,
            pinned: lab.pinned(64)?,
            event: lab.event()?,
            fresh: lab.event()?,
            captured: 0,
            stream,
            other,
            pool,
        };
        lab.record(scene.event, other)?;
        lab.synchronise(stream)?;
        lab.fine("begin", begin(lab, stream, mode))?;
        if part.contains("captured") {
            scene.captured = lab.alloc(pool, 1000, stream)?;
        }
        let code = if elsewhere {
            // Not all of a lab may be shared, so the other thread has one of its own.
            let (table, context, scene) = (lab.table, lab.context().expose_provenance(), &scene);
            std::thread::scope(|scope| {
                let thread = scope.spawn(move || {
                    let lab = Lab::new(table, "thread");
                    let context = std::ptr::with_exposed_provenance_mut(context);
                    lab.current(context).map(|()| call(&lab, scene))
                });
                thread.join().unwrap_or(Ok(CUresult::CUDA_ERROR_UNKNOWN))
            })?
        } else {
            call(lab, &scene)
        };
        let after = status(lab, stream);
        let graph = ended(lab, stream);
        let used = size(lab.used(pool)?);
        lab.say(
            part,
            format!("{}, {after}; end {graph}; used {used}", name(code)),
        );
        // What was joined and left open is not captured any more.
        if !part.contains("cuStreamDestroy") && status(lab, scene.other) != "none" {
            lab.say(
                format!("{part}, the other stream"),
                status(lab, scene.other),
            );
        }
        let _ = cu!(lab, cuCtxSynchronize());
    }
    Ok(())
}

pub(crate) fn global(lab: &Lab) -> Result<()> {
    meanwhile(lab, 0, false)
}

pub(crate) fn thread_local(lab: &Lab) -> Result<()> {
    meanwhile(lab, 1, false)
}

pub(crate) fn relaxed(lab: &Lab) -> Result<()> {
    meanwhile(lab, 2, false)
}

pub(crate) fn global_other_thread(lab: &Lab) -> Result<()> {
    meanwhile(lab, 0, true)
}

pub(crate) fn thread_local_other_thread(lab: &Lab) -> Result<()> {
    meanwhile(lab, 1, true)
}

pub(crate) fn relaxed_other_thread(lab: &Lab) -> Result<()> {
    meanwhile(lab, 2, true)
}

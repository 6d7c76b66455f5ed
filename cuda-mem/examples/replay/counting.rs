//! Counts driver calls on any driver: a second function table whose functions count and then call the real ones.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use cuda_mem::sys::*;
use cuda_mem::{Device, Driver};
use cuda_sim::Control;

static CALLS: AtomicU64 = AtomicU64::new(0);
static REAL: OnceLock<DriverTable> = OnceLock::new();

/// A second, counted instance of the driver.
pub(crate) struct Counted {
    driver: Driver,
    /// The simulated driver's own counts, which check the counts here.
    simulator: Option<Control>,
}

impl Counted {
    /// Counts calls of the program's only driver.
    pub(crate) fn new(real: Driver, simulated: Option<&Path>) -> Result<Self> {
        let table = counting(REAL.get_or_init(|| *real.table()));
        // SAFETY: each function behaves like the driver's own, and counts.
        let driver = unsafe { Driver::from_table(Box::leak(Box::new(table))) }?;
        let simulator = simulated.map(Control::open).transpose()?;
        Ok(Self { driver, simulator })
    }

    /// The same device, on the counted driver.
    pub(crate) fn device(&self, real: Device) -> Result<Device> {
        Ok(self.driver.device(usize::try_from(real.ordinal())?)?)
    }

    /// Number of calls so far.
    pub(crate) fn calls(&self) -> u64 {
        CALLS.load(Ordering::Relaxed)
    }

    /// The simulated driver's own count.
    pub(crate) fn of_simulator(&self) -> Option<u64> {
        self.simulator.as_ref().map(Control::calls_total)
    }
}

/// A function of the real driver.
trait Function: 'static {
    type Signature;

    fn real() -> Option<Self::Signature>;
}

/// A signature whose calls can be counted.
trait Signature: Sized {
    /// The function that counts and then calls the function of `F`.
    fn counting<F: Function<Signature = Self>>() -> Self;
}

macro_rules! signatures {
    ($(($($name:ident: $ty:ident),*))*) => {$(
        impl<$($ty),*> Signature for unsafe extern "C" fn($($ty),*) -> CUresult {
            fn counting<Func: Function<Signature = Self>>() -> Self {
                unsafe extern "C" fn shim<Func, $($ty),*>($($name: $ty),*) -> CUresult
                where
                    Func: Function<Signature = unsafe extern "C" fn($($ty),*) -> CUresult>,
                {
                    CALLS.fetch_add(1, Ordering::Relaxed);
                    match Func::real() {
                        // SAFETY: the caller obeys the contract of this function, which is the driver's.
                        Some(real) => unsafe { real($($name),*) },
                        None => CUresult::CUDA_ERROR_NOT_FOUND,
                    }
                }
                shim::<Func, $($ty),*>
            }
        }
    )*};
}

signatures! {
    () (a: A) (a: A, b: B) (a: A, b: B, c: C) (a: A, b: B, c: C, d: D) (a: A, b: B, c: C, d: D, e: E)
    (a: A, b: B, c: C, d: D, e: E, f: F) (a: A, b: B, c: C, d: D, e: E, f: F, g: G)
}

macro_rules! counted {
    ($($name:ident: $signature:ident,)*) => {
        mod function {
            $(#[allow(non_camel_case_types)]
            pub(super) struct $name;)*
        }

        $(impl Function for function::$name {
            type Signature = $signature;

            fn real() -> Option<$signature> {
                REAL.get()?.$name
            }
        })*

        /// Functions missing from the driver are missing here too. So are unlisted functions: an uncounted call would
        /// silently falsify the count, while a missing function causes an error that names it.
        fn counting(real: &DriverTable) -> DriverTable {
            DriverTable {
                $($name: real.$name.map(|_| $signature::counting::<function::$name>()),)*
                ..DriverTable::default()
            }
        }
    };
}

// The functions that `cuda_mem` and its resources call.
counted! {
    cuCtxGetCurrent: PFN_cuCtxGetCurrent,
    cuCtxGetDevice: PFN_cuCtxGetDevice,
    cuCtxPopCurrent_v2: PFN_cuCtxPopCurrent_v2,
    cuCtxPushCurrent_v2: PFN_cuCtxPushCurrent_v2,
    cuCtxSetCurrent: PFN_cuCtxSetCurrent,
    cuCtxSynchronize: PFN_cuCtxSynchronize,
    cuDeviceCanAccessPeer: PFN_cuDeviceCanAccessPeer,
    cuDeviceGet: PFN_cuDeviceGet,
    cuDeviceGetAttribute: PFN_cuDeviceGetAttribute,
    cuDeviceGetCount: PFN_cuDeviceGetCount,
    cuDeviceGetDefaultMemPool: PFN_cuDeviceGetDefaultMemPool,
    cuDeviceGetGraphMemAttribute: PFN_cuDeviceGetGraphMemAttribute,
    cuDeviceGetMemPool: PFN_cuDeviceGetMemPool,
    cuDeviceGetName: PFN_cuDeviceGetName,
    cuDeviceGetUuid: PFN_cuDeviceGetUuid,
    cuDeviceGetUuid_v2: PFN_cuDeviceGetUuid_v2,
    cuDeviceGraphMemTrim: PFN_cuDeviceGraphMemTrim,
    cuDevicePrimaryCtxGetState: PFN_cuDevicePrimaryCtxGetState,
    cuDevicePrimaryCtxRelease_v2: PFN_cuDevicePrimaryCtxRelease_v2,
    cuDevicePrimaryCtxRetain: PFN_cuDevicePrimaryCtxRetain,
    cuDeviceSetGraphMemAttribute: PFN_cuDeviceSetGraphMemAttribute,
    cuDeviceSetMemPool: PFN_cuDeviceSetMemPool,
    cuDeviceTotalMem_v2: PFN_cuDeviceTotalMem_v2,
    cuDriverGetVersion: PFN_cuDriverGetVersion,
    cuEventCreate: PFN_cuEventCreate,
    cuEventDestroy_v2: PFN_cuEventDestroy_v2,
    cuEventElapsedTime: PFN_cuEventElapsedTime,
    cuEventQuery: PFN_cuEventQuery,
    cuEventRecord: PFN_cuEventRecord,
    cuEventSynchronize: PFN_cuEventSynchronize,
    cuGraphAddEmptyNode: PFN_cuGraphAddEmptyNode,
    cuGraphAddMemAllocNode: PFN_cuGraphAddMemAllocNode,
    cuGraphAddMemFreeNode: PFN_cuGraphAddMemFreeNode,
    cuGraphAddMemcpyNode: PFN_cuGraphAddMemcpyNode,
    cuGraphAddMemsetNode: PFN_cuGraphAddMemsetNode,
    cuGraphAddNode_v2: PFN_cuGraphAddNode_v2,
    cuGraphCreate: PFN_cuGraphCreate,
    cuGraphDestroy: PFN_cuGraphDestroy,
    cuGraphExecDestroy: PFN_cuGraphExecDestroy,
    cuGraphInstantiateWithFlags: PFN_cuGraphInstantiateWithFlags,
    cuGraphLaunch: PFN_cuGraphLaunch,
    cuGraphUpload: PFN_cuGraphUpload,
    cuInit: PFN_cuInit,
    cuIpcGetEventHandle: PFN_cuIpcGetEventHandle,
    cuIpcOpenEventHandle: PFN_cuIpcOpenEventHandle,
    cuLaunchHostFunc: PFN_cuLaunchHostFunc,
    cuMemAddressFree: PFN_cuMemAddressFree,
    cuMemAddressReserve: PFN_cuMemAddressReserve,
    cuMemAdvise: PFN_cuMemAdvise,
    cuMemAdvise_v2: PFN_cuMemAdvise_v2,
    cuMemAllocAsync: PFN_cuMemAllocAsync,
    cuMemAllocFromPoolAsync: PFN_cuMemAllocFromPoolAsync,
    cuMemAllocManaged: PFN_cuMemAllocManaged,
    cuMemAlloc_v2: PFN_cuMemAlloc_v2,
    cuMemCreate: PFN_cuMemCreate,
    cuMemFreeAsync: PFN_cuMemFreeAsync,
    cuMemFreeHost: PFN_cuMemFreeHost,
    cuMemFree_v2: PFN_cuMemFree_v2,
    cuMemGetAccess: PFN_cuMemGetAccess,
    cuMemGetAddressRange_v2: PFN_cuMemGetAddressRange_v2,
    cuMemGetAllocationGranularity: PFN_cuMemGetAllocationGranularity,
    cuMemGetAllocationPropertiesFromHandle: PFN_cuMemGetAllocationPropertiesFromHandle,
    cuMemGetDefaultMemPool: PFN_cuMemGetDefaultMemPool,
    cuMemGetInfo_v2: PFN_cuMemGetInfo_v2,
    cuMemGetMemPool: PFN_cuMemGetMemPool,
    cuMemHostAlloc: PFN_cuMemHostAlloc,
    cuMemHostGetDevicePointer_v2: PFN_cuMemHostGetDevicePointer_v2,
    cuMemHostRegister_v2: PFN_cuMemHostRegister_v2,
    cuMemHostUnregister: PFN_cuMemHostUnregister,
    cuMemMap: PFN_cuMemMap,
    cuMemPoolCreate: PFN_cuMemPoolCreate,
    cuMemPoolDestroy: PFN_cuMemPoolDestroy,
    cuMemPoolExportPointer: PFN_cuMemPoolExportPointer,
    cuMemPoolExportToShareableHandle: PFN_cuMemPoolExportToShareableHandle,
    cuMemPoolGetAccess: PFN_cuMemPoolGetAccess,
    cuMemPoolGetAttribute: PFN_cuMemPoolGetAttribute,
    cuMemPoolImportFromShareableHandle: PFN_cuMemPoolImportFromShareableHandle,
    cuMemPoolImportPointer: PFN_cuMemPoolImportPointer,
    cuMemPoolSetAccess: PFN_cuMemPoolSetAccess,
    cuMemPoolSetAttribute: PFN_cuMemPoolSetAttribute,
    cuMemPoolTrimTo: PFN_cuMemPoolTrimTo,
    cuMemPrefetchAsync: PFN_cuMemPrefetchAsync,
    cuMemPrefetchAsync_v2: PFN_cuMemPrefetchAsync_v2,
    cuMemRelease: PFN_cuMemRelease,
    cuMemRetainAllocationHandle: PFN_cuMemRetainAllocationHandle,
    cuMemSetAccess: PFN_cuMemSetAccess,
    cuMemSetMemPool: PFN_cuMemSetMemPool,
    cuMemUnmap: PFN_cuMemUnmap,
    cuMemcpyAsync: PFN_cuMemcpyAsync,
    cuMemcpyDtoDAsync_v2: PFN_cuMemcpyDtoDAsync_v2,
    cuMemcpyDtoHAsync_v2: PFN_cuMemcpyDtoHAsync_v2,
    cuMemcpyHtoDAsync_v2: PFN_cuMemcpyHtoDAsync_v2,
    cuMemcpyPeerAsync: PFN_cuMemcpyPeerAsync,
    cuMemsetD16Async: PFN_cuMemsetD16Async,
    cuMemsetD32Async: PFN_cuMemsetD32Async,
    cuMemsetD8Async: PFN_cuMemsetD8Async,
    cuPointerGetAttribute: PFN_cuPointerGetAttribute,
    cuPointerGetAttributes: PFN_cuPointerGetAttributes,
    cuStreamBeginCapture_v2: PFN_cuStreamBeginCapture_v2,
    cuStreamCreate: PFN_cuStreamCreate,
    cuStreamDestroy_v2: PFN_cuStreamDestroy_v2,
    cuStreamEndCapture: PFN_cuStreamEndCapture,
    cuStreamGetCaptureInfo_v2: PFN_cuStreamGetCaptureInfo_v2,
    cuStreamGetCtx: PFN_cuStreamGetCtx,
    cuStreamGetFlags: PFN_cuStreamGetFlags,
    cuStreamGetId: PFN_cuStreamGetId,
    cuStreamIsCapturing: PFN_cuStreamIsCapturing,
    cuStreamQuery: PFN_cuStreamQuery,
    cuStreamSynchronize: PFN_cuStreamSynchronize,
    cuStreamWaitEvent: PFN_cuStreamWaitEvent,
    cuStreamWaitValue32_v2: PFN_cuStreamWaitValue32_v2,
    cuStreamWaitValue64_v2: PFN_cuStreamWaitValue64_v2,
    cuStreamWriteValue32_v2: PFN_cuStreamWriteValue32_v2,
    cuStreamWriteValue64_v2: PFN_cuStreamWriteValue64_v2,
    cuThreadExchangeStreamCaptureMode: PFN_cuThreadExchangeStreamCaptureMode,
}

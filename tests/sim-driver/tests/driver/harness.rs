//! Opening the library, and calling it.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use cuda_driver_sys::*;
use cuda_sim::{Control, library_path};

pub(crate) const OK: CUresult = CUresult::CUDA_SUCCESS;
pub(crate) const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;
pub(crate) const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
pub(crate) const MIB: u64 = 1 << 20;

/// Calls a function of the driver.
macro_rules! cu {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        let call = $crate::harness::table().$name.expect(concat!("the simulator exports ", stringify!($name)));
        // SAFETY: the simulator was opened; pointers in the arguments are to live locals.
        unsafe { call($($arg),*) }
    }};
}

/// Calls a function that hands back one value, and wants it to succeed.
macro_rules! get {
    ($name:ident(_ $(, $arg:expr)* $(,)?)) => {{
        let mut value = Default::default();
        assert_eq!(cu!($name(&raw mut value $(, $arg)*)), $crate::harness::OK, stringify!($name));
        value
    }};
}

/// As `get`, for handles.
macro_rules! handle {
    ($name:ident(_ $(, $arg:expr)* $(,)?)) => {{
        let mut value = std::ptr::null_mut();
        assert_eq!(cu!($name(&raw mut value $(, $arg)*)), $crate::harness::OK, stringify!($name));
        value
    }};
}

pub(crate) use {cu, get, handle};

/// The opened simulator.
pub(crate) fn table() -> &'static DriverTable {
    static TABLE: OnceLock<&'static DriverTable> = OnceLock::new();
    TABLE.get_or_init(|| {
        // SAFETY: the first test to get here holds the lock of `turn`, and nothing else of this
        // program reads the environment.
        unsafe { std::env::set_var("CUDA_SIM_DEVICES", "2") };
        let path = library_path().expect("cargo has built the simulator");
        // SAFETY: the simulator's functions have the signatures of the driver.
        let library = unsafe { load_from(path) }.expect("the simulator opens");
        library.table()
    })
}

pub(crate) fn control() -> Control {
    table();
    Control::open(library_path().expect("built")).expect("the simulator identifies itself")
}

/// A test's turn: a retained context that is current, given back at the end.
pub(crate) struct Turn {
    pub(crate) context: CUcontext,
    _guard: MutexGuard<'static, ()>,
}

pub(crate) fn turn() -> Turn {
    static LOCK: Mutex<()> = Mutex::new(());
    let guard = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    assert_eq!(cu!(cuInit(0)), OK);
    control().reset();
    let context = handle!(cuDevicePrimaryCtxRetain(_, 0));
    assert_eq!(cu!(cuCtxSetCurrent(context)), OK);
    Turn {
        context,
        _guard: guard,
    }
}

impl Turn {
    /// The context ends and another one comes in its place; no other test has its turn between them.
    pub(crate) fn with_next_context(&mut self) {
        self.end_context();
        self.context = handle!(cuDevicePrimaryCtxRetain(_, 0));
        assert_eq!(cu!(cuCtxSetCurrent(self.context)), OK);
    }

    fn end_context(&self) {
        cu!(cuCtxSynchronize());
        cu!(cuCtxSetCurrent(std::ptr::null_mut()));
        cu!(cuDevicePrimaryCtxRelease_v2(0));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        control().clear_faults();
        self.end_context();
    }
}

pub(crate) fn stream() -> CUstream {
    handle!(cuStreamCreate(_, 1))
}

pub(crate) fn event() -> CUevent {
    handle!(cuEventCreate(_, 2))
}

/// Properties of a plain pool on device 0.
pub(crate) fn props() -> CUmemPoolProps {
    CUmemPoolProps {
        allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0),
        ..CUmemPoolProps::default()
    }
}

pub(crate) fn pool(props: &CUmemPoolProps) -> CUmemoryPool {
    handle!(cuMemPoolCreate(_, std::ptr::from_ref(props)))
}

/// Allocates and wants it to succeed.
pub(crate) fn alloc(pool: CUmemoryPool, size: u64, stream: CUstream) -> CUdeviceptr {
    get!(cuMemAllocFromPoolAsync(_, size as usize, pool, stream))
}

/// What an allocation answers.
pub(crate) fn try_alloc(
    pool: CUmemoryPool,
    size: u64,
    stream: CUstream,
) -> Result<CUdeviceptr, CUresult> {
    let mut address = 1;
    match cu!(cuMemAllocFromPoolAsync(
        &raw mut address,
        size as usize,
        pool,
        stream
    )) {
        OK => Ok(address),
        code => {
            assert_eq!(address, 0, "a failed allocation nulls its result");
            Err(code)
        }
    }
}

pub(crate) fn free(address: CUdeviceptr, stream: CUstream) {
    assert_eq!(cu!(cuMemFreeAsync(address, stream)), OK);
}

pub(crate) fn attribute(pool: CUmemoryPool, attribute: u32) -> u64 {
    let mut value = 0_u64;
    let attribute = CUmemPool_attribute(attribute);
    let place = (&raw mut value).cast::<c_void>();
    assert_eq!(cu!(cuMemPoolGetAttribute(pool, attribute, place)), OK);
    value
}

pub(crate) fn set_attribute(pool: CUmemoryPool, attribute: u32, value: u64) -> CUresult {
    let mut value = value;
    let place = (&raw mut value).cast::<c_void>();
    cu!(cuMemPoolSetAttribute(
        pool,
        CUmemPool_attribute(attribute),
        place
    ))
}

/// In whole MiB.
pub(crate) fn reserved(pool: CUmemoryPool) -> u64 {
    let bytes = attribute(pool, 5);
    assert_eq!(bytes % MIB, 0);
    bytes / MIB
}

pub(crate) fn used(pool: CUmemoryPool) -> u64 {
    attribute(pool, 7)
}

/// Free memory of the current device.
pub(crate) fn available() -> u64 {
    let (mut free, mut total) = (0, 0);
    assert_eq!(cu!(cuMemGetInfo_v2(&raw mut free, &raw mut total)), OK);
    free as u64
}

pub(crate) fn synchronise(stream: CUstream) {
    assert_eq!(cu!(cuStreamSynchronize(stream)), OK);
}

pub(crate) fn device_attribute(id: u32) -> Result<c_int, CUresult> {
    let mut value = -77;
    match cu!(cuDeviceGetAttribute(
        &raw mut value,
        CUdevice_attribute(id),
        0
    )) {
        OK => Ok(value),
        code => {
            assert_eq!(value, -77, "untouched");
            Err(code)
        }
    }
}

/// A pool and a stream, given back at the end.
pub(crate) struct Fixture {
    pub(crate) pool: CUmemoryPool,
    pub(crate) stream: CUstream,
    pub(crate) turn: Turn,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(&props())
    }

    pub(crate) fn with(props: &CUmemPoolProps) -> Self {
        let turn = turn();
        Self {
            turn,
            pool: pool(props),
            stream: stream(),
        }
    }

    pub(crate) fn alloc(&self, size: u64) -> CUdeviceptr {
        alloc(self.pool, size, self.stream)
    }

    pub(crate) fn free(&self, address: CUdeviceptr) {
        free(address, self.stream);
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        cu!(cuMemPoolDestroy(self.pool));
        cu!(cuStreamDestroy_v2(self.stream));
    }
}

/// Holds a stream until dropped or opened.
pub(crate) struct Gate(Arc<(Mutex<Held>, Condvar)>);

#[derive(Default)]
struct Held {
    is_reached: bool,
    is_open: bool,
}

impl Gate {
    pub(crate) fn hold(stream: CUstream) -> Self {
        Self::hold_by(|wait, argument| cu!(cuLaunchHostFunc(stream, wait, argument)))
    }

    /// As [`hold`](Self::hold), by a launch of this host function with this argument.
    pub(crate) fn hold_by(launch: impl FnOnce(CUhostFn, *mut c_void) -> CUresult) -> Self {
        unsafe extern "C" fn wait(argument: *mut c_void) {
            // SAFETY: `hold` made this pointer, for this one call.
            let gate = unsafe { Arc::from_raw(argument.cast::<(Mutex<Held>, Condvar)>()) };
            let mut held = gate.0.lock().expect("no panics");
            held.is_reached = true;
            gate.1.notify_all();
            while !held.is_open {
                held = gate.1.wait(held).expect("no panics");
            }
        }
        let gate = Arc::new((Mutex::default(), Condvar::new()));
        let argument = Arc::into_raw(Arc::clone(&gate)).cast_mut().cast();
        assert_eq!(launch(Some(wait), argument), OK);
        Self(gate)
    }

    /// Returns when the stream has got there.
    pub(crate) fn wait(&self) {
        let mut held = self.0.0.lock().expect("no panics");
        while !held.is_reached {
            held = self.0.1.wait(held).expect("no panics");
        }
    }

    pub(crate) fn open(&self) {
        self.0.0.lock().expect("no panics").is_open = true;
        self.0.1.notify_all();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

//! The driver that is asked, and what most questions need.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt::Display;

use anyhow::{Result, ensure};
use cuda_driver_sys::*;

pub(crate) const OK: CUresult = CUresult::CUDA_SUCCESS;

/// What a call of a function that this driver does not have answers.
pub(crate) const MISSING: CUresult = CUresult(u32::MAX);

pub(crate) const MIB: u64 = 1 << 20;

/// The attributes of a pool that questions look at most.
pub(crate) const THRESHOLD: u32 = 4;
pub(crate) const RESERVED: u32 = 5;
pub(crate) const USED: u32 = 7;

/// Calls a function of the driver.
macro_rules! cu {
    ($env:expr, $name:ident($($arg:expr),* $(,)?)) => {
        match $env.table.$name {
            // SAFETY: pointers in the arguments are to live locals, or wrong on purpose where the
            // answer is wanted; a question that might crash is asked in a process of its own.
            Some(call) => unsafe { call($($arg),*) },
            None => $crate::environment::MISSING,
        }
    };
}

pub(crate) use cu;

/// A code as it is printed.
pub(crate) fn name(code: CUresult) -> String {
    if code == MISSING {
        return "no such function".into();
    }
    match code.name() {
        Some("CUDA_SUCCESS") => "SUCCESS".into(),
        Some(name) => name.trim_start_matches("CUDA_ERROR_").into(),
        None => format!("code {}", code.0),
    }
}

/// Bytes as they are printed.
pub(crate) fn size(bytes: u64) -> String {
    if bytes.is_multiple_of(MIB) {
        format!("{} MiB", bytes / MIB)
    } else {
        format!("{bytes} B")
    }
}

pub(crate) fn yes(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

/// The driver that is asked, as one question sees it.
#[derive(Debug)]
pub(crate) struct Environment {
    pub(crate) table: &'static DriverTable,
    question: &'static str,
    context: Cell<CUcontext>,
}

impl Environment {
    pub(crate) fn new(table: &'static DriverTable, question: &'static str) -> Self {
        Self {
            table,
            question,
            context: Cell::new(std::ptr::null_mut()),
        }
    }
    /// Prints one answer.
    pub(crate) fn say(&self, part: impl Display, answer: impl Display) {
        let part = part.to_string().replace(':', ",");
        let space = if part.is_empty() { "" } else { " " };
        println!("{}{space}{part}: {answer}", self.question);
    }

    /// The beginning of the line of a part.
    pub(crate) fn label(&self, part: &str) -> String {
        format!("{} {part}", self.question)
    }

    /// Prints a code.
    pub(crate) fn code(&self, part: impl Display, code: CUresult) {
        self.say(part, name(code));
    }

    /// Asks one part in a process of its own, which starts the driver for itself.
    pub(crate) fn alone(&self, part: &str, body: impl FnOnce() -> Result<String>) {
        let label = self.label(part);
        crate::child::ask(&label, crate::child::LIMIT, || {
            self.start()?;
            let answer = body()?;
            self.say(part, answer);
            Ok(())
        });
    }

    /// An error unless the code is SUCCESS.
    pub(crate) fn fine(&self, what: &str, code: CUresult) -> Result<()> {
        ensure!(code == OK, "{what} answers {}", name(code));
        Ok(())
    }

    pub(crate) fn context(&self) -> CUcontext {
        self.context.get()
    }

    /// Starts the driver, and makes the primary context current.
    pub(crate) fn start(&self) -> Result<()> {
        self.fine("cuInit", cu!(self, cuInit(0)))?;
        let context = self.retain()?;
        self.context.set(context);
        self.current(context)
    }

    pub(crate) fn retain(&self) -> Result<CUcontext> {
        let mut context = std::ptr::null_mut();
        let code = cu!(self, cuDevicePrimaryCtxRetain(&raw mut context, 0));
        self.fine("cuDevicePrimaryCtxRetain", code)?;
        Ok(context)
    }

    pub(crate) fn release(&self) -> CUresult {
        cu!(self, cuDevicePrimaryCtxRelease_v2(0))
    }

    pub(crate) fn current(&self, context: CUcontext) -> Result<()> {
        self.fine("cuCtxSetCurrent", cu!(self, cuCtxSetCurrent(context)))
    }

    pub(crate) fn no_context(&self) -> Result<()> {
        self.current(std::ptr::null_mut())
    }

    /// The first line: what is asked.
    pub(crate) fn header(&self) -> Result<()> {
        self.fine("cuInit", cu!(self, cuInit(0)))?;
        let mut version = 0;
        let code = cu!(self, cuDriverGetVersion(&raw mut version));
        self.fine("cuDriverGetVersion", code)?;
        let device = self.device_name()?;
        println!(
            "# CUDA {}.{} on {device}",
            version / 1000,
            version % 1000 / 10
        );
        Ok(())
    }

    fn device_name(&self) -> Result<String> {
        let mut text = [0 as c_char; 128];
        let code = cu!(self, cuDeviceGetName(text.as_mut_ptr(), 127, 0));
        self.fine("cuDeviceGetName", code)?;
        // SAFETY: the last byte is zero, whatever the driver wrote before it.
        let name = unsafe { CStr::from_ptr(text.as_ptr()) };
        Ok(name.to_string_lossy().into_owned())
    }

    /// Whether the device is no GPU, so that nothing can harm it.
    pub(crate) fn is_simulated(&self) -> Result<bool> {
        Ok(self.device_name()?.contains("Simulated"))
    }

    pub(crate) fn stream(&self) -> Result<CUstream> {
        self.stream_with(1)
    }

    pub(crate) fn stream_with(&self, flags: u32) -> Result<CUstream> {
        let mut stream = std::ptr::null_mut();
        let code = cu!(self, cuStreamCreate(&raw mut stream, flags));
        self.fine("cuStreamCreate", code)?;
        Ok(stream)
    }

    pub(crate) fn event(&self) -> Result<CUevent> {
        let mut event = std::ptr::null_mut();
        self.fine("cuEventCreate", cu!(self, cuEventCreate(&raw mut event, 2)))?;
        Ok(event)
    }

    pub(crate) fn record(&self, event: CUevent, stream: CUstream) -> Result<()> {
        self.fine("cuEventRecord", cu!(self, cuEventRecord(event, stream)))
    }

    /// `later` waits for what `earlier` has been given so far.
    pub(crate) fn order(&self, later: CUstream, earlier: CUstream) -> Result<()> {
        let event = self.event()?;
        self.record(event, earlier)?;
        let code = cu!(self, cuStreamWaitEvent(later, event, 0));
        self.fine("cuStreamWaitEvent", code)?;
        self.fine("cuEventDestroy", cu!(self, cuEventDestroy_v2(event)))
    }

    /// Waits until the stream is done without letting the driver know that anybody looked.
    pub(crate) fn let_it_finish(&self) {
        // The simulator's threads may get no processor for a while; a device needs none.
        let pause = match self.is_simulated() {
            Ok(true) => 250,
            Ok(false) | Err(_) => 80,
        };
        std::thread::sleep(std::time::Duration::from_millis(pause));
    }

    /// A pool of the first device; `max` 0 is no limit.
    pub(crate) fn pool(&self, max: u64) -> Result<CUmemoryPool> {
        let (code, pool) = self.pool_with(&CUmemPoolProps {
            maxSize: max as usize,
            ..Self::props()
        });
        self.fine("cuMemPoolCreate", code)?;
        Ok(pool)
    }

    /// A pool without a threshold: it keeps what it has.
    pub(crate) fn keeper(&self, max: u64) -> Result<CUmemoryPool> {
        let pool = self.pool(max)?;
        self.set(pool, THRESHOLD, u64::MAX)?;
        Ok(pool)
    }

    pub(crate) fn props() -> CUmemPoolProps {
        CUmemPoolProps {
            allocType: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0),
            ..CUmemPoolProps::default()
        }
    }

    pub(crate) fn pool_with(&self, props: &CUmemPoolProps) -> (CUresult, CUmemoryPool) {
        let mut pool = std::ptr::null_mut();
        let code = cu!(
            self,
            cuMemPoolCreate(&raw mut pool, std::ptr::from_ref(props))
        );
        (code, pool)
    }

    pub(crate) fn end_pool(&self, pool: CUmemoryPool) -> Result<()> {
        self.fine("cuCtxSynchronize", cu!(self, cuCtxSynchronize()))?;
        self.fine("cuMemPoolDestroy", cu!(self, cuMemPoolDestroy(pool)))
    }

    pub(crate) fn try_alloc(
        &self,
        pool: CUmemoryPool,
        size: u64,
        stream: CUstream,
    ) -> (CUresult, CUdeviceptr) {
        let mut address = 1;
        let size = size as usize;
        let code = cu!(
            self,
            cuMemAllocFromPoolAsync(&raw mut address, size, pool, stream)
        );
        (code, address)
    }

    pub(crate) fn alloc(
        &self,
        pool: CUmemoryPool,
        size: u64,
        stream: CUstream,
    ) -> Result<CUdeviceptr> {
        let (code, address) = self.try_alloc(pool, size, stream);
        self.fine("cuMemAllocFromPoolAsync", code)?;
        Ok(address)
    }

    /// An answer for a second block: refused, in the place of `first`, or elsewhere.
    pub(crate) fn where_is(
        &self,
        pool: CUmemoryPool,
        size: u64,
        stream: CUstream,
        first: CUdeviceptr,
    ) -> Result<String> {
        let (code, address) = self.try_alloc(pool, size, stream);
        if code != OK {
            return Ok(name(code));
        }
        self.free(address, stream)?;
        let place = if address == first {
            "same block"
        } else {
            "other block"
        };
        Ok(place.into())
    }

    pub(crate) fn free(&self, address: CUdeviceptr, stream: CUstream) -> Result<()> {
        self.fine("cuMemFreeAsync", cu!(self, cuMemFreeAsync(address, stream)))
    }

    pub(crate) fn plain(&self, size: usize) -> Result<CUdeviceptr> {
        let mut address = 0;
        let code = cu!(self, cuMemAlloc_v2(&raw mut address, size));
        self.fine("cuMemAlloc", code)?;
        Ok(address)
    }

    pub(crate) fn pinned(&self, size: usize) -> Result<*mut c_void> {
        let mut address = std::ptr::null_mut();
        let code = cu!(self, cuMemHostAlloc(&raw mut address, size, 0));
        self.fine("cuMemHostAlloc", code)?;
        Ok(address)
    }

    pub(crate) fn synchronise(&self, stream: CUstream) -> Result<()> {
        self.fine(
            "cuStreamSynchronize",
            cu!(self, cuStreamSynchronize(stream)),
        )
    }

    pub(crate) fn get(&self, pool: CUmemoryPool, attribute: u32) -> Result<u64> {
        let mut value = 0_u64;
        let place = (&raw mut value).cast::<c_void>();
        let attribute = CUmemPool_attribute(attribute);
        let code = cu!(self, cuMemPoolGetAttribute(pool, attribute, place));
        self.fine("cuMemPoolGetAttribute", code)?;
        Ok(value)
    }

    pub(crate) fn try_set(&self, pool: CUmemoryPool, attribute: u32, value: u64) -> CUresult {
        let mut value = value;
        let place = (&raw mut value).cast::<c_void>();
        let attribute = CUmemPool_attribute(attribute);
        cu!(self, cuMemPoolSetAttribute(pool, attribute, place))
    }

    pub(crate) fn set(&self, pool: CUmemoryPool, attribute: u32, value: u64) -> Result<()> {
        let code = self.try_set(pool, attribute, value);
        self.fine("cuMemPoolSetAttribute", code)
    }

    /// Only this one of the three ways of reuse; 0 is none.
    pub(crate) fn only_reuse(&self, pool: CUmemoryPool, flag: u32) -> Result<()> {
        (1..=3).try_for_each(|other| self.set(pool, other, u64::from(other == flag)))
    }

    pub(crate) fn reserved(&self, pool: CUmemoryPool) -> Result<String> {
        Ok(size(self.get(pool, RESERVED)?))
    }

    pub(crate) fn used(&self, pool: CUmemoryPool) -> Result<u64> {
        self.get(pool, USED)
    }

    pub(crate) fn trim(&self, pool: CUmemoryPool, keep: usize) -> Result<()> {
        self.fine("cuMemPoolTrimTo", cu!(self, cuMemPoolTrimTo(pool, keep)))
    }

    /// Free memory of the device.
    pub(crate) fn device_free(&self) -> Result<u64> {
        let (mut free, mut total) = (0, 0);
        let code = cu!(self, cuMemGetInfo_v2(&raw mut free, &raw mut total));
        self.fine("cuMemGetInfo", code)?;
        Ok(free as u64)
    }

    pub(crate) fn device_attribute(&self, id: u32) -> (CUresult, c_int) {
        let mut value = -77;
        let id = CUdevice_attribute(id);
        (
            cu!(self, cuDeviceGetAttribute(&raw mut value, id, 0)),
            value,
        )
    }
}

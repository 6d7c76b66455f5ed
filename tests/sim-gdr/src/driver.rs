//! The simulated driver loaded in this process, under whatever name. Linking it would export its functions from this
//! library too.

use std::ffi::{CStr, CString, c_int, c_void};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::OnceLock;

use cuda_driver_sys::{
    CUdevice_attribute, CUmemRangeHandleType_enum, CUpointer_attribute, CUresult,
    PFN_cuCtxPopCurrent_v2, PFN_cuCtxPushCurrent_v2, PFN_cuDeviceGetAttribute,
    PFN_cuDeviceGetCount, PFN_cuDevicePrimaryCtxRelease_v2, PFN_cuDevicePrimaryCtxRetain,
    PFN_cuInit, PFN_cuMemGetHandleForAddressRange, PFN_cuPointerGetAttribute,
};
use cuda_sim_support::settings::machine_folder;

use crate::export::Answer;

type CheckDirect = extern "C" fn(u64, u64) -> CUresult;
type PartOf = unsafe extern "C" fn(u64, u64, *mut c_int, *mut u64, *mut u64) -> CUresult;
type OnFree = extern "C" fn(Option<extern "C" fn(u64, u64)>);

/// Functions of the loaded simulator.
#[derive(Debug)]
pub(crate) struct Driver {
    check_direct: CheckDirect,
    part: PartOf,
    init: PFN_cuInit,
    device_count: PFN_cuDeviceGetCount,
    device_attribute: PFN_cuDeviceGetAttribute,
    pointer_attribute: PFN_cuPointerGetAttribute,
    retain: PFN_cuDevicePrimaryCtxRetain,
    release: PFN_cuDevicePrimaryCtxRelease_v2,
    push: PFN_cuCtxPushCurrent_v2,
    pop: PFN_cuCtxPopCurrent_v2,
    /// Absent before CUDA 11.7.
    export_range: Option<PFN_cuMemGetHandleForAddressRange>,
}

/// A file of device memory from an offset on.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) file: OwnedFd,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

fn ok(code: CUresult) -> Answer {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        CUresult::CUDA_ERROR_NOT_SUPPORTED => Err(libc::ENOTSUP),
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(libc::ENOMEM),
        _ => Err(libc::EINVAL),
    }
}

/// Takes ownership of a descriptor from the simulator.
fn own(number: c_int) -> Answer<OwnedFd> {
    if number < 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the simulator created it for this call, and nothing else holds it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

impl Driver {
    /// EINVAL without a simulator: no address is device memory then.
    pub(crate) fn get() -> Answer<&'static Self> {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        if let Some(driver) = DRIVER.get() {
            return Ok(driver);
        }
        let driver = Self::find().ok_or(libc::EINVAL)?;
        Ok(DRIVER.get_or_init(|| driver))
    }

    fn find() -> Option<Self> {
        let library = match machine_folder() {
            Some(folder) => {
                let path = folder.join("libcuda_sim.so");
                simulator(&CString::new(path.as_os_str().as_bytes()).ok()?)?
            }
            None => loaded_files().iter().find_map(|name| simulator(name))?,
        };
        /// A function of the simulator, with the type that its name implies.
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the handle is open and never closed.
                let address = unsafe { libc::dlsym(library, $name.as_ptr()) };
                // SAFETY: null is `None`; the simulator exports this name with this signature.
                unsafe { std::mem::transmute::<*mut c_void, Option<_>>(address) }
            }};
        }
        let on_free: OnFree = function!(c"simcuda_on_free")?;
        on_free(Some(crate::pins::on_free));
        Some(Self {
            check_direct: function!(c"simcuda_check_direct")?,
            part: function!(c"simcuda_part")?,
            init: function!(c"cuInit")?,
            device_count: function!(c"cuDeviceGetCount")?,
            device_attribute: function!(c"cuDeviceGetAttribute")?,
            pointer_attribute: function!(c"cuPointerGetAttribute")?,
            retain: function!(c"cuDevicePrimaryCtxRetain")?,
            release: function!(c"cuDevicePrimaryCtxRelease_v2")?,
            push: function!(c"cuCtxPushCurrent_v2")?,
            pop: function!(c"cuCtxPopCurrent_v2")?,
            export_range: function!(c"cuMemGetHandleForAddressRange"),
        })
    }

    /// EINVAL unless a third party may pin this range.
    pub(crate) fn check_direct(&self, start: u64, len: u64) -> Answer {
        ok((self.check_direct)(start, len))
    }

    /// As much of a range as one file covers.
    pub(crate) fn part(&self, start: u64, len: u64) -> Answer<Part> {
        let (mut number, mut offset, mut part_len) = (-1, 0, 0);
        // SAFETY: the places are valid for a write each.
        let code = unsafe {
            (self.part)(
                start,
                len,
                &raw mut number,
                &raw mut offset,
                &raw mut part_len,
            )
        };
        ok(code)?;
        Ok(Part {
            file: own(number)?,
            offset,
            len: part_len,
        })
    }

    /// Whether the host can map dma-bufs of any device.
    pub(crate) fn has_dma_buf_mmap(&self) -> bool {
        let (mut count, mut value) = (0, 0);
        let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_MMAP_SUPPORTED;
        // SAFETY: no pointers.
        unsafe { (self.init)(0) };
        // SAFETY: the place is valid for a write.
        unsafe { (self.device_count)(&raw mut count) };
        (0..count).any(|device| {
            // SAFETY: the place is valid for a write.
            let code = unsafe { (self.device_attribute)(&raw mut value, attribute, device) };
            code == CUresult::CUDA_SUCCESS && value != 0
        })
    }

    /// Runs `work` with the primary context of the memory's device. Observed of the real library: it needs no current
    /// context, because it retains this one.
    fn in_primary_context<T>(&self, address: u64, work: impl FnOnce() -> Answer<T>) -> Answer<T> {
        let mut device: c_int = 0;
        let place = (&raw mut device).cast::<c_void>();
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: the ordinal is an `int`, and the pointer is valid for one.
        ok(unsafe { (self.pointer_attribute)(place, attribute, address) })?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the place is valid for a write.
        ok(unsafe { (self.retain)(&raw mut context, device) })?;
        // SAFETY: the context was retained just now.
        let result = ok(unsafe { (self.push)(context) }).and_then(|()| {
            let result = work();
            // SAFETY: the driver accepts a null output; this takes what was pushed above.
            unsafe { (self.pop)(std::ptr::null_mut()) };
            result
        });
        // SAFETY: no pointers; this is the reference from above.
        unsafe { (self.release)(device) };
        result
    }

    /// A range as a dma-buf.
    pub(crate) fn dma_buf(&self, start: u64, len: u64, is_over_pcie: bool) -> Answer<OwnedFd> {
        let export = self.export_range.ok_or(libc::ENOTSUP)?;
        let mut number: c_int = -1;
        let place = (&raw mut number).cast::<c_void>();
        let kind = CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
        let len = usize::try_from(len).map_err(|_| libc::EINVAL)?;
        self.in_primary_context(start, || {
            // SAFETY: a dma-buf's handle is an `int`, and the pointer is valid for one.
            ok(unsafe { export(place, start, len, kind, is_over_pcie.into()) })
        })?;
        own(number)
    }
}

/// The names of all loaded files.
fn loaded_files() -> Vec<CString> {
    let mut names: Vec<CString> = Vec::new();
    let data = (&raw mut names).cast::<c_void>();
    // SAFETY: `visit` obeys the contract of dl_iterate_phdr, and `data` outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(visit), data) };
    names
}

/// Records the name of a loaded file.
extern "C" fn visit(info: *mut libc::dl_phdr_info, _: libc::size_t, names: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr passes a valid description.
    let name = unsafe { (*info).dlpi_name };
    if !name.is_null() {
        // SAFETY: a string valid during the call.
        let name = unsafe { CStr::from_ptr(name) }.to_owned();
        // SAFETY: `loaded_files` passes such a list, and waits.
        let names = unsafe { &mut *names.cast::<Vec<CString>>() };
        names.push(name);
    }
    0
}

/// The file of this name, if it is the simulator. It stays open, because its functions are used from now on.
fn simulator(name: &CStr) -> Option<*mut c_void> {
    if name.is_empty() {
        return None;
    }
    // SAFETY: with NOLOAD nothing new is loaded.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the handle is open.
    if unsafe { libc::dlsym(library, c"simcuda_on_free".as_ptr()) }.is_null() {
        // SAFETY: closes what was just opened.
        unsafe { libc::dlclose(library) };
        return None;
    }
    Some(library)
}

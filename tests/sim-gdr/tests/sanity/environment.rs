//! The two simulated libraries, and the operations common to all tests.

use std::ffi::{c_int, c_void};

use cuda_driver_sys::gdr::{
    GPU_PAGE_SIZE, GdrTable, gdr_attr_t, gdr_info_v2_t, gdr_mh_t, gdr_t, load_from,
};
use cuda_driver_sys::*;

use crate::apart::load;

pub(crate) const OK: CUresult = CUresult::CUDA_SUCCESS;

/// `_size` in the original, rounded as there.
pub(crate) const SIZE: u64 = (256 * 1024_u64 + 16).next_multiple_of(GPU_PAGE_SIZE);

/// A few numbers, in their own page.
pub(crate) const SMALL: u64 = GPU_PAGE_SIZE;

/// The kind of memory that a test uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Cumemalloc,
    Vmmalloc,
}

/// Calls a function of the driver.
macro_rules! cu {
    ($env:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let call = $env.driver.$name.expect(stringify!($name));
        // SAFETY: pointers in the arguments are to live locals.
        unsafe { call($($arg),*) }
    }};
}

/// Calls a function of gdrcopy.
macro_rules! gdr {
    ($env:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let call = $env.gdr.$name.expect(stringify!($name));
        // SAFETY: pointers in the arguments are to live locals, or to memory that the test has mapped.
        unsafe { call($($arg),*) }
    }};
}

pub(crate) use {cu, gdr};

/// A test for each kind of memory: `name(env, kind) { … }` becomes `name_cumemalloc` and `name_vmmalloc`.
macro_rules! both {
    ($module:literal; $($(#[$docs:meta])* $name:ident, $plain:ident, $mapped:ident, $settings:expr;)*) => {$(
        $(#[$docs])*
        #[test]
        fn $plain() {
            $crate::apart::child_of($module, stringify!($plain), $settings, || {
                $name($crate::environment::Kind::Cumemalloc);
            });
        }

        #[test]
        fn $mapped() {
            $crate::apart::child_of($module, stringify!($mapped), $settings, || {
                $name($crate::environment::Kind::Vmmalloc);
            });
        }
    )*};
}

/// A test in its own process: `name { … }`.
macro_rules! one {
    ($module:literal; $($(#[$docs:meta])* $name:ident, $settings:expr, $body:expr;)*) => {$(
        $(#[$docs])*
        #[test]
        fn $name() {
            $crate::apart::child_of($module, stringify!($name), $settings, $body);
        }
    )*};
}

pub(crate) use {both, one};

/// gdrcopy's library without a driver.
pub(crate) fn library() -> &'static GdrTable {
    let path = gdrapi_sim::library_path().expect("built");
    // SAFETY: the simulated functions have the signatures of the header.
    let library = unsafe { load_from(path) }.expect("opens");
    library.table()
}

/// Both libraries, with a current context.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Environment {
    pub(crate) driver: &'static DriverTable,
    pub(crate) gdr: &'static GdrTable,
}

/// Device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) at: u64,
    size: u64,
    handle: Option<u64>,
}

/// Pinned and mapped memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped {
    pub(crate) handle: gdr_mh_t,
    pub(crate) base: *mut c_void,
}

// SAFETY: only an address; the tests pass it to the thread that uses it.
unsafe impl Send for Mapped {}

impl Environment {
    pub(crate) fn new() -> Self {
        let env = Self {
            driver: load(),
            gdr: library(),
        };
        assert_eq!(cu!(env, cuInit(0)), OK);
        let mut context = std::ptr::null_mut();
        let code = cu!(env, cuDevicePrimaryCtxRetain(&raw mut context, 0));
        assert_eq!(code, OK);
        assert_eq!(cu!(env, cuCtxSetCurrent(context)), OK);
        env
    }

    pub(crate) fn alloc(&self, kind: Kind, size: u64) -> Buffer {
        match kind {
            Kind::Cumemalloc => self.plain(size),
            Kind::Vmmalloc => self.mapped(size.next_multiple_of(2 << 20), 1),
        }
    }

    fn plain(&self, size: u64) -> Buffer {
        let mut at = 0;
        assert_eq!(cu!(self, cuMemAlloc_v2(&raw mut at, size as usize)), OK);
        let sync = 1_u32;
        let place = (&raw const sync).cast::<c_void>();
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
        assert_eq!(cu!(self, cuPointerSetAttribute(place, attribute, at)), OK);
        Buffer {
            at,
            size,
            handle: None,
        }
    }

    pub(crate) fn mapped(&self, size: u64, rdma: u8) -> Buffer {
        let place = location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0);
        let mut prop = CUmemAllocationProp {
            type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            location: place,
            ..CUmemAllocationProp::default()
        };
        prop.allocFlags.gpuDirectRDMACapable = rdma;
        let (mut handle, mut at, bytes) = (0, 0, size as usize);
        let code = cu!(
            self,
            cuMemCreate(&raw mut handle, bytes, &raw const prop, 0)
        );
        assert_eq!(code, OK);
        assert_eq!(
            cu!(self, cuMemAddressReserve(&raw mut at, bytes, 0, 0, 0)),
            OK
        );
        assert_eq!(cu!(self, cuMemMap(at, bytes, 0, handle, 0)), OK);
        let wish = CUmemAccessDesc {
            location: place,
            flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        assert_eq!(cu!(self, cuMemSetAccess(at, bytes, &raw const wish, 1)), OK);
        Buffer {
            at,
            size,
            handle: Some(handle),
        }
    }

    pub(crate) fn free(&self, buffer: Buffer) {
        let Some(handle) = buffer.handle else {
            assert_eq!(cu!(self, cuMemFree_v2(buffer.at)), OK);
            return;
        };
        let bytes = buffer.size as usize;
        assert_eq!(cu!(self, cuMemUnmap(buffer.at, bytes)), OK);
        assert_eq!(cu!(self, cuMemRelease(handle)), OK);
        assert_eq!(cu!(self, cuMemAddressFree(buffer.at, bytes)), OK);
    }

    pub(crate) fn fill(&self, at: u64, value: u8, size: u64) {
        assert_eq!(cu!(self, cuMemsetD8_v2(at, value, size as usize)), OK);
        assert_eq!(cu!(self, cuCtxSynchronize()), OK);
    }

    pub(crate) fn read(&self, at: u64, size: u64) -> Vec<u8> {
        let mut bytes = vec![0xA5; size as usize];
        let place = bytes.as_mut_ptr().cast::<c_void>();
        assert_eq!(cu!(self, cuMemcpyDtoH_v2(place, at, size as usize)), OK);
        bytes
    }

    pub(crate) fn open(&self) -> gdr_t {
        let opened = gdr!(self, gdr_open());
        assert!(!opened.is_null(), "{}", std::io::Error::last_os_error());
        opened
    }

    pub(crate) fn close(&self, opened: gdr_t) {
        assert_eq!(gdr!(self, gdr_close(opened)), 0);
    }

    pub(crate) fn try_pin(&self, opened: gdr_t, at: u64, size: u64) -> Result<gdr_mh_t, c_int> {
        let mut handle = gdr_mh_t::default();
        let place = &raw mut handle;
        match gdr!(self, gdr_pin_buffer(opened, at, size as usize, 0, 0, place)) {
            0 => {
                assert_ne!(handle, gdr_mh_t::default());
                Ok(handle)
            }
            code => Err(code),
        }
    }

    pub(crate) fn pin(&self, opened: gdr_t, at: u64, size: u64) -> gdr_mh_t {
        self.try_pin(opened, at, size).expect("pinned")
    }

    pub(crate) fn try_pin_v2(
        &self,
        opened: gdr_t,
        at: u64,
        size: u64,
        flags: u32,
    ) -> Result<gdr_mh_t, c_int> {
        let mut handle = gdr_mh_t::default();
        let place = &raw mut handle;
        match gdr!(
            self,
            gdr_pin_buffer_v2(opened, at, size as usize, flags, place)
        ) {
            0 => Ok(handle),
            code => Err(code),
        }
    }

    pub(crate) fn unpin(&self, opened: gdr_t, handle: gdr_mh_t) {
        assert_eq!(gdr!(self, gdr_unpin_buffer(opened, handle)), 0);
    }

    pub(crate) fn try_map(
        &self,
        opened: gdr_t,
        handle: gdr_mh_t,
        size: u64,
        flags: c_int,
    ) -> Result<Mapped, c_int> {
        let mut base = std::ptr::null_mut();
        let place = &raw mut base;
        match gdr!(
            self,
            gdr_map_v2(opened, handle, place, size as usize, flags)
        ) {
            0 => Ok(Mapped { handle, base }),
            code => Err(code),
        }
    }

    /// Pins a range and maps it, with the calls of old programs.
    pub(crate) fn pin_and_map(&self, opened: gdr_t, at: u64, size: u64) -> Mapped {
        let handle = self.pin(opened, at, size);
        let mut base = std::ptr::null_mut();
        let place = &raw mut base;
        assert_eq!(gdr!(self, gdr_map(opened, handle, place, size as usize)), 0);
        let info = self.info(opened, handle);
        assert!(info.mapped());
        assert_eq!(info.va, at, "mapped from the beginning of a page");
        Mapped { handle, base }
    }

    pub(crate) fn unmap(&self, opened: gdr_t, mapped: Mapped, size: u64) {
        let code = gdr!(
            self,
            gdr_unmap(opened, mapped.handle, mapped.base, size as usize)
        );
        assert_eq!(code, 0);
    }

    /// Unmaps and unpins.
    pub(crate) fn end(&self, opened: gdr_t, mapped: Mapped, size: u64) {
        self.unmap(opened, mapped, size);
        self.unpin(opened, mapped.handle);
    }

    pub(crate) fn info(&self, opened: gdr_t, handle: gdr_mh_t) -> gdr_info_v2_t {
        let mut info = gdr_info_v2_t::default();
        assert_eq!(
            gdr!(self, gdr_get_info_v2(opened, handle, &raw mut info)),
            0
        );
        info
    }

    pub(crate) fn callback_flag(&self, opened: gdr_t, handle: gdr_mh_t) -> c_int {
        let mut flag = -1;
        let place = &raw mut flag;
        assert_eq!(gdr!(self, gdr_get_callback_flag(opened, handle, place)), 0);
        flag
    }

    pub(crate) fn attribute(&self, opened: gdr_t, attribute: gdr_attr_t) -> Result<c_int, c_int> {
        let mut value = -1;
        match gdr!(self, gdr_get_attribute(opened, attribute, &raw mut value)) {
            0 => Ok(value),
            code => Err(code),
        }
    }
}

impl Mapped {
    pub(crate) fn get(self, at: usize) -> u32 {
        // SAFETY: within what the test has mapped, or meant to end the process.
        unsafe { self.base.cast::<u32>().wrapping_add(at).read_volatile() }
    }

    pub(crate) fn set(self, at: usize, value: u32) {
        // SAFETY: within what the test has mapped.
        unsafe {
            self.base
                .cast::<u32>()
                .wrapping_add(at)
                .write_volatile(value)
        };
    }

    pub(crate) fn at(self, offset: usize) -> *mut c_void {
        self.base.wrapping_byte_add(offset)
    }

    /// Whether it is readable, checked without reading it.
    pub(crate) fn is_there(self) -> bool {
        let mut ends = [0; 2];
        // SAFETY: the pointer is valid for two numbers.
        assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
        // Not `process_vm_readv`, which emulators of a processor do not have.
        // SAFETY: the system checks the address.
        let count = unsafe { libc::write(ends[1], self.base, 1) };
        for end in ends {
            // SAFETY: this call opened it, and nothing else has it.
            unsafe { libc::close(end) };
        }
        count == 1
    }
}

/// Numbers of pins and mappings in this process.
pub(crate) fn live() -> [u64; 2] {
    let path = gdrapi_sim::library_path().expect("built");
    let path = std::ffi::CString::new(path.into_os_string().into_encoded_bytes()).expect("a path");
    // SAFETY: the simulated library is already loaded.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
    [c"simgdr_pins", c"simgdr_mappings"].map(|name| {
        // SAFETY: the handle is open.
        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
        // SAFETY: the library exports these names with this signature.
        let count =
            unsafe { std::mem::transmute::<*mut c_void, Option<extern "C" fn() -> u64>>(address) };
        count.expect("exported")()
    })
}

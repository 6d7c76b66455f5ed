//! Ranges of device memory as dma-bufs. Most need a newer driver than the one that was measured, and so a
//! process of their own.

use std::ffi::{c_int, c_void};
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd};

use cuda_driver_sys::*;
use cuda_sim_support::page::host_page;

use crate::apart::{call, child_of, load};
use crate::harness::{INVALID_VALUE, MIB, OK};
use crate::vmm::{NOT_SUPPORTED, STEP};

const INVALID_CONTEXT: CUresult = CUresult::CUDA_ERROR_INVALID_CONTEXT;
const VERSION: &str = "CUDA_SIM_DRIVER_VERSION";
const NEW: (&str, &str) = (VERSION, "13030");

/// Runs `body` with a started driver and a current context, in a process of its own.
fn machine(name: &str, variables: &[(&str, &str)], body: impl FnOnce(&'static DriverTable)) {
    child_of("dma_buf", name, variables, || {
        let table = load();
        assert_eq!(call!(table.cuInit(0)), OK);
        let mut context = std::ptr::null_mut();
        let code = call!(table.cuDevicePrimaryCtxRetain(&raw mut context, 0));
        assert_eq!(code, OK);
        assert_eq!(call!(table.cuCtxSetCurrent(context)), OK);
        body(table);
    });
}

fn export(table: &DriverTable, at: u64, len: u64, flags: u64) -> Result<File, CUresult> {
    let mut number: c_int = -1;
    let place = (&raw mut number).cast::<c_void>();
    let kind = CUmemRangeHandleType_enum::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    let code = call!(table.cuMemGetHandleForAddressRange(place, at, len as usize, kind, flags));
    if code != OK {
        assert_eq!(number, -1, "a failure leaves the place alone");
        return Err(code);
    }
    // SAFETY: the driver has just made it for us.
    let mut file = unsafe { File::from_raw_fd(number) };
    assert_eq!(file.seek(SeekFrom::End(0)).expect("its size"), len);
    Ok(file)
}

fn refusal(answer: Result<File, CUresult>) -> CUresult {
    answer.map(|_| ()).expect_err("refused")
}

/// Memory of the host at the other end of a descriptor.
struct Window(*mut u8, usize);

impl Window {
    fn try_new(file: &File, len: u64, access: c_int) -> Option<Self> {
        let (none, number) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: a new mapping.
        let base = unsafe { libc::mmap(none, len as usize, access, libc::MAP_SHARED, number, 0) };
        (base != libc::MAP_FAILED).then(|| Self(base.cast(), len as usize))
    }

    fn new(file: &File, len: u64) -> Self {
        Self::try_new(file, len, libc::PROT_READ | libc::PROT_WRITE).expect("mapped")
    }

    fn get(&self, at: usize) -> u8 {
        assert!(at < self.1);
        // SAFETY: inside the mapping.
        unsafe { self.0.wrapping_add(at).read_volatile() }
    }

    fn set(&self, at: usize, value: u8) {
        assert!(at < self.1);
        // SAFETY: inside the mapping.
        unsafe { self.0.wrapping_add(at).write_volatile(value) };
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value.
        unsafe { libc::munmap(self.0.cast(), self.1) };
    }
}

/// A range as the host sees it, whose descriptor is closed again.
fn window(table: &DriverTable, at: u64, len: u64) -> Window {
    Window::new(&export(table, at, len, 0).expect("a dma-buf"), len)
}

fn plain(table: &DriverTable, len: u64) -> u64 {
    let mut at = 0;
    assert_eq!(call!(table.cuMemAlloc_v2(&raw mut at, len as usize)), OK);
    at
}

fn fill(table: &DriverTable, at: u64, value: u8, len: u64) {
    assert_eq!(call!(table.cuMemsetD8_v2(at, value, len as usize)), OK);
    assert_eq!(call!(table.cuCtxSynchronize()), OK);
}

fn byte(table: &DriverTable, at: u64) -> u8 {
    let mut byte = 0_u8;
    let place = (&raw mut byte).cast::<c_void>();
    assert_eq!(call!(table.cuMemcpyDtoH_v2(place, at, 1)), OK);
    byte
}

fn attributes(table: &DriverTable) -> [Result<c_int, CUresult>; 2] {
    [124, 152].map(|id| {
        let mut value = -77;
        let id = CUdevice_attribute(id);
        match call!(table.cuDeviceGetAttribute(&raw mut value, id, 0)) {
            OK => Ok(value),
            code => Err(code),
        }
    })
}

/// Mapped memory of device 0.
fn mapped(table: &DriverTable, len: u64) -> (u64, u64) {
    mapped_for(table, len, 0)
}

/// The same, made for GPUDirect or not.
fn mapped_for(table: &DriverTable, len: u64, rdma: u8) -> (u64, u64) {
    let mut prop = CUmemAllocationProp {
        type_: CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0),
        ..CUmemAllocationProp::default()
    };
    prop.allocFlags.gpuDirectRDMACapable = rdma;
    let mut handle = 0;
    let code = call!(table.cuMemCreate(&raw mut handle, len as usize, &raw const prop, 0));
    assert_eq!(code, OK);
    (map(table, len, handle), handle)
}

fn map(table: &DriverTable, len: u64, handle: u64) -> u64 {
    let mut at = 0;
    let size = len as usize;
    assert_eq!(
        call!(table.cuMemAddressReserve(&raw mut at, size, 0, 0, 0)),
        OK
    );
    assert_eq!(call!(table.cuMemMap(at, size, 0, handle, 0)), OK);
    let wish = CUmemAccessDesc {
        location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, 0),
        flags: CUmemAccess_flags(3),
    };
    assert_eq!(
        call!(table.cuMemSetAccess(at, size, &raw const wish, 1)),
        OK
    );
    at
}

#[test]
fn an_older_driver_gives_what_the_host_cannot_map() {
    machine(
        "an_older_driver_gives_what_the_host_cannot_map",
        &[],
        |table| {
            assert_eq!(attributes(table), [Ok(1), Err(INVALID_VALUE)]);
            let at = plain(table, 4 * MIB);
            let file = export(table, at, 64 << 10, 0).expect("a dma-buf");
            for access in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
                assert!(Window::try_new(&file, host_page(), access).is_none());
            }
            assert_eq!(refusal(export(table, at, host_page(), 1)), NOT_SUPPORTED);
            assert_eq!(refusal(export(table, at, host_page(), 2)), INVALID_VALUE);
        },
    );
}

#[test]
fn a_newer_driver_lets_host_and_device_see_the_same_bytes() {
    machine(
        "a_newer_driver_lets_host_and_device_see_the_same_bytes",
        &[NEW],
        |table| {
            assert_eq!(attributes(table), [Ok(1), Ok(1)]);
            let at = plain(table, 4 * MIB);
            fill(table, at, 7, 4 * MIB);
            let part = at + MIB;
            let window = window(table, part, 64 << 10);
            assert_eq!([window.get(0), window.get(65_535)], [7, 7]);
            window.set(3, 42);
            assert_eq!([byte(table, part + 3), byte(table, part + 4)], [42, 7]);
            fill(table, part + 5, 9, 2);
            assert_eq!([window.get(4), window.get(5), window.get(6)], [7, 9, 9]);
            // Once more the same memory.
            let again = self::window(table, part, 64 << 10);
            again.set(9, 1);
            assert_eq!(window.get(9), 1);
            // Beside it another piece; across it none, until nobody has it any more.
            let beside = self::window(table, part + (64 << 10), host_page());
            assert_eq!(beside.get(0), 7);
            assert_eq!(refusal(export(table, at, 4 * MIB, 0)), NOT_SUPPORTED);
            drop((window, again, beside));
            let all = self::window(table, at, 4 * MIB);
            assert_eq!(
                [MIB + 3, MIB + 6, 0].map(|at| all.get(at as usize)),
                [42, 9, 7]
            );
            assert_eq!(call!(table.cuMemFree_v2(at)), OK);
            assert_eq!(all.get(0), 7, "the descriptor keeps the memory");
        },
    );
}

#[test]
fn small_blocks_share_pages_and_pools_give_theirs() {
    machine(
        "small_blocks_share_pages_and_pools_give_theirs",
        &[NEW],
        |table| {
            let (first, second) = (plain(table, 100), plain(table, 16 * host_page()));
            let inside = second.next_multiple_of(host_page());
            fill(table, second, 5, 16 * host_page());
            let small = window(table, inside, host_page());
            small.set(0, 6);
            assert_eq!(byte(table, inside), 6);
            // Whole pages, as far as the driver has taken memory for such blocks.
            let around = window(table, first - first % host_page(), host_page());
            fill(table, first, 7, 100);
            assert_eq!([around.get(0), around.get(99), around.get(600)], [7, 7, 5]);
            let end = first + 2 * MIB;
            assert_eq!(
                refusal(export(table, first, 2 * MIB + host_page(), 0)),
                INVALID_VALUE
            );
            let nothing = refusal(export(table, end - host_page(), host_page(), 0));
            assert_eq!(nothing, INVALID_VALUE, "no block is there");
            let odd = plain(table, 2 * MIB + 1);
            assert!(export(table, odd, 4 * MIB, 0).is_ok());
            let beyond = refusal(export(table, odd, 4 * MIB + host_page(), 0));
            assert_eq!(beyond, INVALID_VALUE);

            let mut stream = std::ptr::null_mut();
            assert_eq!(call!(table.cuStreamCreate(&raw mut stream, 1)), OK);
            let mut block = 0;
            let code = call!(table.cuMemAllocAsync(&raw mut block, 2 * MIB as usize, stream));
            assert_eq!(code, OK);
            let window = window(table, block, 2 * MIB);
            window.set(77, 8);
            assert_eq!(byte(table, block + 77), 8);
            assert_eq!(call!(table.cuMemFreeAsync(block, stream)), OK);
            assert_eq!(call!(table.cuStreamSynchronize(stream)), OK);
            // The pool has given the memory back; what comes there is other memory.
            let mut next = 0;
            let code = call!(table.cuMemAllocAsync(&raw mut next, 2 * MIB as usize, stream));
            assert_eq!((code, next), (OK, block));
            assert_eq!(byte(table, block + 77), 0);
            fill(table, block, 3, 2 * MIB);
            assert_eq!(window.get(77), 8);
        },
    );
}

#[test]
fn mapped_memory_is_the_same_at_every_address() {
    machine(
        "mapped_memory_is_the_same_at_every_address",
        &[NEW],
        |table| {
            let (at, handle) = mapped(table, 2 * STEP);
            let other = map(table, 2 * STEP, handle);
            fill(table, at, 1, 2 * STEP);
            let window = window(table, at + STEP, host_page());
            window.set(0, 2);
            assert_eq!([at, other].map(|at| byte(table, at + STEP)), [2, 2]);
            let third = map(table, 2 * STEP, handle);
            fill(table, third + STEP, 3, 1);
            assert_eq!(window.get(0), 3);
            assert_eq!(call!(table.cuMemUnmap(at, 2 * STEP as usize)), OK);
            assert_eq!(
                call!(table.cuMemMap(at, 2 * STEP as usize, 0, handle, 0)),
                OK
            );
            window.set(0, 4);
            assert_eq!([third, other].map(|at| byte(table, at + STEP)), [4, 4]);
            assert_eq!(
                refusal(export(table, third + STEP, 2 * STEP, 0)),
                INVALID_VALUE
            );
        },
    );
}

#[test]
fn work_that_runs_is_not_lost_when_memory_moves() {
    machine(
        "work_that_runs_is_not_lost_when_memory_moves",
        &[NEW],
        |table| {
            let at = plain(table, 64 * MIB);
            let mut stream = std::ptr::null_mut();
            assert_eq!(call!(table.cuStreamCreate(&raw mut stream, 1)), OK);
            for round in 1..=8_u8 {
                for part in 0..64 {
                    let part = at + part * MIB;
                    let code = call!(table.cuMemsetD8Async(part, round, MIB as usize, stream));
                    assert_eq!(code, OK);
                }
                let at = at + u64::from(round) * MIB;
                drop(export(table, at, MIB, 0).expect("a dma-buf"));
                assert_eq!(call!(table.cuStreamSynchronize(stream)), OK);
                for part in 0..64 {
                    assert_eq!(
                        byte(table, at - u64::from(round) * MIB + part * MIB + 5),
                        round
                    );
                }
            }
        },
    );
}

#[test]
fn settings_make_it_older_broken_or_more_able() {
    machine(
        "settings_make_it_older_broken_or_more_able",
        &[
            NEW,
            ("CUDA_SIM_DMA_BUF_PCIE", "1"),
            ("CUDA_SIM_BROKEN_DMA_BUF_MMAP", "1"),
        ],
        |table| {
            assert_eq!(attributes(table), [Ok(1), Ok(1)]);
            let at = plain(table, 4 * MIB);
            let file = export(table, at, host_page(), 1).expect("over PCIe");
            assert!(Window::try_new(&file, host_page(), libc::PROT_READ).is_none());
        },
    );
}

#[test]
fn a_device_may_say_that_the_host_cannot_map_them() {
    let none = ("CUDA_SIM_DMA_BUF_MMAP", "0");
    machine(
        "a_device_may_say_that_the_host_cannot_map_them",
        &[NEW, none],
        |table| {
            assert_eq!(attributes(table), [Ok(1), Ok(0)]);
            let at = plain(table, 4 * MIB);
            let file = export(table, at, host_page(), 0).expect("a dma-buf");
            assert!(Window::try_new(&file, host_page(), libc::PROT_READ).is_none());
        },
    );
}

#[test]
fn closed_kernel_modules_have_none() {
    let none = ("CUDA_SIM_DMA_BUF", "0");
    machine("closed_kernel_modules_have_none", &[NEW, none], |table| {
        assert_eq!(attributes(table), [Ok(0), Ok(0)]);
        let at = plain(table, 4 * MIB);
        assert_eq!(refusal(export(table, at, host_page(), 0)), NOT_SUPPORTED);
    });
}

#[test]
fn others_are_told_of_what_they_may_reach() {
    machine("others_are_told_of_what_they_may_reach", &[], |table| {
        let ask = |id, at| {
            let mut value = 77_u32;
            let place = (&raw mut value).cast::<c_void>();
            let code = call!(table.cuPointerGetAttribute(place, CUpointer_attribute(id), at));
            assert_eq!(code, OK);
            value
        };
        let wait = |at, wanted: u32| {
            let place = (&raw const wanted).cast::<c_void>();
            call!(table.cuPointerSetAttribute(place, CUpointer_attribute(6), at))
        };
        let (mapped, _) = mapped_for(table, STEP, 0);
        let (direct, _) = mapped_for(table, STEP, 1);
        let plain = plain(table, 100);
        assert_eq!([plain, mapped, direct].map(|at| ask(15, at)), [1, 0, 1]);
        for at in [mapped, direct] {
            assert_eq!([0, 1].map(|wanted| wait(at, wanted)), [NOT_SUPPORTED; 2]);
            assert_eq!(ask(6, at), 0);
        }
        assert_eq!((wait(plain, 1), ask(6, plain)), (OK, 1));

        let flush = |target, scope| {
            let target = CUflushGPUDirectRDMAWritesTarget_enum(target);
            let scope = CUflushGPUDirectRDMAWritesScope_enum(scope);
            call!(table.cuFlushGPUDirectRDMAWrites(target, scope))
        };
        assert_eq!([100, 200].map(|scope| flush(0, scope)), [OK; 2]);
        assert_eq!([0, 150].map(|scope| flush(0, scope)), [INVALID_VALUE; 2]);
        assert_eq!(flush(1, 100), INVALID_VALUE);
        assert_eq!(call!(table.cuCtxSetCurrent(std::ptr::null_mut())), OK);
        assert_eq!([100, 0].map(|scope| flush(0, scope)), [INVALID_CONTEXT; 2]);
        let range = plain - plain % host_page();
        assert_eq!(
            refusal(export(table, range, host_page(), 0)),
            INVALID_CONTEXT
        );
    });
}

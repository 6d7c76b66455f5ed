//! Machines whose devices use the memory of the program through the page tables of the host, beside one whose devices do
//! not.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use cuda_driver_sys::*;
use cuda_sim::{Machine, Simulator};

use crate::apart::{call, child_of};
use crate::harness::{Gate, INVALID_VALUE, OK};
use crate::several::started;

const LEN: usize = 4096;
const DEVICE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
const HOST: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST;
const NODE: CUmemLocationType = CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;

type Started = (Simulator, &'static DriverTable, CUstream);

fn coherent() -> Started {
    started(machine().set("CUDA_SIM_COHERENT", 1))
}

/// As most are: its devices refuse what the coherent ones accept.
fn discrete() -> Started {
    started(machine())
}

fn machine() -> Machine {
    Machine::new().devices(2).memory(1 << 30)
}

fn address(bytes: &[u8]) -> CUdeviceptr {
    bytes.as_ptr().expose_provenance() as CUdeviceptr
}

fn address_mut(bytes: &mut [u8]) -> CUdeviceptr {
    bytes.as_mut_ptr().expose_provenance() as CUdeviceptr
}

/// Memory that no work of this program touches any more.
fn block(table: &DriverTable) -> CUdeviceptr {
    let mut block = 0;
    assert_eq!(call!(table.cuMemAlloc_v2(&raw mut block, LEN)), OK);
    block
}

#[test]
fn fills_and_copies_take_memory_of_the_program() {
    for ((simulator, table, stream), expected) in [(coherent(), OK), (discrete(), INVALID_VALUE)] {
        let (mut x, y) = (vec![1_u8; LEN], vec![2_u8; LEN]);
        let (to, from) = (address_mut(&mut x), address(&y));
        let other = block(table);
        for code in [
            call!(table.cuMemsetD8Async(to, 7, 10, stream)),
            call!(table.cuMemcpyDtoDAsync_v2(to + 10, from, 10, stream)),
            call!(table.cuMemcpyDtoDAsync_v2(other, from, 10, stream)),
            call!(table.cuMemcpyDtoDAsync_v2(to + 20, other, 10, stream)),
        ] {
            assert_eq!(code, expected);
        }
        assert_eq!(call!(table.cuStreamSynchronize(stream)), OK);
        if expected == OK {
            let expected = [&[7; 10][..], &[2; 20], &[1]].concat();
            assert_eq!(x[..31], expected);
        } else {
            assert_eq!(x, [1; LEN]);
        }
        assert_eq!(call!(table.cuMemFree_v2(other)), OK);
        simulator.check().expect("in order");
    }
}

#[test]
fn what_is_not_there_is_not_the_programs() {
    static CONSTANT: [u8; 64] = [3; 64];
    let (_simulator, table, stream) = coherent();
    let fill = |to, len| call!(table.cuMemsetD8Async(to, 7, len, stream));
    let (kept, freed) = (block(table), block(table));
    assert_eq!(call!(table.cuMemFree_v2(freed)), OK);
    assert_eq!(fill(freed, 1), INVALID_VALUE, "it is the driver's");
    assert_eq!(fill(kept + LEN as u64, 1), INVALID_VALUE);
    assert_eq!(fill(64, 1), INVALID_VALUE, "nothing is mapped there");
    assert_eq!(fill(address(&CONSTANT), 1), INVALID_VALUE, "read-only");
    let constant = address(&CONSTANT);
    assert_eq!(
        call!(table.cuMemcpyDtoDAsync_v2(kept, constant, 64, stream)),
        OK
    );
    assert_eq!(call!(table.cuStreamSynchronize(stream)), OK);
    let mut bytes = [0_u8; 64];
    let to = bytes.as_mut_ptr().cast::<c_void>();
    assert_eq!(call!(table.cuMemcpyDtoH_v2(to, kept, 64)), OK);
    assert_eq!(bytes, CONSTANT);
}

/// A kernel of the tests' module. Loading waits for streams.
fn kernel(table: &DriverTable, name: &std::ffi::CStr) -> CUfunction {
    let image = concat!(include_str!("../../data/kernels.ptx"), "\0");
    let (mut module, mut function) = (null_mut(), null_mut());
    let code = call!(table.cuModuleLoadData(&raw mut module, image.as_ptr().cast()));
    assert_eq!(code, OK);
    let code = call!(table.cuModuleGetFunction(&raw mut function, module, name.as_ptr()));
    assert_eq!(code, OK);
    function
}

/// Runs it on one thread, with words as its arguments.
fn run<const N: usize>(
    table: &DriverTable,
    stream: CUstream,
    function: CUfunction,
    mut words: [u64; N],
) -> CUresult {
    let mut arguments = words.each_mut().map(|word| std::ptr::from_mut(word).cast());
    let arguments = arguments.as_mut_ptr();
    call!(table.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, null_mut()))
}

/// Loads it and runs it.
fn launch<const N: usize>(
    table: &DriverTable,
    stream: CUstream,
    name: &std::ffi::CStr,
    words: [u64; N],
) -> CUresult {
    run(table, stream, kernel(table, name), words)
}

#[test]
fn kernels_and_their_models_take_memory_of_the_program() {
    for is_coherent in [true, false] {
        for is_model in [false, true] {
            let (simulator, table, stream) = if is_coherent { coherent() } else { discrete() };
            if is_model {
                simulator.control().kernel("copy", |launch| {
                    let count = launch.argument::<u64>(2)? as usize;
                    let words: Vec<u32> = launch.read(launch.argument(1)?, count)?;
                    launch.write(launch.argument(0)?, &words)
                });
            }
            let (mut to, from) = (vec![0_u32; 1024], (0..1024).collect::<Vec<u32>>());
            let place = to.as_mut_ptr().expose_provenance() as u64;
            let source = from.as_ptr().expose_provenance() as u64;
            assert_eq!(launch(table, stream, c"copy", [place, source, 1024]), OK);
            assert_eq!(call!(table.cuStreamSynchronize(stream)), OK);
            assert_eq!(to == from, is_coherent);
            let reports = simulator.control().reports();
            let is_illegal = reports.iter().any(|it| it.contains("illegal address"));
            assert_eq!(is_illegal, !is_coherent, "{reports:?}");
        }
    }
}

#[test]
fn a_kernel_finds_no_memory_that_the_driver_took_back() {
    let (simulator, table, stream) = coherent();
    let (kept, freed) = (block(table), block(table));
    assert_eq!(call!(table.cuMemFree_v2(freed)), OK);
    assert_eq!(launch(table, stream, c"copy", [kept, freed, 4]), OK);
    assert_eq!(launch(table, stream, c"copy", [kept, 64, 4]), OK);
    assert_eq!(call!(table.cuStreamSynchronize(stream)), OK);
    assert_eq!(simulator.control().reports().len(), 2);
}

/// What the functions of unified memory answer for the program's.
fn unified(table: &DriverTable, stream: CUstream, at: CUdeviceptr, len: usize) -> Vec<CUresult> {
    use CUmem_advise as A;
    let place = |kind, id: c_int| location(kind, id);
    let (here, host, node) = (place(DEVICE, 1), place(HOST, 0), place(NODE, 0));
    let mut codes = vec![
        call!(table.cuMemPrefetchAsync(at, len, 0, stream)),
        call!(table.cuMemPrefetchAsync_v2(at, len, here, 0, stream)),
        call!(table.cuMemPrefetchAsync_v2(at, len, host, 0, stream)),
        call!(table.cuMemAdvise(at, len, A::CU_MEM_ADVISE_SET_READ_MOSTLY, 0)),
        call!(table.cuStreamAttachMemAsync(stream, at, len, 1)),
    ];
    for (advice, place) in [
        (A::CU_MEM_ADVISE_SET_READ_MOSTLY, here),
        (A::CU_MEM_ADVISE_UNSET_READ_MOSTLY, here),
        (A::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, here),
        (A::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, node),
        (A::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, here),
        (A::CU_MEM_ADVISE_SET_ACCESSED_BY, here),
        (A::CU_MEM_ADVISE_UNSET_ACCESSED_BY, host),
    ] {
        codes.push(call!(table.cuMemAdvise_v2(at, len, advice, place)));
    }
    let (mut addresses, mut sizes) = ([at], [len]);
    let (mut places, mut first) = ([here], [0_usize]);
    let (addresses, sizes) = (addresses.as_mut_ptr(), sizes.as_mut_ptr());
    let (places, first) = (places.as_mut_ptr(), first.as_mut_ptr());
    codes.extend([
        call!(table.cuMemPrefetchBatchAsync(addresses, sizes, 1, places, first, 1, 0, stream)),
        call!(table.cuMemDiscardBatchAsync(addresses, sizes, 1, 0, stream)),
    ]);
    codes
}

#[test]
fn memory_of_the_program_is_advised_and_prefetched() {
    let bytes = vec![0_u8; LEN];
    let at = address(&bytes);
    for ((_simulator, table, stream), expected) in [(coherent(), OK), (discrete(), INVALID_VALUE)] {
        let codes = unified(table, stream, at, LEN);
        assert_eq!(codes, vec![expected; codes.len()]);
        // Nothing is none of it, and where nothing is mapped is nothing.
        for (at, len) in [(at, 0), (64, 1)] {
            let codes = unified(table, stream, at, len);
            assert_eq!(codes, vec![INVALID_VALUE; codes.len()], "{at:#x}");
        }
        assert_eq!(call!(table.cuStreamSynchronize(stream)), OK);
        let mut value = [0_u32];
        let attribute = CUmem_range_attribute::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY;
        let to = value.as_mut_ptr().cast();
        let told = call!(table.cuMemRangeGetAttribute(to, 4, attribute, at, LEN));
        assert_eq!(
            told, INVALID_VALUE,
            "it is documented of managed memory only"
        );
    }
}

#[test]
fn registered_memory_is_not_pageable() {
    let (_simulator, table, stream) = coherent();
    let mut bytes = vec![0_u8; LEN];
    let at = address_mut(&mut bytes);
    let pointer = bytes.as_mut_ptr().cast();
    assert_eq!(call!(table.cuMemHostRegister_v2(pointer, LEN, 0)), OK);
    let codes = unified(table, stream, at, LEN);
    assert_eq!(codes, vec![INVALID_VALUE; codes.len()]);
    assert_eq!(call!(table.cuMemsetD8Async(at, 7, LEN, stream)), OK);
    assert_eq!(call!(table.cuMemHostUnregister(pointer)), OK);
    assert_eq!(bytes, [7; LEN]);
}

#[test]
fn places_that_are_none_are_refused() {
    let (_simulator, table, stream) = coherent();
    let bytes = vec![0_u8; LEN];
    let at = address(&bytes);
    let device = CUresult::CUDA_ERROR_INVALID_DEVICE;
    for (kind, id, expected) in [(DEVICE, 2, device), (NODE, 1, INVALID_VALUE)] {
        let place = location(kind, id);
        let code = call!(table.cuMemPrefetchAsync_v2(at, LEN, place, 0, stream));
        assert_eq!(code, expected);
        let preferred = CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
        let code = call!(table.cuMemAdvise_v2(at, LEN, preferred, place));
        assert_eq!(code, expected);
    }
}

/// A page of the program between two others, so that nothing else comes to lie there when it is unmapped.
struct Page(CUdeviceptr);

impl Page {
    fn new() -> Self {
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping; no existing memory changes.
        let pages = unsafe { libc::mmap(null_mut(), 3 * LEN, access, kind, -1, 0) };
        assert_ne!(pages, libc::MAP_FAILED);
        Self((pages.expose_provenance() + LEN) as CUdeviceptr)
    }

    fn unmap(self) {
        let page = std::ptr::with_exposed_provenance_mut(self.0 as usize);
        // SAFETY: the page is this value's, and no reference to it exists.
        assert_eq!(unsafe { libc::munmap(page, LEN) }, 0);
    }
}

/// Memsets and copies of a page of the program, and memory of the device for the other end.
fn works(
    table: &'static DriverTable,
    stream: CUstream,
) -> Vec<Box<dyn Fn(CUdeviceptr) -> CUresult>> {
    let other = block(table);
    vec![
        Box::new(move |page| call!(table.cuMemsetD8Async(page, 7, LEN, stream))),
        Box::new(move |page| call!(table.cuMemcpyDtoDAsync_v2(other, page, LEN, stream))),
        Box::new(move |page| call!(table.cuMemcpyDtoDAsync_v2(page, other, LEN, stream))),
    ]
}

#[test]
fn work_on_memory_that_the_program_unmapped_meanwhile_is_reported() {
    // By itself: other threads might map something there.
    let name = "work_on_memory_that_the_program_unmapped_meanwhile_is_reported";
    child_of("coherent", name, &[], || {
        let (simulator, table, stream) = coherent();
        let (fill, copy) = (kernel(table, c"fill"), kernel(table, c"copy"));
        let other = block(table);
        // Brings the kernels' code, which waits for streams too.
        assert_eq!(run(table, stream, fill, [other, 7, 4]), OK);
        assert_eq!(run(table, stream, copy, [other, other, 4]), OK);
        let mut works = works(table, stream);
        works.push(Box::new(move |page| run(table, stream, fill, [page, 7, 4])));
        works.push(Box::new(move |page| {
            run(table, stream, copy, [other, page, 4])
        }));
        for (number, work) in works.iter().enumerate() {
            let page = Page::new();
            let gate = Gate::hold_by(|wait, argument| {
                call!(table.cuLaunchHostFunc(stream, wait, argument))
            });
            assert_eq!(work(page.0), OK, "work {number}");
            page.unmap();
            gate.open();
            assert_eq!(call!(table.cuStreamSynchronize(stream)), OK);
            let reports = simulator.control().reports();
            assert_eq!(reports.len(), number + 1, "{reports:?}");
            assert!(reports[number].contains("illegal address"), "{reports:?}");
        }
    });
}

#[test]
fn a_graph_whose_memory_the_program_unmapped_is_reported() {
    let name = "a_graph_whose_memory_the_program_unmapped_is_reported";
    child_of("coherent", name, &[], || {
        let (simulator, table, stream) = coherent();
        for (number, work) in works(table, stream).iter().enumerate() {
            let page = Page::new();
            let (mut graph, mut exec) = (null_mut(), null_mut());
            let mode = CUstreamCaptureMode(2);
            assert_eq!(call!(table.cuStreamBeginCapture_v2(stream, mode)), OK);
            assert_eq!(work(page.0), OK);
            assert_eq!(call!(table.cuStreamEndCapture(stream, &raw mut graph)), OK);
            let code = call!(table.cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
            assert_eq!(code, OK);
            assert_eq!(call!(table.cuGraphLaunch(exec, stream)), OK);
            assert_eq!(call!(table.cuStreamSynchronize(stream)), OK);
            assert_eq!(simulator.control().reports().len(), number);
            page.unmap();
            assert_eq!(call!(table.cuGraphLaunch(exec, stream)), OK);
            assert_eq!(call!(table.cuStreamSynchronize(stream)), OK);
            let reports = simulator.control().reports();
            assert_eq!(reports.len(), number + 1, "{reports:?}");
        }
    });
}

//! What the models of kernels touch: bounds and order.

use std::sync::{Mutex, mpsc};

use cuda_driver_sys::*;

use crate::harness::*;
use crate::kernels::{BYTES, Bench, COUNT, model, read};
use crate::vmm::{STEP, address_free, back, reserve, unmap};

fn order(after: CUstream, before: CUstream) {
    let event = event();
    assert_eq!(cu!(cuEventRecord(event, before)), OK);
    assert_eq!(cu!(cuStreamWaitEvent(after, event, 0)), OK);
    cu!(cuEventDestroy_v2(event));
}

/// `access` writes so many elements.
fn write_elements() {
    model("access", |launch| {
        let (at, count) = (launch.argument(0)?, launch.argument::<u64>(1)?);
        launch.write(at, &vec![7_f32; count as usize])
    });
}

/// `access` follows so many addresses in memory, and writes one element at each.
fn write_behind() {
    model("access", |launch| {
        let (at, count) = (launch.argument(0)?, launch.argument::<u64>(1)?);
        let addresses: Vec<u64> = launch.read(at, count as usize)?;
        let mut addresses = addresses.into_iter();
        addresses.try_for_each(|address| launch.write(address, &[7_f32]))
    });
}

/// A block that contains these addresses.
fn list(bench: &Bench, addresses: &[u64]) -> CUdeviceptr {
    let list = bench.fixture.alloc(size_of_val(addresses) as u64);
    let (from, bytes) = (addresses.as_ptr().cast(), size_of_val(addresses));
    let code = cu!(cuMemcpyHtoDAsync_v2(list, from, bytes, bench.stream()));
    assert_eq!(code, OK);
    list
}

#[test]
fn outside_a_block_is_refused_and_the_rest_of_the_kernel_too() {
    let bench = Bench::new();
    let (stream, block) = (bench.stream(), bench.block(1.0));
    let (answers, answered) = mpsc::channel();
    let (count, strange) = (COUNT as u64, 64);
    model("access", move |launch| {
        let at: u64 = launch.argument(0)?;
        let count = launch.argument::<u64>(1)? as usize;
        let results = [
            launch.read::<f32>(at, 0).is_ok(),
            launch.read::<f32>(at, count).is_ok(),
            launch.write(at, &[5_f32]).is_ok(),
        ];
        let _ = answers.send(results);
        Ok(())
    });
    for arguments in [
        [block, count + 1],
        [block, u64::MAX],
        [block + 4, count],
        [strange, 1],
        [block + 2, 1],
        [block, count],
    ] {
        bench.access(stream, arguments);
    }
    let mut expected = vec![1.0; COUNT];
    expected[0] = 5.0;
    assert_eq!(read(block, stream), expected);
    let answers: Vec<[bool; 3]> = answered.try_iter().collect();
    let mut wanted = [[true, false, false]; 6];
    wanted[4] = [false; 3];
    wanted[5] = [true; 3];
    assert_eq!(answers, wanted);
    bench.fixture.free(block);
    let (bounds, illegal) = ("out of bounds", "illegal address");
    let reports = bench.end(&[
        bounds,
        illegal,
        illegal,
        bounds,
        illegal,
        illegal,
        "kernel error",
    ]);
    assert!(reports[1].contains("kernel read 1028 bytes"), "{reports:?}");
    assert!(reports[1].contains("the kernel `access` was left out"));
    assert!(reports[6].contains("no multiple of 4 bytes"), "{reports:?}");
}

#[test]
fn a_kernel_comes_after_the_allocation() {
    let bench = Bench::new();
    let (other, block) = (stream(), bench.block(1.0));
    model("access", |launch| {
        let (at, count) = (launch.argument::<u64>(0)?, launch.argument::<u64>(1)?);
        // Reported once a launch.
        let mut each = (0..count).map(|index| at + index * 4);
        each.try_for_each(|address| launch.write(address, &[2_f32]))
    });
    bench.access(other, [block, 3]);
    order(other, bench.stream());
    bench.access(other, [block, 3]);
    order(bench.stream(), other);
    bench.fixture.free(block);
    cu!(cuStreamDestroy_v2(other));
    let reports = bench.end(&["before allocation"]);
    assert!(reports[0].contains("kernel write 4 bytes"), "{reports:?}");
}

/// Returns when the stream's work has run. The host does not know that until the other stream is destroyed, which is
/// returned.
fn run_unseen(work: CUstream) -> CUstream {
    let other = stream();
    order(other, work);
    let gate = Gate::hold(other);
    gate.wait();
    other
}

#[test]
fn a_free_comes_after_the_kernel_whether_it_has_run_or_not() {
    for has_run in [true, false] {
        let bench = Bench::new();
        write_elements();
        let (other, block) = (stream(), bench.block(1.0));
        order(other, bench.stream());
        let gate = Gate::hold(other);
        bench.access(other, [block, 1]);
        let mut witness = std::ptr::null_mut();
        if has_run {
            gate.open();
            witness = run_unseen(other);
        }
        bench.fixture.free(block);
        gate.open();
        cu!(cuCtxSynchronize());
        cu!(cuStreamDestroy_v2(other));
        if has_run {
            cu!(cuStreamDestroy_v2(witness));
        }
        let reports = bench.end(&["free before access"]);
        assert!(reports[0].contains("freed on stream"), "{reports:?}");
    }
}

#[test]
fn a_free_while_the_kernel_runs_is_reported_once() {
    let bench = Bench::new();
    let (other, block) = (stream(), bench.block(1.0));
    let (begun, begins) = mpsc::channel();
    let (go, goes) = mpsc::channel();
    let goes = Mutex::new(goes);
    model("access", move |launch| {
        let at = launch.argument(0)?;
        launch.write(at, &[1_f32])?;
        let _ = begun.send(());
        let _ = goes.lock().map(|goes| goes.recv());
        launch.write(at, &[2_f32])
    });
    order(other, bench.stream());
    bench.access(other, [block, 1]);
    begins.recv().expect("it runs");
    bench.fixture.free(block);
    go.send(()).expect("it waits");
    assert_eq!(cu!(cuCtxSynchronize()), OK);
    cu!(cuStreamDestroy_v2(other));
    bench.end(&["free before access"]);
}

#[test]
fn a_free_by_the_host_comes_after_the_kernel_too() {
    let bench = Bench::new();
    write_elements();
    let block = bench.block(1.0);
    synchronise(bench.stream());
    let gate = Gate::hold(bench.stream());
    bench.access(bench.stream(), [block, 1]);
    assert_eq!(cu!(cuMemFree_v2(block)), OK);
    gate.open();
    let reports = bench.end(&["free before access"]);
    assert!(reports[0].contains("freed by the host"), "{reports:?}");
}

#[test]
fn freed_memory_and_that_of_later_blocks_is_not_the_kernels() {
    let bench = Bench::new();
    write_elements();
    let (stream, block) = (bench.stream(), bench.block(1.0));
    let gate = Gate::hold(stream);
    bench.fixture.free(block);
    bench.access(stream, [block, 1]);
    // The stream may have the place again, but this kernel came before.
    let again = bench.block(3.0);
    assert_eq!(again, block);
    gate.open();
    assert_eq!(read(again, stream), vec![3.0; COUNT]);
    bench.fixture.free(again);
    bench.end(&["illegal address"]);
}

#[test]
fn memory_freed_before_the_launch_is_reported_as_that() {
    let bench = Bench::new();
    write_elements();
    let block = bench.block(1.0);
    bench.fixture.free(block);
    bench.access(bench.stream(), [block, 1]);
    bench.end(&["after free", "illegal address"]);
}

#[test]
fn memory_is_also_reached_through_addresses_in_memory() {
    let bench = Bench::new();
    write_behind();
    let stream = bench.stream();
    let blocks = [bench.block(1.0), bench.block(1.0)];
    let list = list(&bench, &blocks);
    let gate = Gate::hold(stream);
    bench.access(stream, [list, 2]);
    // In stream order, and another block has the place when the kernel runs.
    bench.fixture.free(blocks[1]);
    let small = bench.fixture.alloc(1);
    assert_eq!(small, blocks[1]);
    gate.open();
    assert_eq!(read(blocks[0], stream)[0], 7.0);
    for block in [blocks[0], small, list] {
        bench.fixture.free(block);
    }
    bench.end(&[]);
}

#[test]
fn frees_of_such_memory_are_checked_too() {
    let bench = Bench::new();
    write_behind();
    let (stream, other) = (bench.stream(), stream());
    let [early, late] = [bench.block(1.0), bench.block(1.0)];
    let list = list(&bench, &[early, late]);
    order(other, stream);
    let gate = Gate::hold(stream);
    bench.access(stream, [list, 2]);
    free(early, other);
    gate.open();
    let witness = run_unseen(stream);
    free(late, other);
    bench.fixture.free(list);
    assert_eq!(cu!(cuCtxSynchronize()), OK);
    cu!(cuStreamDestroy_v2(other));
    cu!(cuStreamDestroy_v2(witness));
    bench.end(&["free before access", "free before access"]);
}

#[test]
fn memory_of_all_kinds_is_the_kernels() {
    let bench = Bench::new();
    write_behind();
    let mut pinned = std::ptr::null_mut();
    assert_eq!(cu!(cuMemHostAlloc(&raw mut pinned, 64, 0)), OK);
    let managed = get!(cuMemAllocManaged(_, 64, 1));
    let device = get!(cuMemAlloc_v2(_, 64));
    let mut own = [0_f32; 16];
    let own_address = (&raw mut own).expose_provenance() as u64;
    let code = cu!(cuMemHostRegister_v2((&raw mut own).cast(), 64, 0));
    assert_eq!(code, OK);
    let pinned_address = pinned.expose_provenance() as u64;
    let list = list(&bench, &[pinned_address, managed, device, own_address]);
    bench.access(bench.stream(), [list, 4]);
    synchronise(bench.stream());
    assert_eq!(own[0], 7.0);
    // Another device's memory is out of reach, and so is what was never the driver's.
    let stranger = (&raw const bench).addr() as u64;
    let there = handle!(cuCtxCreate_v2(_, 0, 1));
    let far = get!(cuMemAlloc_v2(_, 64));
    assert_eq!(cu!(cuCtxSetCurrent(bench.fixture.turn.context)), OK);
    for address in [far, stranger] {
        let code = cu!(cuMemcpyHtoD_v2(list, (&raw const address).cast(), 8));
        assert_eq!(code, OK);
        bench.access(bench.stream(), [list, 1]);
        synchronise(bench.stream());
    }
    assert_eq!(cu!(cuCtxDestroy_v2(there)), OK);
    assert_eq!(cu!(cuMemHostUnregister((&raw mut own).cast())), OK);
    assert_eq!(cu!(cuMemFreeHost(pinned)), OK);
    assert_eq!(cu!(cuMemFree_v2(managed)), OK);
    assert_eq!(cu!(cuMemFree_v2(device)), OK);
    bench.fixture.free(list);
    bench.end(&["illegal address", "illegal address"]);
}

#[test]
fn read_only_memory_is_not_written() {
    let bench = Bench::new();
    write_elements();
    let mut own = [1_f32; 16];
    let address = (&raw mut own).expose_provenance() as u64;
    let code = cu!(cuMemHostRegister_v2((&raw mut own).cast(), 64, 8));
    assert_eq!(code, OK);
    bench.access(bench.stream(), [address, 1]);
    synchronise(bench.stream());
    assert_eq!(own, [1.0; 16]);
    assert_eq!(cu!(cuMemHostUnregister((&raw mut own).cast())), OK);
    let reports = bench.end(&["illegal address"]);
    assert!(reports[0].contains("may only read"), "{reports:?}");
}

#[test]
fn mapped_memory_is_checked_by_its_mappings_and_annotations() {
    let bench = Bench::new();
    write_elements();
    let (stream, range, control) = (bench.stream(), reserve(3 * STEP), control());
    back(range, STEP);
    back(range + STEP, STEP);
    let step = STEP / 4;
    // Across two mappings, and past the second one.
    bench.access(stream, [range + STEP - 8, 4]);
    bench.access(stream, [range + STEP, step + 1]);
    // A block of the program's, its neighbour, and its free.
    let block = range + 4096;
    assert_eq!(control.annotate_allocate(block, 4096, stream), OK);
    bench.access(stream, [block, 1024]);
    bench.access(stream, [block, 1025]);
    bench.access(stream, [range + 4088, 4]);
    assert_eq!(control.annotate_free(block, 4096, stream), OK);
    bench.access(stream, [block, 1]);
    synchronise(stream);
    // Work that comes too late.
    let gate = Gate::hold(stream);
    bench.access(stream, [range, 1]);
    assert_eq!(unmap(range, 2 * STEP), OK);
    gate.open();
    synchronise(stream);
    assert_eq!(address_free(range, 3 * STEP), OK);
    bench.end(&[
        "illegal address",
        "out of bounds",
        "out of bounds",
        "after free",
        "after unmap",
    ]);
}

#[test]
fn an_unmap_comes_after_the_kernel() {
    let bench = Bench::new();
    write_elements();
    let (stream, range) = (bench.stream(), reserve(STEP));
    back(range, STEP);
    bench.access(stream, [range, 1]);
    let witness = run_unseen(stream);
    assert_eq!(unmap(range, STEP), OK);
    assert_eq!(address_free(range, STEP), OK);
    cu!(cuStreamDestroy_v2(witness));
    bench.end(&["unmap before access"]);
}

#[test]
fn in_a_graph_the_pointers_among_the_arguments_count_as_used() {
    let bench = Bench::new();
    write_elements();
    let (a, b) = (bench.stream(), stream());
    assert_eq!(cu!(cuStreamBeginCapture_v2(a, CUstreamCaptureMode(2))), OK);
    order(b, a);
    let mut block = 0;
    let code = cu!(cuMemAllocAsync(&raw mut block, BYTES as usize, a));
    assert_eq!(code, OK);
    bench.access(b, [block, 1]);
    order(a, b);
    assert_eq!(cu!(cuMemFreeAsync(block, a)), OK);
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    assert_eq!(cu!(cuStreamEndCapture(a, &raw mut graph)), OK);
    let code = cu!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
    assert_eq!(code, OK);
    assert_eq!(cu!(cuGraphLaunch(exec, a)), OK);
    synchronise(a);
    assert_eq!(cu!(cuGraphExecDestroy(exec)), OK);
    assert_eq!(cu!(cuGraphDestroy(graph)), OK);
    cu!(cuStreamDestroy_v2(b));
    let reports = bench.end(&["before allocation"]);
    assert!(reports[0].contains("kernel argument"), "{reports:?}");
}

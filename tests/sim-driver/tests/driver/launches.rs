//! Launching kernels: what they do, in which order, and what is refused.

use std::ffi::{CStr, c_int, c_uint, c_void};

use cuda_driver_sys::*;

use crate::harness::*;
use crate::modules::{function, library, module};

/// Elements of each block.
const COUNT: usize = 1000;
const BYTES: u64 = COUNT as u64 * 4;

/// The pointers to arguments that a launch takes.
fn pointers<const N: usize>(arguments: &[u64; N]) -> [*mut c_void; N] {
    std::array::from_fn(|index| (&raw const arguments[index]).cast_mut().cast())
}

/// Launches in one dimension, with arguments of at most 64 bits each.
pub(crate) fn launch<const N: usize>(
    function: CUfunction,
    sizes: [c_uint; 2],
    stream: CUstream,
    arguments: [u64; N],
) -> CUresult {
    let mut each = pointers(&arguments);
    let none = std::ptr::null_mut();
    let [grid, block] = sizes;
    cu!(cuLaunchKernel(
        function,
        grid,
        1,
        1,
        block,
        1,
        1,
        0,
        stream,
        each.as_mut_ptr(),
        none
    ))
}

fn read(from: CUdeviceptr, stream: CUstream) -> Vec<u32> {
    let mut words = vec![0_u32; COUNT];
    let to = words.as_mut_ptr().cast();
    assert_eq!(
        cu!(cuMemcpyDtoHAsync_v2(to, from, BYTES as usize, stream)),
        OK
    );
    synchronise(stream);
    words
}

/// A module, its stream and two blocks of a pool.
struct Bench {
    fixture: Fixture,
    module: CUmodule,
    x: CUdeviceptr,
    y: CUdeviceptr,
}

impl Bench {
    fn new() -> Self {
        let fixture = Fixture::new();
        let (x, y) = (fixture.alloc(BYTES), fixture.alloc(BYTES));
        let module = module();
        Self {
            fixture,
            module,
            x,
            y,
        }
    }

    fn stream(&self) -> CUstream {
        self.fixture.stream
    }

    fn function(&self, name: &CStr) -> CUfunction {
        function(self.module, name)
    }

    /// Gives everything back, and wants these reports.
    fn end(self, reports: &[&str]) {
        self.fixture.free(self.x);
        self.fixture.free(self.y);
        synchronise(self.stream());
        assert_eq!(cu!(cuModuleUnload(self.module)), OK);
        let found = control().reports();
        assert_eq!(found.len(), reports.len(), "{found:?}");
        for (found, expected) in found.iter().zip(reports) {
            assert!(found.contains(expected), "{found}");
        }
    }
}

#[test]
fn the_kernels_do_their_work_whatever_the_grid() {
    let bench = Bench::new();
    let (x, y, stream, count) = (bench.x, bench.y, bench.stream(), COUNT as u64);
    let one = u64::from(1.5_f32.to_bits());
    assert_eq!(
        launch(bench.function(c"fill"), [1, 1], stream, [x, one, count]),
        OK
    );
    assert_eq!(
        launch(bench.function(c"copy"), [9, 64], stream, [y, x, count - 1]),
        OK
    );
    assert_eq!(
        launch(
            bench.function(c"fill"),
            [4, 32],
            stream,
            [y + BYTES - 4, one, 1]
        ),
        OK
    );
    assert_eq!(
        launch(bench.function(c"add"), [2, 7], stream, [y, y, x, count]),
        OK
    );
    assert_eq!(read(y, stream), vec![3_f32.to_bits(); COUNT]);
    bench.end(&[]);
}

#[test]
fn arguments_may_come_in_one_buffer_and_sizes_in_a_struct() {
    let bench = Bench::new();
    let fill = bench.function(c"fill");
    // The second argument has 32 bits, and the third begins at a multiple of 64.
    let buffer = [bench.x, 77, COUNT as u64];
    let config = CUlaunchConfig {
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        hStream: bench.stream(),
        ..CUlaunchConfig::default()
    };
    let none = std::ptr::null_mut();
    let launch = |mut size: usize| {
        let mut extra = [
            std::ptr::without_provenance_mut(1),
            buffer.as_ptr().cast_mut().cast(),
            std::ptr::without_provenance_mut(2),
            (&raw mut size).cast::<c_void>(),
            std::ptr::null_mut(),
        ];
        cu!(cuLaunchKernelEx(
            &raw const config,
            fill,
            none,
            extra.as_mut_ptr()
        ))
    };
    assert_eq!(launch(size_of_val(&buffer)), OK);
    assert_eq!(read(bench.x, bench.stream()), vec![77; COUNT]);
    // Less than the kernel takes is taken: here the high half of the count, which is 0, is left out.
    assert_eq!(launch(size_of_val(&buffer) - 4), OK);
    assert_eq!(
        launch(size_of_val(&buffer) + 1),
        CUresult::CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES
    );
    assert_eq!(
        cu!(cuLaunchKernelEx(&raw const config, fill, none, none)),
        INVALID_VALUE
    );
    bench.end(&[]);
}

#[test]
fn a_kernel_keeps_its_stream_busy() {
    let bench = Bench::new();
    let stream = bench.stream();
    let gate = Gate::hold(stream);
    let spin = bench.function(c"spin");
    assert_eq!(launch(spin, [1, 1], stream, [2_000_000]), OK);
    assert_eq!(cu!(cuStreamQuery(stream)), CUresult::CUDA_ERROR_NOT_READY);
    let begun = std::time::Instant::now();
    gate.open();
    synchronise(stream);
    assert!(begun.elapsed().as_millis() >= 2);
    bench.end(&[]);
}

#[test]
fn sizes_and_other_kernels_are_refused() {
    let bench = Bench::new();
    let (fill, stream) = (bench.function(c"fill"), bench.stream());
    let arguments = [bench.x, 1, COUNT as u64];
    for sizes in [[0, 1], [1, 0], [1, 1025], [1 << 31, 1]] {
        assert_eq!(
            launch(fill, sizes, stream, arguments),
            INVALID_VALUE,
            "{sizes:?}"
        );
    }
    let other = c".version 7.0\n.target sm_70\n.entry other() .maxntid 8 { ret; }";
    let other = handle!(cuModuleLoadData(_, other.as_ptr().cast()));
    let strange = function(other, c"other");
    let refused = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    assert_eq!(launch(strange, [1, 8], stream, [0]), refused);
    assert_eq!(launch(strange, [1, 9], stream, [0]), INVALID_VALUE);
    assert_eq!(cu!(cuModuleUnload(other)), OK);
    let gone = CUresult::CUDA_ERROR_INVALID_HANDLE;
    assert_eq!(launch(strange, [1, 1], stream, [0]), gone);
    bench.end(&[]);
}

#[test]
fn a_function_runs_in_its_own_context() {
    let bench = Bench::new();
    let fill = bench.function(c"fill");
    let library = library();
    let kernel = handle!(cuLibraryGetKernel(_, library, c"fill".as_ptr()));
    let other = handle!(cuCtxCreate_v2(_, 0, 1));
    let there = stream();
    let memory = get!(cuMemAlloc_v2(_, BYTES as usize));
    let arguments = [memory, 5, COUNT as u64];
    let wrong = CUresult::CUDA_ERROR_INVALID_HANDLE;
    assert_eq!(launch(fill, [1, 1], there, arguments), wrong);
    // A kernel is of every context.
    assert_eq!(launch(kernel.cast(), [1, 1], there, arguments), OK);
    assert_eq!(read(memory, there), vec![5; COUNT]);
    assert_eq!(control().images(1), 1);
    assert_eq!(cu!(cuCtxDestroy_v2(other)), OK);
    assert_eq!(cu!(cuLibraryUnload(library)), OK);
    bench.end(&[]);
}

#[test]
fn memory_that_is_not_there_is_reported_and_left_alone() {
    let bench = Bench::new();
    let (fill, stream) = (bench.function(c"fill"), bench.stream());
    let count = COUNT as u64;
    assert_eq!(launch(fill, [1, 1], stream, [bench.x, 3, count]), OK);
    for [to, count] in [
        [bench.x, count + 1],
        [64, 1],
        [bench.x + 2, 1],
        [bench.x, u64::MAX],
    ] {
        assert_eq!(launch(fill, [1, 1], stream, [to, 4, count]), OK);
    }
    assert_eq!(read(bench.x, stream), vec![3; COUNT]);
    let lost = "illegal address: kernel write";
    bench.end(&[
        "out of bounds: kernel write",
        lost,
        lost,
        "no multiple of 4",
        lost,
    ]);
}

#[test]
fn the_order_of_kernels_is_checked() {
    let bench = Bench::new();
    let (copy, other) = (bench.function(c"copy"), stream());
    let arguments = [bench.y, bench.x, COUNT as u64];
    assert_eq!(launch(copy, [1, 1], other, arguments), OK);
    synchronise(other);
    cu!(cuStreamDestroy_v2(other));
    bench.end(&[
        "before allocation: kernel read",
        "before allocation: kernel write",
    ]);
}

#[test]
fn a_captured_kernel_runs_when_the_graph_does() {
    let bench = Bench::new();
    let (fill, stream) = (bench.function(c"fill"), bench.stream());
    let fill_with = |value| launch(fill, [1, 1], stream, [bench.x, value, COUNT as u64]);
    assert_eq!(fill_with(1), OK);
    assert_eq!(
        cu!(cuStreamBeginCapture_v2(stream, CUstreamCaptureMode(2))),
        OK
    );
    assert_eq!(fill_with(2), OK);
    let mut graph = std::ptr::null_mut();
    assert_eq!(cu!(cuStreamEndCapture(stream, &raw mut graph)), OK);
    let (mut node, mut count) = (std::ptr::null_mut(), 1);
    assert_eq!(
        cu!(cuGraphGetNodes(graph, &raw mut node, &raw mut count)),
        OK
    );
    let mut kind = CUgraphNodeType(99);
    assert_eq!(cu!(cuGraphNodeGetType(node, &raw mut kind)), OK);
    assert_eq!(kind, CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL);
    let mut exec = std::ptr::null_mut();
    assert_eq!(
        cu!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0)),
        OK
    );
    assert_eq!(read(bench.x, stream), vec![1; COUNT]);
    assert_eq!(cu!(cuGraphLaunch(exec, stream)), OK);
    assert_eq!(read(bench.x, stream), vec![2; COUNT]);
    assert_eq!(cu!(cuGraphExecDestroy(exec)), OK);
    assert_eq!(cu!(cuGraphDestroy(graph)), OK);
    bench.end(&[]);
}

#[test]
fn pinned_and_managed_memory_are_the_devices_too() {
    let bench = Bench::new();
    let (copy, stream) = (bench.function(c"copy"), bench.stream());
    let mut pinned = std::ptr::null_mut();
    assert_eq!(cu!(cuMemHostAlloc(&raw mut pinned, BYTES as usize, 0)), OK);
    let managed = get!(cuMemAllocManaged(_, BYTES as usize, 1));
    let from = pinned.expose_provenance() as u64;
    assert_eq!(cu!(cuMemsetD32Async(from, 8, COUNT, stream)), OK);
    assert_eq!(
        launch(copy, [1, 1], stream, [managed, from, COUNT as u64]),
        OK
    );
    assert_eq!(read(managed, stream), vec![8; COUNT]);
    assert_eq!(cu!(cuMemFreeHost(pinned)), OK);
    assert_eq!(cu!(cuMemFree_v2(managed)), OK);
    bench.end(&[]);
}

#[test]
fn occupancy_follows_threads_and_shared_memory() {
    let bench = Bench::new();
    let fill = bench.function(c"fill");
    let blocks = |threads: c_int, dynamic: usize| -> c_int {
        get!(cuOccupancyMaxActiveBlocksPerMultiprocessor(
            _,
            fill,
            threads,
            dynamic
        ))
    };
    assert_eq!(
        (blocks(1024, 0), blocks(64, 0), blocks(64, 47 << 10)),
        (2, 32, 4)
    );
    assert_eq!(blocks(64, 49 << 10), 0);
    /// More than a block of more than 128 threads may have.
    unsafe extern "C" fn shared(threads: c_int) -> usize {
        if threads > 128 { 1 << 20 } else { 0 }
    }
    let best = |of: CUoccupancyB2DSize| {
        let (mut grid, mut block) = (0, 0);
        let code = cu!(cuOccupancyMaxPotentialBlockSize(
            &raw mut grid,
            &raw mut block,
            fill,
            of,
            0,
            0
        ));
        (code, grid, block)
    };
    assert_eq!(best(None), (OK, 2 * 132, 1024));
    assert_eq!(best(Some(shared)), (OK, 16 * 132, 128));
    bench.end(&[]);
}

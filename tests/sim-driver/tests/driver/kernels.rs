//! Kernels of the program's own: models, what they see of a launch, and how long they stay.

use std::ffi::{CStr, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::*;
use cuda_sim::{Launch, LaunchError};

use crate::harness::*;
use crate::launches::launch;
use crate::modules::{function, image, module, try_module};

/// The declarations are all that the simulator needs.
const PTX: &str = "
.version 7.0
.target sm_70
.address_size 64
.visible .entry vector_add(.param .u64 a, .param .u64 b, .param .u64 sum, .param .u32 count) { ret; }
.visible .entry access(.param .u64 at, .param .u64 count) { ret; }
.visible .entry shapes(.param .u8 small, .param .align 8 .b8 pair[16], .param .f32 scale) { ret; }
.visible .entry nothing() { ret; }
";

/// Elements of each block.
pub(crate) const COUNT: usize = 256;
pub(crate) const BYTES: u64 = COUNT as u64 * 4;

/// A module with these kernels, a pool and a stream.
pub(crate) struct Bench {
    pub(crate) fixture: Fixture,
    module: CUmodule,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let fixture = Fixture::new();
        let module = try_module(&image(PTX)).expect("loads");
        Self { fixture, module }
    }

    pub(crate) fn stream(&self) -> CUstream {
        self.fixture.stream
    }

    /// A block with one number in every element.
    pub(crate) fn block(&self, value: f32) -> CUdeviceptr {
        let block = self.fixture.alloc(BYTES);
        let code = cu!(cuMemsetD32Async(
            block,
            value.to_bits(),
            COUNT,
            self.stream()
        ));
        assert_eq!(code, OK);
        block
    }

    pub(crate) fn function(&self, name: &CStr) -> CUfunction {
        function(self.module, name)
    }

    /// Launches `access`, whose arguments mean what its model says.
    pub(crate) fn access(&self, stream: CUstream, arguments: [u64; 2]) {
        let code = launch(self.function(c"access"), [1, 1], stream, arguments);
        assert_eq!(code, OK);
    }

    /// Unloads the code, and wants reports of these kinds.
    pub(crate) fn end(self, kinds: &[&str]) -> Vec<String> {
        assert_eq!(cu!(cuCtxSynchronize()), OK);
        assert_eq!(cu!(cuModuleUnload(self.module)), OK);
        let reports = control().reports();
        let found: Vec<&str> = reports.iter().filter_map(|r| r.split(':').next()).collect();
        assert_eq!(found, kinds, "{reports:#?}");
        reports
    }
}

pub(crate) fn model(
    name: &str,
    model: impl Fn(&Launch<'_>) -> Result<(), LaunchError> + Send + Sync + 'static,
) {
    control().kernel(name, model);
}

/// Adds one to every element.
fn count_up(launch: &Launch<'_>) -> Result<(), LaunchError> {
    let (at, count) = (launch.argument(0)?, launch.argument::<u64>(1)?);
    launch.update(at, count as usize, |elements: &mut [f32]| {
        elements.iter_mut().for_each(|element| *element += 1.0);
    })
}

pub(crate) fn read(from: CUdeviceptr, stream: CUstream) -> Vec<f32> {
    let mut elements = vec![0_f32; COUNT];
    let to = elements.as_mut_ptr().cast();
    let code = cu!(cuMemcpyDtoHAsync_v2(to, from, BYTES as usize, stream));
    assert_eq!(code, OK);
    synchronise(stream);
    elements
}

/// What a model noted.
type Notes<T> = Arc<Mutex<Vec<T>>>;

fn lock<T>(notes: &Notes<T>) -> MutexGuard<'_, Vec<T>> {
    notes.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_model_does_the_work_in_stream_order() {
    let bench = Bench::new();
    cuda_sim::kernel("vector_add", |launch| {
        let [a, b, sum] = [
            launch.argument(0)?,
            launch.argument(1)?,
            launch.argument(2)?,
        ];
        let count = launch.argument::<u32>(3)? as usize;
        let (a, b): (Vec<f32>, Vec<f32>) = (launch.read(a, count)?, launch.read(b, count)?);
        let total: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        launch.write(sum, &total)
    })
    .expect("the simulator is there");
    let (stream, add) = (bench.stream(), bench.function(c"vector_add"));
    let gate = Gate::hold(stream);
    let (a, b) = (bench.block(1.5), bench.block(2.0));
    let sum = bench.block(0.0);
    let arguments = [a, b, sum, COUNT as u64 - 1];
    assert_eq!(launch(add, [2, 128], stream, arguments), OK);
    assert_eq!(cu!(cuMemsetD8Async(a, 0, BYTES as usize, stream)), OK);
    // The stream frees them behind the kernel.
    bench.fixture.free(a);
    bench.fixture.free(b);
    gate.open();
    let mut expected = vec![3.5; COUNT];
    expected[COUNT - 1] = 0.0;
    assert_eq!(read(sum, stream), expected);
    bench.fixture.free(sum);
    bench.end(&[]);
}

#[test]
fn a_model_sees_its_launch() {
    let bench = Bench::new();
    let notes = Notes::default();
    let noted = Arc::clone(&notes);
    model("shapes", move |launch| {
        let sizes = (launch.grid(), launch.block(), launch.threads());
        let place = (launch.device(), launch.shared_bytes());
        lock(&noted).push(format!("{} {sizes:?} {place:?}", launch.name()));
        let arguments = (
            launch.argument::<u8>(0)?,
            launch.argument::<[u64; 2]>(1)?,
            launch.argument::<f32>(2)?,
        );
        lock(&noted).push(format!("{arguments:?} of {}", launch.argument_count()));
        for wrong in [launch.argument::<u64>(2), launch.argument::<u64>(3)] {
            lock(&noted).push(wrong.expect_err("no such argument").to_string());
        }
        Ok(())
    });
    let (small, pair, scale) = (200_u8, [1_u64 << 40, 7], 0.5_f32);
    let mut each: [*mut c_void; 3] = [
        (&raw const small).cast_mut().cast(),
        (&raw const pair).cast_mut().cast(),
        (&raw const scale).cast_mut().cast(),
    ];
    let code = cu!(cuLaunchCooperativeKernel(
        bench.function(c"shapes"),
        2,
        3,
        1,
        32,
        1,
        4,
        1000,
        bench.stream(),
        each.as_mut_ptr()
    ));
    assert_eq!(code, OK);
    synchronise(bench.stream());
    let expected = [
        "shapes ([2, 3, 1], [32, 1, 4], 768) (0, 1000)",
        "(200, [1099511627776, 7], 0.5) of 3",
        "argument 2 has 4 bytes, not 8",
        "there is no argument 3",
    ];
    assert_eq!(*lock(&notes), expected);
    bench.end(&[]);
}

#[test]
fn arguments_in_one_buffer_are_the_models_too() {
    let bench = Bench::new();
    model("access", count_up);
    let block = bench.block(1.0);
    let buffer = [block, COUNT as u64];
    let mut size = size_of_val(&buffer);
    let mut extra = [
        std::ptr::without_provenance_mut(1),
        buffer.as_ptr().cast_mut().cast(),
        std::ptr::without_provenance_mut(2),
        (&raw mut size).cast::<c_void>(),
        std::ptr::null_mut(),
    ];
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
    let code = cu!(cuLaunchKernelEx(
        &raw const config,
        bench.function(c"access"),
        std::ptr::null_mut(),
        extra.as_mut_ptr()
    ));
    assert_eq!(code, OK);
    assert_eq!(read(block, bench.stream()), vec![2.0; COUNT]);
    bench.fixture.free(block);
    bench.end(&[]);
}

#[test]
fn a_captured_kernel_runs_with_each_launch_of_the_graph() {
    let bench = Bench::new();
    model("access", count_up);
    let (stream, block) = (bench.stream(), bench.block(1.0));
    let mode = CUstreamCaptureMode(2);
    assert_eq!(cu!(cuStreamBeginCapture_v2(stream, mode)), OK);
    bench.access(stream, [block, COUNT as u64]);
    let (mut graph, mut exec) = (std::ptr::null_mut(), std::ptr::null_mut());
    assert_eq!(cu!(cuStreamEndCapture(stream, &raw mut graph)), OK);
    let code = cu!(cuGraphInstantiateWithFlags(&raw mut exec, graph, 0));
    assert_eq!(code, OK);
    // The graph keeps the model that it was captured with.
    model("access", |_| panic!("another model"));
    for _ in 0..2 {
        assert_eq!(cu!(cuGraphLaunch(exec, stream)), OK);
    }
    assert_eq!(read(block, stream), vec![3.0; COUNT]);
    assert_eq!(cu!(cuGraphExecDestroy(exec)), OK);
    assert_eq!(cu!(cuGraphDestroy(graph)), OK);
    bench.fixture.free(block);
    bench.end(&[]);
}

#[test]
fn a_model_can_be_replaced_and_removed() {
    let bench = Bench::new();
    let (stream, nothing) = (bench.stream(), bench.function(c"nothing"));
    let notes = Notes::default();
    let give = |what: &'static str| {
        let noted = Arc::clone(&notes);
        model("nothing", move |_| {
            lock(&noted).push(what);
            Ok(())
        });
    };
    give("first");
    let gate = Gate::hold(stream);
    assert_eq!(launch(nothing, [1, 1], stream, [0]), OK);
    give("second");
    assert_eq!(launch(nothing, [1, 1], stream, [0]), OK);
    assert!(control().remove_kernel("nothing"));
    assert!(!control().remove_kernel("nothing"));
    let refused = CUresult::CUDA_ERROR_NOT_SUPPORTED;
    assert_eq!(launch(nothing, [1, 1], stream, [0]), refused);
    assert_eq!(Arc::strong_count(&notes), 3, "launches hold both models");
    gate.open();
    synchronise(stream);
    assert_eq!(*lock(&notes), ["first", "second"]);
    assert_eq!(Arc::strong_count(&notes), 1, "both are dropped");
    bench.end(&[]);
}

#[test]
fn a_model_comes_before_a_built_in_kernel() {
    let bench = Bench::new();
    let (stream, block, module) = (bench.stream(), bench.block(1.0), module());
    let arguments = [block, u64::from(7_f32.to_bits()), COUNT as u64];
    let fill = || {
        let code = launch(function(module, c"fill"), [1, 1], stream, arguments);
        assert_eq!(code, OK);
        read(block, stream)[0]
    };
    model("fill", |launch| {
        let (at, value): (u64, f32) = (launch.argument(0)?, launch.argument(1)?);
        launch.write(at, &[value * 2.0])
    });
    assert_eq!(fill(), 14.0);
    assert!(control().remove_kernel("fill"));
    assert_eq!(fill(), 7.0);
    assert_eq!(cu!(cuModuleUnload(module)), OK);
    bench.fixture.free(block);
    bench.end(&[]);
}

#[test]
fn a_launch_without_a_model_says_how_to_give_one() {
    let bench = Bench::new();
    let stream = bench.stream();
    control().remove_kernel("nothing");
    let mut from: CUlogIterator = get!(cuLogsCurrent(_, 0));
    let code = launch(bench.function(c"nothing"), [1, 1], stream, [0]);
    assert_eq!(code, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    let mut log = vec![0_u8; 2000];
    let mut size = log.len();
    let to = log.as_mut_ptr().cast();
    let code = cu!(cuLogsDumpToMemory(&raw mut from, to, &raw mut size, 0));
    assert_eq!(code, OK);
    let log = String::from_utf8_lossy(&log[..size]);
    for part in [
        "cannot run the kernel `nothing`",
        "`fill`, `copy`, `add`, `spin` and `answer`",
        "`cuda_sim::kernel(\"nothing\", …)` in Rust",
        "`simcuda_kernel(\"nothing\", …)` in C",
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    bench.end(&[]);
}

#[test]
fn a_model_that_panics_or_fails_is_reported_and_the_stream_goes_on() {
    let bench = Bench::new();
    let (stream, block) = (bench.stream(), bench.block(1.0));
    model("access", |launch| match launch.argument::<u64>(1)? {
        0 => panic!("{} is too few", 0),
        1 => launch.argument::<u32>(0).map(|_| ()),
        2 => Err(LaunchError::other("not today")),
        _ => count_up(launch),
    });
    for count in [0, 1, 2, COUNT as u64] {
        bench.access(stream, [block, count]);
    }
    assert_eq!(read(block, stream), vec![2.0; COUNT]);
    bench.fixture.free(block);
    let reports = bench.end(&["kernel error"; 3]);
    for (report, why) in reports.iter().zip([
        "`access` on stream",
        "argument 0 has 8 bytes, not 4; the rest",
        "not today; the rest",
    ]) {
        assert!(report.contains(why), "{report}");
    }
    assert!(reports[0].contains("panicked: 0 is too few; the rest"));
}

#[test]
#[should_panic = "no kernel can be named \"\""]
fn a_model_needs_a_name() {
    model("", |_| Ok(()));
}

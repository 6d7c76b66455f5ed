//! Kernel nodes that are added by hand.

use std::ffi::c_void;

use cuda_driver_sys::*;

use crate::harness::*;
use crate::modules::{function, image, module, try_module};

type Params = CUDA_KERNEL_NODE_PARAMS;

/// The arguments of `fill`, and the list of their addresses.
struct Arguments {
    to: CUdeviceptr,
    value: u32,
    words: u64,
    list: [*mut c_void; 3],
}

impl Arguments {
    fn new(to: CUdeviceptr, value: u32) -> Box<Self> {
        let mut all = Box::new(Self {
            to,
            value,
            words: 4,
            list: [std::ptr::null_mut(); 3],
        });
        all.list = [
            (&raw mut all.to).cast(),
            (&raw mut all.value).cast(),
            (&raw mut all.words).cast(),
        ];
        all
    }

    fn params(&mut self, function: CUfunction) -> Params {
        Params {
            func: function,
            gridDimX: 1,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: 4,
            blockDimY: 1,
            blockDimZ: 1,
            kernelParams: self.list.as_mut_ptr(),
            ..Params::default()
        }
    }
}

fn graph() -> CUgraph {
    handle!(cuGraphCreate(_, 0))
}

fn add(graph: CUgraph, params: &Params) -> CUgraphNode {
    let params = std::ptr::from_ref(params);
    handle!(cuGraphAddKernelNode_v2(
        _,
        graph,
        std::ptr::null(),
        0,
        params
    ))
}

fn instance(graph: CUgraph) -> CUgraphExec {
    handle!(cuGraphInstantiateWithFlags(_, graph, 0))
}

/// Launches, and reads the first word there.
fn run(exec: CUgraphExec, stream: CUstream, at: CUdeviceptr) -> u32 {
    assert_eq!(cu!(cuGraphLaunch(exec, stream)), OK);
    let mut word = 0_u32;
    let to = (&raw mut word).cast();
    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(to, at, 4, stream)), OK);
    synchronise(stream);
    word
}

fn end(exec: CUgraphExec, graph: CUgraph) {
    assert_eq!(cu!(cuGraphExecDestroy(exec)), OK);
    assert_eq!(cu!(cuGraphDestroy(graph)), OK);
}

#[test]
fn a_node_keeps_the_arguments_that_it_was_given() {
    let fixture = Fixture::new();
    let (module, stream, block) = (module(), fixture.stream, fixture.alloc(16));
    let fills = function(module, c"fill");
    let graph = graph();
    let mut arguments = Arguments::new(block, 7);
    let node = add(graph, &arguments.params(fills));
    arguments.value = 8;
    let exec = instance(graph);
    assert_eq!(run(exec, stream, block), 7);

    let changed = arguments.params(fills);
    let at = &raw const changed;
    assert_eq!(cu!(cuGraphKernelNodeSetParams_v2(node, at)), OK);
    assert_eq!(run(exec, stream, block), 7);
    arguments.value = 9;
    assert_eq!(cu!(cuGraphExecKernelNodeSetParams_v2(exec, node, at)), OK);
    assert_eq!(run(exec, stream, block), 9);

    let mut seen = Params::default();
    assert_eq!(cu!(cuGraphKernelNodeGetParams_v2(node, &raw mut seen)), OK);
    assert_eq!((seen.func, seen.blockDimX), (fills, 4));
    // SAFETY: the simulator keeps three addresses, of arguments of these types.
    let second = unsafe { *seen.kernelParams.wrapping_add(1) };
    // SAFETY: as above.
    assert_eq!(unsafe { *second.cast::<u32>() }, 8);
    end(exec, graph);
    fixture.free(block);
    assert_eq!(cu!(cuModuleUnload(module)), OK);
    assert_eq!(control().reports(), Vec::<String>::new());
}

#[test]
fn a_kernel_without_a_model_is_refused_when_it_would_run() {
    let fixture = Fixture::new();
    let text = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry other() { ret; }";
    let module = try_module(&image(text)).expect("loads");
    let (graph, name) = (graph(), c"other");
    let params = Params {
        kernelParams: std::ptr::null_mut(),
        ..Arguments::new(0, 0).params(function(module, name))
    };
    add(graph, &params);
    let exec = instance(graph);
    let launch = || cu!(cuGraphLaunch(exec, fixture.stream));
    assert_eq!(launch(), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    // A model is looked up when the node is added.
    control().kernel("other", |_| Ok(()));
    assert_eq!(launch(), CUresult::CUDA_ERROR_NOT_SUPPORTED);
    end(exec, graph);
    let graph = self::graph();
    add(graph, &params);
    let exec = instance(graph);
    assert_eq!(cu!(cuGraphLaunch(exec, fixture.stream)), OK);
    synchronise(fixture.stream);
    end(exec, graph);
    assert!(control().remove_kernel("other"));
    assert_eq!(cu!(cuModuleUnload(module)), OK);
}

#[test]
fn a_kernel_whose_code_was_unloaded_is_left_out_and_reported() {
    let fixture = Fixture::new();
    let (module, block, graph) = (module(), fixture.alloc(16), graph());
    let mut arguments = Arguments::new(block, 7);
    add(graph, &arguments.params(function(module, c"fill")));
    let exec = instance(graph);
    assert_eq!(cu!(cuMemsetD32Async(block, 3, 4, fixture.stream)), OK);
    assert_eq!(cu!(cuModuleUnload(module)), OK);
    assert_eq!(run(exec, fixture.stream, block), 3);
    end(exec, graph);
    fixture.free(block);
    let reports = control().reports();
    assert!(
        reports.len() == 1 && reports[0].contains("was unloaded"),
        "{reports:?}"
    );
    control().reset();
}

#[test]
fn a_buffer_of_arguments_is_read_back_as_one() {
    let fixture = Fixture::new();
    let (module, block, graph) = (module(), fixture.alloc(16), graph());
    let mut buffer = [block, 9, 4];
    let mut size = size_of_val(&buffer);
    let mut extra: [*mut c_void; 5] = [
        std::ptr::without_provenance_mut(1),
        buffer.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(2),
        (&raw mut size).cast(),
        std::ptr::null_mut(),
    ];
    let params = Params {
        kernelParams: std::ptr::null_mut(),
        extra: extra.as_mut_ptr(),
        ..Arguments::new(0, 0).params(function(module, c"fill"))
    };
    let node = add(graph, &params);
    let mut seen = Params::default();
    assert_eq!(cu!(cuGraphKernelNodeGetParams_v2(node, &raw mut seen)), OK);
    assert!(seen.kernelParams.is_null() && !seen.extra.is_null());
    // What was read is taken again, also by a copy of the graph.
    let copy = handle!(cuGraphClone(_, graph));
    assert_eq!(cu!(cuGraphDestroy(graph)), OK);
    add(copy, &seen);
    let exec = instance(copy);
    assert_eq!(run(exec, fixture.stream, block), 9);
    end(exec, copy);
    fixture.free(block);
    assert_eq!(cu!(cuModuleUnload(module)), OK);
    assert_eq!(control().reports(), Vec::<String>::new());
}

#[test]
fn a_node_of_another_kind_is_no_kernel_node() {
    let _fixture = Fixture::new();
    let graph = graph();
    let node = handle!(cuGraphAddEmptyNode(_, graph, std::ptr::null(), 0));
    let mut seen = Params::default();
    assert_eq!(
        cu!(cuGraphKernelNodeGetParams_v2(node, &raw mut seen)),
        INVALID_VALUE
    );
    assert_eq!(cu!(cuGraphDestroy(graph)), OK);
}

//! Kernel nodes: added by hand or captured, read and changed.

use std::sync::Arc;

use cuda_driver_sys::{
    CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUgraph, CUgraphExec, CUgraphNode,
};

use super::Op;
use super::params::{set, set_in};
use crate::context::ContextId;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::memory::pointer;
use crate::module::{Arguments, Configuration, Prepared, Work, extra_list};
use crate::state::{State, from_handle, state, to_handle};

/// How the program named the kernel of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    Function,
    Kernel(u64),
}

/// A kernel in a graph.
#[derive(Clone, Debug)]
pub(super) struct KernelNode {
    pub(super) work: Work,
    given: Arc<Given>,
}

/// What the program gave, as it can be read back.
#[derive(Debug)]
struct Given {
    function: u64,
    named: Named,
    context: ContextId,
    configuration: Configuration,
    /// The argument buffer, at a multiple of any alignment, and its size.
    _arguments: Box<[u128]>,
    _size: Box<usize>,
    /// The address of each argument in it, or a list that names the buffer: as the program gave them.
    list: Box<[u64]>,
    has_buffer: bool,
}

impl KernelNode {
    pub(super) fn new(launch: Prepared, named: Named, has_buffer: bool) -> Self {
        let units = launch.arguments.chunks(size_of::<u128>()).map(|chunk| {
            let mut unit = [0; size_of::<u128>()];
            unit[..chunk.len()].copy_from_slice(chunk);
            u128::from_ne_bytes(unit)
        });
        let arguments: Box<[u128]> = units.collect();
        let base = arguments.as_ptr().expose_provenance() as u64;
        let size = Box::new(launch.arguments.len());
        let list = if has_buffer {
            let size = std::ptr::from_ref(&*size).expose_provenance();
            extra_list(base, size as u64).into()
        } else {
            let places = launch.places.iter();
            places.map(|place| base + place.offset as u64).collect()
        };
        Self {
            work: launch.work,
            given: Arc::new(Given {
                function: launch.function,
                named,
                context: launch.context,
                configuration: launch.configuration,
                _arguments: arguments,
                _size: size,
                list,
                has_buffer,
            }),
        }
    }

    /// What is read back. The arguments are valid as long as the node is not changed.
    fn params(&self) -> CUDA_KERNEL_NODE_PARAMS {
        let given = &self.given;
        let [grid_x, grid_y, grid_z] = given.configuration.grid;
        let [block_x, block_y, block_z] = given.configuration.block;
        // Measured: a kernel comes with its function in the context.
        let kernel = match given.named {
            Named::Function => std::ptr::null_mut(),
            Named::Kernel(kernel) => to_handle(kernel),
        };
        let list = pointer(given.list.as_ptr().expose_provenance() as u64);
        let none = std::ptr::null_mut();
        let (each, extra) = if given.has_buffer {
            (none, list)
        } else {
            (list, none)
        };
        CUDA_KERNEL_NODE_PARAMS {
            func: to_handle(given.function),
            gridDimX: grid_x,
            gridDimY: grid_y,
            gridDimZ: grid_z,
            blockDimX: block_x,
            blockDimY: block_y,
            blockDimZ: block_z,
            sharedMemBytes: given.configuration.dynamic,
            kernelParams: each,
            extra,
            kern: kernel,
            ctx: to_handle(given.context),
        }
    }
}

/// The parameters of before CUDA 12.
fn newer(params: &CUDA_KERNEL_NODE_PARAMS_v1) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: params.func,
        gridDimX: params.gridDimX,
        gridDimY: params.gridDimY,
        gridDimZ: params.gridDimZ,
        blockDimX: params.blockDimX,
        blockDimY: params.blockDimY,
        blockDimZ: params.blockDimZ,
        sharedMemBytes: params.sharedMemBytes,
        kernelParams: params.kernelParams,
        extra: params.extra,
        ..CUDA_KERNEL_NODE_PARAMS::default()
    }
}

impl State {
    /// The operation of a kernel node.
    pub(super) fn kernel_op(&mut self, params: &CUDA_KERNEL_NODE_PARAMS) -> Answer<Op> {
        let current = self.current()?;
        // Measured: the context counts for a kernel alone.
        let (function, named, context) = match from_handle(params.func) {
            0 => {
                let kernel = from_handle(params.kern);
                let context = match from_handle(params.ctx) {
                    0 => current,
                    context => self.context(context).map(|_| context)?,
                };
                (params.kern.cast(), Named::Kernel(kernel), context)
            }
            _ => (params.func, Named::Function, self.context_of(params.func)?),
        };
        let configuration = Configuration {
            grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
            block: [params.blockDimX, params.blockDimY, params.blockDimZ],
            dynamic: params.sharedMemBytes,
            is_cooperative: false,
        };
        let arguments = Arguments {
            each: Out::new(params.kernelParams),
            extra: Out::new(params.extra),
        };
        let launch = self.prepare_launch(function, context, configuration, arguments)?;
        let has_buffer = !params.extra.is_null();
        Ok(Op::Kernel(KernelNode::new(launch, named, has_buffer)))
    }

    fn add_kernel(
        &mut self,
        graph: CUgraph,
        (list, count): (In<CUgraphNode>, usize),
        params: &CUDA_KERNEL_NODE_PARAMS,
        out: Out<CUgraphNode>,
    ) -> Answer {
        let (graph, _) = self.named_graph(graph)?;
        let after = self.named_nodes(list, count)?;
        // Measured: this comes before the check of the result's place.
        let op = self.kernel_op(params)?;
        out.required()?;
        out.write(to_handle(self.add_op(graph, op, &after)?))
    }

    fn kernel_params(&self, node: CUgraphNode) -> Answer<CUDA_KERNEL_NODE_PARAMS> {
        match &self.graph_of(node)?.1.op {
            Op::Kernel(node) => Ok(node.params()),
            _ => Err(INVALID_VALUE),
        }
    }
}

exports! {
    plain fn cuGraphAddKernelNode_v2(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize,
        params: In<CUDA_KERNEL_NODE_PARAMS>
    ) {
        let params = params.read()?;
        state()?.add_kernel(graph, (list, count), &params, out)
    }

    plain fn cuGraphAddKernelNode(
        _, out: Out<CUgraphNode>, graph: CUgraph, list: In<CUgraphNode>, count: usize,
        params: In<CUDA_KERNEL_NODE_PARAMS_v1>
    ) {
        let params = newer(&params.read()?);
        state()?.add_kernel(graph, (list, count), &params, out)
    }

    plain fn cuGraphKernelNodeGetParams_v2(
        _, node: CUgraphNode, out: Out<CUDA_KERNEL_NODE_PARAMS>
    ) {
        out.required()?;
        out.write(state()?.kernel_params(node)?)
    }

    plain fn cuGraphKernelNodeGetParams(
        _, node: CUgraphNode, out: Out<CUDA_KERNEL_NODE_PARAMS_v1>
    ) {
        out.required()?;
        let params = state()?.kernel_params(node)?;
        out.write(CUDA_KERNEL_NODE_PARAMS_v1 {
            func: params.func,
            gridDimX: params.gridDimX,
            gridDimY: params.gridDimY,
            gridDimZ: params.gridDimZ,
            blockDimX: params.blockDimX,
            blockDimY: params.blockDimY,
            blockDimZ: params.blockDimZ,
            sharedMemBytes: params.sharedMemBytes,
            kernelParams: params.kernelParams,
            extra: params.extra,
        })
    }

    plain fn cuGraphKernelNodeSetParams_v2(
        _, node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS>
    ) {
        let params = params.read()?;
        set(node, |state| state.kernel_op(&params))
    }

    plain fn cuGraphKernelNodeSetParams(
        _, node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS_v1>
    ) {
        let params = newer(&params.read()?);
        set(node, |state| state.kernel_op(&params))
    }

    plain fn cuGraphExecKernelNodeSetParams_v2(
        _, exec: CUgraphExec, node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS>
    ) {
        let params = params.read()?;
        set_in(exec, node, |state| state.kernel_op(&params))
    }

    plain fn cuGraphExecKernelNodeSetParams(
        _, exec: CUgraphExec, node: CUgraphNode, params: In<CUDA_KERNEL_NODE_PARAMS_v1>
    ) {
        let params = newer(&params.read()?);
        set_in(exec, node, |state| state.kernel_op(&params))
    }
}

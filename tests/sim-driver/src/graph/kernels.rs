//! Kernel nodes: added by hand or captured, read and changed.

use std::sync::Arc;

use cuda_driver_sys::{
    CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUgraph, CUgraphExec, CUgraphNode,
    CUresult,
};

use super::Op;
use super::params::{set, set_in};
use crate::context::ContextId;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::logs;
use crate::memory::pointer;
use crate::module::{ArgumentBuffer, Arguments, LaunchConfiguration, Prepared, Work, extra_list};
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
    configuration: LaunchConfiguration,
    /// Kept for the addresses in `list`. Vectors may move, and what they hold stays in place.
    _arguments: ArgumentBuffer,
    _size: Vec<usize>,
    /// The address of each argument, or a list that names the buffer and the place of its size: in the form that the
    /// program gave them, but of the node's own copy.
    list: Vec<u64>,
    has_buffer: bool,
}

impl KernelNode {
    pub(super) fn new(launch: Prepared, named: Named) -> Self {
        let arguments = ArgumentBuffer::new(&launch.arguments);
        let base = arguments.as_ptr().expose_provenance() as u64;
        let size = vec![launch.arguments.len()];
        let list = if launch.has_buffer {
            extra_list(base, size.as_ptr().expose_provenance() as u64).to_vec()
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
                has_buffer: launch.has_buffer,
            }),
        }
    }

    /// NOT_SUPPORTED if the kernel cannot be run, or not on a stream of this context. A device would run it on its own.
    pub(super) fn check(&self, state: &State, context: ContextId) -> Answer {
        self.work.check()?;
        if self.given.context == context {
            return Ok(());
        }
        let devices = [self.given.context, context].map(|id| state.context(id).map(|it| it.device));
        if devices[0] == devices[1] {
            return Ok(());
        }
        let why = "the simulated driver runs the kernels of a graph on the device of the stream that the graph is \
                   launched on, and one of them is for another device";
        logs::refuse(CUresult::CUDA_ERROR_NOT_SUPPORTED, why.to_owned())
    }

    /// Whether its code was unloaded, with which a device would crash.
    pub(super) fn is_unloaded(&self, state: &State) -> bool {
        !state.has_function(self.given.function)
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
        let none = std::ptr::null_mut();
        let list = match given.list.as_slice() {
            [] => none,
            list => pointer(list.as_ptr().expose_provenance() as u64),
        };
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
        let configuration = LaunchConfiguration {
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
        Ok(Op::Kernel(KernelNode::new(launch, named)))
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

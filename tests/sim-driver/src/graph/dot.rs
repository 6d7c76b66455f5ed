//! Graphs written to files in the DOT language.

use std::ffi::{c_char, c_uint};
use std::fmt::Write as _;

use cuda_driver_sys::{CUgraph, CUresult};

use super::nodes::kind_name;
use super::{GraphId, Op};
use crate::export::{INVALID_VALUE, In, exports};
use crate::state::{State, state};

/// Documented: the bits of the flags that tell more of nodes of a kind, and of all.
const VERBOSE: c_uint = 1;
const COPIES: c_uint = 1 << 3;
const FILLS: c_uint = 1 << 4;
const HOSTS: c_uint = 1 << 5;
const EVENTS: c_uint = 1 << 6;
const HANDLES: c_uint = 1 << 10;
const ALLOCATIONS: c_uint = 1 << 11;
const FREES: c_uint = 1 << 12;

/// The flag that tells the parameters of an operation, and the parameters.
fn detail(op: &Op) -> (c_uint, String) {
    match op {
        Op::Empty | Op::Kernel(_) | Op::Child(_) => (0, String::new()),
        Op::Alloc { address, size } => (ALLOCATIONS, format!("{size} B at {address:#x}")),
        Op::Free { address } => (FREES, format!("{address:#x}")),
        Op::Fill(it) => (
            FILLS,
            format!(
                "{} x {} elements of {} B at {:#x}, pitch {}, value {:#x}",
                it.width, it.height, it.elementSize, it.dst, it.pitch, it.value
            ),
        ),
        Op::Copy(copied) => {
            let it = &copied.0;
            let size = format!("{} x {} x {} B", it.WidthInBytes, it.Height, it.Depth);
            let (from, to) = copied.layers().map_or((0, 0), |layers| {
                (layers.from.address(), layers.to.address())
            });
            (COPIES, format!("{size} from {from:#x} to {to:#x}"))
        }
        Op::Host(call) => (HOSTS, format!("argument {:p}", call.argument)),
        Op::Record(event) | Op::Wait(event) => (EVENTS, format!("event {event:#x}")),
    }
}

impl State {
    fn write_dot(&self, id: GraphId, flags: c_uint, text: &mut String) -> std::fmt::Result {
        let Some(graph) = self.graphs.graphs.get(&id) else {
            return Ok(());
        };
        writeln!(text, "subgraph \"cluster_{id:x}\" {{")?;
        writeln!(text, "label=\"graph_{id:x}\"")?;
        for node in &graph.nodes {
            let mut label = kind_name(&node.op).to_owned();
            let is_told = |flag: c_uint| flags & (flag | VERBOSE) != 0;
            if is_told(HANDLES) {
                write!(label, "\\nhandle {:#x}", node.id)?;
            }
            let (flag, detail) = detail(&node.op);
            if flag != 0 && is_told(flag) {
                write!(label, "\\n{detail}")?;
            }
            writeln!(text, "\"node_{:x}\" [label=\"{label}\"];", node.id)?;
            if let Op::Child(child) = node.op {
                self.write_dot(child, flags, text)?;
            }
        }
        for (from, to) in graph.edges() {
            writeln!(text, "\"node_{from:x}\" -> \"node_{to:x}\";")?;
        }
        writeln!(text, "}}")
    }
}

exports! {
    plain fn cuGraphDebugDotPrint(_, graph: CUgraph, path: In<c_char>, flags: c_uint) {
        let path = path.text()?;
        let text = {
            let mut state = state()?;
            let (id, _) = state.named_graph(graph)?;
            let mut text = "digraph dot {\n".to_owned();
            state.write_dot(id, flags, &mut text).map_err(|_| INVALID_VALUE)?;
            text + "}\n"
        };
        std::fs::write(path, text).map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)
    }
}

//! Launches of executable graphs.

use cuda_driver_sys::{CUgraphExec, CUstream};

use super::instances::{AUTO_FREE, Exec, Last, Step};
use super::{ExecId, Op};
use crate::clock::StreamId;
use crate::export::{Answer, INVALID_VALUE, exports};
use crate::queue::{HostCall, Task};
use crate::state::{State, state};

impl State {
    /// Checks the conditions of a launch: its blocks from the last launch are freed, unless auto-free is set, and the
    /// other blocks that it frees are live. Returns the blocks to free automatically.
    fn check_launch(&self, exec: &Exec) -> Answer<Vec<u64>> {
        let is_live = |address: &u64| self.live_graph_block(*address).is_some();
        let left: Vec<u64> = exec.allocated().into_iter().filter(is_live).collect();
        if !left.is_empty() && exec.flags & AUTO_FREE == 0 {
            return Err(INVALID_VALUE);
        }
        if !exec.freed_for_others().iter().all(is_live) {
            return Err(INVALID_VALUE);
        }
        // Measured: a record of a destroyed event is left out. A real driver crashes in a wait.
        let steps = exec.steps.iter().map(|step| &step.op);
        if !self.has_events(steps.filter(|op| matches!(op, Op::Wait(_)))) {
            return Err(INVALID_VALUE);
        }
        Ok(left)
    }

    /// Submits a launch. What the call has to wait for, if anything.
    fn launch(&mut self, id: ExecId, stream: StreamId) -> Answer<Option<Last>> {
        let exec = self.graphs.execs.get(&id).ok_or(INVALID_VALUE)?;
        let left = self.check_launch(exec)?;
        let (steps, last) = (exec.steps.clone(), exec.last.clone());
        // Before anything of it is done.
        let context = self.stream(stream)?.context;
        for step in &steps {
            if let Op::Kernel(node) = &step.op {
                node.check(self, context)?;
            }
        }
        self.begin(stream)?;
        if let Some(last) = last {
            self.wait_for(stream, &last.past, last.mark)?;
        }
        self.back(id, stream)?;
        for address in left {
            let at = self.clocks.tick(stream);
            self.free_graph_block(address, Some(at))?;
        }
        let mut waits = false;
        for step in steps {
            waits |= self.perform(id, stream, step)?;
        }
        self.touch_backings(id, stream)?;
        let last = Last {
            stream,
            mark: self.stream(stream)?.queue.mark(),
            past: self.clocks.past(stream),
        };
        if let Some(exec) = self.graphs.execs.get_mut(&id) {
            exec.last = Some(last.clone());
        }
        Ok(waits.then_some(last))
    }

    /// Submits one operation. If its memory is not live, it is reported and skipped: a real device would overwrite
    /// other memory, or stop. True if the launch has to wait for it.
    fn perform(&mut self, exec: ExecId, stream: StreamId, step: Step) -> Answer<bool> {
        let at = self.clocks.tick(stream);
        match step.op {
            Op::Empty | Op::Child(_) => {}
            Op::Alloc { address, size } => self.begin_block(exec, address, size, at)?,
            Op::Free { address } => {
                self.free_graph_block(address, Some(at))?;
            }
            Op::Host(call) => {
                let context = self.stream(stream)?.context;
                let turn = std::sync::Arc::clone(&self.context(context)?.host_turn);
                let call = HostCall { turn, ..call };
                self.stream(stream)?.queue.push(Task::Host(call))?;
            }
            Op::Kernel(node) if node.is_unloaded(self) => self.reports.add(format!(
                "graph: the code of a kernel on stream {stream:#x} was unloaded; it was left out, a device would crash"
            )),
            Op::Kernel(node) => self.perform_kernel(at, stream, node.work)?,
            Op::Fill(given) => self.perform_fill(at, stream, &given)?,
            Op::Copy(copied) => return self.perform_copy(at, stream, &copied, step.is_root),
            Op::Record(event) => self.record_now(event, stream)?,
            // Measured: for the last record before the launch.
            Op::Wait(event) => {
                let recorded = self.events.get(&event).and_then(|event| event.last());
                if let Some(recorded) = recorded {
                    self.wait_for(stream, &recorded.past, recorded.mark)?;
                }
            }
        }
        Ok(false)
    }

    pub(super) fn report_lost_work(&mut self, what: &str, to: u64, stream: StreamId) -> Answer {
        self.reports.add(format!(
            "graph: {what} at {to:#x} on stream {stream:#x} touches memory that is not there"
        ));
        Ok(())
    }
}

exports! {
    plain fn cuGraphLaunch(
        call, exec: CUgraphExec, stream: CUstream
    ) twin cuGraphLaunch_ptsz {
        let last = {
            let mut state = state()?;
            let stream = state.resolve(stream, call)?;
            let (id, _) = state.exec(exec)?;
            // Measured with memory; without it the driver records a child graph, which is not simulated.
            if state.is_recording(stream)? {
                return state.refuse_on_recorded(stream);
            }
            state.launch(id, stream)?
        };
        if let Some(last) = last {
            last.mark.wait();
            state()?.note_observed(&[last.past]);
        }
        Ok(())
    }
}

//! The work of a launch, and its submission to a stream.

use std::ffi::CStr;
use std::sync::Arc;

use cuda_driver_sys::CUresult;

use super::code::Entry;
use super::kernel::{BuiltIn, Use, WORD, WRITE};
use super::launch::LaunchConfiguration;
use super::model::ModelCall;
use super::run::ModelRun;
use super::variable::Placed;
use crate::clock::{Point, StreamId};
use crate::copy::{By, Side};
use crate::export::Answer;
use crate::logs;
use crate::queue::Task;
use crate::state::State;

/// The work of a launch.
#[derive(Clone, Debug)]
pub(crate) enum Work {
    BuiltIn(BuiltIn),
    /// A kernel of the program's own.
    Model(Arc<ModelCall>),
    /// A kernel of this name that cannot be run.
    Unknown(Arc<CStr>),
}

impl Work {
    /// The work of a launch. A model comes first, so that a program can replace a built-in kernel.
    pub(super) fn new(
        entry: &Entry,
        configuration: LaunchConfiguration,
        arguments: &[u8],
        variables: &Arc<[Placed]>,
    ) -> Self {
        if let Some(call) = ModelCall::new(entry, configuration, arguments, variables) {
            return Self::Model(Arc::new(call));
        }
        match BuiltIn::new(entry, arguments) {
            Some(work) => Self::BuiltIn(work),
            None => Self::Unknown(entry.name.as_c_str().into()),
        }
    }

    /// NOT_SUPPORTED, with the reason, if it cannot be run.
    pub(crate) fn check(&self) -> Answer {
        let Self::Unknown(name) = self else {
            return Ok(());
        };
        let name = name.to_string_lossy();
        let why = format!(
            "the simulated driver cannot run the kernel `{name}`: it runs only `fill`, `copy`, `add`, `spin` and \
             `answer`, with the parameters that tests/data/kernels.ptx gives them, and kernels that have a model; give \
             it one with `cuda_sim::kernel(\"{name}\", …)` in Rust, or `simcuda_kernel(\"{name}\", …)` in C"
        );
        // For programs that do not read the log.
        logs::say(&why);
        logs::refuse(CUresult::CUDA_ERROR_NOT_SUPPORTED, why)
    }

    /// Its reads, then its writes. The accesses of a model are not known; its pointers stand for them.
    pub(crate) fn uses(&self) -> Vec<Use> {
        match self {
            Self::BuiltIn(work) => work.uses(),
            Self::Model(call) => call.pointers(),
            Self::Unknown(_) => Vec::new(),
        }
    }
}

impl State {
    /// Submits a kernel's work to a stream.
    pub(crate) fn perform_kernel(&mut self, at: Point, stream: StreamId, work: Work) -> Answer {
        let task = match work {
            Work::BuiltIn(work) if self.check_built_in(at, stream, work)? => Task::Kernel(work),
            Work::BuiltIn(_) => return Ok(()),
            Work::Unknown(_) => return work.check(),
            Work::Model(call) => {
                let reach = self.reach(stream)?;
                let frees = self.reports.watch_frees(at);
                let device = self.stream(stream)?.device;
                Task::Model(Box::new(ModelRun::new(call, at, device, reach, frees)))
            }
        };
        self.stream(stream)?.queue.push(task)
    }

    /// False if the memory is not accessible. The work is then reported, and skipped: a real device would stop the
    /// context, and the next waiting call would report that.
    fn check_built_in(&mut self, at: Point, stream: StreamId, work: BuiltIn) -> Answer<bool> {
        let device = self.stream(stream)?.device;
        for Use { what, address, len } in work.uses() {
            let side = Side::Device(address);
            let is_straight = address.is_multiple_of(WORD as u64);
            if !is_straight || self.touch(what, at, By::Stream(stream), side, len).is_err() {
                let why = if is_straight {
                    "touches memory that is not there"
                } else {
                    "is at no multiple of 4 bytes"
                };
                self.reports.add(format!(
                    "illegal address: {what} {len} bytes at {address:#x} on stream {stream:#x} {why}; \
                     the kernel was left out, a device would stop the context"
                ));
                return Ok(false);
            }
            if what == WRITE {
                self.bring(device, side, len);
            }
        }
        Ok(true)
    }
}

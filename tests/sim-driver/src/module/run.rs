//! The execution of a model on its stream, and its access to memory.
//!
//! A model says what it accesses only while it runs. By then the program may have submitted much more: frees in stream
//! order, which are right, and others. So each launch takes along which memory it may access (see `reach.rs`), and is
//! told of frees that are not ordered after it (see `sanitizer.rs`). Nothing is guessed from the arguments.
//!
//! Bytes are copied and not lent: memory stays mapped and in place only during an access. Otherwise an unmap would wait
//! for a model, which may wait for the program.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuda_driver_sys::CUresult;
use cuda_sim_support::clock::monotonic_ns;

use super::model::ModelCall;
use super::variable::Placed;
use crate::abi::LaunchRecord;
use crate::callback::Inside;
use crate::clock::Point;
use crate::copy::Side;
use crate::memory::bytes;
use crate::pieces::stay;
use crate::reach::{Reach, Reported};
use crate::sanitizer::{Access, UnorderedFrees};
use crate::state::state;
use crate::vmm;

/// A submitted launch of a model.
#[derive(Debug)]
pub(crate) struct ModelRun {
    call: Arc<ModelCall>,
    at: Point,
    device: usize,
    reach: Arc<Reach>,
    submitted_ns: u64,
    frees: Arc<UnorderedFrees>,
    reported: Mutex<Reported>,
    /// The code of its first error, or 0. A device stops a kernel there.
    failed: AtomicU32,
}

impl ModelRun {
    pub(super) fn new(
        call: Arc<ModelCall>,
        at: Point,
        device: usize,
        reach: Arc<Reach>,
        frees: Arc<UnorderedFrees>,
    ) -> Self {
        Self {
            call,
            at,
            device,
            reach,
            submitted_ns: monotonic_ns(),
            frees,
            reported: Mutex::default(),
            failed: AtomicU32::new(0),
        }
    }

    /// Calls the model.
    pub(crate) fn run(&self) {
        // As in a host function: a wait for its own stream would never end.
        let _inside = Inside::begin();
        let call = &self.call;
        let record = LaunchRecord {
            name: call.name.as_ptr(),
            grid: call.grid,
            block: call.block,
            shared_bytes: call.shared_bytes,
            device: u32::try_from(self.device).unwrap_or(0),
            arguments: call.arguments.as_ptr(),
            arguments_size: call.arguments.len(),
            parameters: call.parameters.as_ptr(),
            parameter_count: call.parameters.len(),
            run: std::ptr::from_ref(self).cast(),
            submitted_ns: self.submitted_ns,
        };
        // SAFETY: the program gave this function with this argument to simcuda_kernel; the record outlives the call.
        unsafe { (call.model.function)(&raw const record, call.model.user) };
    }

    fn reported(&self) -> MutexGuard<'_, Reported> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies memory to the model; only checks it if `out` is null.
    pub(crate) fn read(&self, address: u64, out: *mut c_void, len: usize) -> CUresult {
        self.access("kernel read", address, len, || {
            if !out.is_null() {
                bytes::copy(out.expose_provenance() as u64, address, len);
            }
        })
    }

    /// Copies the model's bytes to memory; only checks it if `from` is null.
    pub(crate) fn write(&self, address: u64, from: *const c_void, len: usize) -> CUresult {
        self.access("kernel write", address, len, || {
            if !from.is_null() {
                bytes::copy(address, from.expose_provenance() as u64, len);
            }
        })
    }

    /// A variable of the kernel's module.
    pub(crate) fn variable(&self, name: &str) -> Option<&Placed> {
        self.call.variables.iter().find(|it| it.is_named(name))
    }

    /// The model cannot do its work. Only the first error of a launch is reported.
    pub(crate) fn fail(&self, why: &str) {
        if self.failed() != CUresult::CUDA_SUCCESS {
            return;
        }
        self.stop(CUresult::CUDA_ERROR_LAUNCH_FAILED);
        if let Ok(mut state) = state() {
            state.reports.add(format!(
                "kernel error: `{}` on stream {:#x}: {why}; the rest of it was left out",
                self.call.name.to_string_lossy(),
                self.at.stream
            ));
        }
    }

    fn failed(&self) -> CUresult {
        CUresult(self.failed.load(Ordering::Acquire))
    }

    fn stop(&self, code: CUresult) -> CUresult {
        self.failed.store(code.0, Ordering::Release);
        code
    }

    fn access(
        &self,
        what: &'static str,
        address: u64,
        len: usize,
        copy: impl FnOnce(),
    ) -> CUresult {
        let failed = self.failed();
        if failed != CUresult::CUDA_SUCCESS || len == 0 {
            return failed;
        }
        let access = Access {
            what,
            at: self.at,
            address,
            len: len as u64,
        };
        if !self.check(access) {
            return self.stop(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
        }
        // Without the state lock: an unmap has that and waits for this.
        let _hold = match vmm::hold(&[(address, len)]) {
            Ok(hold) => hold,
            Err(at) => {
                vmm::report_unmapped(at);
                return self.stop(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
            }
        };
        let _stay = stay();
        copy();
        CUresult::CUDA_SUCCESS
    }

    /// Checks an access and reports what is wrong with it. False if there is no such memory.
    fn check(&self, access: Access) -> bool {
        let Ok(mut state) = state() else {
            return false;
        };
        let checked = state.access_within(&self.reach, &self.frees, &mut self.reported(), access);
        let Access {
            what, address, len, ..
        } = access;
        match checked {
            Ok(()) if access.writes() => {
                state.bring(self.device, Side::Device(address), len as usize);
            }
            Ok(()) => {}
            Err(why) => {
                state.reports.add(format!(
                    "illegal address: {what} {len} bytes at {address:#x} on stream {:#x} {why}; \
                     the rest of the kernel `{}` was left out, a device would stop the context",
                    self.at.stream,
                    self.call.name.to_string_lossy()
                ));
                return false;
            }
        }
        true
    }
}

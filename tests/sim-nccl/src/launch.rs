//! Operations as kernels: what is launched, and the model that runs in its place.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use cuda_driver_sys::{CU_STREAM_PER_THREAD, CUcontext, CUfunction, CUmodule, CUresult, CUstream};

use crate::driver::{Driver, cu, driver};
use crate::export::{Answer, Comm};
use crate::operation::Operation;
use crate::plan::{self, Plan};
use crate::state::{changed, new_number, state};

/// The name of the kernel. NCCL has one for each operation.
pub(crate) const KERNEL: &CStr = c"ncclDevKernel_Generic";

/// Addresses among the arguments, by which the driver's order sanitizer finds the memory of a captured kernel.
const ADDRESSES: usize = 32;

const PTX: &CStr = c".version 7.0
.target sm_70
.address_size 64
.visible .entry ncclDevKernel_Generic(.param .u64 plan, .param .align 8 .b8 addresses[256]) { ret; }
";

/// Handles of the driver, which any thread may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    pub(crate) context: CUcontext,
    module: CUmodule,
    function: CUfunction,
}

// SAFETY: they are handles, which the driver takes on any thread.
unsafe impl Send for Loaded {}

/// The kernel in the current context. Its module stays loaded: unloading it would wait for other work of the context.
pub(crate) fn load(driver: &Driver, context: CUcontext) -> Answer<Loaded> {
    static LOADED: Mutex<BTreeMap<usize, Loaded>> = Mutex::new(BTreeMap::new());
    let mut all = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(loaded) = all.get(&context.addr()) {
        let mut function = std::ptr::null_mut();
        let name = KERNEL.as_ptr();
        // Fails if the context was destroyed, and another has its handle.
        if cu!(
            driver,
            cuModuleGetFunction(&raw mut function, loaded.module, name)
        )
        .is_ok()
        {
            return Ok(*loaded);
        }
    }
    let (mut module, mut function) = (std::ptr::null_mut(), std::ptr::null_mut());
    cu!(
        driver,
        cuModuleLoadData(&raw mut module, PTX.as_ptr().cast())
    )?;
    cu!(
        driver,
        cuModuleGetFunction(&raw mut function, module, KERNEL.as_ptr())
    )?;
    let loaded = Loaded {
        context,
        module,
        function,
    };
    all.insert(context.addr(), loaded);
    Ok(loaded)
}

/// Where operations go.
struct Target(CUstream);

// SAFETY: a handle, which the driver takes on any thread.
unsafe impl Send for Target {}

/// Submits operations of one communicator to a stream.
///
/// NCCL has a thread of its own for what a communicator that does not block starts. There `CU_STREAM_PER_THREAD` is that thread's
/// stream.
pub(crate) fn launch(comm: Comm, stream: CUstream, operations: Vec<Operation>) -> Answer {
    if stream != CU_STREAM_PER_THREAD || state().comm(comm)?.is_blocking {
        return launch_here(comm, stream, operations);
    }
    let target = Target(stream);
    std::thread::scope(|scope| {
        let launch = move || {
            let target = target;
            launch_here(comm, target.0, operations)
        };
        let launched = scope.spawn(launch).join();
        launched.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn launch_here(comm: Comm, stream: CUstream, operations: Vec<Operation>) -> Answer {
    let driver = driver()?;
    let loaded = crate::communicator::loaded(comm)?;
    driver.in_context(loaded.context, || {
        let is_captured = driver.is_capturing(stream)?;
        let mut addresses = [0; ADDRESSES];
        let both = operations.iter().flat_map(|it| [it.from, it.to]);
        for (place, address) in addresses.iter_mut().zip(both) {
            *place = address;
        }
        // Before the launch, because the kernel may begin before it returns.
        let mut number = submit(comm, operations, is_captured);
        let mut arguments: [*mut c_void; 2] =
            [(&raw mut number).cast(), addresses.as_mut_ptr().cast()];
        let launched = cu!(
            driver,
            cuLaunchKernel(
                loaded.function,
                1,
                1,
                1,
                1,
                1,
                1,
                0,
                stream,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        );
        if launched.is_err() {
            take_back(number);
        }
        launched
    })
}

fn submit(comm: Comm, operations: Vec<Operation>, is_captured: bool) -> u64 {
    let number = new_number();
    let mut state = state();
    let state = &mut *state;
    let Some(communicator) = state.comms.get_mut(&comm) else {
        return number;
    };
    let plan = Plan {
        comm,
        clique: communicator.clique,
        rank: communicator.rank,
        operations,
        is_captured,
    };
    if !is_captured {
        communicator.pending += 1;
        let clique = state.cliques.get_mut(&plan.clique);
        if let Some(member) = clique.and_then(|clique| clique.member_mut(plan.rank)) {
            member.queued.push_back(number);
        }
    }
    state.plans.insert(number, Arc::new(plan));
    number
}

/// The driver refused the kernel.
fn take_back(number: u64) {
    let mut state = state();
    let state = &mut *state;
    let Some(plan) = state.plans.remove(&number) else {
        return;
    };
    if !plan.is_captured {
        if let Some(comm) = state.comms.get_mut(&plan.comm) {
            comm.pending -= 1;
        }
        let clique = state.cliques.get_mut(&plan.clique);
        if let Some(member) = clique.and_then(|clique| clique.member_mut(plan.rank)) {
            member.queued.retain(|other| *other != number);
        }
    }
    changed();
}

/// `simcuda_launch` in `simcuda.h`.
#[repr(C)]
struct LaunchRecord {
    name: *const c_char,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    device: u32,
    arguments: *const c_void,
    arguments_size: usize,
    parameters: *const c_void,
    parameter_count: usize,
    run: *const c_void,
    submitted_ns: u64,
}

/// Access to the device's memory by a running kernel.
#[derive(Debug)]
pub(crate) struct KernelMemory {
    driver: &'static Driver,
    record: *const c_void,
}

impl KernelMemory {
    /// `None` if the memory is not the kernel's to read; the driver has reported that.
    pub(crate) fn read(&self, address: u64, bytes: usize) -> Option<Vec<u8>> {
        let read = |out| {
            // SAFETY: the record of a running kernel, and a place that is null or has so many bytes.
            let code = unsafe { (self.driver.read)(self.record, address, out, bytes) };
            code == CUresult::CUDA_SUCCESS
        };
        // Checked first, because a wrong length may be too large for a vector.
        if !read(std::ptr::null_mut()) {
            return None;
        }
        let mut data = vec![0; bytes];
        read(data.as_mut_ptr().cast()).then_some(data)
    }

    pub(crate) fn write(&self, address: u64, data: &[u8]) -> bool {
        let from = data.as_ptr().cast();
        // SAFETY: the record of a running kernel, and a slice that has so many bytes.
        let code = unsafe { (self.driver.write)(self.record, address, from, data.len()) };
        code == CUresult::CUDA_SUCCESS
    }
}

/// Runs in the place of the kernel, on the thread of its stream.
pub(crate) unsafe extern "C" fn model(record: *const c_void, _: *mut c_void) {
    // SAFETY: the driver's record is valid while this runs, and has these fields.
    let launch = unsafe { &*record.cast::<LaunchRecord>() };
    // SAFETY: the first parameter of the kernel is a `u64`, at a multiple of 16 bytes.
    let number = unsafe { launch.arguments.cast::<u64>().read() };
    // A panic must not reach the driver; the hook has printed it.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if let Ok(driver) = driver() {
            let memory = KernelMemory { driver, record };
            plan::run(number, launch.submitted_ns, &memory);
        }
    }));
}

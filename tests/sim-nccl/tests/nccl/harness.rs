//! A machine with its NCCL, and ranks on threads.

use std::ptr::{from_mut, null_mut};
use std::sync::Barrier;

use cuda_driver_sys::nccl::{
    NcclTable, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclResult_t, ncclUniqueId,
};
use cuda_driver_sys::{CUcontext, CUresult, CUstream, DriverTable};
use cuda_sim::{Machine, Simulator};
use nccl_sim::{Control, Live};

pub(crate) const SUCCESS: ncclResult_t = ncclResult_t::ncclSuccess;
pub(crate) const IN_PROGRESS: ncclResult_t = ncclResult_t::ncclInProgress;
pub(crate) const INVALID_ARGUMENT: ncclResult_t = ncclResult_t::ncclInvalidArgument;
pub(crate) const INVALID_USAGE: ncclResult_t = ncclResult_t::ncclInvalidUsage;
pub(crate) const REMOTE_ERROR: ncclResult_t = ncclResult_t::ncclRemoteError;
pub(crate) const FLOAT: ncclDataType_t = ncclDataType_t::ncclFloat32;

/// Calls the driver, and wants SUCCESS.
macro_rules! cu {
    ($machine:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let call = $machine.driver.$name.expect("the simulated driver has it");
        // SAFETY: the pointers are to live places of the types that the driver's contract names.
        let code = unsafe { call($($arg),*) };
        assert_eq!(code, cuda_driver_sys::CUresult::CUDA_SUCCESS, stringify!($name));
    }};
}

/// Calls NCCL. The result is its code.
macro_rules! nccl {
    ($machine:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let call = $machine.nccl.$name.expect("the simulated NCCL has it");
        // SAFETY: the pointers are to live places of the types that NCCL's contract names.
        unsafe { call($($arg),*) }
    }};
}

pub(crate) use {cu, nccl};

/// A machine.
pub(crate) struct Sim {
    pub(crate) simulator: Simulator,
    pub(crate) driver: &'static DriverTable,
    pub(crate) nccl: &'static NcclTable,
    pub(crate) control: Control,
}

impl Sim {
    pub(crate) fn new(devices: usize) -> Self {
        Self::of(Machine::new().devices(devices))
    }

    pub(crate) fn of(machine: Machine) -> Self {
        let machine = machine.memory(64 << 20);
        let simulator = machine.start().expect("the simulated driver is built");
        let path = nccl_sim::library_for(simulator.path()).expect("the simulated NCCL is built");
        // SAFETY: the file is the simulated NCCL.
        let nccl = unsafe { cuda_driver_sys::nccl::load_from(&path) }.expect("it opens");
        let driver = simulator.library().table();
        let sim = Self {
            driver,
            nccl: nccl.table(),
            control: Control::open(&path).expect("it is this version's"),
            simulator,
        };
        cu!(sim, cuInit(0));
        sim
    }

    pub(crate) fn id(&self) -> ncclUniqueId {
        let mut id = ncclUniqueId { internal: [0; 128] };
        assert_eq!(nccl!(self, ncclGetUniqueId(from_mut(&mut id))), SUCCESS);
        id
    }

    /// Makes the primary context of a device current on this thread.
    pub(crate) fn use_device(&self, device: i32) -> CUcontext {
        let mut context = null_mut();
        cu!(
            self,
            cuDevicePrimaryCtxRetain(from_mut(&mut context), device)
        );
        cu!(self, cuCtxSetCurrent(context));
        context
    }

    /// A rank without a communicator, with its device current.
    pub(crate) fn rank(&self, rank: i32) -> Rank<'_> {
        let context = self.use_device(rank);
        let mut stream = null_mut();
        cu!(self, cuStreamCreate(from_mut(&mut stream), 1));
        Rank {
            sim: self,
            context,
            rank,
            stream,
            comm: null_mut(),
        }
    }

    /// Runs ranks on threads, each with a communicator on its own device, which is destroyed after the work.
    pub(crate) fn ranks(&self, ranks: i32, work: impl Fn(&mut Rank<'_>) + Sync) {
        self.ranks_at_once(ranks, |rank, _| work(rank));
    }

    /// The same, with a barrier of the ranks.
    pub(crate) fn ranks_at_once(&self, ranks: i32, work: impl Fn(&mut Rank<'_>, &Barrier) + Sync) {
        let id = self.id();
        let barrier = Barrier::new(ranks as usize);
        std::thread::scope(|scope| {
            for rank in 0..ranks {
                let (work, barrier) = (&work, &barrier);
                scope.spawn(move || {
                    let mut rank = self.rank(rank);
                    assert_eq!(rank.init(ranks, id), SUCCESS);
                    work(&mut rank, barrier);
                    if !rank.comm.is_null() {
                        assert_eq!(nccl!(self, ncclCommDestroy(rank.comm)), SUCCESS);
                    }
                });
            }
        });
    }

    /// Communicators of several ranks that this thread drives.
    pub(crate) fn ranks_of_this_thread(&self, ranks: i32) -> Vec<Rank<'_>> {
        let id = self.id();
        let mut all: Vec<_> = (0..ranks).map(|rank| self.rank(rank)).collect();
        self.group(|| {
            for rank in &mut all {
                rank.make_current();
                assert_eq!(rank.init(ranks, id), SUCCESS);
            }
        });
        all
    }

    /// Groups calls, and wants the end to succeed.
    pub(crate) fn group(&self, calls: impl FnOnce()) {
        assert_eq!(self.group_code(calls), SUCCESS);
    }

    pub(crate) fn group_code(&self, calls: impl FnOnce()) -> ncclResult_t {
        assert_eq!(nccl!(self, ncclGroupStart()), SUCCESS);
        calls();
        nccl!(self, ncclGroupEnd())
    }

    /// Nothing is left, and nothing was wrong.
    pub(crate) fn check(&self) {
        assert_eq!(self.control.faults(), [""; 0]);
        assert_eq!(self.control.live(), Live::default());
        self.simulator.check().expect("all accesses are in order");
    }
}

/// A rank, its device and its stream.
pub(crate) struct Rank<'a> {
    pub(crate) sim: &'a Sim,
    context: CUcontext,
    pub(crate) rank: i32,
    pub(crate) stream: CUstream,
    pub(crate) comm: ncclComm_t,
}

impl Rank<'_> {
    pub(crate) fn init(&mut self, ranks: i32, id: ncclUniqueId) -> ncclResult_t {
        let comm = from_mut(&mut self.comm);
        nccl!(self.sim, ncclCommInitRank(comm, ranks, id, self.rank))
    }

    pub(crate) fn init_without_blocking(&mut self, ranks: i32, id: ncclUniqueId) -> ncclResult_t {
        let mut config = ncclConfig_t {
            blocking: 0,
            ..ncclConfig_t::UNSET
        };
        let (comm, config) = (from_mut(&mut self.comm), from_mut(&mut config));
        nccl!(
            self.sim,
            ncclCommInitRankConfig(comm, ranks, id, self.rank, config)
        )
    }

    pub(crate) fn make_current(&self) {
        cu!(self.sim, cuCtxSetCurrent(self.context));
    }

    /// Memory of the device with these values.
    pub(crate) fn memory(&self, values: &[f32]) -> u64 {
        self.make_current();
        let mut address = 0;
        let bytes = size_of_val(values);
        cu!(self.sim, cuMemAlloc_v2(from_mut(&mut address), bytes));
        cu!(
            self.sim,
            cuMemcpyHtoD_v2(address, values.as_ptr().cast(), bytes)
        );
        address
    }

    /// What is there when the stream is done.
    pub(crate) fn values(&self, address: u64, count: usize) -> Vec<f32> {
        self.synchronise();
        let mut values = vec![0_f32; count];
        cu!(
            self.sim,
            cuMemcpyDtoH_v2(values.as_mut_ptr().cast(), address, count * 4)
        );
        values
    }

    pub(crate) fn synchronise(&self) {
        self.make_current();
        cu!(self.sim, cuStreamSynchronize(self.stream));
    }

    pub(crate) fn is_done(&self) -> bool {
        let query = self.sim.driver.cuStreamQuery.expect("every driver has it");
        // SAFETY: the stream is live.
        let code = unsafe { query(self.stream) };
        code != CUresult::CUDA_ERROR_NOT_READY
    }

    /// In place, of `f32`.
    pub(crate) fn sum(&self, address: u64, count: usize) -> ncclResult_t {
        let (from, to) = (pointer(address).cast_const(), pointer(address));
        let sum = cuda_driver_sys::nccl::ncclRedOp_t::ncclSum;
        nccl!(
            self.sim,
            ncclAllReduce(from, to, count, FLOAT, sum, self.comm, self.stream)
        )
    }

    pub(crate) fn send(&self, address: u64, count: usize, to: i32) -> ncclResult_t {
        let from = pointer(address).cast_const();
        nccl!(
            self.sim,
            ncclSend(from, count, FLOAT, to, self.comm, self.stream)
        )
    }

    pub(crate) fn receive(&self, address: u64, count: usize, from: i32) -> ncclResult_t {
        let to = pointer(address);
        nccl!(
            self.sim,
            ncclRecv(to, count, FLOAT, from, self.comm, self.stream)
        )
    }

    /// The asynchronous error.
    pub(crate) fn error(&self) -> ncclResult_t {
        let mut error = SUCCESS;
        let code = nccl!(
            self.sim,
            ncclCommGetAsyncError(self.comm, from_mut(&mut error))
        );
        if code == SUCCESS { error } else { code }
    }

    /// Waits for an asynchronous error. Yields, because nothing tells of it.
    pub(crate) fn wait_for_error(&self) -> ncclResult_t {
        loop {
            match self.error() {
                SUCCESS => std::thread::yield_now(),
                error => return error,
            }
        }
    }

    pub(crate) fn abort(&mut self) {
        assert_eq!(nccl!(self.sim, ncclCommAbort(self.comm)), SUCCESS);
        self.comm = null_mut();
    }

    pub(crate) fn destroy(&mut self) {
        assert_eq!(nccl!(self.sim, ncclCommDestroy(self.comm)), SUCCESS);
        self.comm = null_mut();
    }
}

/// An address of device memory as NCCL takes it.
pub(crate) fn pointer(address: u64) -> *mut std::ffi::c_void {
    std::ptr::without_provenance_mut(address as usize)
}

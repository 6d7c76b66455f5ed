//! NCCL, like the other files here for the driver.
//!
//! A communicator may be used from any thread, by one thread at a time; `abort` and `async_error` at any time. NCCL works on
//! the device of the communicator, whose context must be current: without one, NCCL would make one of device 0.

use std::ffi::{CStr, c_int, c_void};

use cuda_driver_sys::CUdeviceptr;
use cuda_driver_sys::nccl::{
    NCCL_WIN_COLL_SYMMETRIC, NcclTable, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t,
    ncclResult_t, ncclUniqueId, ncclWindow_t,
};

use super::Queue;
use crate::base::error::{Error, Result};

/// Whether a call is over. If not, NCCL goes on in the background, and [`async_error`] tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Progress {
    Done,
    Pending,
}

/// Calls a function of the table by its symbol; a missing one is an error, and so is any call in a fork, where NCCL has
/// neither its threads nor a driver.
macro_rules! ask {
    ($table:expr, $symbol:ident($($argument:expr),* $(,)?)) => {
        match $table.$symbol {
            _ if $crate::base::report::is_forked() => Err($crate::base::error::Error::forked()),
            Some(function) => check($table, stringify!($symbol), function($($argument),*)),
            None => Err($crate::base::error::Error::nccl_lacks(stringify!($symbol))),
        }
    };
}

fn check(table: &NcclTable, function: &'static str, code: ncclResult_t) -> Result<Progress> {
    match code {
        ncclResult_t::ncclSuccess => Ok(Progress::Done),
        ncclResult_t::ncclInProgress => Ok(Progress::Pending),
        code => Err(Error::nccl(function, code, last_words(table))),
    }
}

/// For functions that are over when they return.
fn done(progress: Result<Progress>) -> Result<()> {
    progress.map(|_| ())
}

/// What NCCL says of its last failure in this process.
pub(crate) fn last_words(table: &NcclTable) -> Option<String> {
    let function = table.ncclGetLastError?;
    // SAFETY: the communicator may be null; the answer is null or a text of the library.
    let words = unsafe { function(std::ptr::null_mut()) };
    if words.is_null() {
        return None;
    }
    // SAFETY: not null, so a text that ends in a zero, which is copied at once.
    let words = unsafe { CStr::from_ptr(words) };
    let words = words.to_string_lossy().trim().to_owned();
    (!words.is_empty()).then_some(words)
}

/// # Safety
/// The table's functions must be NCCL's, as for every function below.
pub(crate) unsafe fn version(table: &NcclTable) -> Result<c_int> {
    let mut version = 0;
    // SAFETY: `version` is valid for a write of one int.
    done(unsafe { ask!(table, ncclGetVersion(&raw mut version)) })?;
    Ok(version)
}

/// # Safety
/// As [`version`].
pub(crate) unsafe fn unique_id(table: &NcclTable) -> Result<ncclUniqueId> {
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: `id` is valid for a write.
    done(unsafe { ask!(table, ncclGetUniqueId(&raw mut id)) })?;
    Ok(id)
}

/// # Safety
/// The context of the rank's device must be current.
pub(crate) unsafe fn init_rank(
    table: &NcclTable,
    place: &mut ncclComm_t,
    (ranks, rank): (c_int, c_int),
    id: ncclUniqueId,
    is_blocking: bool,
) -> Result<Progress> {
    let mut config = ncclConfig_t {
        blocking: is_blocking.into(),
        ..ncclConfig_t::UNSET
    };
    // SAFETY: `place` and `config` are valid for the call; NCCL copies the settings, and writes the handle before it
    // returns.
    unsafe {
        ask!(
            table,
            ncclCommInitRankConfig(place, ranks, id, rank, &raw mut config)
        )
    }
}

/// # Safety
/// The communicator must be live, as for every function below.
pub(crate) unsafe fn async_error(table: &NcclTable, raw: ncclComm_t) -> Result<ncclResult_t> {
    let mut code = ncclResult_t::ncclSuccess;
    // SAFETY: `code` is valid for a write.
    done(unsafe { ask!(table, ncclCommGetAsyncError(raw, &raw mut code)) })?;
    Ok(code)
}

/// # Safety
/// As [`async_error`].
pub(crate) unsafe fn finalize(table: &NcclTable, raw: ncclComm_t) -> Result<Progress> {
    // SAFETY: the caller's.
    unsafe { ask!(table, ncclCommFinalize(raw)) }
}

/// # Safety
/// As [`async_error`]; the communicator is not used again.
pub(crate) unsafe fn destroy(table: &NcclTable, raw: ncclComm_t) -> Result<()> {
    // SAFETY: the caller's.
    done(unsafe { ask!(table, ncclCommDestroy(raw)) })
}

/// # Safety
/// As [`destroy`].
pub(crate) unsafe fn abort(table: &NcclTable, raw: ncclComm_t) -> Result<()> {
    // SAFETY: the caller's.
    done(unsafe { ask!(table, ncclCommAbort(raw)) })
}

fn pointer(address: CUdeviceptr) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}

/// # Safety
/// The memory must stay mapped until it is deregistered.
pub(crate) unsafe fn register(
    table: &NcclTable,
    raw: ncclComm_t,
    (address, bytes): (CUdeviceptr, usize),
) -> Result<*mut c_void> {
    let mut handle = std::ptr::null_mut();
    let at = pointer(address);
    // SAFETY: `handle` is valid for a write; the rest is the caller's.
    done(unsafe { ask!(table, ncclCommRegister(raw, at, bytes, &raw mut handle)) })?;
    Ok(handle)
}

/// # Safety
/// The handle must be from [`register`] with this communicator, and is not used again.
pub(crate) unsafe fn deregister(
    table: &NcclTable,
    raw: ncclComm_t,
    handle: *mut c_void,
) -> Result<()> {
    // SAFETY: the caller's.
    done(unsafe { ask!(table, ncclCommDeregister(raw, handle)) })
}

/// # Safety
/// As [`register`]; `place` must stay valid until the call is over, also in the background.
pub(crate) unsafe fn register_window(
    table: &NcclTable,
    raw: ncclComm_t,
    (address, bytes): (CUdeviceptr, usize),
    place: *mut ncclWindow_t,
) -> Result<Progress> {
    let (at, flags) = (pointer(address), NCCL_WIN_COLL_SYMMETRIC);
    // SAFETY: the caller's.
    unsafe { ask!(table, ncclCommWindowRegister(raw, at, bytes, place, flags)) }
}

/// # Safety
/// The window must be from [`register_window`] with this communicator, and is not used again.
pub(crate) unsafe fn deregister_window(
    table: &NcclTable,
    raw: ncclComm_t,
    window: ncclWindow_t,
) -> Result<Progress> {
    // SAFETY: the caller's.
    unsafe { ask!(table, ncclCommWindowDeregister(raw, window)) }
}

/// # Safety
/// Everything started until [`group_end`] must be valid at the latter.
pub(crate) unsafe fn group_start(table: &NcclTable) -> Result<()> {
    // SAFETY: takes nothing.
    done(unsafe { ask!(table, ncclGroupStart()) })
}

/// # Safety
/// This thread must have called [`group_start`].
pub(crate) unsafe fn group_end(table: &NcclTable) -> Result<Progress> {
    // SAFETY: takes nothing.
    unsafe { ask!(table, ncclGroupEnd()) }
}

/// What moves: from and to, 0 where there is none; elements as the function counts them; their type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) from: CUdeviceptr,
    pub(crate) to: CUdeviceptr,
    pub(crate) count: usize,
    pub(crate) data_type: ncclDataType_t,
}

/// What is done with it. Ranks are within the communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    AllReduce(ncclRedOp_t),
    ReduceScatter(ncclRedOp_t),
    AllGather,
    Broadcast { root: c_int },
    Send { to: c_int },
    Receive { from: c_int },
}

impl Operation {
    pub(crate) fn function(self) -> &'static str {
        match self {
            Self::AllReduce(_) => "ncclAllReduce",
            Self::ReduceScatter(_) => "ncclReduceScatter",
            Self::AllGather => "ncclAllGather",
            Self::Broadcast { .. } => "ncclBroadcast",
            Self::Send { .. } => "ncclSend",
            Self::Receive { .. } => "ncclRecv",
        }
    }
}

/// # Safety
/// The memory must be valid in the order of the stream for as many elements as the operation reads and writes, the stream of the
/// communicator's device.
pub(crate) unsafe fn start(
    table: &NcclTable,
    raw: ncclComm_t,
    queue: Queue<'_>,
    operation: Operation,
    transfer: Transfer,
) -> Result<Progress> {
    let stream = queue.stream();
    let Transfer {
        count, data_type, ..
    } = transfer;
    let (from, to) = (pointer(transfer.from).cast_const(), pointer(transfer.to));
    // SAFETY: the caller's, as for each of the other calls.
    let all_reduce = |op| unsafe {
        ask!(
            table,
            ncclAllReduce(from, to, count, data_type, op, raw, stream)
        )
    };
    // SAFETY: as above.
    let reduce_scatter = |op| unsafe {
        ask!(
            table,
            ncclReduceScatter(from, to, count, data_type, op, raw, stream)
        )
    };
    // SAFETY: as above.
    let all_gather = || unsafe {
        ask!(
            table,
            ncclAllGather(from, to, count, data_type, raw, stream)
        )
    };
    // SAFETY: as above.
    let broadcast = |root| unsafe {
        ask!(
            table,
            ncclBroadcast(from, to, count, data_type, root, raw, stream)
        )
    };
    // SAFETY: as above.
    let send = |peer| unsafe { ask!(table, ncclSend(from, count, data_type, peer, raw, stream)) };
    // SAFETY: as above.
    let receive = |peer| unsafe { ask!(table, ncclRecv(to, count, data_type, peer, raw, stream)) };
    match operation {
        Operation::AllReduce(op) => all_reduce(op),
        Operation::ReduceScatter(op) => reduce_scatter(op),
        Operation::AllGather => all_gather(),
        Operation::Broadcast { root } => broadcast(root),
        Operation::Send { to } => send(to),
        Operation::Receive { from } => receive(from),
    }
}

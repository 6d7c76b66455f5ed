//! The functions of NCCL that are used here, each an `Option`.

use std::ffi::{c_char, c_int, c_void};

use super::{
    ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId, ncclWindow_t,
};
use crate::CUstream;
use crate::functions::functions;

functions! {
    table NcclTable, symbols NCCL_SYMBOLS, header "NCCL";

    /// The version of the library, as [`NCCL_VERSION`](super::NCCL_VERSION) counts.
    ncclGetVersion, PFN_ncclGetVersion: (*mut c_int) -> ncclResult_t;
    /// What the ranks of a new communicator find each other by. Opens a socket.
    ncclGetUniqueId, PFN_ncclGetUniqueId: (*mut ncclUniqueId) -> ncclResult_t;
    /// Makes this rank's end of a communicator: place, number of ranks, id, rank.
    ncclCommInitRank, PFN_ncclCommInitRank: (*mut ncclComm_t, c_int, ncclUniqueId, c_int) -> ncclResult_t;
    /// The same, with settings. Since 2.14.
    ncclCommInitRankConfig, PFN_ncclCommInitRankConfig: (*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> ncclResult_t;
    /// Ends what goes on. Since 2.14.
    ncclCommFinalize, PFN_ncclCommFinalize: (ncclComm_t) -> ncclResult_t;
    /// Frees a communicator.
    ncclCommDestroy, PFN_ncclCommDestroy: (ncclComm_t) -> ncclResult_t;
    /// Stops what goes on, and frees a communicator.
    ncclCommAbort, PFN_ncclCommAbort: (ncclComm_t) -> ncclResult_t;
    /// What became of the work in the background.
    ncclCommGetAsyncError, PFN_ncclCommGetAsyncError: (ncclComm_t, *mut ncclResult_t) -> ncclResult_t;
    /// The number of ranks.
    ncclCommCount, PFN_ncclCommCount: (ncclComm_t, *mut c_int) -> ncclResult_t;
    /// The device's ordinal.
    ncclCommCuDevice, PFN_ncclCommCuDevice: (ncclComm_t, *mut c_int) -> ncclResult_t;
    /// This rank.
    ncclCommUserRank, PFN_ncclCommUserRank: (ncclComm_t, *mut c_int) -> ncclResult_t;
    /// Words for a code, in memory of the library.
    ncclGetErrorString, PFN_ncclGetErrorString: (ncclResult_t) -> *const c_char;
    /// Words for the last failure, in memory of the library; the communicator may be null.
    ncclGetLastError, PFN_ncclGetLastError: (ncclComm_t) -> *const c_char;
    /// Allocates memory of the kind that can be registered. Since 2.19.
    ncclMemAlloc, PFN_ncclMemAlloc: (*mut *mut c_void, usize) -> ncclResult_t;
    /// Frees it.
    ncclMemFree, PFN_ncclMemFree: (*mut c_void) -> ncclResult_t;
    /// Registers memory of this rank: communicator, address, bytes, place for the handle. Since 2.19.
    ncclCommRegister, PFN_ncclCommRegister: (ncclComm_t, *mut c_void, usize, *mut *mut c_void) -> ncclResult_t;
    /// Ends a registration.
    ncclCommDeregister, PFN_ncclCommDeregister: (ncclComm_t, *mut c_void) -> ncclResult_t;
    /// Registers memory of all ranks together: communicator, address, bytes, place, flags. Since 2.27.
    ncclCommWindowRegister, PFN_ncclCommWindowRegister: (ncclComm_t, *mut c_void, usize, *mut ncclWindow_t, c_int) -> ncclResult_t;
    /// Ends a window.
    ncclCommWindowDeregister, PFN_ncclCommWindowDeregister: (ncclComm_t, ncclWindow_t) -> ncclResult_t;
    /// Combines the elements of all ranks, and gives all of them the result: from, to, elements of each, type, operation.
    ncclAllReduce, PFN_ncclAllReduce: (*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream) -> ncclResult_t;
    /// Gives all ranks the elements of all, in order of ranks: from, to, elements of each, type.
    ncclAllGather, PFN_ncclAllGather: (*const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, CUstream) -> ncclResult_t;
    /// Gives all ranks the elements of one: from, to, elements, type, that rank.
    ncclBroadcast, PFN_ncclBroadcast: (*const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, CUstream) -> ncclResult_t;
    /// Combines the elements of all ranks, and gives each its part: from, to, elements of each part, type, operation.
    ncclReduceScatter, PFN_ncclReduceScatter: (*const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, CUstream) -> ncclResult_t;
    /// Sends elements to a rank, which must receive them: from, elements, type, that rank.
    ncclSend, PFN_ncclSend: (*const c_void, usize, ncclDataType_t, c_int, ncclComm_t, CUstream) -> ncclResult_t;
    /// Receives elements from a rank.
    ncclRecv, PFN_ncclRecv: (*mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, CUstream) -> ncclResult_t;
    /// Begins a group of calls of this thread, which NCCL starts together.
    ncclGroupStart, PFN_ncclGroupStart: () -> ncclResult_t;
    /// Ends it.
    ncclGroupEnd, PFN_ncclGroupEnd: () -> ncclResult_t;
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C" fn start() -> ncclResult_t {
        ncclResult_t(7)
    }

    #[test]
    fn every_field_gets_the_address_of_its_own_symbol() {
        let mut asked = Vec::new();
        // SAFETY: only ncclGroupStart gets an address, and `start` has its signature.
        let table = unsafe {
            NcclTable::fill(|name| {
                asked.push(name);
                let start: PFN_ncclGroupStart = start;
                if name == c"ncclGroupStart" {
                    start as *const c_void
                } else {
                    std::ptr::null()
                }
            })
        };
        assert_eq!(asked, NCCL_SYMBOLS);
        assert!(
            NCCL_SYMBOLS
                .iter()
                .all(|name| name.to_bytes().starts_with(b"nccl"))
        );
        assert_eq!(table.count(), 1);
        let call = table.ncclGroupStart.expect("it was supplied");
        // SAFETY: it is `start` above.
        assert_eq!(unsafe { call() }, ncclResult_t::ncclInProgress);
    }
}

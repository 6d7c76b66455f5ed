//! The functions of NCCL.

use std::ffi::{c_char, c_int, c_void};

use cuda_driver_sys::CUstream;
use cuda_driver_sys::nccl::{
    NcclTable, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId, ncclWindow_t,
};

use crate::configuration::Configuration;
use crate::export::{
    Address, Answer, Comm, Config, Out, SUCCESS, Source, Window, exports, invalid_argument,
};
use crate::group::{Job, grouped};
use crate::operation::{Kind, Operation};
use crate::state::state;
use crate::{calls, communicator, group, init, memory, register, window, words};

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetErrorString(code: ncclResult_t) -> *const c_char {
    calls::enter("ncclGetErrorString");
    words::of_code(code).as_ptr()
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetLastError(comm: ncclComm_t) -> *const c_char {
    calls::enter("ncclGetLastError");
    let of_comm = communicator::error_words(Comm(comm.addr() as u64));
    of_comm.unwrap_or_else(words::last).as_ptr()
}

const _: fn(&mut NcclTable) = |table| {
    table.ncclGetErrorString = Some(ncclGetErrorString);
    table.ncclGetLastError = Some(ncclGetLastError);
};

fn rank(rank: c_int) -> Answer<usize> {
    usize::try_from(rank).or_else(|_| invalid_argument(format!("there is no rank {rank}")))
}

/// Checks an operation, and starts it with its group.
fn operate(
    comm: Comm,
    stream: CUstream,
    operation: impl FnOnce() -> Answer<Operation>,
) -> Answer<ncclResult_t> {
    grouped(|| {
        let mut state = state();
        let comm_of_rank = state.ready(comm)?;
        let (rank, ranks) = (comm_of_rank.rank, comm_of_rank.ranks);
        let operation = operation()?;
        operation.check(ranks)?;
        operation.check_addresses(rank)?;
        Ok(Job::Operation(comm, stream, operation))
    })
}

exports! {
    fn ncclGetVersion(out: Out<c_int>) {
        out.write(Configuration::get().version)?;
        SUCCESS
    }

    fn ncclGetUniqueId(out: Out<ncclUniqueId>) {
        out.required()?;
        out.write(init::unique_id())?;
        SUCCESS
    }

    fn ncclCommInitRank(out: Out<ncclComm_t>, ranks: c_int, id: ncclUniqueId, rank: c_int) {
        init::init(out, ranks, &id, rank, Config(None))
    }

    fn ncclCommInitRankConfig(
        out: Out<ncclComm_t>, ranks: c_int, id: ncclUniqueId, rank: c_int, config: Config
    ) {
        init::init(out, ranks, &id, rank, config)
    }

    fn ncclCommFinalize(comm: Comm) {
        communicator::finalize(comm)
    }

    fn ncclCommDestroy(comm: Comm) {
        communicator::destroy(comm)
    }

    fn ncclCommAbort(comm: Comm) {
        communicator::abort(comm)
    }

    fn ncclCommGetAsyncError(comm: Comm, out: Out<ncclResult_t>) {
        out.required()?;
        out.write(communicator::async_error(comm)?)?;
        SUCCESS
    }

    fn ncclCommCount(comm: Comm, out: Out<c_int>) {
        out.write(state().joined_comm(comm)?.ranks as c_int)?;
        SUCCESS
    }

    fn ncclCommCuDevice(comm: Comm, out: Out<c_int>) {
        out.write(state().joined_comm(comm)?.device)?;
        SUCCESS
    }

    fn ncclCommUserRank(comm: Comm, out: Out<c_int>) {
        out.write(state().joined_comm(comm)?.rank as c_int)?;
        SUCCESS
    }

    fn ncclMemAlloc(out: Out<*mut c_void>, bytes: usize) {
        out.required()?;
        let address = memory::alloc(bytes)?;
        out.write(std::ptr::with_exposed_provenance_mut(address as usize))?;
        SUCCESS
    }

    fn ncclMemFree(address: Address) {
        memory::free(address.0)?;
        SUCCESS
    }

    fn ncclCommRegister(comm: Comm, address: Address, bytes: usize, out: Out<*mut c_void>) {
        out.required()?;
        let loaded = state().ready(comm)?.loaded;
        register::check(&loaded, address.0, bytes)?;
        let handle = register::add(comm, register::RegistrationKind::Own, address.0, bytes);
        out.write(std::ptr::without_provenance_mut(handle as usize))?;
        SUCCESS
    }

    fn ncclCommDeregister(comm: Comm, handle: Address) {
        state().live_comm(comm)?;
        register::remove(comm, register::RegistrationKind::Own, handle.0)?;
        SUCCESS
    }

    fn ncclCommWindowRegister(
        comm: Comm, address: Address, bytes: usize, out: Out<ncclWindow_t>, flags: c_int
    ) {
        window::register(comm, address.0, bytes, out, flags)
    }

    fn ncclCommWindowDeregister(comm: Comm, window: Window) {
        window::deregister(comm, window.0)
    }

    fn ncclAllReduce(
        from: Source, to: Address, count: usize, ty: ncclDataType_t, op: ncclRedOp_t, comm: Comm,
        stream: CUstream
    ) {
        operate(comm, stream, || {
            Ok(Operation { kind: Kind::AllReduce(op), from: from.0, to: to.0, count, ty })
        })
    }

    fn ncclAllGather(
        from: Source, to: Address, count: usize, ty: ncclDataType_t, comm: Comm, stream: CUstream
    ) {
        operate(comm, stream, || {
            Ok(Operation { kind: Kind::AllGather, from: from.0, to: to.0, count, ty })
        })
    }

    fn ncclBroadcast(
        from: Source, to: Address, count: usize, ty: ncclDataType_t, root: c_int, comm: Comm,
        stream: CUstream
    ) {
        operate(comm, stream, || {
            let kind = Kind::Broadcast { root: rank(root)? };
            Ok(Operation { kind, from: from.0, to: to.0, count, ty })
        })
    }

    fn ncclReduceScatter(
        from: Source, to: Address, count: usize, ty: ncclDataType_t, op: ncclRedOp_t, comm: Comm,
        stream: CUstream
    ) {
        operate(comm, stream, || {
            Ok(Operation { kind: Kind::ReduceScatter(op), from: from.0, to: to.0, count, ty })
        })
    }

    fn ncclSend(
        from: Source, count: usize, ty: ncclDataType_t, peer: c_int, comm: Comm, stream: CUstream
    ) {
        operate(comm, stream, || {
            let kind = Kind::Send { to: rank(peer)? };
            Ok(Operation { kind, from: from.0, to: 0, count, ty })
        })
    }

    fn ncclRecv(
        to: Address, count: usize, ty: ncclDataType_t, peer: c_int, comm: Comm, stream: CUstream
    ) {
        operate(comm, stream, || {
            let kind = Kind::Receive { from: rank(peer)? };
            Ok(Operation { kind, from: 0, to: to.0, count, ty })
        })
    }

    fn ncclGroupStart() {
        group::start()
    }

    fn ncclGroupEnd() {
        group::end()
    }
}

#[cfg(test)]
mod tests {
    use cuda_driver_sys::nccl::NCCL_SYMBOLS;

    /// The const items above check types; this one that none is left out.
    #[test]
    fn every_function_of_the_bindings_is_exported() {
        let text = include_str!("functions.rs");
        for symbol in NCCL_SYMBOLS {
            let name = symbol.to_string_lossy();
            assert!(text.contains(&format!("fn {name}(")), "{name}");
        }
    }
}

//! NCCL's memory, and registrations.

use std::ptr::{from_mut, null_mut};

use cuda_driver_sys::nccl::ncclResult_t;

use crate::harness::{INVALID_ARGUMENT, Rank, SUCCESS, Sim, cu, nccl, pointer};

/// Memory of `ncclMemAlloc` on the device of a rank.
pub(crate) fn mapped(rank: &Rank<'_>, bytes: usize) -> u64 {
    rank.make_current();
    let mut address = null_mut();
    let code = nccl!(rank.sim, ncclMemAlloc(from_mut(&mut address), bytes));
    assert_eq!(code, SUCCESS);
    address.addr() as u64
}

fn register(rank: &Rank<'_>, address: u64, bytes: usize) -> (ncclResult_t, u64) {
    let mut handle = null_mut();
    let (at, out) = (pointer(address), from_mut(&mut handle));
    let code = nccl!(rank.sim, ncclCommRegister(rank.comm, at, bytes, out));
    (code, handle.addr() as u64)
}

fn deregister(rank: &Rank<'_>, handle: u64) -> ncclResult_t {
    nccl!(rank.sim, ncclCommDeregister(rank.comm, pointer(handle)))
}

fn free(sim: &Sim, address: u64) -> ncclResult_t {
    nccl!(sim, ncclMemFree(pointer(address)))
}

#[test]
fn memory_is_mapped_for_all_devices() {
    let sim = Sim::new(2);
    let rank = sim.rank(1);
    let memory = mapped(&rank, 100);
    assert_eq!(sim.control.live().memories, 1);
    let (mut base, mut len) = (0, 0);
    cu!(
        sim,
        cuMemGetAddressRange_v2(from_mut(&mut base), from_mut(&mut len), memory)
    );
    assert_eq!((base, len), (memory, 2 << 20));
    // Its own device, and the other one.
    for device in [1, 0] {
        sim.use_device(device);
        cu!(sim, cuMemsetD32_v2(memory, 7, 25));
        cu!(sim, cuCtxSynchronize());
    }
    assert_eq!(sim.simulator.control().live().physical_allocations, 1);
    assert_eq!(free(&sim, memory), SUCCESS);
    let live = sim.simulator.control().live();
    let left = (live.physical_allocations, live.mappings, live.reservations);
    assert_eq!(left, (0, 0, 0));
    assert_eq!(free(&sim, 0), SUCCESS);
    sim.check();
    assert_eq!(free(&sim, memory), INVALID_ARGUMENT);
    assert_eq!(sim.control.faults().len(), 1);
}

#[test]
fn a_failed_allocation_leaves_nothing() {
    let sim = Sim::new(2);
    sim.use_device(0);
    let calls = [
        "cuMemCreate",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
    ];
    for call in calls {
        let code = cuda_sim::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
        sim.simulator.control().fail(call, 1, code);
        let mut address = null_mut();
        let code = nccl!(sim, ncclMemAlloc(from_mut(&mut address), 100));
        assert_eq!(code, ncclResult_t::ncclUnhandledCudaError, "{call}");
        let live = sim.simulator.control().live();
        let left = (live.physical_allocations, live.mappings, live.reservations);
        assert_eq!(left, (0, 0, 0), "{call}");
    }
    sim.check();
}

#[test]
fn only_mapped_memory_of_one_piece_is_registered() {
    let sim = Sim::new(1);
    let mut ranks = sim.ranks_of_this_thread(1);
    let rank = &mut ranks[0];
    let memory = mapped(rank, 4096);
    let (code, handle) = register(rank, memory + 256, 4096);
    assert_eq!(code, SUCCESS);
    assert_eq!(sim.control.live().registrations, 1);
    assert_eq!(deregister(rank, handle), SUCCESS);
    let plain = rank.memory(&[0.0]);
    let mut pooled = 0;
    cu!(sim, cuMemAllocAsync(from_mut(&mut pooled), 64, rank.stream));
    let no_handle = ncclResult_t::ncclUnhandledCudaError;
    for (address, bytes, expected) in [
        (memory, 0, INVALID_ARGUMENT),
        (0, 64, INVALID_ARGUMENT),
        (64, 64, INVALID_ARGUMENT),
        (memory, 3 << 20, INVALID_ARGUMENT),
        (memory, usize::MAX, INVALID_ARGUMENT),
        (plain, 4, no_handle),
        (pooled, 64, no_handle),
    ] {
        assert_eq!(register(rank, address, bytes).0, expected, "{address:#x}");
    }
    cu!(sim, cuMemFreeAsync(pooled, rank.stream));
    rank.synchronise();
    assert_eq!(free(&sim, memory), SUCCESS);
    rank.destroy();
    sim.check();
}

#[test]
fn registrations_end_before_their_memory_and_their_communicator() {
    let sim = Sim::new(1);
    let mut ranks = sim.ranks_of_this_thread(1);
    let rank = &mut ranks[0];
    let memory = mapped(rank, 4096);
    let (code, handle) = register(rank, memory, 4096);
    assert_eq!(code, SUCCESS);
    assert_eq!(deregister(rank, handle + 1), INVALID_ARGUMENT);
    assert_eq!(free(&sim, memory), SUCCESS);
    let memory = mapped(rank, 4096);
    let (code, left) = register(rank, memory, 4096);
    assert_eq!(code, SUCCESS);
    assert_eq!(deregister(rank, handle), SUCCESS);
    assert_eq!(deregister(rank, handle), INVALID_ARGUMENT);
    assert_ne!(left, handle);
    rank.destroy();
    let faults = sim.control.faults();
    let expected = ["has no", "is freed while", "has no", "destroyed with"];
    assert_eq!(faults.len(), expected.len(), "{faults:?}");
    for (fault, part) in faults.iter().zip(expected) {
        assert!(fault.contains(part), "{faults:?}");
    }
    assert_eq!(sim.control.live().registrations, 0);
    assert_eq!(free(&sim, memory), SUCCESS);
}

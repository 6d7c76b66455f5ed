//! What the driver does before it answers that memory is out.

use cuda_driver_sys::*;

use crate::harness::*;

/// A pool that keeps 128 MiB, whatever its threshold would allow.
fn keeper() -> Fixture {
    let keeper = Fixture::new();
    assert_eq!(set_attribute(keeper.pool, 4, u64::MAX), OK);
    fill(&keeper);
    keeper
}

fn fill(keeper: &Fixture) {
    let block = keeper.alloc(128 * MIB);
    keeper.free(block);
    synchronise(keeper.stream);
    assert_eq!(reserved(keeper.pool), 128);
}

fn small() -> CUmemoryPool {
    pool(&CUmemPoolProps {
        maxSize: (64 * MIB) as usize,
        ..props()
    })
}

fn plain(size: u64) -> CUresult {
    let mut out = 0;
    cu!(cuMemAlloc_v2(&raw mut out, size as usize))
}

#[test]
fn what_does_not_fit_now_takes_what_other_pools_keep() {
    let f = keeper();
    let small = small();
    let block = alloc(small, 40 * MIB, f.stream);
    let refused = Err(OUT_OF_MEMORY);
    assert_eq!(try_alloc(small, 40 * MIB, f.stream), refused);
    assert_eq!(reserved(f.pool), 0);
    fill(&f);
    free(block, f.stream);
    assert_eq!(cu!(cuMemPoolDestroy(small)), OK);
    assert_eq!(plain(1 << 50), OUT_OF_MEMORY);
    assert_eq!(reserved(f.pool), 0);
}

#[test]
fn what_could_never_fit_takes_nothing() {
    let f = keeper();
    let small = small();
    let refused = Err(OUT_OF_MEMORY);
    // Twice the maximum is the most that is taken seriously.
    assert_eq!(try_alloc(small, 129 * MIB, f.stream), refused);
    for size in [1 << 50, u64::MAX] {
        assert_eq!(try_alloc(f.pool, size, f.stream), refused);
    }
    assert_eq!(reserved(f.pool), 128);
    assert_eq!(cu!(cuMemPoolDestroy(small)), OK);
}

/// The pool that asked is left with all that the device had.
#[test]
fn a_request_that_the_device_cannot_meet_takes_everything() {
    let f = keeper();
    let other = pool(&props());
    let total: usize = get!(cuDeviceTotalMem_v2(_, 0));
    let total = total as u64;
    let refused = Err(OUT_OF_MEMORY);
    assert_eq!(try_alloc(other, total, f.stream), refused);
    assert_eq!(reserved(f.pool), 0);
    assert!(reserved(other) > (total - 64 * MIB) / MIB);
    assert_eq!(used(other), 0);
    // Others get it when they ask.
    assert_eq!(plain(1 << 50), OUT_OF_MEMORY);
    assert_eq!(reserved(other), 0);
    assert_eq!(cu!(cuMemPoolDestroy(other)), OK);
}

/// A stream waits for another's free only if nothing else helps.
#[test]
fn others_are_asked_before_a_stream_is_made_to_wait() {
    let f = keeper();
    let (small, held) = (small(), stream());
    for flag in 1..=3 {
        assert_eq!(set_attribute(small, flag, u64::from(flag == 3)), OK);
    }
    let gate = Gate::hold(held);
    let block = alloc(small, 40 * MIB, held);
    free(block, held);
    assert_eq!(try_alloc(small, 40 * MIB, f.stream), Ok(block));
    assert_eq!(reserved(f.pool), 0);
    gate.open();
    synchronise(f.stream);
    free(block, f.stream);
    assert_eq!(cu!(cuMemPoolDestroy(small)), OK);
    cu!(cuStreamDestroy_v2(held));
}

#[test]
fn what_lives_or_was_not_seen_freed_stays() {
    let f = keeper();
    let live = f.alloc(40 * MIB);
    assert_eq!(plain(1 << 50), OUT_OF_MEMORY);
    assert_eq!(reserved(f.pool), 64, "a half-used chunk stays");
    f.free(live);
    assert_eq!(plain(1 << 50), OUT_OF_MEMORY);
    assert_eq!(reserved(f.pool), 64, "nobody has seen the free");
    synchronise(f.stream);
    assert_eq!(plain(1 << 50), OUT_OF_MEMORY);
    assert_eq!(reserved(f.pool), 0);
}

#[test]
fn memory_that_is_taken_back_serves_the_request() {
    let f = keeper();
    let size = available() + 50 * MIB;
    let address: CUdeviceptr = get!(cuMemAlloc_v2(_, size as usize));
    assert_eq!(reserved(f.pool), 0);
    assert_eq!(cu!(cuMemFree_v2(address)), OK);
}

//! The order sanitizer: what it reports, and what it lets pass.

use cuda_driver_sys::*;

use crate::harness::*;

fn touch(address: CUdeviceptr, stream: CUstream) {
    assert_eq!(cu!(cuMemsetD8Async(address, 1, 16, stream)), OK);
}

/// An access that the driver refuses, because it knows what lives where.
fn refused(address: CUdeviceptr, stream: CUstream) {
    let answer = cu!(cuMemsetD8Async(address, 1, 16, stream));
    assert_eq!(answer, INVALID_VALUE);
}

fn order(after: CUstream, before: CUstream) {
    let event = event();
    assert_eq!(cu!(cuEventRecord(event, before)), OK);
    assert_eq!(cu!(cuStreamWaitEvent(after, event, 0)), OK);
    cu!(cuEventDestroy_v2(event));
}

/// One pool, two streams; what `work` does is reported with these beginnings.
fn reports(work: impl FnOnce(CUmemoryPool, CUstream, CUstream), expected: &[&str]) {
    let _turn = turn();
    let (pool, a, b) = (pool(&props()), stream(), stream());
    work(pool, a, b);
    let reports = control().reports();
    let kinds: Vec<&str> = reports.iter().filter_map(|r| r.split(':').next()).collect();
    assert_eq!(kinds, expected, "{reports:#?}");
    assert_eq!(control().report_count(), expected.len() as u64);
    cu!(cuCtxSynchronize());
    cu!(cuMemPoolDestroy(pool));
    cu!(cuStreamDestroy_v2(a));
    cu!(cuStreamDestroy_v2(b));
}

#[test]
fn one_stream_is_always_in_order() {
    let work = |pool, a, _| {
        let x = alloc(pool, 64, a);
        touch(x, a);
        free(x, a);
    };
    reports(work, &[]);
}

#[test]
fn another_stream_needs_an_edge_from_the_allocation() {
    let work = |pool, a, b| {
        let x = alloc(pool, 64, a);
        touch(x, b);
        order(a, b);
        free(x, a);
    };
    reports(work, &["before allocation"]);
}

#[test]
fn a_free_needs_an_edge_from_every_access() {
    let work = |pool, a, b| {
        let x = alloc(pool, 64, a);
        order(b, a);
        touch(x, b);
        free(x, a);
    };
    reports(work, &["free before access"]);
}

#[test]
fn ordered_both_ways_is_fine() {
    let work = |pool, a, b| {
        let x = alloc(pool, 64, a);
        order(b, a);
        touch(x, b);
        order(a, b);
        free(x, a);
    };
    reports(work, &[]);
}

#[test]
fn a_synchronise_orders_too() {
    let work = |pool, a, b| {
        let x = alloc(pool, 64, a);
        synchronise(a);
        touch(x, b);
        synchronise(b);
        free(x, a);
    };
    reports(work, &[]);
}

#[test]
fn the_other_stream_may_free_if_it_is_ordered() {
    let work = |pool, a, b| {
        let x = alloc(pool, 64, a);
        touch(x, a);
        order(b, a);
        free(x, b);
        let y = alloc(pool, 64, a);
        free(y, b);
    };
    reports(work, &["free before allocation"]);
}

#[test]
fn memory_is_not_touched_after_its_free() {
    let work = |pool, a, b| {
        let x = alloc(pool, 64, a);
        free(x, a);
        refused(x, a);
        refused(x, b);
    };
    reports(work, &["after free", "after free"]);
}

#[test]
fn nor_after_the_host_saw_it_freed_while_the_pool_still_has_it() {
    let work = |pool, a, _| {
        assert_eq!(set_attribute(pool, 4, u64::MAX), OK);
        let x = alloc(pool, 64, a);
        free(x, a);
        synchronise(a);
        refused(x, a);
    };
    reports(work, &["after free"]);
}

#[test]
fn late_work_on_memory_that_was_given_back_is_reported_and_survived() {
    let work = |pool, a, b| {
        let x = alloc(pool, 64, a);
        order(b, a);
        let gate = Gate::hold(b);
        touch(x, b);
        free(x, a);
        synchronise(a);
        assert_eq!(reserved(pool), 0);
        gate.open();
        synchronise(b);
    };
    reports(work, &["free before access"]);
}

#[test]
fn past_the_end_of_a_block_is_reported() {
    let work = |pool, a, _| {
        let x = alloc(pool, 10, a);
        refused(x, a);
        free(x, a);
    };
    reports(work, &["out of bounds"]);
}

#[test]
fn wrong_and_double_frees_are_refused_and_reported() {
    let work = |pool, a: CUstream, _| {
        let x = alloc(pool, 64, a);
        assert_eq!(cu!(cuMemFreeAsync(x + 16, a)), INVALID_VALUE);
        free(x, a);
        assert_eq!(cu!(cuMemFreeAsync(x, a)), INVALID_VALUE);
        assert_eq!(cu!(cuMemFreeAsync(4096, a)), INVALID_VALUE);
    };
    reports(work, &["wrong free", "wrong free", "wrong free"]);
}

#[test]
fn a_free_by_the_host_needs_the_host_to_have_waited() {
    let work = |pool, a, _| {
        let x = alloc(pool, 64, a);
        touch(x, a);
        assert_eq!(cu!(cuMemFree_v2(x)), OK);
    };
    reports(work, &["free before access", "free before access"]);
}

#[test]
fn the_legacy_stream_orders_blocking_streams() {
    let work = |pool, _, _| {
        let null = std::ptr::null_mut();
        let blocking: CUstream = handle!(cuStreamCreate(_, 0));
        let x = alloc(pool, 64, blocking);
        touch(x, null);
        free(x, blocking);
        cu!(cuStreamDestroy_v2(blocking));
    };
    reports(work, &[]);
}

#[test]
fn a_report_names_both_streams_and_the_block() {
    let _turn = turn();
    let (pool, a, b) = (pool(&props()), stream(), stream());
    let x = alloc(pool, 64, a);
    touch(x, b);
    let report = control().reports().remove(0);
    for part in [a.addr() as u64, b.addr() as u64, x] {
        assert!(report.contains(&format!("{part:#x}")), "{report}");
    }
    assert!(report.contains("16 bytes") && report.contains("64 bytes"));
    cu!(cuCtxSynchronize());
    free(x, a);
    cu!(cuMemPoolDestroy(pool));
    cu!(cuStreamDestroy_v2(a));
    cu!(cuStreamDestroy_v2(b));
}

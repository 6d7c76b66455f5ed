//! Blocks that a program makes of mapped memory by itself, and what the order sanitizer says of them.

use std::time::Instant;

use cuda_driver_sys::*;

use crate::harness::*;
use crate::vmm::{STEP, address_free, back, reserve, unmap};

const SIZE: u64 = 4096;

fn take(address: CUdeviceptr, stream: CUstream) {
    assert_eq!(control().annotate_allocate(address, SIZE, stream), OK);
}

fn give(address: CUdeviceptr, stream: CUstream) {
    assert_eq!(control().annotate_free(address, SIZE, stream), OK);
}

fn touch(address: CUdeviceptr, stream: CUstream) {
    assert_eq!(cu!(cuMemsetD8Async(address, 1, 16, stream)), OK);
}

fn order(after: CUstream, before: CUstream) {
    let event = event();
    assert_eq!(cu!(cuEventRecord(event, before)), OK);
    assert_eq!(cu!(cuStreamWaitEvent(after, event, 0)), OK);
    cu!(cuEventDestroy_v2(event));
}

/// Two mappings side by side, two streams; what `work` does, and then the unmapping of both once all is
/// done, is reported with these beginnings.
fn reports(work: impl FnOnce(CUdeviceptr, CUstream, CUstream), expected: &[&str]) {
    let _turn = turn();
    let (range, a, b) = (reserve(2 * STEP), stream(), stream());
    back(range, STEP);
    back(range + STEP, STEP);
    work(range, a, b);
    assert_eq!(cu!(cuCtxSynchronize()), OK);
    // Those that unmap themselves leave nothing to unmap.
    if control().live().mappings == 2 {
        assert_eq!(unmap(range, 2 * STEP), OK);
    }
    assert_eq!(address_free(range, 2 * STEP), OK);
    let reports = control().reports();
    let kinds: Vec<&str> = reports.iter().filter_map(|r| r.split(':').next()).collect();
    assert_eq!(kinds, expected, "{reports:#?}");
    assert_eq!(control().live().annotated, 0);
    cu!(cuStreamDestroy_v2(a));
    cu!(cuStreamDestroy_v2(b));
}

#[test]
fn ordered_programs_are_silent() {
    let work = |x, a, b| {
        for _ in 0..3 {
            // One stream after another, by an event.
            take(x, a);
            touch(x, a);
            give(x, a);
            order(b, a);
            take(x, b);
            touch(x, b);
            // Used by the other stream too.
            order(a, b);
            touch(x, a);
            order(b, a);
            give(x, b);
            // By the host.
            synchronise(b);
        }
        // Across two mappings, and where nothing is annotated.
        take(x + STEP - 8, a);
        touch(x + STEP - 8, a);
        give(x + STEP - 8, a);
        touch(x + 64 * SIZE, b);
    };
    reports(work, &[]);
}

#[test]
fn reuse_on_another_stream_needs_an_edge_from_the_free() {
    let work = |x, a, b| {
        take(x, a);
        give(x, a);
        take(x, b);
        give(x, b);
    };
    reports(work, &["reuse before free"]);
}

#[test]
fn an_event_from_before_the_free_is_no_edge() {
    let work = |x, a, b| {
        take(x, a);
        touch(x, a);
        order(b, a);
        give(x, a);
        take(x, b);
        give(x, b);
    };
    reports(work, &["reuse before free"]);
}

#[test]
fn every_piece_that_was_there_counts_whatever_its_size() {
    let work = |x, a, b| {
        for (piece, stream) in [(x, a), (x + SIZE, b), (x + 2 * SIZE, a)] {
            take(piece, stream);
            give(piece, stream);
        }
        // Half of each of the first two, only one of which is ordered.
        take(x + SIZE / 2, b);
        give(x + SIZE / 2, b);
        // What is left of the first is still known, and the rest too.
        order(a, b);
        take(x, a);
        give(x, a);
        let control = control();
        order(b, a);
        assert_eq!(control.annotate_allocate(x, 3 * SIZE, b), OK);
        assert_eq!(control.annotate_free(x, 3 * SIZE, b), OK);
        assert_eq!(control.annotate_allocate(x, 3 * SIZE, a), OK);
        assert_eq!(control.annotate_free(x, 3 * SIZE, a), OK);
    };
    reports(work, &["reuse before free", "reuse before free"]);
}

#[test]
fn uses_are_ordered_between_allocation_and_free() {
    let work = |x, a, b| {
        take(x, a);
        touch(x, b);
        give(x, a);
        touch(x, a);
        order(b, a);
        touch(x + 16, b);
        take(x, b);
        order(a, b);
        give(x, a);
    };
    let expected = [
        "before allocation",
        "free before access",
        "after free",
        "after free",
    ];
    reports(work, &expected);
}

#[test]
fn a_use_stays_inside_its_block() {
    let work = |x, a, _| {
        take(x, a);
        touch(x + SIZE - 8, a);
        touch(x - 8 + STEP, a);
        take(x + STEP, a);
        touch(x - 8 + STEP, a);
        give(x, a);
        give(x + STEP, a);
    };
    reports(work, &["out of bounds", "out of bounds"]);
}

#[test]
fn overlaps_and_wrong_frees_are_refused_and_reported() {
    let work = |x, a: CUstream, _| {
        let control = control();
        take(x, a);
        let half = x + SIZE / 2;
        assert_eq!(control.annotate_allocate(half, SIZE, a), INVALID_VALUE);
        assert_eq!(control.annotate_free(half, SIZE, a), INVALID_VALUE);
        assert_eq!(control.annotate_free(x, SIZE / 2, a), INVALID_VALUE);
        give(x, a);
        assert_eq!(control.annotate_free(x, SIZE, a), INVALID_VALUE);
        let end = x + 2 * STEP - SIZE / 2;
        assert_eq!(control.annotate_allocate(end, SIZE, a), INVALID_VALUE);
    };
    let wrong = "wrong free";
    reports(work, &["overlap", wrong, wrong, wrong, "not mapped"]);
}

#[test]
fn memory_is_unmapped_only_when_all_of_it_is_free_and_done() {
    let work = |x, a, b| {
        take(x, a);
        let gate = Gate::hold(b);
        touch(x + STEP, b);
        take(x + SIZE, a);
        give(x + SIZE, a);
        assert_eq!(unmap(x, 2 * STEP), OK);
        gate.open();
        synchronise(b);
        // What was known of the memory went with it.
        back(x, STEP);
        back(x + STEP, STEP);
        take(x, b);
        touch(x + SIZE, b);
        give(x, b);
    };
    let expected = [
        "unmap before access",
        "unmap of a live block",
        "unmap before free",
        "after unmap",
    ];
    reports(work, &expected);
}

#[test]
fn an_annotation_costs_little_and_the_past_does_not_grow() {
    let _turn = turn();
    let (range, streams) = (reserve(2 * STEP), [stream(), stream()]);
    back(range, 2 * STEP);
    let control = control();
    let count: u64 = 50_000;
    let start = Instant::now();
    for step in 0..count {
        let at = range + step * 37 % 512 * SIZE;
        let stream = streams[(at / SIZE % 2) as usize];
        assert_eq!(control.annotate_allocate(at, SIZE, stream), OK);
        assert_eq!(control.annotate_free(at, SIZE, stream), OK);
    }
    let each = start.elapsed() / (2 * count as u32);
    // Far more than it takes, for a build without optimisation on a busy machine.
    assert!(each.as_micros() < 50, "{each:?}");
    assert_eq!(control.report_count(), 0);
    println!("{each:?} an annotation");
    assert_eq!(cu!(cuCtxSynchronize()), OK);
    assert_eq!(unmap(range, 2 * STEP), OK);
    assert_eq!(address_free(range, 2 * STEP), OK);
    assert_eq!(control.report_count(), 0);
    for stream in streams {
        cu!(cuStreamDestroy_v2(stream));
    }
}

//! When freed memory serves another stream, as measured.

use cuda_driver_sys::*;

use crate::harness::*;

/// The reuse matrix: maxSize 64 MiB, one 40 MiB block freed on A, which a host function holds.
#[derive(Clone, Copy, PartialEq)]
enum Case {
    Pending,
    AfterEvent,
    Finished,
    Synchronised,
}

fn reuse(flag: u32, case: Case) -> Result<bool, CUresult> {
    let f = Fixture::with(&CUmemPoolProps {
        maxSize: (64 * MIB) as usize,
        ..props()
    });
    assert_eq!(set_attribute(f.pool, 4, u64::MAX), OK);
    for other in 1..=3 {
        assert_eq!(set_attribute(f.pool, other, u64::from(other == flag)), OK);
    }
    let (other, event) = (stream(), event());
    let gate = Gate::hold(f.stream);
    let block = f.alloc(40 * MIB);
    f.free(block);
    assert_eq!(cu!(cuEventRecord(event, f.stream)), OK);
    assert_eq!(cu!(cuStreamQuery(f.stream)), CUresult::CUDA_ERROR_NOT_READY);
    match case {
        Case::Pending => {}
        Case::AfterEvent => assert_eq!(cu!(cuStreamWaitEvent(other, event, 0)), OK),
        Case::Finished | Case::Synchronised => gate.open(),
    }
    if case == Case::Finished {
        // Seen by other means than the driver.
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    if case == Case::Synchronised {
        synchronise(f.stream);
    }
    let result = try_alloc(f.pool, 40 * MIB, other).map(|address| {
        free(address, other);
        address == block
    });
    gate.open();
    synchronise(other);
    assert_eq!(control().reports(), Vec::<String>::new());
    cu!(cuEventDestroy_v2(event));
    cu!(cuStreamDestroy_v2(other));
    result
}

#[test]
fn reuse_between_streams_follows_the_measured_matrix() {
    let same = Ok(true);
    let refused = Err(OUT_OF_MEMORY);
    let matrix = [
        (0, [refused, refused, refused, same]),
        (1, [refused, same, refused, same]),
        (2, [refused, refused, same, same]),
        (3, [same, same, same, same]),
    ];
    let cases = [
        Case::Pending,
        Case::AfterEvent,
        Case::Finished,
        Case::Synchronised,
    ];
    for (flag, row) in matrix {
        for (case, expected) in cases.into_iter().zip(row) {
            let got = reuse(flag, case);
            assert_eq!(got, expected, "flag {flag}, case {}", case as u8);
        }
    }
}

#[test]
fn an_inserted_wait_really_waits() {
    let f = Fixture::with(&CUmemPoolProps {
        maxSize: (64 * MIB) as usize,
        ..props()
    });
    let other = stream();
    let gate = Gate::hold(f.stream);
    let block = f.alloc(40 * MIB);
    f.free(block);
    let again = alloc(f.pool, 40 * MIB, other);
    assert_eq!(again, block);
    assert_eq!(cu!(cuStreamQuery(other)), CUresult::CUDA_ERROR_NOT_READY);
    gate.open();
    synchronise(other);
    free(again, other);
    cu!(cuStreamDestroy_v2(other));
}

#[test]
fn an_event_before_the_free_does_not_help() {
    let f = Fixture::with(&CUmemPoolProps {
        maxSize: (64 * MIB) as usize,
        ..props()
    });
    for flag in 2..=3 {
        assert_eq!(set_attribute(f.pool, flag, 0), OK);
    }
    let (other, event) = (stream(), event());
    let gate = Gate::hold(f.stream);
    let block = f.alloc(40 * MIB);
    assert_eq!(cu!(cuEventRecord(event, f.stream)), OK);
    f.free(block);
    assert_eq!(cu!(cuStreamWaitEvent(other, event, 0)), OK);
    assert_eq!(try_alloc(f.pool, 40 * MIB, other), Err(OUT_OF_MEMORY));
    gate.open();
    cu!(cuEventDestroy_v2(event));
    cu!(cuStreamDestroy_v2(other));
}

/// Only what everybody has seen freed joins with what another freed.
#[test]
fn neighbours_freed_by_different_streams_join_when_both_were_seen() {
    let f = Fixture::with(&CUmemPoolProps {
        maxSize: (64 * MIB) as usize,
        ..props()
    });
    for flag in 1..=3 {
        assert_eq!(set_attribute(f.pool, flag, 0), OK);
    }
    let other = stream();
    let (a, b) = (f.alloc(30 * MIB), alloc(f.pool, 30 * MIB, other));
    f.free(a);
    free(b, other);
    let refused = Err(OUT_OF_MEMORY);
    synchronise(other);
    assert_eq!(try_alloc(f.pool, 60 * MIB, f.stream), refused);
    synchronise(f.stream);
    assert_eq!(f.alloc(60 * MIB), a);
    f.free(a);
    cu!(cuStreamDestroy_v2(other));
}

#[test]
fn a_query_that_succeeds_frees_nothing_for_others() {
    let f = Fixture::with(&CUmemPoolProps {
        maxSize: (64 * MIB) as usize,
        ..props()
    });
    for flag in 1..=3 {
        assert_eq!(set_attribute(f.pool, flag, 0), OK);
    }
    let (other, event) = (stream(), event());
    let block = f.alloc(40 * MIB);
    f.free(block);
    assert_eq!(cu!(cuEventRecord(event, f.stream)), OK);
    assert_eq!(cu!(cuStreamQuery(f.stream)), OK);
    assert_eq!(cu!(cuEventQuery(event)), OK);
    assert_eq!(try_alloc(f.pool, 40 * MIB, other), Err(OUT_OF_MEMORY));
    assert_eq!(cu!(cuEventSynchronize(event)), OK);
    assert_eq!(try_alloc(f.pool, 40 * MIB, other), Ok(block));
    free(block, other);
    cu!(cuEventDestroy_v2(event));
    cu!(cuStreamDestroy_v2(other));
}

/// To destroy a stream that is done is to synchronise with it.
#[test]
fn what_a_destroyed_stream_freed_is_anybodys_once_it_ran() {
    let f = Fixture::with(&CUmemPoolProps {
        maxSize: (64 * MIB) as usize,
        ..props()
    });
    for flag in 1..=3 {
        assert_eq!(set_attribute(f.pool, flag, 0), OK);
    }
    let other = stream();
    let gate = Gate::hold(other);
    let block = alloc(f.pool, 40 * MIB, other);
    free(block, other);
    assert_eq!(cu!(cuStreamDestroy_v2(other)), OK);
    assert_eq!(try_alloc(f.pool, 40 * MIB, f.stream), Err(OUT_OF_MEMORY));
    gate.open();
    let start = std::time::Instant::now();
    while reserved(f.pool) > 0 && start.elapsed().as_secs() < 5 {
        std::thread::yield_now();
    }
    assert_eq!(reserved(f.pool), 0, "and the threshold holds");
    assert_eq!(try_alloc(f.pool, 40 * MIB, f.stream), Ok(block));
    f.free(block);
}

#[test]
fn a_synchronise_shrinks_the_pools_that_its_stream_used() {
    let f = Fixture::new();
    let (second, other) = (pool(&props()), stream());
    let (a, b) = (f.alloc(MIB), alloc(second, MIB, other));
    f.free(a);
    free(b, other);
    synchronise(f.stream);
    assert_eq!((reserved(f.pool), reserved(second)), (0, 32));
    synchronise(other);
    assert_eq!(reserved(second), 0);
    // Seen long ago, and now above the threshold.
    assert_eq!(set_attribute(second, 4, u64::MAX), OK);
    let b = alloc(second, MIB, other);
    free(b, other);
    synchronise(other);
    assert_eq!(set_attribute(second, 4, 0), OK);
    synchronise(f.stream);
    assert_eq!(reserved(second), 32);
    synchronise(other);
    assert_eq!(reserved(second), 0);
    assert_eq!(cu!(cuMemPoolDestroy(second)), OK);
    cu!(cuStreamDestroy_v2(other));
}

/// What a thread freed on its own default stream is seen when the thread ends, as if it had
/// destroyed the stream.
#[test]
fn the_default_stream_of_a_thread_ends_with_it() {
    let f = Fixture::with(&CUmemPoolProps {
        maxSize: 64 << 20,
        ..props()
    });
    assert_eq!(set_attribute(f.pool, 4, u64::MAX), OK);
    for flag in 1..=3 {
        assert_eq!(set_attribute(f.pool, flag, 0), OK);
    }
    let block = f.alloc(40 * MIB);
    synchronise(f.stream);
    let context = f.turn.context.addr();
    let (freed, wait_for_free) = std::sync::mpsc::channel();
    let (end, wait_for_end) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        let context = std::ptr::without_provenance_mut(context);
        assert_eq!(cu!(cuCtxSetCurrent(context)), OK);
        free(block, CU_STREAM_PER_THREAD);
        freed.send(()).expect("the test waits");
        wait_for_end.recv().expect("the test goes on");
    });
    wait_for_free.recv().expect("the thread frees");
    assert_eq!(try_alloc(f.pool, 40 * MIB, f.stream), Err(OUT_OF_MEMORY));
    end.send(()).expect("the thread waits");
    thread.join().expect("no panics");
    assert_eq!(try_alloc(f.pool, 40 * MIB, f.stream), Ok(block));
    f.free(block);
    synchronise(f.stream);
}

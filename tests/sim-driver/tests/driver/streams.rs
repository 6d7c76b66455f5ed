//! Streams and events: work is done later, and in order.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_driver_sys::*;

use crate::harness::*;

const NOT_READY: CUresult = CUresult::CUDA_ERROR_NOT_READY;

/// Notes its number when the stream gets there.
fn note(stream: CUstream, number: usize) {
    unsafe extern "C" fn run(argument: *mut c_void) {
        NOTES.lock().expect("no panics").push(argument.addr());
    }
    let argument = std::ptr::without_provenance_mut(number);
    assert_eq!(cu!(cuLaunchHostFunc(stream, Some(run), argument)), OK);
}

static NOTES: Mutex<Vec<usize>> = Mutex::new(Vec::new());

fn notes() -> Vec<usize> {
    std::mem::take(&mut NOTES.lock().expect("no panics"))
}

#[test]
fn a_host_function_holds_its_stream_and_no_other() {
    let _turn = turn();
    let (a, b) = (stream(), stream());
    let x: CUdeviceptr = get!(cuMemAlloc_v2(_, 64));
    let gate = Gate::hold(a);
    note(a, 1);
    assert_eq!(cu!(cuMemsetD8Async(x, 1, 64, b)), OK);
    synchronise(b);
    assert_eq!(cu!(cuStreamQuery(a)), NOT_READY);
    assert_eq!(notes(), []);
    gate.open();
    synchronise(a);
    assert_eq!(cu!(cuStreamQuery(a)), OK);
    assert_eq!(notes(), [1]);
    assert_eq!(cu!(cuMemFree_v2(x)), OK);
    cu!(cuStreamDestroy_v2(a));
    cu!(cuStreamDestroy_v2(b));
}

/// Measured: streams of one context share the thread that calls host functions.
#[test]
fn host_functions_of_one_context_run_one_at_a_time() {
    let turn = turn();
    let (a, b) = (stream(), stream());
    let made = handle!(cuCtxCreate_v2(_, 0, 0));
    let there = stream();
    let gate = Gate::hold(a);
    // Who comes first holds the thread.
    gate.wait();
    note(b, 1);
    note(there, 2);
    synchronise(there);
    assert_eq!(cu!(cuStreamQuery(b)), NOT_READY);
    assert_eq!(notes(), [2]);
    gate.open();
    synchronise(b);
    assert_eq!(notes(), [1]);
    assert_eq!(cu!(cuCtxDestroy_v2(made)), OK);
    assert_eq!(handle!(cuCtxGetCurrent(_)), turn.context);
    cu!(cuStreamDestroy_v2(a));
    cu!(cuStreamDestroy_v2(b));
}

#[test]
fn an_event_orders_two_streams() {
    let _turn = turn();
    let (a, b, event) = (stream(), stream(), event());
    assert_eq!(cu!(cuEventQuery(event)), OK, "never recorded");
    assert_eq!(cu!(cuStreamWaitEvent(b, event, 0)), OK);
    let gate = Gate::hold(a);
    note(a, 1);
    assert_eq!(cu!(cuEventRecord(event, a)), OK);
    note(a, 3);
    assert_eq!(cu!(cuStreamWaitEvent(b, event, 0)), OK);
    note(b, 2);
    assert_eq!(cu!(cuEventQuery(event)), NOT_READY);
    assert_eq!(cu!(cuStreamQuery(b)), NOT_READY);
    gate.open();
    assert_eq!(cu!(cuEventSynchronize(event)), OK);
    assert_eq!(cu!(cuEventQuery(event)), OK);
    synchronise(b);
    synchronise(a);
    let order = notes();
    let at = |number| order.iter().position(|n| *n == number);
    assert!(at(1) < at(2) && at(1) < at(3), "{order:?}");
    cu!(cuEventDestroy_v2(event));
    cu!(cuStreamDestroy_v2(a));
    cu!(cuStreamDestroy_v2(b));
}

#[test]
fn a_wait_is_for_the_record_that_was_there() {
    let _turn = turn();
    let (a, b, event) = (stream(), stream(), event());
    assert_eq!(cu!(cuEventRecord(event, a)), OK);
    assert_eq!(cu!(cuStreamWaitEvent(b, event, 0)), OK);
    let gate = Gate::hold(a);
    assert_eq!(cu!(cuEventRecord(event, a)), OK);
    synchronise(b);
    assert_eq!(cu!(cuEventQuery(event)), NOT_READY);
    gate.open();
    synchronise(a);
    cu!(cuEventDestroy_v2(event));
    cu!(cuStreamDestroy_v2(a));
    cu!(cuStreamDestroy_v2(b));
}

/// Measured: an interprocess event may be destroyed before its record is reached (`ipc_events.ends destroyed while
/// pending` in `probe-h200.txt`).
#[test]
fn a_record_of_a_destroyed_event_is_of_no_later_one() {
    let _turn = turn();
    let (a, b) = (stream(), stream());
    let gate = Gate::hold(a);
    gate.wait();
    // Has its turn after that of `a`.
    let next = Gate::hold(b);
    let first: CUevent = handle!(cuEventCreate(_, 6));
    assert_eq!(cu!(cuEventRecord(first, a)), OK);
    assert_eq!(cu!(cuEventDestroy_v2(first)), OK);
    let second: CUevent = handle!(cuEventCreate(_, 6));
    assert_eq!(cu!(cuEventQuery(second)), OK, "never recorded");
    assert_eq!(cu!(cuEventRecord(second, b)), OK);
    gate.open();
    synchronise(a);
    assert_eq!(cu!(cuEventQuery(second)), NOT_READY);
    next.open();
    synchronise(b);
    assert_eq!(cu!(cuEventQuery(second)), OK);
    cu!(cuEventDestroy_v2(second));
    cu!(cuStreamDestroy_v2(a));
    cu!(cuStreamDestroy_v2(b));
}

/// As above, for a wait.
#[test]
fn a_wait_for_a_destroyed_event_ends() {
    let _turn = turn();
    let (a, b) = (stream(), stream());
    let gate = Gate::hold(a);
    gate.wait();
    let next = Gate::hold(b);
    let first: CUevent = handle!(cuEventCreate(_, 6));
    assert_eq!(cu!(cuEventRecord(first, a)), OK);
    assert_eq!(cu!(cuStreamWaitEvent(b, first, 0)), OK);
    assert_eq!(cu!(cuEventDestroy_v2(first)), OK);
    gate.open();
    synchronise(a);
    // The place of the first one, whose record is reached and not yet waited for.
    let second: CUevent = handle!(cuEventCreate(_, 6));
    assert_eq!(cu!(cuEventQuery(second)), OK, "never recorded");
    next.open();
    synchronise(b);
    assert_eq!(cu!(cuEventRecord(second, b)), OK);
    synchronise(b);
    assert_eq!(cu!(cuEventQuery(second)), OK);
    cu!(cuEventDestroy_v2(second));
    cu!(cuStreamDestroy_v2(a));
    cu!(cuStreamDestroy_v2(b));
}

#[test]
fn a_destroyed_stream_finishes_its_work() {
    let _turn = turn();
    let a = stream();
    let gate = Gate::hold(a);
    note(a, 1);
    assert_eq!(cu!(cuStreamDestroy_v2(a)), OK, "at once");
    assert_eq!(cu!(cuStreamQuery(a)), CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(control().live().streams, 0);
    gate.open();
    assert_eq!(cu!(cuCtxSynchronize()), OK);
    assert_eq!(notes(), [1]);
}

#[test]
fn the_legacy_stream_takes_turns_with_blocking_streams() {
    let _turn = turn();
    let blocking: CUstream = handle!(cuStreamCreate(_, 0));
    let free_running = stream();
    let null = std::ptr::null_mut();
    let gate = Gate::hold(blocking);
    note(blocking, 1);
    note(null, 2);
    note(CU_STREAM_PER_THREAD, 3);
    let x: CUdeviceptr = get!(cuMemAllocAsync(_, 64, free_running));
    assert_eq!(cu!(cuMemsetD8Async(x, 1, 64, free_running)), OK);
    free(x, free_running);
    synchronise(free_running);
    assert_eq!(notes(), []);
    assert_eq!(cu!(cuStreamQuery(null)), NOT_READY);
    gate.open();
    synchronise(CU_STREAM_PER_THREAD);
    assert_eq!(notes(), [1, 2, 3]);
    cu!(cuStreamDestroy_v2(blocking));
    cu!(cuStreamDestroy_v2(free_running));
}

#[test]
fn the_twin_takes_null_for_the_threads_own_stream() {
    let _turn = turn();
    let null = std::ptr::null_mut();
    let ask = |handle| {
        let mut id = 0;
        assert_eq!(cu!(cuStreamGetId(handle, &raw mut id)), OK);
        id
    };
    let ask_twin = |handle| {
        let mut id = 0;
        assert_eq!(cu!(cuStreamGetId_ptsz(handle, &raw mut id)), OK);
        id
    };
    assert_eq!(ask(null), ask(CU_STREAM_LEGACY));
    assert_eq!(ask_twin(null), ask(CU_STREAM_PER_THREAD));
    assert_eq!(ask_twin(CU_STREAM_LEGACY), ask(null));
    assert_ne!(ask(null), ask_twin(null));
}

#[test]
fn streams_and_events_tell_what_they_are() {
    let turn = turn();
    let mut made = std::ptr::null_mut();
    assert_eq!(cu!(cuStreamCreate(&raw mut made, 2)), INVALID_VALUE);
    let a = handle!(cuStreamCreateWithPriority(_, 1, -99));
    let mut priority = 7;
    assert_eq!(cu!(cuStreamGetPriority(a, &raw mut priority)), OK);
    assert_eq!(priority, -5, "clamped");
    let mut flags = 7;
    assert_eq!(cu!(cuStreamGetFlags(a, &raw mut flags)), OK);
    assert_eq!(flags, 1);
    let mut context = std::ptr::null_mut();
    assert_eq!(cu!(cuStreamGetCtx(a, &raw mut context)), OK);
    assert_eq!(context, turn.context);
    let mut event = std::ptr::null_mut();
    assert_eq!(cu!(cuEventCreate(&raw mut event, 4)), INVALID_VALUE);
    cu!(cuStreamDestroy_v2(a));
}

#[test]
fn timed_events_tell_how_long_it_took() {
    let _turn = turn();
    let a = stream();
    let (start, end): (CUevent, CUevent) =
        (handle!(cuEventCreate(_, 0)), handle!(cuEventCreate(_, 0)));
    let mut time = -1.0;
    let mut ask = |start, end| cu!(cuEventElapsedTime(&raw mut time, start, end));
    assert_eq!(ask(start, end), CUresult::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(cu!(cuEventRecord(start, a)), OK);
    let gate = Gate::hold(a);
    assert_eq!(cu!(cuEventRecord(end, a)), OK);
    assert_eq!(ask(start, end), NOT_READY);
    std::thread::sleep(std::time::Duration::from_millis(30));
    gate.open();
    synchronise(a);
    assert_eq!(ask(start, end), OK);
    assert!((25.0..5000.0).contains(&time), "{time} ms");
    cu!(cuEventDestroy_v2(start));
    cu!(cuEventDestroy_v2(end));
    cu!(cuStreamDestroy_v2(a));
}

#[test]
fn many_threads_share_a_pool() {
    let turn = turn();
    let shared = pool(&props());
    let (shared_address, context) = (shared.expose_provenance(), turn.context.expose_provenance());
    let done = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for number in 0..4_u8 {
            let done = &done;
            scope.spawn(move || {
                let pool = std::ptr::with_exposed_provenance_mut(shared_address);
                let context = std::ptr::with_exposed_provenance_mut(context);
                assert_eq!(cu!(cuCtxSetCurrent(context)), OK);
                let stream = stream();
                for round in 0..200_u64 {
                    let size = 1 + (round * 977) % 5000;
                    let x = alloc(pool, size, stream);
                    let value = number.wrapping_mul(51).wrapping_add(round as u8);
                    assert_eq!(cu!(cuMemsetD8Async(x, value, size as usize, stream)), OK);
                    let mut back = vec![0_u8; size as usize];
                    let place = back.as_mut_ptr().cast();
                    assert_eq!(cu!(cuMemcpyDtoHAsync_v2(place, x, back.len(), stream)), OK);
                    assert!(back.iter().all(|byte| *byte == value));
                    free(x, stream);
                    if round % 16 == 0 {
                        synchronise(stream);
                    }
                }
                assert_eq!(cu!(cuStreamDestroy_v2(stream)), OK);
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(done.into_inner(), 4);
    assert_eq!(control().reports(), Vec::<String>::new());
    assert_eq!(cu!(cuMemPoolDestroy(shared)), OK);
    let live = control().live();
    let only_ours = cuda_sim::Live {
        primary_retains: 1,
        ..Default::default()
    };
    assert_eq!(live, only_ours);
}

/// Whether it spoils the capture of the stream that it is about.
type Question = (bool, fn(CUstream) -> CUresult);

/// Measured (R194): three of the questions spoil the capture of the stream in every mode; no question is one too many about
/// another stream.
#[test]
fn questions_about_a_captured_stream() {
    let _turn = turn();
    let (captured, other) = (stream(), stream());
    let questions: [Question; 5] = [
        (true, |it| cu!(cuStreamGetDevice(it, &mut 0))),
        (true, |it| cu!(cuStreamGetId(it, &mut 0))),
        (true, |it| cu!(cuStreamGetFlags(it, &mut 0))),
        (false, |it| cu!(cuStreamGetPriority(it, &mut 0))),
        (false, |it| {
            cu!(cuStreamGetCtx(it, &mut std::ptr::null_mut()))
        }),
    ];
    for (number, (spoils, ask)) in questions.into_iter().enumerate() {
        for mode in [0, 1, 2].map(CUstreamCaptureMode) {
            for asked in [captured, other] {
                assert_eq!(cu!(cuStreamBeginCapture_v2(captured, mode)), OK);
                let answer = ask(asked);
                let mut graph = std::ptr::null_mut();
                let end = cu!(cuStreamEndCapture(captured, &raw mut graph));
                let expected = match spoils && asked == captured {
                    true => (
                        CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                        CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
                    ),
                    false => (OK, OK),
                };
                assert_eq!((answer, end), expected, "question {number}, {mode:?}");
                if end == OK {
                    cu!(cuGraphDestroy(graph));
                }
            }
        }
    }
    cu!(cuStreamDestroy_v2(captured));
    cu!(cuStreamDestroy_v2(other));
}

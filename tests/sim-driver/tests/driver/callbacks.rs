//! Functions of the program that the driver calls: callbacks, and destructors of objects that graphs keep.

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use cuda_driver_sys::*;

use crate::harness::*;

/// Notes the status and the stream of each callback.
static CALLS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

unsafe extern "C" fn note(stream: CUstream, status: CUresult, argument: *mut c_void) {
    assert_eq!(status, OK);
    let mut calls = CALLS.lock().expect("no panics");
    calls.push((stream.addr(), argument.addr()));
}

unsafe extern "C" fn count(argument: *mut c_void) {
    // SAFETY: the tests give a counter that lives for ever.
    let counter = unsafe { &*argument.cast::<AtomicU32>() };
    counter.fetch_add(1, Ordering::SeqCst);
}

/// An object with this many references, and how often it was destroyed.
fn object(references: u32) -> (CUuserObject, &'static AtomicU32) {
    let counter: &'static AtomicU32 = Box::leak(Box::default());
    let argument = std::ptr::from_ref(counter).cast_mut().cast();
    let object = handle!(cuUserObjectCreate(_, argument, Some(count), references, 1));
    (object, counter)
}

#[test]
fn callbacks_are_called_in_stream_order() {
    let _turn = turn();
    let stream = stream();
    let gate = Gate::hold(stream);
    for number in 1..=3 {
        let argument = std::ptr::without_provenance_mut(number);
        assert_eq!(
            cu!(cuStreamAddCallback(stream, Some(note), argument, 0)),
            OK
        );
    }
    assert_eq!(*CALLS.lock().expect("no panics"), []);
    gate.open();
    synchronise(stream);
    let calls = std::mem::take(&mut *CALLS.lock().expect("no panics"));
    assert_eq!(calls, [1, 2, 3].map(|number| (stream.addr(), number)));
    cu!(cuStreamDestroy_v2(stream));
}

#[test]
fn a_host_function_must_not_call_the_driver() {
    static CODE: AtomicU32 = AtomicU32::new(0);
    unsafe extern "C" fn call(_: *mut c_void) {
        let mut address = 0;
        let code = cu!(cuMemAlloc_v2(&raw mut address, 64));
        CODE.store(code.0, Ordering::SeqCst);
    }
    let _turn = turn();
    let (stream, nothing) = (stream(), std::ptr::null_mut());
    assert_eq!(cu!(cuLaunchHostFunc(stream, Some(call), nothing)), OK);
    synchronise(stream);
    let code = CUresult(CODE.load(Ordering::SeqCst));
    assert_eq!(code, CUresult::CUDA_ERROR_NOT_PERMITTED);
    assert_eq!(control().live().allocations, 0);
    cu!(cuStreamDestroy_v2(stream));
}

#[test]
fn an_object_is_destroyed_once_when_nobody_holds_it_any_more() {
    let _turn = turn();
    let (object, runs) = object(1);
    let graph = handle!(cuGraphCreate(_, 0));
    assert_eq!(cu!(cuGraphRetainUserObject(graph, object, 1, 0)), OK);
    let clone = handle!(cuGraphClone(_, graph));
    assert_eq!(cu!(cuUserObjectRelease(object, 1)), OK);
    assert_eq!(cu!(cuGraphDestroy(graph)), OK);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    assert_eq!(cu!(cuGraphDestroy(clone)), OK);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    assert_eq!(cu!(cuUserObjectRelease(object, 1)), INVALID_VALUE);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[test]
fn an_object_of_a_running_launch_lives_until_it_is_done() {
    let _turn = turn();
    let (stream, (object, runs)) = (stream(), object(1));
    let graph = handle!(cuGraphCreate(_, 0));
    assert_eq!(cu!(cuGraphRetainUserObject(graph, object, 1, 1)), OK);
    let exec = handle!(cuGraphInstantiateWithFlags(_, graph, 0));
    let gate = Gate::hold(stream);
    assert_eq!(cu!(cuGraphLaunch(exec, stream)), OK);
    assert_eq!(cu!(cuGraphExecDestroy(exec)), OK);
    assert_eq!(cu!(cuGraphDestroy(graph)), OK);
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    gate.open();
    synchronise(stream);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    cu!(cuStreamDestroy_v2(stream));
}

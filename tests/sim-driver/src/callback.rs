//! Functions of the program that the driver calls.

use std::cell::Cell;
use std::ffi::{c_uint, c_void};
use std::sync::{Arc, Mutex};

use cuda_driver_sys::{CUhostFn, CUresult, CUstream, CUstreamCallback};

use crate::export::{Answer, INVALID_VALUE, exports};
use crate::queue::{HostCall, Task};
use crate::state::state;

thread_local! {
    /// How many functions of the program the driver is calling in this thread.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// While it lives, this thread is in a function of the program, which must not call the driver.
#[derive(Debug)]
pub(crate) struct Inside(());

impl Inside {
    pub(crate) fn begin() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self(())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Refuses calls from callbacks, host functions and destructors. Measured with three functions that need `cuInit`, and
/// with `cuDriverGetVersion`, which works there.
pub(crate) fn check_permitted() -> Answer {
    if DEPTH.get() > 0 {
        Err(CUresult::CUDA_ERROR_NOT_PERMITTED)
    } else {
        Ok(())
    }
}

/// The function that `cuStreamAddCallback` is given.
type Function = unsafe extern "C" fn(CUstream, CUresult, *mut c_void);

struct Callback {
    function: Function,
    stream: CUstream,
    argument: *mut c_void,
}

/// A host function that calls a callback once. Measured: it gets the stream as the program named it, and SUCCESS.
///
/// A guess: it takes its turn with the host functions of the context.
fn host_call(
    function: Function,
    stream: CUstream,
    argument: *mut c_void,
    turn: Arc<Mutex<()>>,
) -> HostCall {
    let callback = Callback {
        function,
        stream,
        argument,
    };
    HostCall {
        function: call,
        argument: Box::into_raw(Box::new(callback)).cast(),
        turn,
    }
}

unsafe extern "C" fn call(argument: *mut c_void) {
    // SAFETY: `host_call` made this box for this one call.
    let it = unsafe { Box::from_raw(argument.cast::<Callback>()) };
    // SAFETY: the program gave this function with this argument to cuStreamAddCallback.
    unsafe { (it.function)(it.stream, CUresult::CUDA_SUCCESS, it.argument) };
}

exports! {
    plain fn cuStreamAddCallback(
        call, handle: CUstream, function: CUstreamCallback, argument: *mut c_void, flags: c_uint
    ) twin cuStreamAddCallback_ptsz {
        let function = function.ok_or(INVALID_VALUE)?;
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        let mut state = state()?;
        let id = state.resolve(handle, call)?;
        state.refuse_on_own_capture(id)?;
        state.begin(id)?;
        let context = state.stream(id)?.context;
        let turn = Arc::clone(&state.context(context)?.host_turn);
        let call = host_call(function, handle, argument, turn);
        state.stream(id)?.queue.push(Task::Host(call))
    }

    plain fn cuLaunchHostFunc(
        call, handle: CUstream, function: CUhostFn, argument: *mut c_void
    ) twin cuLaunchHostFunc_ptsz {
        let function = function.ok_or(INVALID_VALUE)?;
        let mut state = state()?;
        let id = state.resolve(handle, call)?;
        let context = state.stream(id)?.context;
        let turn = Arc::clone(&state.context(context)?.host_turn);
        let call = HostCall { function, argument, turn };
        if state.is_recording(id)? {
            return state.record_host(id, call);
        }
        state.begin(id)?;
        state.stream(id)?.queue.push(Task::Host(call))
    }
}

//! Holding a stream: a host function in it that does not return until it is let go.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use cuda_driver_sys::CUstream;

use crate::environment::{Environment, cu};

/// A stream is never held longer than this, whatever happens to the question.
const LONGEST: Duration = Duration::from_secs(6);

/// How long the driver is given to show that it waits.
const PATIENCE: Duration = Duration::from_millis(300);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Inner {
    fn set(&self, change: impl FnOnce(&mut (bool, bool))) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state);
        self.changed.notify_all();
    }

    fn wait(&self, limit: Duration, until: impl Fn(&(bool, bool)) -> bool) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (_state, timeout) = self
            .changed
            .wait_timeout_while(state, limit, |state| !until(state))
            .unwrap_or_else(PoisonError::into_inner);
        !timeout.timed_out()
    }
}

/// What is submitted to the stream from now on runs only after this is opened or dropped.
#[derive(Debug)]
pub(crate) struct Gate(Arc<Inner>);

impl Gate {
    /// Holds `stream`, which has reached this point when the call returns.
    pub(crate) fn hold(env: &Environment, stream: CUstream) -> Result<Self> {
        unsafe extern "C" fn run(argument: *mut c_void) {
            // SAFETY: `hold` made this pointer, for this one call.
            let inner = unsafe { Arc::from_raw(argument.cast::<Inner>()) };
            inner.set(|state| state.0 = true);
            inner.wait(LONGEST, |state| state.1);
        }
        let inner = Arc::new(Inner::default());
        let argument = Arc::into_raw(Arc::clone(&inner)).cast_mut().cast();
        let code = cu!(env, cuLaunchHostFunc(stream, Some(run), argument));
        env.fine("cuLaunchHostFunc", code)?;
        ensure!(
            inner.wait(LONGEST, |state| state.0),
            "the stream never got there"
        );
        Ok(Self(inner))
    }

    pub(crate) fn open(&self) {
        self.0.set(|state| state.1 = true);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.open();
    }
}

/// Does something while `stream` is held, and says whether it returned before the stream was let go.
pub(crate) fn while_held<T>(
    env: &Environment,
    stream: CUstream,
    work: impl FnOnce() -> T,
) -> Result<(T, &'static str)> {
    let gate = Gate::hold(env, stream)?;
    let opened = AtomicBool::new(false);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(PATIENCE);
            opened.store(true, Ordering::SeqCst);
            gate.open();
        });
        let result = work();
        let waited = if opened.load(Ordering::SeqCst) {
            "waited"
        } else {
            "did not wait"
        };
        (result, waited)
    });
    Ok(outcome)
}

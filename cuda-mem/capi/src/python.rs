//! Calls from capsules and tensors into the Python package, which may come while an exception of Python is raised.
//!
//! ctypes loses that exception, and does not do what was asked. So it is put aside here, with Python's own functions,
//! which the package hands over: the library is not linked with Python.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// PyGILState_Ensure of Python.
pub type PythonLock = Option<unsafe extern "C-unwind" fn() -> c_int>;
/// PyGILState_Release of Python.
pub type PythonUnlock = Option<unsafe extern "C-unwind" fn(state: c_int)>;
/// PyErr_Fetch of Python.
pub type PythonFetch = Option<
    unsafe extern "C-unwind" fn(
        kind: *mut *mut c_void,
        value: *mut *mut c_void,
        trace: *mut *mut c_void,
    ),
>;
/// PyErr_Restore of Python.
pub type PythonRestore =
    Option<unsafe extern "C-unwind" fn(kind: *mut c_void, value: *mut c_void, trace: *mut c_void)>;
/// A function of the Python package.
pub type PythonCallback = Option<unsafe extern "C-unwind" fn(argument: *mut c_void)>;

/// At Python's end one that needs its lock may end the thread, which passes through these calls.
#[derive(Clone, Copy, Debug)]
struct Python {
    lock: PythonLock,
    unlock: PythonUnlock,
    fetch: PythonFetch,
    restore: PythonRestore,
}

static PYTHON: OnceLock<Python> = OnceLock::new();

/// Each is a [`PythonCallback`]. No lock, which a fork could leave taken.
static DELETER: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());
static DESTRUCTOR: AtomicPtr<()> = AtomicPtr::new(std::ptr::null_mut());

fn set(place: &AtomicPtr<()>, callback: PythonCallback) {
    let callback = callback.map_or(std::ptr::null_mut(), |callback| callback as *mut ());
    place.store(callback, Ordering::Release);
}

/// # Safety
///
/// The callback, if there is one, may be called with the argument.
unsafe fn call(place: &AtomicPtr<()>, argument: *mut c_void) {
    let callback = place.load(Ordering::Acquire);
    // SAFETY: made from such a function in `set`, or null, which is `None`.
    let callback = unsafe { std::mem::transmute::<*mut (), PythonCallback>(callback) };
    let (Some(callback), Some(python)) = (callback, PYTHON.get()) else {
        return;
    };
    let (Some(lock), Some(unlock), Some(fetch), Some(restore)) =
        (python.lock, python.unlock, python.fetch, python.restore)
    else {
        return;
    };
    let [mut kind, mut value, mut trace] = [std::ptr::null_mut(); 3];
    // SAFETY: Python has not ended, or there would be no callback. Any thread may ask for its lock.
    let state = unsafe { lock() };
    // SAFETY: with the lock, and three places to write to.
    unsafe { fetch(&raw mut kind, &raw mut value, &raw mut trace) };
    // SAFETY: promised by the caller, in the words of the section above.
    unsafe { callback(argument) };
    // SAFETY: what was fetched, null if no exception was raised.
    unsafe { restore(kind, value, trace) };
    // SAFETY: the answer of the call that took the lock, on this thread.
    unsafe { unlock(state) };
}

/// For the Python package: from now on `cudamem_python_delete` and `cudamem_python_destroy` call `deleter` and
/// `destructor`, with the lock of Python and without the exception that is raised there; null for no more calls, as before
/// Python ends.
///
/// # Safety
///
/// The first four are null, or the functions of the Python in this process, the same in each call; the others are null, or
/// may be called until they are replaced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudamem_python_capsules_with(
    lock: PythonLock,
    unlock: PythonUnlock,
    fetch: PythonFetch,
    restore: PythonRestore,
    deleter: PythonCallback,
    destructor: PythonCallback,
) {
    let _ = PYTHON.set(Python {
        lock,
        unlock,
        fetch,
        restore,
    });
    set(&DELETER, deleter);
    set(&DESTRUCTOR, destructor);
}

/// For the Python package: the deleter of its DLPack tensors.
///
/// # Safety
///
/// `tensor` is such a tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cudamem_python_delete(tensor: *mut c_void) {
    // SAFETY: promised by the caller, in the words of the section above.
    unsafe { call(&DELETER, tensor) };
}

/// For the Python package: the destructor of its capsules.
///
/// # Safety
///
/// `capsule` is such a capsule.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn cudamem_python_destroy(capsule: *mut c_void) {
    // SAFETY: promised by the caller, in the words of the section above.
    unsafe { call(&DESTRUCTOR, capsule) };
}

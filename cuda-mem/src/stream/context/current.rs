//! Which context is current on a thread.
//!
//! The handle of a primary context is the same each time it is retained (measured, R84). A thread on which it stayed
//! current after its last release, for example because of a leaked guard, still reports that handle after the context
//! is created anew. Equal handles therefore do not prove that the live context is current: it must also have been made
//! current since the last retain.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use cuda_driver_sys::CUcontext;

use super::Context;
use crate::base::error::Result;
use crate::base::report;
use crate::driver::Driver;
use crate::driver::device::Device;
use crate::driver::raw;

/// Counts retains and contexts that were handed in. A context that was made current under an earlier number may have
/// ended since, and its handle may name another one.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// Counts releases of primary contexts.
static RELEASES: AtomicU64 = AtomicU64::new(0);

/// The handle of each primary context that was ever retained here.
static PRIMARIES: Mutex<Vec<(Device, Handle)>> = Mutex::new(Vec::new());

struct Handle(CUcontext);

// SAFETY: it is only compared.
unsafe impl Send for Handle {}

/// A context as this crate made it current.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Made {
    table: *const raw::Table,
    context: CUcontext,
    generation: u64,
}

thread_local! {
    /// The context that this crate last made current on this thread.
    static LAST: Cell<Option<Made>> = const { Cell::new(None) };
    /// The guards of this thread that have pushed a context, ever; they are numbered from 1.
    static PUSHED: Cell<u64> = const { Cell::new(0) };
    /// The number of the guard whose context is on top of the stack; 0 if that is not known.
    static TOP: Cell<u64> = const { Cell::new(0) };
}

/// The place of a guard whose context was pushed.
#[derive(Clone, Copy)]
struct Pushed {
    number: u64,
    /// The number of the guard that was on top before.
    below: u64,
}

impl Pushed {
    fn new() -> Self {
        let number = PUSHED.get() + 1;
        PUSHED.set(number);
        Self {
            number,
            below: TOP.replace(number),
        }
    }

    /// After a pop. Returns whether this guard's context was on top, as far as this crate knows.
    fn end(self, is_own: bool) -> bool {
        let in_order = is_own && TOP.get() == self.number;
        TOP.set(if in_order { self.below } else { 0 });
        in_order
    }
}

/// Must be called after each retain, before any other code has the context.
pub(super) fn note_retained(device: Device, context: CUcontext) {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    let mut primaries = PRIMARIES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut known = primaries.iter();
    if !known.any(|(other, handle)| *other == device && handle.0 == context) {
        primaries.push((device, Handle(context)));
    }
}

/// Must be called when a context is handed in, before any other code has it.
pub(super) fn note_handed_in() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Must be called before each release.
pub(super) fn note_released() {
    RELEASES.fetch_add(1, Ordering::Relaxed);
}

/// Whether this is a primary context that has ended. Asks the driver.
#[cold]
fn has_ended(driver: Driver, context: CUcontext) -> bool {
    let primaries = PRIMARIES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut known = primaries.iter();
    let found = known.find(|(device, handle)| device.driver() == driver && handle.0 == context);
    let device = found.map(|(device, _)| *device);
    drop(primaries);
    device.is_some_and(|device| device.has_active_context().is_ok_and(|active| !active))
}

/// What makes `context` current now.
fn made(table: &raw::Table, context: CUcontext) -> Made {
    Made {
        table,
        context,
        generation: GENERATION.load(Ordering::Relaxed),
    }
}

/// # Safety
/// As [`raw::context::set_current`].
unsafe fn set_current(table: &raw::Table, made: Made) -> Result<()> {
    // SAFETY: the caller's.
    unsafe { raw::context::set_current(table, made.context) }?;
    if made.context.is_null() {
        // That takes the top off the stack.
        TOP.set(0);
    }
    LAST.set(Some(made));
    Ok(())
}

impl Context {
    /// Makes this context current on this thread until the guard is dropped, which restores the previous one. Costs
    /// tens of nanoseconds.
    ///
    /// This crate needs no current context from its callers; other libraries may.
    ///
    /// # Errors
    ///
    /// Any driver error.
    ///
    /// ```
    /// # cuda_sim::use_if_no_driver();
    /// let context = cuda_mem::Driver::load()?.device(0)?.primary_context()?;
    /// {
    ///     let _current = context.bind()?;
    ///     // calls of other libraries that want a current context
    /// }
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuCtxPushCurrent", "cuCtxPopCurrent", "cuCtxSetCurrent"))]
    pub fn bind(&self) -> Result<Current<'_>> {
        let table = self.driver().table();
        // Before the context that is current now is asked for.
        let releases = RELEASES.load(Ordering::Relaxed);
        // SAFETY: the driver is initialised.
        let before = unsafe { raw::context::current(table) }?;
        let (wanted, last) = (made(table, self.as_raw()), LAST.get());
        let mut pushed = None;
        if !before.is_null() && before != wanted.context {
            // What was current stays on the thread's stack, where its owner may destroy it.
            // SAFETY: the context is retained, or promised to `context_from_raw`, for as long as the guard borrows
            // `self`.
            unsafe { raw::context::push(table, wanted.context) }?;
            LAST.set(Some(wanted));
            pushed = Some(Pushed::new());
        } else if before.is_null() || last != Some(wanted) {
            // SAFETY: as above.
            unsafe { set_current(table, wanted) }?;
        }
        Ok(Current {
            context: self,
            before,
            pushed,
            last,
            releases,
            not_send: PhantomData,
        })
    }
}

/// A context is current on this thread. From [`Context::bind`].
///
/// Drop guards in the reverse order of their creation, as scopes do by themselves. A leaked guard leaves its context
/// current, even after its last handle is gone. That does no harm to this crate.
///
/// A primary context that has ended since the guard was made is not restored: no context is current then. A context
/// that another library has destroyed meanwhile is restored; calls that use it return the kind
/// [`ContextDestroyed`](crate::ErrorKind::ContextDestroyed).
///
/// The current context is a state of the thread, so the guard cannot leave its thread:
///
/// ```compile_fail,E0277
/// # let context = cuda_mem::Driver::load().unwrap().device(0).unwrap().primary_context().unwrap();
/// let current = context.bind().unwrap();
/// std::thread::scope(|scope| {
///     scope.spawn(move || drop(current)); // error: cannot be sent between threads
/// });
/// ```
#[must_use = "the context is current only while the guard lives"]
pub struct Current<'a> {
    context: &'a Context,
    before: CUcontext,
    /// `Some` if `before` is under this guard's context on the thread's stack.
    pushed: Option<Pushed>,
    /// The context that this crate had last made current when the guard was made.
    last: Option<Made>,
    /// Releases before this guard was made.
    releases: u64,
    not_send: PhantomData<*mut ()>,
}

impl Current<'_> {
    fn put_back(&self) -> Result<()> {
        let driver = self.context.driver();
        let table = driver.table();
        // SAFETY: the driver is initialised.
        let now = unsafe { raw::context::current(table) }?;
        if now == self.before {
            return Ok(());
        }
        let Some(pushed) = self.pushed else {
            // SAFETY: null, or the context that the guard borrows.
            return unsafe { set_current(table, made(table, self.before)) };
        };
        // SAFETY: the driver is initialised.
        unsafe { raw::context::pop(table) }?;
        // Of guards that are dropped out of order, each removes the top context, whichever it is. Another library may
        // have pushed one, too.
        let in_order = pushed.end(now == self.context.as_raw());
        LAST.set(self.last.filter(|_| in_order));
        if RELEASES.load(Ordering::Relaxed) != self.releases && has_ended(driver, self.before) {
            // SAFETY: null is always allowed.
            unsafe { set_current(table, made(table, std::ptr::null_mut())) }?;
        }
        Ok(())
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        report::release("current context", || self.put_back());
    }
}

impl fmt::Debug for Current<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Current({:?})", self.context)
    }
}

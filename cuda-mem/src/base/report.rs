//! Where failures of `Drop` are reported, and what happens to drops that come too late.
//!
//! A destructor cannot return an error, must not panic, and must not save the error for an unrelated call. So it
//! counts the failure, and calls a hook that the program may set.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::error::{Error, ErrorKind};

/// An object that a destructor failed to release.
#[derive(Debug)]
#[non_exhaustive]
pub struct DropFailure<'a> {
    /// What was being released, such as `"buffer"`.
    pub object: &'static str,
    /// Why it failed.
    pub error: &'a Error,
}

/// Counts of drops that did not do what they should, since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DropCounts {
    /// The driver refused a release; the hook was called.
    pub failures: u64,
    /// The driver, or the object's context, no longer existed: there was nothing left to release.
    pub too_late: u64,
    /// The process is a fork, where the parent's objects must not be touched.
    pub after_fork: u64,
    /// Releases that are pending now: pools and arenas whose memory is in use, and objects dropped during a capture.
    /// They are retried when streams, events and contexts are synchronised, and those whose release does not wait for the
    /// device also by other calls, such as futures; [`Context::synchronize`](crate::Context::synchronize) releases
    /// everything pending in the context.
    pub waiting: u64,
}

type Hook = Arc<dyn Fn(&DropFailure<'_>) + Send + Sync>;

static HOOK: Mutex<Option<Hook>> = Mutex::new(None);
static FAILURES: AtomicU64 = AtomicU64::new(0);
static TOO_LATE: AtomicU64 = AtomicU64::new(0);
static AFTER_FORK: AtomicU64 = AtomicU64::new(0);
/// Maintained by the queue of deferred releases; here so that all counters are in one place.
pub(crate) static WAITING: AtomicU64 = AtomicU64::new(0);
static FORKED: AtomicBool = AtomicBool::new(false);
static NVML_FORKED: AtomicBool = AtomicBool::new(false);
/// How many reasons there are to mark children of this process: starts of the driver, and threads that open it.
static WATCHING: AtomicU64 = AtomicU64::new(0);
static WATCHING_NVML: AtomicU64 = AtomicU64::new(0);

/// Calls `hook` whenever a destructor fails, instead of any earlier hook.
///
/// The hook runs inside `Drop`, on any thread; for what an arena drops, once the arena's locks are free. If it panics,
/// the panic is swallowed.
///
/// ```
/// cuda_mem::base::on_drop_failure(|failure| {
///     eprintln!("could not release a {}: {}", failure.object, failure.error);
/// });
/// assert_eq!(cuda_mem::base::drop_counts().failures, 0);
/// ```
pub fn on_drop_failure(hook: impl Fn(&DropFailure<'_>) + Send + Sync + 'static) {
    let before = HOOK
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .replace(Arc::new(hook));
    // Not under the lock: what the old hook owns may fail to drop, and call back into this file.
    drop(before);
}

/// The counters of this process.
#[must_use]
pub fn drop_counts() -> DropCounts {
    DropCounts {
        failures: FAILURES.load(Ordering::Relaxed),
        too_late: TOO_LATE.load(Ordering::Relaxed),
        after_fork: AFTER_FORK.load(Ordering::Relaxed),
        waiting: WAITING.load(Ordering::Relaxed),
    }
}

/// Runs a destructor's release, unless this process is a fork, and records the outcome.
#[inline]
pub(crate) fn release(object: &'static str, release: impl FnOnce() -> Result<(), Error>) {
    if is_forked() {
        AFTER_FORK.fetch_add(1, Ordering::Relaxed);
        return;
    }
    if let Err(error) = release()
        && counts_as_failure(&error)
    {
        report_or_defer(object, error);
    }
}

thread_local! {
    /// The number of locks that this thread has and that the hook may need.
    static LOCKS: Cell<u32> = const { Cell::new(0) };
    /// What failed meanwhile, and the hook is to be told of.
    static PENDING_REPORTS: RefCell<Vec<(&'static str, Error)>> = const { RefCell::new(Vec::new()) };
}

/// Calls the hook, or keeps the failure for it.
#[cold]
fn report_or_defer(object: &'static str, error: Error) {
    let mut failure = Some(error);
    if LOCKS.get() > 0 {
        // At the end of a thread there is no list any more.
        let _ = PENDING_REPORTS.try_with(|pending| {
            let error = failure.take();
            pending
                .borrow_mut()
                .extend(error.map(|error| (object, error)));
        });
    }
    if let Some(error) = failure {
        call_hook(object, &error);
    }
}

/// While this lives, the hook of this thread waits. For locks under which objects are dropped, and that the hook may
/// need: it may call whatever the program can.
#[derive(Debug)]
pub(crate) struct DeferHook {
    /// The counts are of this thread.
    _thread: PhantomData<*const ()>,
}

impl DeferHook {
    pub(crate) fn enter() -> Self {
        LOCKS.set(LOCKS.get() + 1);
        Self {
            _thread: PhantomData,
        }
    }
}

impl DeferHook {
    /// Whether this thread has any such lock.
    pub(crate) fn is_any() -> bool {
        LOCKS.get() > 0
    }
}

impl Drop for DeferHook {
    fn drop(&mut self) {
        let left = LOCKS.get() - 1;
        LOCKS.set(left);
        if left == 0 {
            let pending = PENDING_REPORTS.try_with(RefCell::take).unwrap_or_default();
            for (object, error) in pending {
                call_hook(object, &error);
            }
        }
    }
}

/// A lock under which objects may be dropped. The hook waits until it is free.
#[derive(Debug)]
pub(crate) struct HookDeferringGuard<'a, T> {
    guard: MutexGuard<'a, T>,
    _waits: DeferHook,
}

impl<'a, T> HookDeferringGuard<'a, T> {
    pub(crate) fn new(guard: MutexGuard<'a, T>) -> Self {
        Self {
            guard,
            _waits: DeferHook::enter(),
        }
    }
}

impl<T> Deref for HookDeferringGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for HookDeferringGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

/// Runs code that may panic where a panic must not get out: in destructors, and in functions that the system calls.
/// `None` if it panicked, which the panic hook has reported. What the panic carries is forgotten, since its own
/// destructor may panic.
#[inline(always)]
pub(crate) fn caught<T>(run: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(run))
        .map_err(std::mem::forget)
        .ok()
}

/// Counts a failure and calls the hook, at once: no lock may be held that the hook may need.
#[cold]
pub(crate) fn failed(object: &'static str, error: &Error) {
    if counts_as_failure(error) {
        call_hook(object, error);
    }
}

/// Counts what a destructor could not do. `false` if there was nothing left to release.
#[cold]
fn counts_as_failure(error: &Error) -> bool {
    if matches!(
        error.kind(),
        ErrorKind::Deinitialized | ErrorKind::ContextDestroyed
    ) {
        too_late();
        return false;
    }
    FAILURES.fetch_add(1, Ordering::Relaxed);
    true
}

fn call_hook(object: &'static str, error: &Error) {
    // Cloned out, so that a hook may set another hook.
    let hook = HOOK.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(hook) = hook {
        // A panic out of `Drop` may abort the process; a broken hook must not do that.
        caught(|| hook(&DropFailure { object, error }));
    }
}

/// Counts a drop that had nothing left to release.
#[cold]
pub(crate) fn too_late() {
    TOO_LATE.fetch_add(1, Ordering::Relaxed);
}

/// Whether this process was forked after the driver was initialised, or while another thread was opening it. The driver
/// then serves it no more, and everything of this crate refuses with [`Forked`](crate::ErrorKind::Forked) or does nothing.
///
/// ```
/// # cuda_sim::use_if_no_driver();
/// let driver = cuda_mem::Driver::load()?;
/// assert!(!cuda_mem::base::is_forked());
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[must_use]
#[inline]
pub fn is_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Makes [`is_forked`] become true in children of this process from now on.
///
/// The handler costs the hot path one relaxed load, where comparing process ids would cost a
/// system call.
pub(crate) fn watch_forks() {
    std::mem::forget(watch_forks_for_now());
}

/// Makes [`is_forked`] become true in children that this process gets while the result lives. For a thread that opens
/// the driver: others wait for it, and a child does not have it.
pub(crate) fn watch_forks_for_now() -> ForksWatched {
    #[cfg(unix)]
    {
        extern "C" fn mark() {
            if WATCHING.load(Ordering::Relaxed) > 0 {
                FORKED.store(true, Ordering::Relaxed);
            }
        }
        static IS_SET: AtomicBool = AtomicBool::new(false);
        in_forks(&IS_SET, mark);
    }
    ForksWatched::new(&WATCHING)
}

/// Whether this process was forked after NVML was initialised. Separate from the driver's mark: a program may look for
/// its GPU, fork, and start the driver in its children.
pub(crate) fn is_nvml_forked() -> bool {
    NVML_FORKED.load(Ordering::Relaxed)
}

/// As [`watch_forks`], for NVML.
pub(crate) fn watch_nvml_forks() {
    std::mem::forget(watch_nvml_forks_for_now());
}

/// As [`watch_forks_for_now`], for NVML.
pub(crate) fn watch_nvml_forks_for_now() -> ForksWatched {
    #[cfg(unix)]
    {
        extern "C" fn mark() {
            if WATCHING_NVML.load(Ordering::Relaxed) > 0 {
                NVML_FORKED.store(true, Ordering::Relaxed);
            }
        }
        static IS_SET: AtomicBool = AtomicBool::new(false);
        in_forks(&IS_SET, mark);
    }
    ForksWatched::new(&WATCHING_NVML)
}

/// Children of this process are marked while this lives.
#[must_use]
pub(crate) struct ForksWatched(&'static AtomicU64);

impl ForksWatched {
    fn new(watching: &'static AtomicU64) -> Self {
        watching.fetch_add(1, Ordering::SeqCst);
        Self(watching)
    }
}

impl Drop for ForksWatched {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs `mark` in children of this process from now on. Two threads may both set it, which does no harm: with a `Once`,
/// a child that is forked meanwhile would wait for the parent's thread.
#[cfg(unix)]
fn in_forks(is_set: &AtomicBool, mark: extern "C" fn()) {
    if is_set.load(Ordering::Acquire) {
        return;
    }
    // SAFETY: `mark` only uses atomics, which is allowed in a fork handler, and lives as long as the program. If
    // registering fails for want of memory, forks stay unnoticed, and the driver and NVML answer there themselves.
    unsafe { libc::pthread_atfork(None, None, Some(mark)) };
    is_set.store(true, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_driver_sys::CUresult;

    /// What a panic carries, and that panics itself when it is dropped.
    struct Payload;

    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("by what a panic carried");
        }
    }

    #[test]
    fn a_panic_and_what_it_carries_are_caught() {
        assert_eq!(caught(|| 7), Some(7));
        assert_eq!(caught(|| std::panic::panic_any(Payload)), None::<()>);
    }

    #[test]
    fn a_failure_is_counted_and_told_and_a_late_drop_only_counted() {
        let seen = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&seen);
        on_drop_failure(move |failure| {
            assert_eq!(failure.object, "thing");
            counter.fetch_add(1, Ordering::Relaxed);
            panic!("a hook that panics does no harm");
        });
        let before = drop_counts();
        release("thing", || Err(Error::driver("cuX", CUresult(1))));
        release("thing", || {
            Err(Error::driver("cuX", CUresult::CUDA_ERROR_DEINITIALIZED))
        });
        release("thing", || Ok(()));
        let after = drop_counts();
        assert_eq!(after.failures - before.failures, 1);
        assert_eq!(after.too_late - before.too_late, 1);
        assert_eq!(seen.load(Ordering::Relaxed), 1);
        on_drop_failure(|_| {});
    }
}

//! Counting bytes and allocations.

use super::debug_over;
use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;

use cuda_driver_sys::CUdeviceptr;

use super::{calls_program_as_upstream, free_through_self, from_upstream};
use crate::base::error::{Bytes, Result, took_effect};
use crate::base::lock::UsualThreadLock;
use crate::memory::resource::MemoryResource;
use crate::stream::Stream;

/// A current amount, its peak, and the total.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counter {
    /// The current amount. Negative in a scope that freed more than it allocated.
    pub current: i64,
    /// The maximum of `current`; at least 0.
    pub peak: i64,
    /// The sum of all amounts added.
    pub total: u64,
}

/// The state behind a [`Counter`]. Each change is one store, rarely two, to keep the lock held briefly.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    added: u64,
    taken: u64,
    peak: i64,
}

impl Sums {
    #[inline]
    fn current(&self) -> i64 {
        // Layouts are never larger than `i64`; only sums over years could come near its limit.
        self.added.wrapping_sub(self.taken) as i64
    }

    #[inline]
    fn note_peak(&mut self) {
        let current = self.current();
        if current > self.peak {
            self.peak = current;
        }
    }

    #[inline]
    fn add(&mut self, amount: u64) {
        self.added = self.added.wrapping_add(amount);
        self.note_peak();
    }

    #[inline]
    fn take(&mut self, amount: u64) {
        self.taken = self.taken.wrapping_add(amount);
    }

    /// Undoes [`take`](Self::take): nothing was added anew.
    fn restore(&mut self, amount: u64) {
        self.taken = self.taken.wrapping_sub(amount);
        self.note_peak();
    }

    fn reset_peak(&mut self) {
        self.peak = self.current().max(0);
    }

    fn counter(&self) -> Counter {
        Counter {
            current: self.current(),
            peak: self.peak,
            total: self.added,
        }
    }
}

/// Counts of requested bytes and of allocations. Allocations of zero bytes are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statistics {
    /// Bytes.
    pub bytes: Counter,
    /// Allocations.
    pub allocations: Counter,
}

/// The state behind [`Statistics`].
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    bytes: Sums,
    allocations: Sums,
}

impl Counts {
    fn statistics(&self) -> Statistics {
        Statistics {
            bytes: self.bytes.counter(),
            allocations: self.allocations.counter(),
        }
    }

    #[inline]
    fn add(&mut self, bytes: u64) {
        self.bytes.add(bytes);
        self.allocations.add(1);
    }

    #[inline]
    fn take(&mut self, bytes: u64) {
        self.bytes.take(bytes);
        self.allocations.take(1);
    }

    fn restore(&mut self, bytes: u64) {
        self.bytes.restore(bytes);
        self.allocations.restore(1);
    }
}

/// One line: `4.0 MiB in 2 allocations (peak 8.0 MiB in 3, total 40.0 MiB in 12)`.
impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.bytes.current < 0 { "-" } else { "" };
        write!(
            f,
            "{sign}{} in {} allocations (peak {} in {}, total {} in {})",
            Bytes(self.bytes.current.unsigned_abs()),
            self.allocations.current,
            Bytes(self.bytes.peak.unsigned_abs()),
            self.allocations.peak,
            Bytes(self.bytes.total),
            self.allocations.total
        )
    }
}

/// Counts allocations through it: current, peak and total, over all threads and in [scopes](Self::scope) of one
/// thread.
///
/// An allocation counts from when upstream has handed it out until just before it is freed to upstream. So no count
/// exceeds what is allocated at that moment, and no peak exceeds a [`LimitAdaptor`](crate::memory::LimitAdaptor)
/// above or below.
///
/// ```
/// use std::sync::Arc;
/// use cuda_mem::{Driver, MemoryPool, Resource};
/// use cuda_mem::memory::StatisticsAdaptor;
///
/// # cuda_sim::use_if_no_driver();
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let counted = Arc::new(StatisticsAdaptor::new(MemoryPool::builder(&device).build()?));
/// let resource = Resource::from(counted.clone());
/// let kept = resource.alloc::<u8>(&stream, 1000)?;
/// let scope = counted.scope();
/// drop(resource.alloc::<u8>(&stream, 24)?);
/// assert_eq!(scope.statistics().bytes.peak, 24);
/// assert_eq!(counted.statistics().bytes.current, 1000);
/// assert_eq!(counted.statistics().allocations.total, 2);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
pub struct StatisticsAdaptor<U> {
    upstream: U,
    /// Under one lock, so that a peak is the peak of an actual sum.
    counts: UsualThreadLock<Counts>,
}

impl<U: fmt::Debug> fmt::Debug for StatisticsAdaptor<U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_over(f, "StatisticsAdaptor", &self.upstream)
    }
}

impl<U: MemoryResource> StatisticsAdaptor<U> {
    /// Counts allocations of `upstream`.
    pub fn new(upstream: U) -> Self {
        Self {
            upstream,
            counts: UsualThreadLock::default(),
        }
    }

    /// Where the memory comes from.
    pub fn upstream(&self) -> &U {
        &self.upstream
    }

    /// A consistent snapshot of the counts. All zero in a fork.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let counts = self.counts.lock_unless_forked().map(|counts| *counts);
        counts.unwrap_or_default().statistics()
    }

    /// Resets the peaks to the current values.
    pub fn reset_peaks(&self) {
        if let Some(mut counts) = self.counts.lock_unless_forked() {
            counts.bytes.reset_peak();
            counts.allocations.reset_peak();
        }
    }

    /// Counts from 0 what this thread allocates and frees through this adaptor until the guard is dropped. Scopes
    /// can be nested: the outer one includes the inner one.
    pub fn scope(&self) -> StatisticsScope<'_> {
        let number = NEXT.with(|next| next.replace(next.get() + 1));
        // While the thread exits, its thread-locals are gone, so the scope counts nothing.
        let _ = SCOPES.try_with(|scopes| {
            if let Ok(mut scopes) = scopes.try_borrow_mut() {
                scopes.push(Scope {
                    number,
                    of: self.identity(),
                    counts: Counts::default(),
                });
            }
        });
        OPEN.with(|open| open.set(open.get() + 1));
        StatisticsScope {
            number,
            adaptor: PhantomData,
            not_send: PhantomData,
        }
    }

    /// It does not move while scopes borrow it.
    fn identity(&self) -> usize {
        std::ptr::from_ref(&self.counts).addr()
    }

    #[inline]
    fn count(&self, count: impl Fn(&mut Counts)) {
        let Some(mut counts) = self.counts.lock_unless_forked() else {
            return;
        };
        count(&mut counts);
        drop(counts);
        if OPEN.with(Cell::get) > 0 {
            self.count_in_scopes(count);
        }
    }

    #[cold]
    fn count_in_scopes(&self, count: impl Fn(&mut Counts)) {
        let of = self.identity();
        // Nothing reads the counts of an exiting thread.
        let _ = SCOPES.try_with(|scopes| {
            if let Ok(mut scopes) = scopes.try_borrow_mut() {
                for scope in scopes.iter_mut().filter(|scope| scope.of == of) {
                    count(&mut scope.counts);
                }
            }
        });
    }
}

/// What one scope counts.
struct Scope {
    number: u64,
    /// The adaptor.
    of: usize,
    counts: Counts,
}

thread_local! {
    /// How many scopes this thread has open.
    static OPEN: Cell<usize> = const { Cell::new(0) };
    static NEXT: Cell<u64> = const { Cell::new(0) };
    static SCOPES: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };
}

impl<U: MemoryResource> StatisticsAdaptor<U> {
    #[inline]
    fn free(
        &self,
        address: CUdeviceptr,
        layout: Layout,
        _stream: &Stream,
        upstream: impl FnOnce(CUdeviceptr, Layout) -> Result<()>,
    ) -> Result<()> {
        let bytes = layout.size() as u64;
        // Before upstream has it: from then on another thread may get the same bytes and count them.
        if address != 0 {
            self.count(|counts| counts.take(bytes));
        }
        let freed = upstream(address, layout);
        if address != 0 && !took_effect(&freed) {
            self.count(|counts| counts.restore(bytes));
        }
        freed
    }
}

// SAFETY: all memory comes from upstream and goes back there.
unsafe impl<U: MemoryResource> MemoryResource for StatisticsAdaptor<U> {
    #[inline]
    #[track_caller]
    fn allocate(&self, layout: Layout, stream: &Stream) -> Result<CUdeviceptr> {
        let address = self.upstream.allocate(layout, stream)?;
        if address != 0 {
            self.count(|counts| counts.add(layout.size() as u64));
        }
        Ok(address)
    }

    free_through_self!();

    from_upstream!();
    calls_program_as_upstream!();
}

/// A guard that counts for one thread until it is dropped. From [`StatisticsAdaptor::scope`].
///
/// It cannot leave the thread that opened it:
///
/// ```compile_fail,E0277
/// # fn example(counted: &cuda_mem::memory::StatisticsAdaptor<cuda_mem::MemoryPool>) {
/// let scope = counted.scope();
/// std::thread::scope(|threads| {
///     threads.spawn(move || drop(scope)); // error: cannot be sent between threads
/// });
/// # }
/// ```
#[derive(Debug)]
#[must_use = "it counts until it is dropped"]
pub struct StatisticsScope<'a> {
    number: u64,
    adaptor: PhantomData<&'a ()>,
    not_send: PhantomData<*mut ()>,
}

impl StatisticsScope<'_> {
    /// The counts so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let counts = SCOPES.try_with(|scopes| {
            let scopes = scopes.try_borrow().ok()?;
            let own = scopes.iter().find(|scope| scope.number == self.number);
            own.map(|scope| scope.counts.statistics())
        });
        counts.ok().flatten().unwrap_or_default()
    }
}

impl Drop for StatisticsScope<'_> {
    fn drop(&mut self) {
        // An exiting thread has nothing left to remove.
        let _ = SCOPES.try_with(|scopes| {
            if let Ok(mut scopes) = scopes.try_borrow_mut() {
                scopes.retain(|scope| scope.number != self.number);
            }
        });
        OPEN.set(OPEN.get().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_all_of_it() {
        let mut counts = Counts::default();
        counts.add(4 << 20);
        counts.add(4 << 20);
        counts.take(4 << 20);
        assert_eq!(
            counts.statistics().to_string(),
            "4.0 MiB in 1 allocations (peak 8.0 MiB in 2, total 8.0 MiB in 2)"
        );
        counts.take(8 << 20);
        assert!(counts.statistics().to_string().starts_with("-4.0 MiB"));
    }

    #[test]
    fn what_is_restored_was_not_added_anew() {
        let mut counts = Counts::default();
        counts.add(100);
        let before = counts.statistics();
        counts.take(100);
        counts.restore(100);
        assert_eq!(counts.statistics(), before);
        // Beside what another thread got meanwhile.
        counts.take(100);
        counts.add(50);
        counts.restore(100);
        let bytes = counts.statistics().bytes;
        assert_eq!((bytes.peak, bytes.total), (150, 150));
    }
}

//! The live objects of this crate, with their size and the line of the program that made them.
//!
//! The [`Ledger`] is off unless it is enabled, by [level](LedgerLevel) or by `CUDA_MEM_LEDGER`. Its
//! [report](LedgerReport) groups objects by origin; a [scope](LedgerScope) reports objects that were made within it
//! and are still alive. A [`Recorder`] keeps what happens to memory over time, and a [`MemorySnapshot`] is the layout of
//! memory at one moment.

// How a new kind of object joins:
// 1. a line in `kind.rs`, and a method of the object that makes its `Item` (kind, handle, bytes, device);
// 2. `ledger::insert(item)` where it is made, with `#[track_caller]` up to the program's call, and
//    `ledger::remove(&item)` before the driver gets it back (`restore` if it did not take it).
//
// Objects carry no ledger data of their own. They are identified by kind and handle, so that they cost nothing while
// the ledger is off; an object that was made then is unknown at its end.

mod book;
pub(crate) mod csv;
mod exit;
mod kind;
mod level;
pub(crate) mod log_writer;
pub(crate) mod nvtx;
#[cfg(feature = "export")]
mod pytorch;
#[cfg(feature = "export")]
mod ranges;
mod recorder;
mod scope;
mod snapshot;
mod summary;
#[cfg(feature = "export")]
mod timeline;

pub(crate) use book::Ended;
pub use kind::LedgerKind;
pub use level::LedgerLevel;
pub use recorder::{Origin, Recorder, Recording, TraceAction, TraceEntry};
pub use scope::LedgerScope;
pub use snapshot::{BlockState, MemoryBlock, MemorySegment, MemorySnapshot};
pub(crate) use snapshot::{LiveBlocks, MemoryRange, lay_out};
pub use summary::{LedgerGroup, LedgerReport};

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use level::{level, set_level};

use crate::base::lock::Lock;
use crate::base::origin;
use crate::driver::Driver;
use crate::driver::device::Device;

/// Every live object of this crate, with its size, device, age, and the line that made it.
///
/// The ledger is off until the program [enables](Self::enable) it, or the environment does: `CUDA_MEM_LEDGER` is
/// `off`, `bytes` or `origins`, and is read once. While the ledger is off, an object costs one read of a number when
/// it is made and one when it ends.
///
/// The ledger lists what an object of this crate will give back. It does not list borrowed memory
/// ([`DeviceBuffer::borrow_raw`](crate::DeviceBuffer::borrow_raw)), addresses whose ownership was released, or direct
/// requests to a [`MemoryResource`](crate::MemoryResource); for the last, use the
/// [`TrackingAdaptor`](crate::memory::TrackingAdaptor). What a pool or an arena holds beyond its buffers is in its
/// statistics.
///
/// ```
/// use cuda_mem::{Driver, MemoryPool};
/// use cuda_mem::ledger::{Ledger, LedgerKind, LedgerLevel};
///
/// # cuda_sim::use_if_no_driver();
/// Ledger::enable(LedgerLevel::Origins);
/// let device = Driver::load()?.device(0)?;
/// let stream = device.primary_context()?.stream()?;
/// let pool = MemoryPool::builder(&device).build()?;
///
/// let buffer = pool.alloc::<f32>(&stream, 1000)?; // this line
/// let report = Ledger::report();
/// let group = report.of(LedgerKind::Buffer).next().unwrap();
/// assert_eq!((group.count, group.bytes), (1, 4000));
/// assert_eq!(group.origin.unwrap().file(), file!());
/// println!("{report}"); // a table: buffer, context, pool and stream, with their lines
///
/// drop(buffer);
/// assert_eq!(Ledger::report().of(LedgerKind::Buffer).count(), 0);
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Ledger {}

/// Only one thread at a time changes the level.
static SWITCH: Lock<()> = Lock::new(());
/// How many times the ledger was restarted.
static EDITION: AtomicU64 = AtomicU64::new(0);

fn edition() -> u64 {
    EDITION.load(Ordering::Relaxed)
}

impl Ledger {
    /// Sets how much is recorded, and returns the previous level. A different level starts a new ledger: objects that
    /// are already alive are not in it.
    ///
    /// At [`Origins`](LedgerLevel::Origins) the end of older objects is ignored. [`Bytes`](LedgerLevel::Bytes) cannot
    /// tell them apart and subtracts them: its numbers are additions minus removals, and may be negative. Enable it
    /// before the first object is made, as the environment does, and while no other thread makes or ends objects.
    ///
    /// ```
    /// use cuda_mem::ledger::{Ledger, LedgerLevel};
    ///
    /// Ledger::enable(LedgerLevel::Bytes);
    /// assert_eq!(Ledger::level(), LedgerLevel::Bytes);
    /// assert!(Ledger::report().is_empty());
    /// ```
    pub fn enable(level: LedgerLevel) -> LedgerLevel {
        let Some(_alone) = SWITCH.lock_unless_forked() else {
            return LedgerLevel::Off;
        };
        let before = level::level();
        if level != before {
            // First: a thread that is about to record something sees it, or its record is cleared.
            set_level(LedgerLevel::Off);
            book::clear();
            EDITION.fetch_add(1, Ordering::Relaxed);
            set_level(level);
        }
        before
    }

    /// How much is recorded. In a fork nothing is, whatever the level of its parent.
    #[must_use]
    pub fn level() -> LedgerLevel {
        level()
    }

    /// The live objects, grouped by origin. Empty in a fork: the objects are the parent's.
    #[must_use]
    pub fn report() -> LedgerReport {
        match level() {
            LedgerLevel::Off => LedgerReport::empty(),
            LedgerLevel::Bytes => LedgerReport::of_sums(book::sums()),
            LedgerLevel::Origins => LedgerReport::of_records(book::listed()),
        }
    }

    /// Begins a part of the program that should leave nothing behind. When the guard is dropped, objects that were
    /// made since and are still alive are written to the standard error stream, if there are any;
    /// [`LedgerScope::tell`] sends them elsewhere. The level does not change: at `Off` there is nothing to report.
    ///
    /// On the first line of `main` it reports what the program leaves at its end, whenever `CUDA_MEM_LEDGER` enables
    /// the ledger:
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::ledger::Ledger;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let _scope = Ledger::scope(); // dropped last
    /// let stream = Driver::load()?.device(0)?.primary_context()?.stream()?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn scope() -> LedgerScope {
        LedgerScope::new()
    }

    /// Writes the live objects to the standard error stream when the process ends, if there are any, at any level but
    /// `Off`. This happens when `main` has returned, or at [`std::process::exit`]; not after an abort, a signal or
    /// `_exit`. Objects that `main` still held when `exit` was called count as alive, and so do those in a `static`.
    /// Makes no driver calls. The report is written once, however often this is called. Returns false if the system
    /// does not accept the registration.
    ///
    /// The driver of a process never ends before the process, so this is the final report. A [scope](Self::scope)
    /// reports less: the live objects that were made since it began.
    ///
    /// ```
    /// use cuda_mem::ledger::{Ledger, LedgerLevel};
    ///
    /// Ledger::enable(LedgerLevel::Origins);
    /// assert!(Ledger::report_at_exit());
    /// ```
    #[doc(alias = "atexit")]
    pub fn report_at_exit() -> bool {
        exit::report_once()
    }
}

/// An object for the ledger. The same value has to be built when the object is made and when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    kind: LedgerKind,
    handle: u64,
    driver: Option<Driver>,
    device: Option<Device>,
    bytes: usize,
}

impl Item {
    /// `handle` is unique among the live objects of the kind: the driver's handle, an address, or the address of the
    /// object itself if it never moves.
    #[inline]
    pub(crate) fn new(kind: LedgerKind, handle: impl Handle) -> Self {
        Self {
            kind,
            handle: handle.number(),
            driver: None,
            device: None,
            bytes: 0,
        }
    }

    /// The driver that the handle belongs to; two drivers may use the same handle.
    #[inline]
    pub(crate) fn of(mut self, driver: Driver) -> Self {
        self.driver = Some(driver);
        self
    }

    /// The device, if the object belongs to one. Only for reports.
    #[inline]
    pub(crate) fn on(mut self, device: impl Into<Option<Device>>) -> Self {
        self.device = device.into();
        self
    }

    /// The size, if it has one.
    #[inline]
    pub(crate) fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// Its key in the table of its kind.
    fn key(&self) -> u64 {
        let table = self.driver.map(|driver| {
            let table = std::ptr::from_ref(driver.table());
            table.addr() as u64
        });
        // Handles and tables differ in their low bits, so they do not collide by chance.
        self.handle ^ table.unwrap_or(0).rotate_left(32)
    }
}

/// What identifies an object.
pub(crate) trait Handle {
    fn number(self) -> u64;
}

impl Handle for u64 {
    #[inline]
    fn number(self) -> u64 {
        self
    }
}

impl<T> Handle for *mut T {
    #[inline]
    fn number(self) -> u64 {
        self.addr() as u64
    }
}

impl<T> Handle for *const T {
    #[inline]
    fn number(self) -> u64 {
        self.addr() as u64
    }
}

/// Whether there may be something to record. For hot paths, which do the rest elsewhere.
#[inline]
pub(crate) fn is_on() -> bool {
    level::is_on()
}

/// Records an object, made for the caller of the function that calls this.
#[inline]
#[track_caller]
pub(crate) fn insert(item: Item) {
    if is_on() {
        born_from(item, origin::current());
    }
}

#[cold]
fn born_from(item: Item, origin: &'static Location<'static>) {
    book::add(&item, origin);
}

/// Records the end of an object. Call it before the driver gets the handle back: from then on another thread may get
/// the same handle.
#[inline]
pub(crate) fn remove(item: &Item) -> Ended {
    if is_on() {
        return ended_noted(item);
    }
    Ended::UNKNOWN
}

#[cold]
fn ended_noted(item: &Item) -> Ended {
    book::remove(item)
}

/// Undoes the removal: the object is still there.
#[cold]
pub(crate) fn restore(item: &Item, ended: Ended) {
    book::put_back(item, ended);
}

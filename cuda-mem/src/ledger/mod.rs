//! Who holds what: the objects of this crate that are alive, their size, and the line of the program that made them.
//!
//! The [`Ledger`] is off unless it is asked for, by [level](LedgerLevel) or by `CUDA_MEM_LEDGER`. Its [report](LedgerReport)
//! groups objects by origin; a [scope](LedgerScope) says what was made within it and is still there.

// How a new kind of object joins:
// 1. a line in `kind.rs`, and a method of the object that makes its `Item` (kind, handle, bytes, device);
// 2. `ledger::insert(item)` where it is made, with `#[track_caller]` up to the program's call, and
//    `ledger::remove(&item)` before the driver gets it back (`restore` if it did not take it).
//
// Objects carry no note of their own. They are known by kind and handle, so that they cost nothing while
// the ledger is off, and one that was made then is unknown at its end.

mod book;
mod exit;
mod kind;
mod level;
mod scope;
mod summary;

pub(crate) use book::Ended;
pub use kind::LedgerKind;
pub use level::LedgerLevel;
pub use scope::LedgerScope;
pub use summary::{LedgerGroup, LedgerReport};

use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};

use level::{level, set_level};

use crate::base::lock::Lock;
use crate::base::origin;
use crate::driver::Driver;
use crate::driver::device::Device;

/// Who holds what: every live object of this crate, its size, device, age, and the line that made it.
///
/// It is off until the program [enables](Self::enable) it, or the environment does: `CUDA_MEM_LEDGER` is
/// `off`, `bytes` or `origins`, and read once. While it is off, an object costs the reading of one number
/// at its birth and one at its end.
///
/// Listed is what an object of this crate will give back. Views of somebody else's memory
/// ([`DeviceBuffer::borrow_raw`](crate::DeviceBuffer::borrow_raw)), addresses that were given out of hand,
/// and what a [`MemoryResource`](crate::MemoryResource) was asked for directly are not; for the last there
/// is the [`TrackingAdaptor`](crate::memory::TrackingAdaptor). What a pool or an arena holds beyond its buffers is
/// in its statistics.
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

/// Only one at a time changes the level.
static SWITCH: Lock<()> = Lock::new(());
/// How often the ledger was begun anew.
static EDITION: AtomicU64 = AtomicU64::new(0);

fn edition() -> u64 {
    EDITION.load(Ordering::Relaxed)
}

impl Ledger {
    /// Sets how much is noted, and answers the level before. Another level begins a new ledger: what is
    /// alive by then is not in it.
    ///
    /// At [`Origins`](LedgerLevel::Origins) the end of older objects is ignored.
    /// [`Bytes`](LedgerLevel::Bytes) cannot tell them apart and takes them off: its numbers are what came
    /// less what went, and may be below zero. Enable it before the first object is made, as the environment
    /// does, and while no other thread makes or ends any.
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
            // First: who is about to note something sees it, or is cleared away.
            set_level(LedgerLevel::Off);
            book::clear();
            EDITION.fetch_add(1, Ordering::Relaxed);
            set_level(level);
        }
        before
    }

    /// How much is noted. In a fork nothing is, whatever the level of its parent.
    #[must_use]
    pub fn level() -> LedgerLevel {
        level()
    }

    /// What is alive, grouped by where it comes from. In a fork nothing is: what is listed is the parent's.
    #[must_use]
    pub fn report() -> LedgerReport {
        match level() {
            LedgerLevel::Off => LedgerReport::empty(),
            LedgerLevel::Bytes => LedgerReport::of_sums(book::sums()),
            LedgerLevel::Origins => LedgerReport::of_records(book::listed()),
        }
    }

    /// Begins a part of the program that should leave nothing behind. When the guard is dropped, what was
    /// made meanwhile and is still alive is written to the standard error stream, if there is anything;
    /// [`LedgerScope::tell`] takes it elsewhere. The level stays as it is: at `Off` there is nothing to say.
    ///
    /// As the first line of `main` it tells what the program leaves at its end, whenever `CUDA_MEM_LEDGER`
    /// asks for it:
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

    /// Writes what is alive when the process ends to the standard error stream, if anything is, at any level but
    /// `Off`. That is when `main` has returned, or at [`std::process::exit`]; not after an abort, a signal or
    /// `_exit`. What `main` still held when `exit` was called is alive, and so is what is in a `static`. Calls no
    /// driver. Once, however often it is called. False if the system does not take it.
    ///
    /// The driver of a process never ends before the process, so this is the report at its end. A
    /// [scope](Self::scope) tells less: what is alive and was made since it began.
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

/// An object for the ledger. The same one has to be made at its birth and at its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Item {
    kind: LedgerKind,
    handle: u64,
    driver: Option<Driver>,
    device: Option<Device>,
    bytes: usize,
}

impl Item {
    /// `handle` is what no other object of the kind has while this one lives: the driver's handle, an
    /// address, or where the object itself lies if it never moves.
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

    /// Whose handle it is; two drivers may use the same.
    #[inline]
    pub(crate) fn of(mut self, driver: Driver) -> Self {
        self.driver = Some(driver);
        self
    }

    /// The device, if it is of one. Only told.
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

    /// Its number in the table of its kind.
    fn key(&self) -> u64 {
        let table = self.driver.map(|driver| {
            let table = std::ptr::from_ref(driver.table());
            table.addr() as u64
        });
        // Handles and tables differ in their low bits, so they do not meet by chance.
        self.handle ^ table.unwrap_or(0).rotate_left(32)
    }
}

/// What objects are told apart by.
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

/// Whether there may be something to note. For hot paths, which do the rest elsewhere.
#[inline]
pub(crate) fn is_on() -> bool {
    level::is_on()
}

/// Notes an object, made for the caller of the function that calls this.
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

/// Notes the end of an object. Call it before the driver has the handle back: from then on another thread
/// may get the same.
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

/// Takes the end back: the object is still there.
#[cold]
pub(crate) fn restore(item: &Item, ended: Ended) {
    book::put_back(item, ended);
}

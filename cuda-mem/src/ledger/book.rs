//! Ledger records: sums by kind, or one record for each object.

use std::panic::Location;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Instant;

use super::level::level;
use super::{Item, LedgerKind, LedgerLevel};
use crate::base::table::Shards;
use crate::driver::device::Device;

/// The record of an object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    pub(super) bytes: usize,
    pub(super) device: Option<Device>,
    pub(super) origin: &'static Location<'static>,
    pub(super) created: Instant,
    /// Increases with each object made.
    pub(super) serial: u64,
}

/// Objects and bytes of a kind: additions minus removals. Negative if more was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub(super) count: i64,
    pub(super) bytes: i64,
}

/// On a cache line of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Counter {
    count: AtomicI64,
    bytes: AtomicI64,
}

const KINDS: usize = LedgerKind::ALL.len();

static SUMS: [Counter; KINDS] = [const {
    Counter {
        count: AtomicI64::new(0),
        bytes: AtomicI64::new(0),
    }
}; KINDS];

/// A table for each kind, because objects of two kinds may have the same number. Created on first use.
static RECORDS: OnceLock<Box<[Shards<Record>]>> = OnceLock::new();

static SERIAL: AtomicU64 = AtomicU64::new(0);

fn records(kind: LedgerKind) -> &'static Shards<Record> {
    let all = RECORDS.get_or_init(|| {
        std::iter::repeat_with(Shards::default)
            .take(KINDS)
            .collect()
    });
    &all[kind as usize]
}

/// The removed record of an object, to be restored if the object has not ended after all.
#[derive(Debug)]
pub(crate) struct Ended(Noted);

impl Ended {
    pub(super) const UNKNOWN: Self = Self(Noted::Unknown);
}

#[derive(Debug)]
enum Noted {
    /// Nothing.
    Unknown,
    /// It was subtracted from the sums.
    Counted,
    /// Its record was in the table.
    Listed(Record),
}

pub(super) fn add(item: &Item, origin: &'static Location<'static>) {
    match level() {
        LedgerLevel::Off => {}
        LedgerLevel::Bytes => count(item, 1),
        LedgerLevel::Origins => insert(
            item,
            Record {
                bytes: item.bytes,
                device: item.device,
                origin,
                created: Instant::now(),
                serial: SERIAL.fetch_add(1, Ordering::Relaxed),
            },
        ),
    }
}

pub(super) fn remove(item: &Item) -> Ended {
    match level() {
        LedgerLevel::Off => Ended::UNKNOWN,
        LedgerLevel::Bytes => {
            count(item, -1);
            Ended(Noted::Counted)
        }
        LedgerLevel::Origins => {
            let record = records(item.kind).remove(item.key());
            Ended(record.map_or(Noted::Unknown, Noted::Listed))
        }
    }
}

pub(super) fn put_back(item: &Item, ended: Ended) {
    match ended.0 {
        Noted::Counted if level() == LedgerLevel::Bytes => count(item, 1),
        Noted::Listed(record) => insert(item, record),
        Noted::Unknown | Noted::Counted => {}
    }
}

fn count(item: &Item, sign: i64) {
    let sum = &SUMS[item.kind as usize];
    let bytes = i64::try_from(item.bytes).unwrap_or(i64::MAX);
    sum.count.fetch_add(sign, Ordering::Relaxed);
    sum.bytes.fetch_add(sign * bytes, Ordering::Relaxed);
}

fn insert(item: &Item, record: Record) {
    // Either the thread that changes the level clears the table afterwards, or this sees the new level.
    let still = || level() == LedgerLevel::Origins;
    records(item.kind).insert_if(item.key(), record, still);
}

/// Removes all records.
pub(super) fn clear() {
    for sum in &SUMS {
        sum.count.store(0, Ordering::Relaxed);
        sum.bytes.store(0, Ordering::Relaxed);
    }
    for records in RECORDS.get().into_iter().flatten() {
        records.clear();
    }
}

/// The serial number of the next object.
pub(super) fn next_serial() -> u64 {
    SERIAL.load(Ordering::Relaxed)
}

pub(super) fn sums() -> [Sum; KINDS] {
    std::array::from_fn(|kind| Sum {
        count: SUMS[kind].count.load(Ordering::Relaxed),
        bytes: SUMS[kind].bytes.load(Ordering::Relaxed),
    })
}

/// All records in the tables.
pub(super) fn listed() -> Vec<(LedgerKind, Record)> {
    let mut listed = Vec::new();
    let Some(all) = RECORDS.get() else {
        return listed;
    };
    for (kind, records) in LedgerKind::ALL.iter().zip(all) {
        records.for_each(|_, record| listed.push((*kind, *record)));
    }
    listed
}

//! What is noted at which level, and how it is said.

use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::ledger::{Ledger, LedgerKind, LedgerLevel};

use super::{begin, sum};
use crate::environment::Environment;
use crate::forks;

#[apply(case)]
fn a_level_begins_a_new_ledger(env: &Environment) -> Result<()> {
    let (stream, pool) = (env.stream()?, env.pool()?);
    begin(LedgerLevel::Origins);
    let buffer = pool.alloc::<u8>(&stream, 100)?;
    ensure!(Ledger::enable(LedgerLevel::Origins) == LedgerLevel::Origins);
    ensure!(sum(LedgerKind::Buffer) == (1, 100), "the same level");
    ensure!(Ledger::enable(LedgerLevel::Bytes) == LedgerLevel::Origins);
    ensure!(Ledger::level() == LedgerLevel::Bytes);
    Ledger::report().require_empty()?;
    Ledger::enable(LedgerLevel::Origins);
    Ledger::report().require_empty()?;
    drop(buffer);
    Ledger::report()
        .require_empty()
        .context("an unknown object has ended")
}

#[apply(case)]
fn older_objects_are_ignored_or_taken_off(env: &Environment) -> Result<()> {
    let (stream, pool) = (env.stream()?, env.pool()?);
    let make = || pool.alloc::<u8>(&stream, 100);
    Ledger::enable(LedgerLevel::Off);
    let (first, second) = (make()?, make()?);
    Ledger::enable(LedgerLevel::Origins);
    let third = make()?;
    drop(first);
    ensure!(sum(LedgerKind::Buffer) == (1, 100));
    Ledger::enable(LedgerLevel::Bytes);
    drop(second);
    drop(third);
    ensure!(sum(LedgerKind::Buffer) == (-2, -200));
    let fourth = make()?;
    ensure!(sum(LedgerKind::Buffer) == (-1, -100));
    Ledger::enable(LedgerLevel::Off);
    drop(fourth);
    ensure!(Ledger::report().is_empty());
    Ok(())
}

#[apply(case)]
fn a_report_is_sorted_and_grouped(env: &Environment) -> Result<()> {
    let (stream, pool) = (env.stream()?, env.pool()?);
    begin(LedgerLevel::Origins);
    let mut alive = Vec::new();
    let small = pool.alloc::<u8>(&stream, 10)?;
    for _ in 0..3 {
        alive.push(pool.alloc::<u8>(&stream, 1000)?);
    }
    let equal = pool.alloc::<u8>(&stream, 10)?;
    let event = stream.context().event()?;
    let report = Ledger::report();
    let rows: Vec<_> = report
        .groups
        .iter()
        .map(|group| (group.kind, group.count, group.bytes))
        .collect();
    let buffer = LedgerKind::Buffer;
    let expected = [
        (buffer, 3, 3000),
        (buffer, 1, 10),
        (buffer, 1, 10),
        (LedgerKind::Event, 1, 0),
    ];
    ensure!(rows == expected, "{report}");
    let lines: Vec<_> = report
        .groups
        .iter()
        .filter_map(|group| group.origin.map(|origin| origin.line()))
        .collect();
    ensure!(lines[1] < lines[2], "{report}");
    let device = Some(env.device()?);
    ensure!(report.groups.iter().all(|group| group.device == device));
    let oldest = report.groups.iter().filter_map(|group| group.oldest);
    ensure!(oldest.count() == 4);
    ensure!((report.count(), report.bytes()) == (6, 3020));
    // The same again, whatever the order in the tables.
    let again = Ledger::report();
    let origins = |report: &cuda_mem::ledger::LedgerReport| {
        let origins = report.groups.iter().map(|group| group.origin);
        origins.collect::<Vec<_>>()
    };
    ensure!(origins(&again) == origins(&report));
    let text = report.to_string();
    ensure!(text.contains("6 objects alive, 2.9 KiB"), "{text}");
    ensure!(text.contains(file!()), "{text}");
    let error = report.require_empty().expect_err("six objects");
    ensure!(error.kind() == ErrorKind::StillAllocated);
    ensure!(error.to_string().contains(&text), "{error}");
    drop((small, alive, equal, event));
    Ledger::report().require_empty()?;
    Ok(())
}

/// What the library has handed out, and what the driver says of the pool.
#[apply(case)]
fn the_sums_are_those_of_the_pool(env: &Environment) -> Result<()> {
    env.need(11, 3)?;
    let (stream, pool) = (env.stream()?, env.pool()?);
    for level in [LedgerLevel::Bytes, LedgerLevel::Origins] {
        begin(level);
        let mut alive = Vec::new();
        for nth in 1..200_usize {
            alive.push(pool.alloc::<u8>(&stream, nth * 777 % 100_000 + 1)?);
            if nth % 3 == 0 {
                alive.swap_remove(nth % alive.len());
            }
        }
        // What is freed is not in use any more, whatever the driver counts before that.
        stream.synchronize()?;
        let (count, bytes) = sum(LedgerKind::Buffer);
        ensure!(count == i64::try_from(alive.len())?);
        let used = pool.stats()?.used.current;
        ensure!(
            bytes == i64::try_from(used)?,
            "{bytes}, the driver says {used}"
        );
        drop(alive);
        Ledger::report().require_empty()?;
    }
    Ok(())
}

#[apply(case)]
fn a_scope_tells_what_it_leaves(env: &Environment) -> Result<()> {
    let (stream, pool) = (env.stream()?, env.pool()?);
    let told = Arc::new(Mutex::new(Vec::new()));
    let tell = || {
        let told = Arc::clone(&told);
        Ledger::scope().tell(move |report| {
            told.lock()
                .expect("nobody panics")
                .push((report.count(), report.bytes()));
        })
    };
    for level in [LedgerLevel::Bytes, LedgerLevel::Origins] {
        begin(level);
        let older = pool.alloc::<u8>(&stream, 100)?;
        let outer = tell();
        let left = pool.alloc::<u8>(&stream, 20)?;
        let inner = tell();
        let gone = pool.alloc::<u8>(&stream, 3)?;
        ensure!(inner.report().bytes() == 3 && outer.report().bytes() == 23);
        drop(gone);
        drop(inner);
        drop(outer);
        let told = std::mem::take(&mut *told.lock().expect("nobody panics"));
        ensure!(told == [(0, 0), (1, 20)], "{level}: {told:?}");
        drop((left, older));
        Ledger::report().require_empty()?;
    }
    // It survives a change of the level, and a teller that panics.
    begin(LedgerLevel::Bytes);
    let scope = Ledger::scope();
    let buffer = pool.alloc::<u8>(&stream, 100)?;
    Ledger::enable(LedgerLevel::Off);
    ensure!(scope.report().is_empty());
    Ledger::enable(LedgerLevel::Bytes);
    let second = pool.alloc::<u8>(&stream, 10)?;
    ensure!(scope.report().bytes() == 10);
    // Without the words of `panic!`.
    drop(scope.tell(|_| std::panic::resume_unwind(Box::new(()))));
    drop((buffer, second));
    Ok(())
}

#[apply(case)]
fn nothing_is_said_while_the_ledger_is_off(env: &Environment) -> Result<()> {
    let (stream, pool) = (env.stream()?, env.pool()?);
    Ledger::enable(LedgerLevel::Off);
    let scope = Ledger::scope();
    let _buffer = pool.alloc::<u8>(&stream, 100)?;
    let report = Ledger::report();
    ensure!(report.level == LedgerLevel::Off && report.is_empty());
    ensure!(scope.report().is_empty());
    // That nothing is known is no proof that nothing is there.
    let error = report.require_empty().expect_err("nobody knows");
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    ensure!(error.to_string().contains("Ledger::enable"), "{error}");
    Ok(())
}

/// Alone, because a fork copies only the thread that forks.
#[apply(case_alone)]
fn in_a_fork_nothing_is_listed(env: &Environment) -> Result<()> {
    forks::need()?;
    let (stream, pool) = (env.stream()?, env.pool()?);
    for level in [LedgerLevel::Bytes, LedgerLevel::Origins] {
        begin(level);
        let scope = Ledger::scope().tell(|_| std::process::abort());
        let buffer = pool.alloc::<u8>(&stream, 100)?;
        // SAFETY: the child asks the ledger, drops what the parent still has, and ends with _exit.
        let child = unsafe { forks::fork() }?;
        if child == 0 {
            let fine = Ledger::level() == LedgerLevel::Off
                && Ledger::report().is_empty()
                && scope.report().is_empty()
                && Ledger::enable(LedgerLevel::Origins) == LedgerLevel::Off
                && !Ledger::report_at_exit();
            drop((buffer, scope));
            forks::end_child(fine);
        }
        std::mem::forget(scope);
        forks::ends_well(child)?;
        ensure!(Ledger::level() == level);
        ensure!(sum(LedgerKind::Buffer) == (1, 100), "the parent's stays");
        drop(buffer);
        ensure!(sum(LedgerKind::Buffer) == (0, 0));
    }
    Ledger::enable(LedgerLevel::Off);
    Ok(())
}

//! The ledger: what is alive is listed with the line that made it, and what has ended is not; and the recorder.

mod collective;
mod ends;
mod environment;
mod leaks;
mod levels;
#[cfg(target_os = "linux")]
mod nvtx;
mod recorded_arena;
mod recorder;
mod snapshot_files;
mod snapshots;
mod telemetry;
mod timelines;

use anyhow::{Result, ensure};
use cuda_mem::ledger::{Ledger, LedgerKind, LedgerLevel};

/// Begins a new ledger.
fn begin(level: LedgerLevel) {
    Ledger::enable(LedgerLevel::Off);
    Ledger::enable(level);
}

/// How many objects of a kind are listed, and their bytes.
fn sum(kind: LedgerKind) -> (i64, i64) {
    let report = Ledger::report();
    report.of(kind).fold((0, 0), |(count, bytes), group| {
        (count + group.count, bytes + group.bytes)
    })
}

/// One object of this kind and size is listed for a line of a file, and nothing else is.
fn find(kind: LedgerKind, bytes: usize, file: &str, line: u32) -> Result<()> {
    let report = Ledger::report();
    let here = |group: &&cuda_mem::ledger::LedgerGroup| {
        let origin = group.origin.map(|origin| (origin.file(), origin.line()));
        origin == Some((file, line))
    };
    let groups: Vec<_> = report.groups.iter().filter(here).collect();
    ensure!(
        groups.len() == 1
            && (groups[0].kind, groups[0].count) == (kind, 1)
            && groups[0].bytes == i64::try_from(bytes)?
            && groups[0].oldest.is_some(),
        "{kind} of {bytes} bytes from {file}:{line}: {groups:?} in\n{report}"
    );
    Ok(())
}

//! The ledger: what is alive is listed with the line that made it, and what has ended is not.

mod ends;
mod environment;
mod leaks;
mod levels;

use anyhow::{Result, ensure};
use cuda_mem::{Ledger, LedgerKind, LedgerLevel};

use crate::run::Test;
use crate::{tests, tests_alone};

/// All of them.
#[must_use]
pub fn all() -> Vec<Test> {
    let mut all = tests! {
        ends: pairs_leave_nothing,
            threads_leave_nothing,
            every_end_is_noted,
            memory_that_waits_for_a_capture_stays_listed,
            what_goes_out_of_hand_leaves_the_ledger,
            views_are_not_listed;
        environment: the_environment_chooses_the_level, the_end_of_the_process_is_told_of,
            a_level_that_is_none_is_told;
        levels: a_level_begins_a_new_ledger,
            older_objects_are_ignored_or_taken_off,
            a_report_is_sorted_and_grouped,
            the_sums_are_those_of_the_pool,
            a_scope_tells_what_it_leaves,
            nothing_is_said_while_the_ledger_is_off;
    };
    // They leave things behind, or fork.
    all.extend(tests_alone! {
        leaks: buffers_of_all_homes_are_found,
            containers_are_found,
            pools_and_arenas_are_found,
            contexts_streams_and_events_are_found,
            code_is_found,
            graphs_are_found,
            imports_are_found,
            managed_memory_is_found,
            memory_without_pools_is_found,
            memory_that_is_imported_or_striped_is_found,
            registered_memory_of_the_program_is_found,
            sums_find_every_kind;
        levels: in_a_fork_nothing_is_listed;
    });
    all
}

/// What only the simulator can show.
#[must_use]
pub fn of_sim() -> Vec<Test> {
    tests! { ends: a_buffer_that_cannot_be_freed_stays_listed }
}

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
    let here = |group: &&cuda_mem::LedgerGroup| {
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

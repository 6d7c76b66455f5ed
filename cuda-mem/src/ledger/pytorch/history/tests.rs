//! Events that are no arena's alone.

use super::super::tests::{BASE, entry, recording, snapshot};
use super::*;

/// Action, offset and size of each event.
fn events(snapshot: &MemorySnapshot, recording: &Recording) -> Vec<(&'static str, u64, u64)> {
    let history = History::of(snapshot, recording);
    let events = history.events.iter();
    events
        .map(|event| (event.action, event.address.wrapping_sub(BASE), event.bytes))
        .filter(|event| event.0 != "snapshot")
        .collect()
}

fn free(bytes: u64) -> MemorySnapshot {
    snapshot(None, &[(bytes, BlockState::Free)])
}

#[test]
fn what_is_recorded_twice_is_told_once() {
    use TraceAction::{Allocate, Free};
    let entries = [Allocate, Allocate, Free, Free].map(|action| entry(action, 0, 10));
    let expected = [
        ("alloc", 0, 10),
        ("free_requested", 0, 10),
        ("free_completed", 0, 10),
    ];
    let recording = recording(entries.to_vec(), 0);
    assert_eq!(events(&free(100), &recording), expected);
}

#[test]
fn a_block_elsewhere_has_a_segment_of_its_own() {
    use TraceAction::{Allocate, Free};
    let entries = [Allocate, Free].map(|action| entry(action, 1000, 10));
    let expected = [
        ("segment_map", 1000, 10),
        ("alloc", 1000, 10),
        ("free_requested", 1000, 10),
        ("free_completed", 1000, 10),
        ("segment_unmap", 1000, 10),
    ];
    let recording = recording(entries.to_vec(), 0);
    assert_eq!(events(&free(100), &recording), expected);
}

#[test]
fn a_block_that_becomes_an_arenas_memory_is_freed_before() {
    let entries = vec![
        entry(TraceAction::Allocate, 0, 100),
        entry(TraceAction::Map, 0, 100),
        entry(TraceAction::Allocate, 0, 10),
        entry(TraceAction::Free, 0, 10),
        entry(TraceAction::Unmap, 0, 100),
        entry(TraceAction::Free, 0, 100),
    ];
    let taken = [
        ("segment_map", 0, 100),
        ("alloc", 0, 100),
        ("free_requested", 0, 100),
        ("free_completed", 0, 100),
        ("segment_unmap", 0, 100),
    ];
    let used = [
        ("segment_map", 0, 100),
        ("alloc", 0, 10),
        ("free_requested", 0, 10),
        ("free_completed", 0, 10),
        ("segment_unmap", 0, 100),
    ];
    // A segment elsewhere.
    let mut other = free(1);
    other.segments[0].address += 1 << 20;
    other.segments[0].blocks[0].address += 1 << 20;
    let recording = recording(entries, 0);
    assert_eq!(events(&other, &recording), [taken, used].concat());
}

#[test]
fn memory_that_sleeps_stays() {
    let entries = vec![
        entry(TraceAction::Map, 0, 100),
        entry(TraceAction::Allocate, 0, 10),
        entry(TraceAction::Unmap, 0, 100),
        entry(TraceAction::Map, 0, 100),
    ];
    let blocks = [(10, BlockState::Allocated), (90, BlockState::Free)];
    let expected = [("segment_map", 0, 100), ("alloc", 0, 10)];
    let recording = recording(entries, 0);
    assert_eq!(events(&snapshot(None, &blocks), &recording), expected);
}

#[test]
fn what_the_snapshot_has_freed_is_freed_at_the_end() {
    let entries = vec![
        entry(TraceAction::Map, 0, 100),
        entry(TraceAction::Allocate, 0, 10),
        entry(TraceAction::Allocate, 20, 10),
        entry(TraceAction::Allocate, 40, 10),
    ];
    let blocks = [
        (20, BlockState::Free),
        (10, BlockState::PendingFree),
        (10, BlockState::Free),
        (60, BlockState::Allocated),
    ];
    let expected = [
        ("segment_map", 0, 100),
        ("alloc", 0, 10),
        ("alloc", 20, 10),
        ("alloc", 40, 10),
        ("free_requested", 0, 10),
        ("free_completed", 0, 10),
        ("free_requested", 20, 10),
    ];
    let recording = recording(entries, 0);
    assert_eq!(events(&snapshot(None, &blocks), &recording), expected);
}

#[test]
fn blocks_from_before_the_first_event_are_known_at_their_free() {
    let entries = vec![
        entry(TraceAction::Free, 1000, 10),
        entry(TraceAction::FreeRequested, 0, 10),
        entry(TraceAction::Unmap, 200, 50),
    ];
    let blocks = [(10, BlockState::PendingFree), (90, BlockState::Free)];
    let expected = [
        ("free_requested", 1000, 10),
        ("free_completed", 1000, 10),
        ("segment_unmap", 1000, 10),
        ("free_requested", 0, 10),
        ("segment_unmap", 200, 50),
    ];
    let recording = recording(entries, 5);
    assert_eq!(events(&snapshot(None, &blocks), &recording), expected);
}

/// Events of two threads at the same time may be in either order.
#[test]
fn a_free_before_its_allocation_is_left_out() {
    let entries = vec![
        entry(TraceAction::Map, 0, 100),
        entry(TraceAction::Free, 0, 10),
        entry(TraceAction::Allocate, 0, 10),
    ];
    let expected = [
        ("segment_map", 0, 100),
        ("alloc", 0, 10),
        ("free_requested", 0, 10),
        ("free_completed", 0, 10),
    ];
    let recording = recording(entries, 5);
    assert_eq!(events(&free(100), &recording), expected);
}

#[test]
fn a_block_that_no_event_allocates_is_free_unless_it_is_older() {
    let entries = vec![
        entry(TraceAction::Allocate, 0, 10),
        entry(TraceAction::Free, 0, 10),
        entry(TraceAction::Map, 100, 100),
    ];
    let blocks = [
        (20, BlockState::Allocated),
        (80, BlockState::Allocated),
        (100, BlockState::Allocated),
    ];
    for dropped in [0, 5] {
        let (snapshot, recording) = (snapshot(None, &blocks), recording(entries.clone(), dropped));
        let history = History::of(&snapshot, &recording);
        let known = snapshot
            .blocks()
            .map(|block| history.has_block(block.address..block.end()));
        let known: Vec<bool> = known.collect();
        // The first was freed, and the last lies in memory that is new.
        assert_eq!(known, [false, dropped > 0, false]);
    }
}

#[test]
fn events_after_the_snapshot_are_left_out() {
    let entries = vec![
        entry(TraceAction::Allocate, 0, 10),
        entry(TraceAction::Free, 0, 10),
    ];
    let blocks = [(10, BlockState::Allocated), (90, BlockState::Free)];
    let recording = recording(entries, 0);
    let expected = [("alloc", 0, 10)];
    assert_eq!(events(&snapshot(Some(1500), &blocks), &recording), expected);
}

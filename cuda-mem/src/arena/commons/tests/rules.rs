//! What may be handed out to whom, case by case.

use super::*;

/// Of more than one lane.
fn shared() -> Commons {
    let mut commons = Commons::default();
    commons.share(0, 0);
    commons
}

#[test]
fn a_lane_that_nothing_is_known_of_is_not_done() {
    let mut commons = shared();
    let counters = Counters::default();
    commons.add(0, PAGE / UNIT, Stamp::new(3, 1), Joins::BOTH);
    assert_eq!(commons.allocate(300, 0, &counters), None);
    assert!(commons.done_pages().is_empty());
    assert_eq!(commons.allocate(300, 3, &counters), Some(0));
}

/// Two blocks of a stream with one of nobody's between them, and one of another stream behind.
#[test]
fn blocks_side_by_side_are_one_for_those_who_may_use_them_all() {
    let mut commons = shared();
    let counters = Counters::default();
    commons.add(0, PAGE_UNITS, Stamp::FREE, Joins::BOTH);
    let quarter = PAGE_UNITS as u32 / 4;
    let starts: Vec<u64> = (0..4)
        .map(|_| commons.allocate(quarter, 1, &counters).expect("room"))
        .collect();
    for (start, stamp) in starts.iter().zip([
        Stamp::new(1, 5),
        Stamp::FREE,
        Stamp::new(1, 7),
        Stamp::new(2, 6),
    ]) {
        commons.free(*start, stamp).expect("it is live");
    }
    assert_eq!(commons.allocate(quarter + 1, 2, &counters), None);
    assert_eq!(commons.allocate(3 * quarter + 1, 1, &counters), None);
    let most = commons.allocate(3 * quarter - 10, 1, &counters);
    assert_eq!(most, Some(0));
    // What is left of the last one is still the stream's.
    assert_eq!(commons.allocate(10, 0, &counters), None);
    assert_eq!(
        commons.allocate(10, 1, &counters),
        Some(u64::from(3 * quarter) - 10)
    );
}

/// A run may begin with a block of nobody's.
#[test]
fn what_several_used_is_found_from_its_first_block_on() {
    let mut commons = shared();
    let counters = Counters::default();
    commons.add(0, PAGE_UNITS, Stamp::FREE, Joins::BOTH);
    let half = PAGE_UNITS as u32 / 2;
    let starts = [(); 2].map(|()| commons.allocate(half, 1, &counters).expect("room"));
    commons.free(starts[0], Stamp::FREE).expect("it is live");
    commons
        .free(starts[1], Stamp::new(1, 5))
        .expect("it is live");
    let places = commons.run_of_all(2 * half).expect("both halves");
    assert_eq!(places.len(), 2);
    let start = commons.allocate_run_at(&places, 2 * half, &counters);
    assert_eq!(start, Some(0));
}

#[test]
fn what_is_done_is_everybodys_and_one_with_its_neighbours() {
    let mut commons = shared();
    let counters = Counters::default();
    commons.add(0, 3 * PAGE_UNITS, Stamp::FREE, Joins::BOTH);
    let page = PAGE_UNITS as u32;
    let starts: Vec<u64> = (0..3)
        .map(|_| commons.allocate(page, 0, &counters).expect("room"))
        .collect();
    for (start, (lane, ticket)) in starts.iter().zip([(1, 5), (2, 6), (1, 9)]) {
        commons
            .free(*start, Stamp::new(lane, ticket))
            .expect("it is live");
    }
    commons.note_done(2, 6);
    commons.note_done(1, 5);
    assert_eq!(commons.allocate(2 * page + 1, 0, &counters), None);
    commons.note_done(1, 9);
    assert_eq!(commons.allocate(3 * page, 0, &counters), Some(0));
    // What comes back after that is known to be done.
    commons.free(0, Stamp::new(1, 8)).expect("it is live");
    assert_eq!(commons.allocate(3 * page, 7, &counters), Some(0));
}

#[test]
fn what_the_only_lane_freed_is_its_own_when_there_is_a_second() {
    let mut commons = Commons::default();
    let counters = Counters::default();
    commons.add(0, PAGE_UNITS, Stamp::FREE, Joins::BOTH);
    let block = commons.allocate(100, 0, &counters).expect("room");
    commons.free(block, Stamp::new(0, 5)).expect("it is live");
    commons.share(0, 6);
    assert_eq!(commons.allocate(100, 1, &counters), None);
    commons.note_done(0, 6);
    assert_eq!(commons.allocate(100, 1, &counters), Some(0));
}

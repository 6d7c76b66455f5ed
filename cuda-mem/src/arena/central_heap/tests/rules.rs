//! Which cache may get which memory, case by case.

use super::*;

/// A heap of more than one cache.
fn shared() -> CentralHeap {
    let mut central = CentralHeap::default();
    central.share(0, 0);
    central
}

#[test]
fn a_cache_that_nothing_is_known_of_is_not_done() {
    let mut central = shared();
    let counters = Counters::default();
    central.add(0, PAGE / UNIT, LastUse::new(3, 1), Joins::BOTH);
    assert_eq!(central.allocate(300, 0, &counters), None);
    assert!(central.done_pages().is_empty());
    assert_eq!(central.allocate(300, 3, &counters), Some(0));
}

/// Two blocks of a stream with a clean one between them, followed by one of another stream.
#[test]
fn blocks_side_by_side_are_one_for_those_who_may_use_them_all() {
    let mut central = shared();
    let counters = Counters::default();
    central.add(0, PAGE_UNITS, LastUse::FREE, Joins::BOTH);
    let quarter = PAGE_UNITS as u32 / 4;
    let starts: Vec<u64> = (0..4)
        .map(|_| central.allocate(quarter, 1, &counters).expect("room"))
        .collect();
    for (start, last_use) in starts.iter().zip([
        LastUse::new(1, 5),
        LastUse::FREE,
        LastUse::new(1, 7),
        LastUse::new(2, 6),
    ]) {
        central.free(*start, last_use).expect("it is live");
    }
    assert_eq!(central.allocate(quarter + 1, 2, &counters), None);
    assert_eq!(central.allocate(3 * quarter + 1, 1, &counters), None);
    let most = central.allocate(3 * quarter - 10, 1, &counters);
    assert_eq!(most, Some(0));
    // The rest of the last one is still the stream's.
    assert_eq!(central.allocate(10, 0, &counters), None);
    assert_eq!(
        central.allocate(10, 1, &counters),
        Some(u64::from(3 * quarter) - 10)
    );
}

/// A run may begin with a clean block.
#[test]
fn what_several_used_is_found_from_its_first_block_on() {
    let mut central = shared();
    let counters = Counters::default();
    central.add(0, PAGE_UNITS, LastUse::FREE, Joins::BOTH);
    let half = PAGE_UNITS as u32 / 2;
    let starts = [(); 2].map(|()| central.allocate(half, 1, &counters).expect("room"));
    central.free(starts[0], LastUse::FREE).expect("it is live");
    central
        .free(starts[1], LastUse::new(1, 5))
        .expect("it is live");
    let places = central.run_of_all(2 * half).expect("both halves");
    assert_eq!(places.len(), 2);
    let start = central.allocate_run_at(&places, 2 * half, 0, &counters);
    assert_eq!(start, Some(0));
}

#[test]
fn what_is_done_is_everybodys_and_one_with_its_neighbours() {
    let mut central = shared();
    let counters = Counters::default();
    central.add(0, 3 * PAGE_UNITS, LastUse::FREE, Joins::BOTH);
    let page = PAGE_UNITS as u32;
    let starts: Vec<u64> = (0..3)
        .map(|_| central.allocate(page, 0, &counters).expect("room"))
        .collect();
    for (start, (cache, epoch)) in starts.iter().zip([(1, 5), (2, 6), (1, 9)]) {
        central
            .free(*start, LastUse::new(cache, epoch))
            .expect("it is live");
    }
    central.note_done(2, 6);
    central.note_done(1, 5);
    assert_eq!(central.allocate(2 * page + 1, 0, &counters), None);
    central.note_done(1, 9);
    assert_eq!(central.allocate(3 * page, 0, &counters), Some(0));
    // A block freed in an epoch that is done is clean at once.
    central.free(0, LastUse::new(1, 8)).expect("it is live");
    assert_eq!(central.allocate(3 * page, 7, &counters), Some(0));
}

#[test]
fn what_the_only_cache_freed_is_its_own_when_there_is_a_second() {
    let mut central = CentralHeap::default();
    let counters = Counters::default();
    central.add(0, PAGE_UNITS, LastUse::FREE, Joins::BOTH);
    let block = central.allocate(100, 0, &counters).expect("room");
    central.free(block, LastUse::new(0, 5)).expect("it is live");
    central.share(0, 6);
    assert_eq!(central.allocate(100, 1, &counters), None);
    central.note_done(0, 6);
    assert_eq!(central.allocate(100, 1, &counters), Some(0));
}

/// Between the search and the request, another thread took a part of it, which may be free again since.
#[test]
fn a_run_that_was_used_meanwhile_is_not_taken() {
    let half = PAGE_UNITS as u32 / 2;
    for is_freed in [false, true] {
        let mut central = shared();
        let counters = Counters::default();
        central.add(0, PAGE_UNITS, LastUse::FREE, Joins::BOTH);
        let starts = [(); 2].map(|()| central.allocate(half, 1, &counters).expect("room"));
        for (start, last_use) in starts.iter().zip([LastUse::new(1, 5), LastUse::new(2, 6)]) {
            central.free(*start, last_use).expect("it is live");
        }
        let places = central.run_of_all(2 * half).expect("both halves");
        let second = central.allocate(half, 2, &counters).expect("its own");
        assert_eq!(second, starts[1]);
        if is_freed {
            central
                .free(second, LastUse::new(2, 9))
                .expect("it is live");
        }
        assert_eq!(
            central.allocate_run_at(&places, 2 * half, 0, &counters),
            None
        );
        if is_freed {
            let places = central.run_of_all(2 * half).expect("both halves");
            let start = central.allocate_run_at(&places, 2 * half, 0, &counters);
            assert_eq!(start, Some(0));
        }
    }
}

/// A block in use, a clean one, one of the stream and a clean one: a page across the last two is taken.
#[test]
fn what_is_left_of_a_run_keeps_its_last_use() {
    let mut central = shared();
    let counters = Counters::default();
    central.add(0, 2 * PAGE_UNITS, LastUse::FREE, Joins::BOTH);
    let page = PAGE_UNITS as u32;
    let starts =
        [50, 100, page, page - 150].map(|size| central.allocate(size, 1, &counters).expect("room"));
    let last_uses = [LastUse::FREE, LastUse::new(1, 5), LastUse::FREE];
    for (start, last_use) in starts[1..].iter().zip(last_uses) {
        central.free(*start, last_use).expect("it is live");
    }
    let wanted = Pages {
        least: PAGE_UNITS,
        most: PAGE_UNITS,
    };
    let pages = central.take_pages(1, wanted).expect("a page");
    assert_eq!((pages.start, pages.units), (PAGE_UNITS, PAGE_UNITS));
    assert_eq!(central.allocate(101, 2, &counters), None);
    assert_eq!(central.allocate(page - 50, 1, &counters), Some(50));
}

#[test]
fn a_block_that_any_stream_has_freed_is_found() {
    let mut central = shared();
    let counters = Counters::default();
    let page = PAGE_UNITS as u32;
    assert!(!central.has_block(1));
    central.add(0, PAGE_UNITS, LastUse::FREE, Joins::BOTH);
    assert!(central.has_block(page) && !central.has_block(page + 1));
    let block = central.allocate(page, 1, &counters).expect("room");
    assert!(!central.has_block(1));
    // It may be in use still.
    central.free(block, LastUse::new(1, 5)).expect("it is live");
    assert!(central.has_block(page) && !central.has_block(page + 1));
}

#[test]
fn frees_count_until_an_event_comes_after_them() {
    let mut central = shared();
    let counters = Counters::default();
    central.add(0, PAGE_UNITS, LastUse::FREE, Joins::BOTH);
    let block = central.allocate(100, 1, &counters).expect("room");
    central.free(block, LastUse::new(1, 5)).expect("it is live");
    central.note_event(1, 4);
    assert_eq!(central.unrecorded(1).units, 100, "it came before the free");
    central.note_event(1, 6);
    assert_eq!(central.unrecorded(1).units, 0);
}

/// A clean block and one of the stream are just enough together.
#[test]
fn blocks_that_became_one_leave_nothing_behind() {
    let mut central = shared();
    let counters = Counters::default();
    central.add(0, 2 * PAGE_UNITS, LastUse::FREE, Joins::BOTH);
    let page = PAGE_UNITS as u32;
    let mut bytes = None;
    for round in 0..200 {
        let starts = [page / 2, page / 2, page]
            .map(|size| central.allocate(size, 1, &counters).expect("room"));
        assert_eq!(starts, [0, PAGE_UNITS / 2, PAGE_UNITS]);
        central.free(starts[0], LastUse::FREE).expect("it is live");
        central
            .free(starts[1], LastUse::new(1, 7))
            .expect("it is live");
        assert_eq!(central.allocate(page, 1, &counters), Some(0));
        central.free(0, LastUse::FREE).expect("it is live");
        central.free(starts[2], LastUse::FREE).expect("it is live");
        let all = central.allocate(2 * page, 0, &counters);
        assert_eq!(all, Some(0), "something lies between them in round {round}");
        central.free(0, LastUse::FREE).expect("it is live");
        let now = central.heap().bytes();
        assert_eq!(*bytes.get_or_insert(now), now, "more in round {round}");
    }
}

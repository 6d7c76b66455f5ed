use super::*;

const PAGE: u32 = PAGE_UNITS as u32;

/// Some pages, by the number of the first.
fn pages(first: u64, count: u64) -> FreePages {
    FreePages {
        start: first * PAGE_UNITS,
        units: count * PAGE_UNITS,
    }
}

/// A cache of runs of free pages.
fn cache_of(runs: &[FreePages], counters: &Counters) -> StreamCache {
    let mut cache = StreamCache::default();
    for run in runs {
        cache.add(run.start, run.units, Joins::BOTH, counters);
    }
    cache
}

fn remote(start: u64) -> RemoteFree {
    RemoteFree {
        start,
        cache: 1,
        epoch: 5,
    }
}

#[test]
fn free_pages_beyond_the_need_go_the_longest_runs_first() {
    let counters = Counters::default();
    let runs = [pages(0, 2), pages(16, 8), pages(32, 4)];
    let mut cache = cache_of(&runs, &counters);
    // Nothing is in use, and two pages may stay.
    assert_eq!(cache.take_surplus(&counters), [pages(16, 8), pages(32, 4)]);
    assert_eq!(counters.held(), 2 * PAGE_UNITS);
    assert_eq!(counters.kept_limit(), MOST_SPARE);
    // Not for two pages more.
    let mut cache = cache_of(&[pages(0, 4)], &counters);
    assert_eq!(cache.take_surplus(&counters), []);
    let mut cache = cache_of(&[pages(0, 5)], &counters);
    assert_eq!(cache.take_surplus(&counters), [pages(0, 3)]);
}

#[test]
fn a_cache_keeps_what_it_used_recently_and_a_quarter_more() {
    let counters = Counters::default();
    let mut cache = cache_of(&[pages(0, 20)], &counters);
    let start = cache.allocate(12 * PAGE, &counters).expect("it is free");
    cache.note_peak();
    cache.free_to_heap(start).expect("it was allocated");
    // An eighth less is 10.5 pages, a quarter more 13.125, and two may be spare.
    assert_eq!(cache.take_surplus(&counters), [pages(0, 4)]);
    assert_eq!(counters.held(), 16 * PAGE_UNITS);
}

#[test]
fn all_free_pages_can_be_given_away() {
    let counters = Counters::default();
    let mut cache = cache_of(&[pages(0, 3)], &counters);
    assert_eq!(cache.give_away(&counters), [pages(0, 3)]);
    assert_eq!(counters.held(), 0);
}

#[test]
fn cached_medium_blocks_are_an_eighth_of_the_pages() {
    let counters = Counters::default();
    let cache = cache_of(&[pages(0, 8)], &counters);
    assert!(cache.has_room_for(PAGE));
    assert!(!cache.has_room_for(PAGE + 1));
}

#[test]
fn cached_blocks_make_room_for_a_larger_one() {
    let counters = Counters::default();
    let mut cache = cache_of(&[pages(0, 1)], &counters);
    for number in 0..PAGE_UNITS / 64 {
        assert_eq!(cache.allocate(64, &counters), Some(64 * number));
    }
    for number in 0..4 {
        assert!(cache.free(64 * number, 64, &counters).is_none());
    }
    assert_eq!(cache.allocate(128, &counters), Some(0));
}

#[test]
fn a_flushed_cache_has_no_large_block() {
    let counters = Counters::default();
    let mut cache = StreamCache::default();
    assert!(cache.free_large(5000, 300, 7, &counters).is_none());
    assert_eq!(counters.cached_large(), 300);
    let flushed = cache.flush(&counters);
    let flushed = flushed.map(|(block, epoch)| (block.start, block.size, epoch));
    assert_eq!(flushed, Some((5000, 300, 7)));
    assert_eq!(counters.cached_large(), 0);
}

#[test]
fn blocks_that_wait_are_counted_and_told() {
    let mut cache = StreamCache::default();
    assert_eq!(cache.remote_frees(), 0);
    cache.push_remote_free(remote(3));
    cache.push_remote_free(remote(90));
    assert_eq!(cache.remote_frees(), 2);
    assert_eq!(cache.waiting(), [remote(3), remote(90)]);
}

#[test]
fn the_bookkeeping_is_that_of_the_heap_and_of_what_waits() {
    let mut cache = StreamCache::default();
    let empty = cache.bytes();
    let heap = &cache.heap;
    assert_eq!(
        empty - heap.bytes(),
        size_of::<StreamCache>() - size_of_val(heap)
    );
    (0..100).for_each(|start| cache.push_remote_free(remote(start)));
    let each = (cache.bytes() - empty) / 100;
    let least = size_of::<RemoteFree>();
    assert!((least..=2 * least).contains(&each), "{each} bytes");
}

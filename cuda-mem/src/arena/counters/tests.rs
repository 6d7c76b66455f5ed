use super::super::PAGE_UNITS;
use super::*;

use Home::{Central, Pages};

#[test]
fn what_one_place_gives_and_another_takes_back_sums_up_to_nothing() {
    let (one, other) = (Counters::default(), Counters::default());
    one.count_fit(10, Pages);
    one.count_fit(1000, Central);
    one.count_hit(3, Pages);
    other.count_free(10, Pages);
    other.count_free(1000, Central);
    let sum = |left: (u64, u64), right: (u64, u64)| {
        (left.0.wrapping_add(right.0), left.1.wrapping_add(right.1))
    };
    assert_eq!(sum(one.live(), other.live()), (3, 1));
    assert_eq!(one.answered(), (1, 2));
}

#[test]
fn a_cache_has_spare_memory_if_a_page_may_be_free_or_a_large_block_is_in_last_freed() {
    let counters = Counters::default();
    counters.set_held(2 * PAGE_UNITS);
    for _ in 0..PAGE_UNITS / 64 {
        counters.count_fit(64, Pages);
    }
    assert!(
        counters.has_spare(false, 0),
        "as much as a page is not in use"
    );
    counters.count_fit(1, Pages);
    assert!(!counters.has_spare(false, 0));
    counters.set_cached_large(300);
    assert!(counters.has_spare(false, 0) && counters.cached_large() == 300);
    counters.count_hit(300, Central);
    assert!(!counters.has_spare(false, 0) && counters.cached_large() == 0);
    counters.count_free(64, Pages);
    assert!(counters.has_spare(false, 0));
    counters.scavenged(0, 0);
    assert!(
        !counters.has_spare(false, 0) && counters.has_spare(true, 0),
        "it was in vain"
    );
    counters.count_free(1, Pages);
    assert!(counters.has_spare(false, 0), "there is more now");
    counters.scavenged(0, 0);
    counters.count_fit(64, Pages);
    assert!(!counters.has_spare(false, 0));
    counters.count_free(64, Pages);
    assert!(counters.has_spare(false, 0), "there was less in between");
    counters.scavenged(1, 0);
    assert!(counters.has_spare(false, 0), "it was not in vain");
}

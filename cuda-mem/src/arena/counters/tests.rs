use super::super::PAGE_UNITS;
use super::*;

#[test]
fn what_one_place_gives_and_another_takes_back_sums_up_to_nothing() {
    let (one, other) = (Counters::default(), Counters::default());
    one.took_fit(10);
    one.took_fit(1000);
    one.took_front(3);
    other.came_back(10);
    other.came_back(1000);
    let sum = |left: (u64, u64), right: (u64, u64)| {
        (left.0.wrapping_add(right.0), left.1.wrapping_add(right.1))
    };
    assert_eq!(sum(one.live(), other.live()), (3, 1));
    assert_eq!(one.answered(), (1, 2));
}

#[test]
fn a_lane_has_spare_memory_if_a_page_may_be_free_or_a_large_block_is_in_front() {
    let counters = Counters::default();
    counters.holds(2 * PAGE_UNITS);
    for _ in 0..PAGE_UNITS / 64 {
        counters.took_fit(64);
    }
    assert!(counters.has_spare(false), "as much as a page is not in use");
    counters.took_fit(1);
    assert!(!counters.has_spare(false));
    counters.fronts(300);
    assert!(counters.has_spare(false) && counters.fronted() == 300);
    counters.took_front(300);
    assert!(!counters.has_spare(false) && counters.fronted() == 0);
    counters.came_back(64);
    assert!(counters.has_spare(false));
    counters.gave(0);
    assert!(
        !counters.has_spare(false) && counters.has_spare(true),
        "it was in vain"
    );
    counters.came_back(1);
    assert!(counters.has_spare(false), "there is more now");
    counters.gave(0);
    counters.took_fit(64);
    assert!(!counters.has_spare(false));
    counters.came_back(64);
    assert!(counters.has_spare(false), "there was less in between");
    counters.gave(1);
    assert!(counters.has_spare(false), "it was not in vain");
}

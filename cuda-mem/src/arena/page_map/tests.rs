use std::collections::HashMap;

use super::super::random::Random;
use super::*;

const END: u64 = 1 << 48;

#[test]
fn it_knows_what_a_map_of_pages_knows() {
    let mut random = Random::new(3);
    let page_map = PageMap::default();
    let mut model: HashMap<u64, Option<CacheId>> = HashMap::new();
    let leaf = LEAF as u64;
    // Around the borders of leaves and at both ends of the addresses.
    let places = [leaf - 4, END / PAGE - 8, 0, 5 * leaf - 4];
    // Each leaf that is touched costs seconds under Miri.
    let some = if cfg!(miri) { 1 } else { 4 };
    for _ in 0..if cfg!(miri) { 30 } else { 20_000 } {
        let near = places[random.below(some) as usize];
        let first = near + random.below(8);
        let pages = random.below(8).min(END / PAGE - first);
        let cache = [None, Some(0), Some(7), Some(u32::MAX - 1)][random.below(4) as usize];
        page_map.set(first * PAGE, pages * PAGE, cache);
        for page in first..first + pages {
            model.insert(page, cache);
        }
        let page = near + random.below(16);
        let known = model.get(&page).copied().flatten();
        let address = page * PAGE + random.below(PAGE);
        assert_eq!(page_map.cache_of(address), known, "{address:#x}");
    }
}

#[test]
fn addresses_that_cannot_be_noted_have_no_owner() {
    let page_map = PageMap::default();
    assert!(PageMap::can_hold(END) && !PageMap::can_hold(END + 1));
    page_map.set(END, PAGE, Some(1));
    for address in [0, END - 1, END, END + 5, u64::MAX] {
        assert_eq!(page_map.cache_of(address), None, "{address:#x}");
    }
}

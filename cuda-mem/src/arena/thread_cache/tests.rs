//! Which thread gets which cache.

use std::thread;

use super::*;
use crate::base::biased::thread::number;

const ARENA: u32 = 7;
const STREAM: CacheId = 3;

fn own(caches: &Arc<ThreadCaches>) -> Option<&ThreadCache> {
    caches.of_thread(ARENA, STREAM, number())
}

/// Asks often enough to get a cache.
fn come(caches: &Arc<ThreadCaches>) -> &ThreadCache {
    let mut all = (0..TRIES).map(|_| own(caches));
    all.find_map(|cache| cache).expect("it came often")
}

#[test]
fn a_thread_that_comes_often_gets_a_cache() {
    let caches = Arc::<ThreadCaches>::default();
    for _ in 1..TRIES {
        assert!(own(&caches).is_none());
    }
    let cache = own(&caches).expect("it came often");
    assert!(cache.free(5, 2, number()).is_none());
    assert_eq!(cache.units(number()), 2);
    let replaced = (6..20).find_map(|start| cache.free(start, 2, number()));
    let replaced = replaced.expect("few of each size");
    let again = own(&caches).expect("it has one");
    assert_eq!(again.allocate(3, number()), None);
    assert_eq!(again.allocate(2, number()), Some(replaced.start + 1));
    assert_eq!(caches.iter().count(), 1);
}

#[test]
fn a_cache_is_found_again_when_another_stream_has_its_place() {
    let caches = Arc::<ThreadCaches>::default();
    let first: *const ThreadCache = come(&caches);
    let other = caches.of_thread(ARENA, STREAM + RECENT as u32, number());
    assert!(
        other.is_some_and(|other| std::ptr::eq(other, first)),
        "by thread"
    );
    assert!(own(&caches).is_some_and(|own| std::ptr::eq(own, first)));
}

#[test]
fn the_cache_of_a_thread_that_has_ended_goes_to_the_next() {
    let caches = Arc::<ThreadCaches>::default();
    let worker = thread::spawn({
        let caches = Arc::clone(&caches);
        move || {
            let cache = come(&caches);
            assert!(!cache.is_left());
            cache.free(5, 2, number());
        }
    });
    worker.join().expect("it does not panic");
    assert!(caches.iter().all(ThreadCache::is_left));
    let cache = come(&caches);
    assert_eq!(cache.allocate(2, number()), Some(5));
    assert!(!cache.is_left());
    assert_eq!(caches.iter().count(), 1);
}

#[test]
fn threads_that_live_at_once_have_caches_of_their_own() {
    let caches = Arc::<ThreadCaches>::default();
    let mine: *const ThreadCache = come(&caches);
    let mine = mine.addr();
    thread::scope(|scope| {
        let other = scope.spawn(|| assert_ne!(std::ptr::from_ref(come(&caches)).addr(), mine));
        // The end of the scope alone does not wait for the thread's thread-local destructors.
        other.join().expect("another one");
    });
    assert_eq!(caches.iter().count(), 2);
    assert_eq!(caches.iter().filter(|cache| cache.is_left()).count(), 1);
}

#[test]
fn a_flush_takes_every_block() {
    let caches = Arc::<ThreadCaches>::default();
    let cache = come(&caches);
    for start in [5, 9] {
        assert!(cache.free(start, 2, number()).is_none());
    }
    let mut starts: Vec<u64> = cache.flush(number()).iter().map(|it| it.start).collect();
    starts.sort_unstable();
    assert_eq!(starts, [5, 9]);
    assert_eq!(cache.units(number()), 0);
    assert!(cache.flush(number()).is_empty());
}

#[test]
fn a_thread_remembers_the_caches_of_living_arenas_only() {
    // A thread of its own, because others run tests that join.
    let worker = thread::spawn(|| {
        let living = Arc::<ThreadCaches>::default();
        come(&living);
        for arena in 1..20 {
            let ended = Arc::<ThreadCaches>::default();
            let asked = || ended.of_thread(ARENA + arena, STREAM, number());
            assert!((0..TRIES).map(|_| asked()).any(|cache| cache.is_some()));
        }
        let remembered = JOINED.with_borrow(|all| {
            let is_living = |joined: &&Joined| joined.caches.strong_count() > 0;
            (all.len(), all.iter().filter(is_living).count())
        });
        // The last that ended is removed when the thread joins another.
        assert_eq!(remembered, (2, 1));
    });
    worker.join().expect("the thread");
}

use std::collections::{BTreeSet, HashMap};

use super::*;
use crate::random::random_allocations;

const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream\n";

fn events(rows: &str) -> Events {
    Events::parse(format!("{HEADER}{rows}").as_bytes()).expect("a good log")
}

fn timeline(rows: &str) -> Timeline {
    Timeline::new(&events(rows)).expect("small sizes")
}

#[test]
fn pending_frees_are_used_and_not_asked() {
    let found = timeline(
        "1,0.1,allocate,0x100,10,0\n1,0.2,allocate,0x200,20,0\n1,0.3,free requested,0x100,10,0\n\
         1,0.4,allocate,0x300,5,0\n1,0.5,free completed,0x100,10,0\n1,0.6,free,0x200,20,0\n",
    );
    let lifetimes: Vec<_> = found
        .blocks
        .iter()
        .map(|block| (block.allocated, block.requested, block.freed))
        .collect();
    assert_eq!(
        lifetimes,
        [
            (0, Some(2), Some(4)),
            (1, Some(5), Some(5)),
            (3, None, None)
        ]
    );
    assert_eq!(
        found.asked,
        Peak {
            bytes: 30,
            event: 1
        }
    );
    assert_eq!(
        found.used,
        Peak {
            bytes: 35,
            event: 3
        }
    );
    assert_eq!((found.asked_at_end, found.alive_at_end), (5, 1));
    assert_eq!(found.reserved, None);
}

#[test]
fn parts_of_mappings_are_unmapped_and_moves_do_not_dip() {
    let found = timeline(
        "1,1,map,0x1000,4096,0\n1,2,unmap,0x1400,1024,0\n1,3,unmap,0x1000,1024,0\n\
         1,3,map,0x4000,1024,0\n1,4,map,0x4400,1024,0\n",
    );
    let mappings: Vec<_> = found
        .mappings
        .iter()
        .map(|mapping| {
            (
                mapping.pointer,
                mapping.bytes,
                mapping.mapped,
                mapping.unmapped,
            )
        })
        .collect();
    assert_eq!(
        mappings,
        [
            (0x1000, 4096, 0, Some(1)),
            (0x1800, 2048, 1, None),
            // Moves to 0x4000, so it ends with event 3.
            (0x1000, 1024, 1, Some(3)),
            (0x4000, 1024, 3, None),
            (0x4400, 1024, 4, None),
        ]
    );
    assert_eq!(
        found.reserved,
        Some(Peak {
            bytes: 4096,
            event: 0
        })
    );
    // The mappings at 0x4000 and 0x4400 are one piece.
    assert_eq!(
        found.free_space.last(),
        Some(&FreeSpace {
            event: 4,
            bytes: 4096,
            largest: 2048
        })
    );
    assert_eq!(found.unknown_maps, 0);
}

#[test]
fn what_does_not_fit_is_counted() {
    let found = timeline(
        "1,1,free,0x100,10,0\n1,1,dropped,0x0,7,0\n1,1,allocate,0x100,16,0\n1,1,allocate,0x108,16,0\n\
         1,1,allocate failure,0x0,99,0\n1,1,driver calls,0x0,12,0\n1,1,unmap,0x0,64,0\n1,1,map,0x0,64,0\n\
         1,1,map,0x20,64,0\n1,1,free completed,0x108,16,0\n1,1,free completed,0x108,16,0\n",
    );
    assert_eq!((found.unknown_frees, found.missing_frees), (2, 2));
    assert_eq!((found.lost_events, found.failures), (7, 1));
    assert_eq!((found.unknown_maps, found.driver_calls), (2, Some(12)));
    assert_eq!(found.blocks[0].freed, Some(3));
    assert_eq!((found.asked.bytes, found.asked_at_end), (16, 0));
    assert_eq!(found.reserved.map(|peak| peak.bytes), Some(96));
}

#[test]
fn empty_blocks_share_an_address() {
    let found = timeline(
        "1,1,allocate,0x10,0,0\n1,1,allocate,0x10,0,0\n1,1,allocate,0x10,8,0\n1,1,free,0x10,0,0\n\
         1,1,free,0x10,8,0\n1,1,free,0x10,0,0\n1,1,free,0x10,0,0\n",
    );
    assert_eq!((found.unknown_frees, found.missing_frees), (1, 0));
    assert_eq!(found.alive_at_end, 0);
}

#[test]
fn sums_that_overflow_are_refused() {
    let rows = format!(
        "1,1,allocate,0x0,{0},0\n1,1,allocate,0x10,{0},0\n",
        u64::MAX
    );
    let problem = Timeline::new(&events(&rows)).expect_err("too much");
    assert!(problem.contains("event 1"), "{problem}");
}

/// The events again, each with the whole state looked through.
#[test]
fn numbers_are_those_of_a_straightforward_computation() {
    let mut log = Vec::new();
    let made = random_allocations(300, 64).expect("a workload");
    made.trace.write(&mut log).expect("written");
    let mut log = Events::parse(&log[..]).expect("a good log");
    spread(&mut log);
    let found = Timeline::new(&log).expect("small sizes");

    let (mut alive, mut pending) = (HashMap::new(), HashMap::new());
    let mut pages = BTreeSet::new();
    let (mut asked, mut used, mut reserved) = (Vec::new(), Vec::new(), Vec::new());
    let mut spaces = found.free_space.iter().peekable();
    for (index, event) in log.events.iter().enumerate() {
        let first = event.pointer / PAGE;
        let range = first..first + event.size / PAGE;
        match event.action {
            Action::Allocate => drop(alive.insert(event.pointer, event.size)),
            Action::Free => drop(alive.remove(&event.pointer)),
            Action::FreeRequested => {
                pending.insert(event.pointer, alive.remove(&event.pointer).expect("alive"));
            }
            Action::FreeCompleted => drop(pending.remove(&event.pointer)),
            Action::Map => pages.extend(range),
            Action::Unmap => pages.retain(|page| !range.contains(page)),
            _ => {}
        }
        asked.push(alive.values().sum::<u64>());
        used.push(asked[index] + pending.values().sum::<u64>());
        reserved.push(pages.len() as u64 * PAGE);
        if let Some(space) = spaces.next_if(|space| space.event == index) {
            let blocks = alive.iter().chain(&pending);
            let blocks: Vec<_> = blocks.map(|(at, size)| (*at, at + size)).collect();
            assert_eq!(*space, free_space(index, &pages, &blocks));
        }
    }
    assert!(spaces.next().is_none() && found.free_space.len() > 100);
    assert_eq!(found.asked, peak(&asked));
    assert_eq!(found.used, peak(&used));
    assert_eq!(found.reserved, Some(peak(&reserved)));
    assert_ne!(asked, used, "some frees were pending");
    assert_eq!(found.asked_at_end, *asked.last().expect("events"));
}

const PAGE: u64 = 64;

/// Blocks become small enough for the distance between their addresses, some of their frees pending ones, and pages
/// are mapped and unmapped among them.
fn spread(log: &mut Events) {
    let plain = std::mem::take(&mut log.events);
    let mut pending = Vec::new();
    for (index, mut event) in plain.into_iter().enumerate() {
        event.size = event.size % 256 + 1;
        let pages = |action, index: usize| Event {
            action,
            pointer: (index as u64 % 40) * 3 * PAGE,
            size: 3 * PAGE,
            // No move: those are counted at one event.
            time: index as u64,
            ..event
        };
        if event.action == Action::Free && index % 3 == 0 {
            let action = Action::FreeRequested;
            log.events.push(Event { action, ..event });
            let action = Action::FreeCompleted;
            pending.push(Event { action, ..event });
        } else {
            // Before the address is used again.
            let mut position = 0;
            while position < pending.len() {
                if pending[position].pointer == event.pointer {
                    log.events.push(pending.remove(position));
                } else {
                    position += 1;
                }
            }
            log.events.push(event);
        }
        match index % 80 {
            later @ 0..40 => log.events.push(pages(Action::Map, later)),
            later if index % 7 == 0 => log.events.push(pages(Action::Unmap, later)),
            _ => {}
        }
    }
    log.events.extend(pending);
}

fn peak(values: &[u64]) -> Peak {
    let bytes = values.iter().copied().max().unwrap_or_default();
    let event = values.iter().position(|value| *value == bytes);
    let event = event.unwrap_or_default();
    Peak { bytes, event }
}

/// Byte by byte.
fn free_space(event: usize, pages: &BTreeSet<u64>, blocks: &[(u64, u64)]) -> FreeSpace {
    let last = pages.last().map_or(0, |page| (page + 1) * PAGE);
    let (mut bytes, mut largest, mut run) = (0, 0, 0);
    for at in 0..last {
        let is_mapped = pages.contains(&(at / PAGE));
        if is_mapped
            && !blocks
                .iter()
                .any(|(start, end)| (*start..*end).contains(&at))
        {
            bytes += 1;
            run += 1;
            largest = largest.max(run);
        } else {
            run = 0;
        }
    }
    FreeSpace {
        event,
        bytes,
        largest,
    }
}

/// What pools hold is counted by pool, and adds to what is mapped.
#[test]
fn pools_hold_together() {
    let found = timeline(
        "1,0.1,reserved,0x10,100,0\n1,0.2,map,0x1000,7,0\n1,0.3,reserved,0x20,50,0\n\
         1,0.4,reserved,0x10,0,0\n",
    );
    let held: Vec<_> = found
        .held
        .iter()
        .map(|held| (held.event, held.bytes))
        .collect();
    assert_eq!(held, [(0, 100), (2, 150), (3, 50)]);
    assert_eq!(
        found.reserved,
        Some(Peak {
            bytes: 157,
            event: 2
        })
    );
}

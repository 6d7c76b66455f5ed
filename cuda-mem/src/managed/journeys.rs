//! Where a buffer was sent, and how often.

use std::sync::{MutexGuard, PoisonError};

use bytemuck::Pod;

use super::ManagedBuffer;
use crate::location::Location;
use crate::traffic::Traffic;

/// Counts for each place. There are few, so a list does.
#[derive(Debug, Default)]
pub(super) struct Journeys(Vec<(Location, Traffic)>);

impl Journeys {
    pub(super) fn note(&mut self, place: Location, traffic: Traffic) {
        if let Some((_, so_far)) = self.0.iter_mut().find(|(known, _)| *known == place) {
            *so_far += traffic;
        } else {
            self.0.push((place, traffic));
        }
    }

    pub(super) fn to(&self, place: Location) -> Traffic {
        let found = self.0.iter().find(|(known, _)| *known == place);
        found.map(|(_, traffic)| *traffic).unwrap_or_default()
    }

    pub(super) fn total(&self) -> Traffic {
        let mut total = Traffic::default();
        for (_, traffic) in &self.0 {
            total += *traffic;
        }
        total
    }
}

impl<T: Pod> ManagedBuffer<T> {
    /// The driver is not called under this lock.
    pub(super) fn noted(&self) -> MutexGuard<'_, Journeys> {
        self.journeys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_has_its_own_count() {
        let mut journeys = Journeys::default();
        for (place, bytes) in [
            (Location::Host, 1),
            (Location::HostNuma(0), 2),
            (Location::Host, 4),
        ] {
            journeys.note(place, Traffic::of_prefetch(bytes));
        }
        let seen = |traffic: Traffic| (traffic.prefetches, traffic.prefetched_bytes);
        assert_eq!(seen(journeys.to(Location::Host)), (2, 5));
        assert_eq!(seen(journeys.to(Location::HostNuma(0))), (1, 2));
        assert_eq!(seen(journeys.to(Location::HostNuma(1))), (0, 0));
        assert_eq!(seen(journeys.total()), (3, 7));
    }
}

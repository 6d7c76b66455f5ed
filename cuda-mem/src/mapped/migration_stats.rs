//! Statistics of mapped, prefetched and moved memory, for each object and each location.

use std::fmt;
use std::ops::AddAssign;

use crate::base::error::Bytes;
use crate::base::lock::Lock;
use crate::driver::Driver;
use crate::driver::device::Device;
use crate::driver::location::Location;

/// How often memory was mapped, prefetched and moved, and how many bytes. Counted when it was done, or when the driver
/// accepted the request: migrations that the driver starts by itself are not included, nor is the number of pages that
/// a prefetch actually moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrationStats {
    /// Mappings of memory at an address.
    pub maps: u64,
    /// Bytes of these.
    pub mapped_bytes: u64,
    /// Prefetches of managed memory.
    pub prefetches: u64,
    /// Bytes of these.
    pub prefetched_bytes: u64,
    /// Moves of mapped memory to another location.
    pub moves: u64,
    /// Bytes of these.
    pub moved_bytes: u64,
}

impl MigrationStats {
    /// One piece of memory at an address.
    pub(crate) fn of_map(bytes: u64) -> Self {
        Self {
            maps: 1,
            mapped_bytes: bytes,
            ..Self::default()
        }
    }

    /// One prefetch.
    pub(crate) fn of_prefetch(bytes: usize) -> Self {
        Self {
            prefetches: 1,
            prefetched_bytes: bytes as u64,
            ..Self::default()
        }
    }

    /// One move.
    pub(crate) fn of_move(bytes: u64) -> Self {
        Self {
            moves: 1,
            moved_bytes: bytes,
            ..Self::default()
        }
    }
}

/// Adds up each count.
impl AddAssign for MigrationStats {
    fn add_assign(&mut self, other: Self) {
        self.maps += other.maps;
        self.mapped_bytes += other.mapped_bytes;
        self.prefetches += other.prefetches;
        self.prefetched_bytes += other.prefetched_bytes;
        self.moves += other.moves;
        self.moved_bytes += other.moved_bytes;
    }
}

/// One line, with the non-zero counts: `2 maps of 4.0 MiB, 3 prefetches of 12.0 MiB`.
impl fmt::Display for MigrationStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (count, what, bytes) in [
            (self.maps, "map", self.mapped_bytes),
            (self.prefetches, "prefetch", self.prefetched_bytes),
            (self.moves, "move", self.moved_bytes),
        ] {
            let plural = match (count, what) {
                (0, _) => continue,
                (1, _) => "",
                (_, "prefetch") => "es",
                _ => "s",
            };
            write!(f, "{between}{count} {what}{plural} of {}", Bytes(bytes))?;
            between = ", ";
        }
        if between.is_empty() {
            f.write_str("none")?;
        }
        Ok(())
    }
}

/// The counts of each location. There are few, so a list is enough.
#[derive(Debug)]
pub(crate) struct Places<Place>(Vec<(Place, MigrationStats)>);

impl<Place: PartialEq> Places<Place> {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn note(&mut self, place: Place, migrations: MigrationStats) {
        if let Some((_, so_far)) = self.0.iter_mut().find(|(known, _)| *known == place) {
            *so_far += migrations;
        } else {
            self.0.push((place, migrations));
        }
    }

    pub(crate) fn to(&self, place: Place) -> MigrationStats {
        let found = self.0.iter().find(|(known, _)| *known == place);
        found.map(|(_, migrations)| *migrations).unwrap_or_default()
    }

    pub(crate) fn total(&self) -> MigrationStats {
        let mut total = MigrationStats::default();
        for (_, migrations) in &self.0 {
            total += *migrations;
        }
        total
    }
}

/// Totals of all objects of the process. The driver is not called under this lock.
static ALL: Lock<Places<(Driver, Location)>> = Lock::new(Places::new());

/// Counts for the location. Only for operations that cost microseconds: there is one lock.
pub(crate) fn note(driver: Driver, place: Location, migrations: MigrationStats) {
    if let Some(mut all) = ALL.lock_unless_forked() {
        all.note((driver, place), migrations);
    }
}

impl Driver {
    /// What all objects of this crate, including arenas, have mapped at a location, prefetched to it and moved to it
    /// since the process began. Two locations whose counts grow in turn indicate memory that moves back and forth.
    ///
    /// A move maps the memory twice: at the target of the copy, and at the old address.
    ///
    /// ```
    /// use cuda_mem::Driver;
    /// use cuda_mem::driver::Location;
    /// use cuda_mem::mapped::ManagedBuffer;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// let driver = Driver::load()?;
    /// let device = driver.device(0)?;
    /// let stream = device.primary_context()?.stream()?;
    /// let before = device.migrations();
    ///
    /// let numbers = ManagedBuffer::<f32>::zeroed(&stream, 1 << 20)?;
    /// numbers.prefetch(Location::Device(device))?;
    /// numbers.prefetch(Location::Host)?;
    ///
    /// assert_eq!(device.migrations().prefetches - before.prefetches, 1);
    /// println!("to the host: {}", driver.migrations_to(Location::Host));
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[must_use]
    pub fn migrations_to(&self, place: Location) -> MigrationStats {
        let place = (*self, place.known(*self));
        let all = ALL.lock_unless_forked();
        all.map(|all| all.to(place)).unwrap_or_default()
    }
}

impl Device {
    /// What all objects of this crate have mapped, prefetched and moved to the device's memory since the process began.
    /// See [`Driver::migrations_to`].
    #[must_use]
    pub fn migrations(&self) -> MigrationStats {
        self.driver().migrations_to(Location::Device(*self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_add_up() {
        let mut migrations = MigrationStats::default();
        assert_eq!(migrations.to_string(), "none");
        for bytes in [1 << 20, 2 << 20] {
            migrations += MigrationStats::of_prefetch(bytes);
        }
        assert_eq!(
            (migrations.prefetches, migrations.prefetched_bytes),
            (2, 3 << 20)
        );
        assert_eq!(migrations.to_string(), "2 prefetches of 3.0 MiB");
        migrations += MigrationStats::of_map(1 << 20);
        migrations += MigrationStats::of_move(1 << 20);
        migrations += MigrationStats::of_move(1 << 20);
        let text = "1 map of 1.0 MiB, 2 prefetches of 3.0 MiB, 2 moves of 2.0 MiB";
        assert_eq!(migrations.to_string(), text);
    }

    #[test]
    fn each_place_has_its_own_count() {
        let mut places = Places::new();
        for (place, bytes) in [("here", 1), ("there", 2), ("here", 4)] {
            places.note(place, MigrationStats::of_prefetch(bytes));
        }
        let seen =
            |migrations: MigrationStats| (migrations.prefetches, migrations.prefetched_bytes);
        assert_eq!(seen(places.to("here")), (2, 5));
        assert_eq!(seen(places.to("there")), (1, 2));
        assert_eq!(seen(places.to("nowhere")), (0, 0));
        assert_eq!(seen(places.total()), (3, 7));
    }
}

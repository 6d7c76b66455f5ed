//! Access rights to memory, kept across moves.

use crate::base::error::{Error, Result};
use crate::driver::Driver;
use crate::driver::location::Location;
use crate::memory::pool::Access;

/// Whether `who` can have access to memory there: the host cannot access device memory (R141).
pub(super) fn can_have(who: Location, place: Location) -> bool {
    !(who.is_host() && matches!(place, Location::Device(_)))
}

/// Whether the driver keeps one access for both: access for any node is access for the host (R159).
fn is_one(who: Location, other: Location) -> bool {
    who == other || who.is_host() && other.is_host()
}

/// `Ok` if `who` can have access to memory there, as far as is known without asking the driver.
pub(super) fn require_possible(driver: Driver, who: Location, place: Location) -> Result<()> {
    who.require_driver(driver, "the memory")?;
    if can_have(who, place) {
        return Ok(());
    }
    Err(Error::not_supported(format!(
        "{who} has no access to memory of a device; take memory of the host"
    )))
}

/// The access that was set. Access that is impossible at the present location applies again after a move.
#[derive(Clone, Debug, Default)]
pub(super) struct Accesses(Vec<(Location, Access)>);

impl Accesses {
    pub(super) fn set(&mut self, who: Location, access: Access) {
        self.0.retain(|(known, _)| !is_one(*known, who));
        if access != Access::None {
            self.0.push((who, access));
        }
    }

    pub(super) fn of(&self, who: Location) -> Access {
        let found = self.0.iter().find(|(known, _)| is_one(*known, who));
        found.map_or(Access::None, |(_, access)| *access)
    }

    pub(super) fn who(&self) -> impl Iterator<Item = Location> {
        self.0.iter().map(|(who, _)| *who)
    }

    /// The access that is possible while the memory is there.
    pub(super) fn at(&self, place: Location) -> Self {
        let all = self.0.iter().copied();
        Self(all.filter(|(who, _)| can_have(*who, place)).collect())
    }

    pub(super) fn list(&self) -> &[(Location, Access)] {
        &self.0
    }
}

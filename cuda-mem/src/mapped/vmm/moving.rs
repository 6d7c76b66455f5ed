//! Moving memory to another location, behind the same address.

use super::builder::MappedMemoryBuilder;
use super::mapped::{MappedMemory, Part};
use super::whole;
use crate::base::error::{Bytes, Error, Result, took_effect};
use crate::base::report;
use crate::driver::location::Location;
use crate::driver::raw;
use crate::driver::raw::Queue;
use crate::mapped::migration_stats::{self, MigrationStats};
use crate::memory::pool::Access;
use crate::stream::Stream;

impl MappedMemory {
    /// Moves all bytes to memory of another location; the address stays. Copies in the order of the stream and waits
    /// for it. Unsafe code that uses the address must be done.
    ///
    /// The stream's device must be able to access both locations, and is given access for the copy if it has none.
    /// Locations that [have access](Self::set_access) keep it; the host's access is suspended while the memory is on a
    /// device. All bytes become one [part](Self::parts), also those of several devices. If the location has larger
    /// granules, the memory becomes longer.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the location or the stream is of another driver, for another
    /// thread's per-thread stream, and if the location's granules do not fit into the address range;
    /// [`Capturing`](crate::ErrorKind::Capturing) while the stream is captured; otherwise as
    /// [`MappedMemoryBuilder::build`]. Until the copy is complete nothing is changed; if the new memory cannot be mapped
    /// at the address then, the old memory is mapped again. If that fails too,
    /// [`on_drop_failure`](crate::base::on_drop_failure) is called, the bytes are not [mapped](Self::is_mapped), and
    /// [`map`](Self::map) may be tried again. If the copy was submitted and cannot be waited for, the memory is lost:
    /// it leaks, and this object is left empty.
    #[doc(alias("cuMemcpyAsync", "cuMemMap"))]
    #[track_caller]
    pub fn move_to(&mut self, location: Location, stream: &Stream) -> Result<()> {
        let driver = self.settings.driver;
        let place = location.known(driver);
        place.require_driver(driver, "the memory")?;
        let copier = Location::Device(stream.device());
        copier.require_driver(driver, "the memory")?;
        // A copy may cross from one mapping into the next only while a context is current (R148).
        let open = stream.as_ref().submit_bound()?;
        open.refuse_captured(
            "the stream is being captured into a graph; move memory before or after",
        )?;
        self.map()?;
        let mut copy = self.room_at(place, copier)?;
        let lent = self.lend_to(copier)?;
        let (to, from, bytes) = (copy.address(), self.address(), self.size_bytes());
        let mut is_submitted = false;
        let copy_and_wait = |queue: Queue<'_>| {
            // SAFETY: both are mapped, the copy for as much at least (its granules may be larger), and the stream's
            // device has access to both. Nobody uses either: the caller of unsafe code vouches for its end.
            let copied = unsafe { raw::copy::anywhere(queue, to, from, bytes as usize) };
            is_submitted = took_effect(&copied);
            copied.and_then(|()| stream.wait())
        };
        let copied = open.with_relaxed_capture_mode(copy_and_wait);
        drop(open);
        if let Err(error) = copied {
            if !is_submitted {
                self.take_back(lent);
                return Err(error);
            }
            // The copy may still run, so its source and target are never released.
            report::failed("memory that is moved", &error);
            std::mem::forget((copy, std::mem::take(&mut self.parts)));
            return Err(error);
        }
        self.take_back(lent);
        copy.unmap()?;
        self.exchange(std::mem::take(&mut copy.parts))?;
        self.granule = copy.granule;
        self.settings.locations = vec![place];
        let migrations = MigrationStats::of_move(bytes);
        self.migrations.note(place, migrations);
        migration_stats::note(driver, place, migrations);
        // Not before: this may run the program's code, and captures of the stream wait for what is submitted to it.
        stream.after_wait();
        Ok(())
    }

    /// Memory of another location for all bytes, at an address of its own. Fails if a location cannot have access
    /// there.
    #[track_caller]
    fn room_at(&self, place: Location, copier: Location) -> Result<Self> {
        let mut settings = MappedMemoryBuilder::clone(&self.settings);
        settings.locations = vec![place];
        settings.reserved = 0;
        let least = settings.physical(place).granularity()?.minimum;
        settings.granule = self.granule.is_multiple_of(least).then_some(self.granule);
        let bytes = self.size_bytes();
        let (size, room) = (whole(bytes, settings.granule()?)?, self.reserved_bytes());
        if size > room {
            return Err(Error::invalid(format!(
                "{} take {} there, which do not fit behind addresses for {}; reserve more",
                Bytes(bytes),
                Bytes(size),
                Bytes(room)
            )));
        }
        settings.accesses = settings.accesses.at(place);
        settings.accesses.set(copier, Access::ReadWrite);
        settings.build(bytes)
    }

    /// Lets a device read that has no access. Returns the location to withdraw it from.
    fn lend_to(&self, copier: Location) -> Result<Option<Location>> {
        match self.settings.accesses.of(copier) {
            Access::Read | Access::ReadWrite => Ok(None),
            _ => self.give(copier, Access::Read).map(|()| Some(copier)),
        }
    }

    fn take_back(&self, lent: Option<Location>) {
        if let Some(who) = lent {
            let before = self.settings.accesses.of(who);
            report::release("access", || self.give(who, before));
        }
    }

    /// Replaces the memory behind the address. On an error the old memory is mapped again, or nothing is.
    #[track_caller]
    fn exchange(&mut self, other: Vec<Part>) -> Result<()> {
        // No closures here: the ledger would list their lines.
        let mut exchanged = self.unmap();
        if exchanged.is_ok() {
            let old = std::mem::replace(&mut self.parts, other);
            exchanged = self.map();
            if exchanged.is_err() {
                self.parts = old;
            }
        }
        if exchanged.is_err()
            && let Err(error) = self.map()
        {
            report::failed("memory that could not be moved", &error);
        }
        exchanged
    }
}

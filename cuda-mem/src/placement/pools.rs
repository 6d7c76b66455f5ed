//! Pools that placements share: creating one takes milliseconds, allocating from an existing one a microsecond.

use crate::base::error::Result;
use crate::driver::device::Device;
use crate::driver::location::Location;
use crate::memory::pool::{MemoryPool, PoolBuilder};
use crate::stream::context::Context;

#[derive(Clone)]
struct Shared {
    place: Location,
    users: Vec<Device>,
    pool: MemoryPool,
}

/// The pool at this location that these devices use. All placements of a context share it, and the context keeps it.
/// `builder` creates it if there is none.
pub(super) fn shared(
    context: &Context,
    place: Location,
    users: &[Device],
    builder: impl FnOnce() -> PoolBuilder,
) -> Result<MemoryPool> {
    let fits = |known: &Shared| known.place == place && known.users == users;
    let shared = context.keep(fits, || {
        let pool = made_for(users, builder())?;
        // The next placement promises these devices their access without asking the driver. A holder of a
        // buffer has the pool, and must not take that access away.
        pool.fix_access();
        // No program holds it.
        pool.leave_ledger();
        Ok(Shared {
            place,
            users: users.to_vec(),
            pool,
        })
    })?;
    Ok(shared.pool)
}

/// A pool that these devices use.
pub(super) fn made_for(users: &[Device], builder: PoolBuilder) -> Result<MemoryPool> {
    builder.accessible_from(users).build()
}

//! A release threshold for the duration of a scope.

use std::collections::BTreeMap;
use std::fmt;

use super::{Pool, ReleaseThreshold};
use crate::base::error::Result;
use crate::base::report::{self, HookDeferringGuard};
use crate::stream::recording;

/// The thresholds requested by scopes, and the one in effect without them.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    /// Requested bytes, and how many scopes request that value.
    users: BTreeMap<u64, usize>,
    /// The threshold to restore when the last scope ends; `None` if it is already set.
    base: Option<u64>,
}

impl Scopes {
    /// The threshold in effect now.
    fn effective(&self) -> u64 {
        let highest = self.users.last_key_value().map_or(0, |(bytes, _)| *bytes);
        highest.max(self.base.unwrap_or(0))
    }

    /// The pool has what is in effect; without users that is the base.
    fn forget_base(&mut self) {
        if self.users.is_empty() {
            self.base = None;
        }
    }

    fn remove(&mut self, bytes: u64) {
        if let Some(users) = self.users.get_mut(&bytes) {
            *users -= 1;
            if *users == 0 {
                self.users.remove(&bytes);
            }
        }
    }
}

impl Pool {
    /// Sets how much memory the pool may keep when streams synchronise. Takes effect at the next synchronisation of
    /// a stream, an event or a context, not immediately; see [`trim_to`](Self::trim_to).
    ///
    /// While a [`RaisedThreshold`] lives, the pool keeps at least the amount it requests.
    ///
    /// # Errors
    ///
    /// Any driver error.
    #[doc(alias = "cuMemPoolSetAttribute")]
    pub fn set_release_threshold(&self, threshold: ReleaseThreshold) -> Result<()> {
        let mut scopes = self.scopes()?;
        let before = scopes.base.replace(threshold.bytes());
        self.write_threshold(scopes.effective())
            .inspect_err(|_| scopes.base = before)?;
        scopes.forget_base();
        Ok(())
    }

    /// Raises the threshold to at least this value while the guard lives, then restores it. Scopes are counted: the
    /// highest live one is in effect, whatever the order in which they end, even with several threads and several
    /// handles to one pool.
    ///
    /// # Errors
    ///
    /// Any driver error; on error nothing is changed.
    ///
    /// ```
    /// use cuda_mem::{Driver, ReleaseThreshold};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// let pool = device.default_pool()?;
    /// let before = pool.release_threshold()?;
    /// {
    ///     let _phase = pool.raise_release_threshold(ReleaseThreshold::Never)?;
    ///     assert_eq!(pool.release_threshold()?, ReleaseThreshold::Never);
    /// }
    /// assert_eq!(pool.release_threshold()?, before);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    #[doc(alias("cuMemPoolGetAttribute", "cuMemPoolSetAttribute"))]
    pub fn raise_release_threshold(&self, threshold: ReleaseThreshold) -> Result<RaisedThreshold> {
        let bytes = threshold.bytes();
        let mut scopes = self.scopes()?;
        if scopes.base.is_none() {
            scopes.base = Some(self.release_threshold()?.bytes());
        }
        *scopes.users.entry(bytes).or_default() += 1;
        if let Err(error) = self.write_threshold(scopes.effective()) {
            scopes.remove(bytes);
            scopes.forget_base();
            return Err(error);
        }
        drop(scopes);
        Ok(RaisedThreshold {
            pool: self.clone(),
            bytes,
        })
    }

    /// The hook may change the threshold.
    fn scopes(&self) -> Result<HookDeferringGuard<'_, Scopes>> {
        self.0.scopes.lock().map(HookDeferringGuard::new)
    }
}

/// A guard that keeps the release threshold raised. From [`Pool::raise_release_threshold`].
#[must_use = "the threshold is raised only while the guard lives"]
pub struct RaisedThreshold {
    pool: Pool,
    bytes: u64,
}

impl Drop for RaisedThreshold {
    fn drop(&mut self) {
        report::release("raised threshold", || {
            let mut scopes = self.pool.scopes()?;
            scopes.remove(self.bytes);
            // If this fails, the base is kept for the next scope.
            let table = self.pool.driver().table();
            recording::relaxed_if_possible(table, || {
                self.pool.write_threshold(scopes.effective())
            })?;
            scopes.forget_base();
            Ok(())
        });
    }
}

impl fmt::Debug for RaisedThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "RaisedThreshold({} of {:?})",
            ReleaseThreshold::from_bytes(self.bytes),
            self.pool
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_user_counts_and_the_base_is_the_least() {
        let mut scopes = Scopes {
            base: Some(10),
            ..Scopes::default()
        };
        assert_eq!(scopes.effective(), 10);
        for bytes in [5, 20, 20, 30] {
            *scopes.users.entry(bytes).or_default() += 1;
        }
        assert_eq!(scopes.effective(), 30);
        scopes.remove(30);
        assert_eq!(scopes.effective(), 20);
        scopes.remove(20);
        assert_eq!(scopes.effective(), 20);
        scopes.remove(20);
        assert_eq!(scopes.effective(), 10);
    }
}

//! What recorded work uses, and uses of it by launches.

#![forbid(unsafe_code)]

use std::sync::Arc;

use crate::base::error::Result;
use crate::stream::epoch::Progress;

/// An object that recorded work uses. The graph keeps it alive.
pub(crate) trait Dependency: Send + Sync {
    /// Work that uses it is about to be submitted. It stays usable until [`end_use`](Self::end_use). An error if such work
    /// must not be submitted any more.
    fn begin_use(&self) -> Result<()>;

    /// The work has been submitted to the stream with this progress, or was refused.
    fn end_use(&self, stream: &Arc<Progress>);
}

/// The objects that recorded work uses, each once.
#[derive(Default)]
pub(crate) struct Dependencies(Vec<Arc<dyn Dependency>>);

impl Dependencies {
    pub(crate) fn add(&mut self, dependency: Arc<dyn Dependency>) {
        if !self.0.iter().any(|known| Arc::ptr_eq(known, &dependency)) {
            self.0.push(dependency);
        }
    }

    /// Adds all of `others`, which keeps none.
    pub(crate) fn append(&mut self, others: &mut Self) {
        for dependency in std::mem::take(&mut others.0) {
            self.add(dependency);
        }
    }

    /// Keeps all usable until the result is dropped, for a launch in the stream with this progress.
    pub(crate) fn begin_use<'a>(
        &'a self,
        stream: &'a Arc<Progress>,
    ) -> Result<DependenciesInUse<'a>> {
        let mut uses = DependenciesInUse { used: &[], stream };
        for (at, dependency) in self.0.iter().enumerate() {
            dependency.begin_use()?;
            uses.used = &self.0[..=at];
        }
        Ok(uses)
    }
}

/// A launch that uses these is being made.
#[must_use]
pub(crate) struct DependenciesInUse<'a> {
    used: &'a [Arc<dyn Dependency>],
    stream: &'a Arc<Progress>,
}

impl Drop for DependenciesInUse<'_> {
    fn drop(&mut self) {
        for dependency in self.used {
            dependency.end_use(self.stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::base::error::{Error, ErrorKind};

    #[derive(Default)]
    struct Counted {
        uses: AtomicUsize,
        refuses: bool,
    }

    impl Dependency for Counted {
        fn begin_use(&self) -> Result<()> {
            if self.refuses {
                return Err(Error::new(ErrorKind::Other, "no"));
            }
            self.uses.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn end_use(&self, _: &Arc<Progress>) {
            self.uses.fetch_sub(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_is_used_once_and_a_refusal_ends_all_uses() {
        let (good, stream) = (Arc::new(Counted::default()), Arc::default());
        let uses = || good.uses.load(Ordering::Relaxed);
        let (mut all, mut more) = (Dependencies::default(), Dependencies::default());
        all.add(good.clone());
        more.add(good.clone());
        all.append(&mut more);
        let used = all.begin_use(&stream).expect("usable");
        assert_eq!(uses(), 1);
        drop(used);
        assert_eq!(uses(), 0);
        let refuses = true;
        all.add(Arc::new(Counted {
            refuses,
            ..Counted::default()
        }));
        assert!(all.begin_use(&stream).is_err());
        assert_eq!(uses(), 0);
    }
}

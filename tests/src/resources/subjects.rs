//! The resources that have to conform.

use std::fmt;
use std::time::Duration;

use anyhow::Result;
use cuda_mem::ledger::Recorder;
use cuda_mem::memory::{
    AlignedAdaptor, CheckedAdaptor, DirectResource, FailureCallbackAdaptor, LimitAdaptor,
    LoggingAdaptor, ManagedResource, PinnedResource, PrefetchAdaptor, RecordingAdaptor,
    RecoveryAdaptor, RecoveryPolicy, StatisticsAdaptor, Strategy, TrackingAdaptor,
};
use cuda_mem::sys::CUdevice_attribute;
use cuda_mem::{Arena, MemoryPool, Resource};

use crate::environment::{Backend, Environment, Skip};

/// A resource to test, made anew for each test.
pub struct Subject {
    /// What it is made of, the outermost first.
    pub name: String,
    /// The alignment in bytes that it promises.
    pub alignment: u64,
    make: Box<AnyMake>,
}

impl Subject {
    /// The resource.
    ///
    /// # Errors
    ///
    /// As it cannot be made.
    pub fn make(&self, env: &Environment) -> Result<Resource> {
        (self.make)(env)
    }

    /// Whether it may be asked for any size. A GPU can hang, and not only for this process, if it is asked for more
    /// managed memory than it has.
    pub(super) fn takes_any_size(&self, env: &Environment) -> bool {
        !self.name.ends_with("managed") || env.backend == Backend::Sim
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

type AnyMake = dyn Fn(&Environment) -> Result<Resource>;
type Make = fn(&Environment) -> Result<Resource>;
pub(crate) type Adapt = fn(Resource) -> Result<Resource>;

/// Larger than what the driver does by itself.
const ALIGNMENT: usize = 4096;

/// Resources that ask the driver themselves.
const PLAIN: [(&str, Make); 9] = [
    ("default", |env| Ok(env.device()?.default_resource()?)),
    ("direct", |env| {
        Ok(Resource::new(DirectResource::new(env.device()?)))
    }),
    ("pinned", |env| {
        Ok(Resource::new(PinnedResource::new(env.driver)))
    }),
    ("managed", |env| {
        Ok(Resource::new(ManagedResource::new(env.driver)))
    }),
    ("pool", |env| {
        Ok(Resource::new(MemoryPool::builder(&env.device()?).build()?))
    }),
    ("arena", |env| {
        Ok(Resource::from(Arena::builder(&env.device()?).build()?))
    }),
    ("arena over default", |env| {
        Ok(Resource::from(Arena::over(
            env.device()?.default_resource()?,
        )))
    }),
    ("arena over pinned", |env| {
        Ok(Resource::from(Arena::over(PinnedResource::new(env.driver))))
    }),
    ("statistics over tracking over arena", |env| {
        let arena = Arena::builder(&env.device()?).build()?;
        let tracking = TrackingAdaptor::new(arena);
        Ok(Resource::new(StatisticsAdaptor::new(tracking)))
    }),
];

/// Every adaptor, with what it puts over a resource.
pub(crate) const ADAPTORS: [(&str, Adapt); 11] = [
    ("limit", |upstream| {
        Ok(Resource::new(LimitAdaptor::new(upstream, 1 << 40)))
    }),
    ("waiting limit", |upstream| {
        let limited = LimitAdaptor::new(upstream, 1 << 40);
        Ok(Resource::new(
            limited.with_wait_timeout(Duration::from_secs(60)),
        ))
    }),
    ("statistics", |upstream| {
        Ok(Resource::new(StatisticsAdaptor::new(upstream)))
    }),
    ("tracking", |upstream| {
        Ok(Resource::new(TrackingAdaptor::new(upstream)))
    }),
    ("checked", |upstream| {
        Ok(Resource::new(CheckedAdaptor::new(upstream)))
    }),
    ("logging", |upstream| {
        Ok(Resource::new(LoggingAdaptor::new(
            upstream,
            std::io::sink(),
        )))
    }),
    ("recording", |upstream| {
        let recorder = Recorder::ring(1000);
        Ok(Resource::new(RecordingAdaptor::new(upstream, &recorder)))
    }),
    ("failure callback", |upstream| {
        Ok(Resource::new(FailureCallbackAdaptor::new(
            upstream,
            |_, _| false,
        )))
    }),
    ("aligned", |upstream| {
        Ok(Resource::new(AlignedAdaptor::new(upstream, ALIGNMENT)?))
    }),
    ("prefetch", |upstream| {
        Ok(Resource::new(PrefetchAdaptor::new(upstream)))
    }),
    ("recovery", |upstream| {
        let policy = RecoveryPolicy::new().retry().flush_caches();
        Ok(Resource::new(RecoveryAdaptor::new(upstream, policy)))
    }),
];

/// Every resource, managed memory with prefetch, and every stack of one and of two adaptors over the
/// default resource. A machine that lacks pools or managed memory lacks those subjects, which a test must
/// not pass over in silence: `missing` tells.
///
/// # Errors
///
/// As the driver answers.
pub fn subjects(env: &Environment) -> Result<Vec<Subject>> {
    let (has_pools, has_managed) = (has_pools(env)?, has_managed(env)?);
    let mut all = Vec::new();
    for (name, make) in PLAIN {
        if name == "pool" && !has_pools || name == "managed" && !has_managed {
            continue;
        }
        all.push(Subject {
            name: name.to_owned(),
            alignment: 256,
            make: Box::new(make),
        });
    }
    if has_managed {
        all.push(Subject {
            name: "prefetch over managed".to_owned(),
            alignment: 256,
            make: Box::new(|env| {
                let managed = ManagedResource::new(env.driver);
                Ok(Resource::new(PrefetchAdaptor::new(managed)))
            }),
        });
    }
    let default = PLAIN[0].1;
    for (outer, adapt) in ADAPTORS {
        all.push(Subject {
            name: format!("{outer} over default"),
            alignment: alignment(&[outer]),
            make: Box::new(move |env| adapt(default(env)?)),
        });
        for (inner, adapt_first) in ADAPTORS {
            all.push(Subject {
                name: format!("{outer} over {inner} over default"),
                alignment: alignment(&[outer, inner]),
                make: Box::new(move |env| adapt(adapt_first(default(env)?)?)),
            });
        }
    }
    Ok(all)
}

fn alignment(names: &[&str]) -> u64 {
    if names.contains(&"aligned") {
        ALIGNMENT as u64
    } else {
        256
    }
}

fn has_pools(env: &Environment) -> Result<bool> {
    Ok(env.device()?.strategy()? == Strategy::Pool)
}

fn has_managed(env: &Environment) -> Result<bool> {
    let managed = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY;
    let managed = env.device()?.attribute(managed)?;
    Ok(managed.is_some_and(|value| value != 0))
}

/// The reason why not all subjects are there. `None` also on the machines that are there to lack pools.
///
/// # Errors
///
/// As the driver answers.
pub(super) fn missing(env: &Environment) -> Result<Option<Skip>> {
    let lacks_managed = has_pools(env)? && !has_managed(env)?;
    Ok(lacks_managed.then(|| Skip("no managed memory on this machine".to_owned())))
}

//! Adaptors by their command-line names.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use cuda_mem::Resource;
use cuda_mem::memory::{
    AlignedAdaptor, LimitAdaptor, LoggingAdaptor, PrefetchAdaptor, RecoveryAdaptor, RecoveryPolicy,
    StatisticsAdaptor, TrackingAdaptor,
};
use cuda_mem_console::size;

#[derive(Clone, Debug)]
pub(crate) enum Adaptor {
    Aligned(usize),
    Limit(u64),
    /// Without a file, the log is written and discarded.
    Logging(Option<PathBuf>),
    Prefetch,
    Recovery,
    Statistics,
    Tracking,
}

impl Adaptor {
    fn over(&self, upstream: Resource) -> Result<Resource> {
        Ok(match self {
            Self::Aligned(bytes) => Resource::new(AlignedAdaptor::new(upstream, *bytes)?),
            Self::Limit(bytes) => Resource::new(LimitAdaptor::new(upstream, *bytes)),
            Self::Logging(Some(file)) => Resource::new(LoggingAdaptor::to_file(upstream, file)?),
            Self::Logging(None) => Resource::new(LoggingAdaptor::new(upstream, std::io::sink())),
            Self::Prefetch => Resource::new(PrefetchAdaptor::new(upstream)),
            Self::Recovery => {
                let policy = RecoveryPolicy::new().flush_caches().wait_for_stream();
                Resource::new(RecoveryAdaptor::new(upstream, policy))
            }
            Self::Statistics => Resource::new(StatisticsAdaptor::new(upstream)),
            Self::Tracking => Resource::new(TrackingAdaptor::new(upstream)),
        })
    }
}

/// The first adaptor is the innermost.
pub(crate) fn stack(adaptors: &[Adaptor], resource: Resource) -> Result<Resource> {
    adaptors
        .iter()
        .try_fold(resource, |upstream, adaptor| adaptor.over(upstream))
}

impl FromStr for Adaptor {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let need = |what: &str| value.ok_or_else(|| format!("{name} needs {what}"));
        let plain = |adaptor| match value {
            None => Ok(adaptor),
            Some(value) => Err(format!("{name} takes no value, and got {value:?}")),
        };
        match name {
            "aligned" => {
                let value = need("an alignment, such as aligned=4K")?;
                let bytes = usize::try_from(size(value)?).map_err(|error| error.to_string())?;
                if !bytes.is_power_of_two() {
                    return Err(format!(
                        "an alignment is a power of two, and {bytes} is not"
                    ));
                }
                Ok(Self::Aligned(bytes))
            }
            "limit" => Ok(Self::Limit(size(need("a size, such as limit=16G")?)?)),
            "logging" => Ok(Self::Logging(value.map(PathBuf::from))),
            "prefetch" => plain(Self::Prefetch),
            "recovery" => plain(Self::Recovery),
            "statistics" => plain(Self::Statistics),
            "tracking" => plain(Self::Tracking),
            _ => Err(format!(
                "there is no adaptor {name:?}; there are aligned=SIZE, limit=SIZE, logging[=FILE], \
                 prefetch, recovery, statistics, tracking"
            )),
        }
    }
}

impl fmt::Display for Adaptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aligned(bytes) => write!(f, "aligned={bytes}"),
            Self::Limit(bytes) => write!(f, "limit={bytes}"),
            Self::Logging(Some(file)) => write!(f, "logging={}", file.display()),
            Self::Logging(None) => f.write_str("logging"),
            Self::Prefetch => f.write_str("prefetch"),
            Self::Recovery => f.write_str("recovery"),
            Self::Statistics => f.write_str("statistics"),
            Self::Tracking => f.write_str("tracking"),
        }
    }
}

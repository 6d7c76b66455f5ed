//! What was chosen to serve PyTorch, once for a process.

use std::path::PathBuf;
use std::sync::OnceLock;

use cuda_mem::{Error, ErrorKind};

use crate::arena::ArenaOptions;
use crate::pool::PoolOptions;
use crate::status::invalid;

/// Where the memory comes from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source {
    Arena(ArenaOptions),
    Pool(PoolOptions),
}

#[derive(Debug)]
pub(super) struct Config {
    pub(super) source: Source,
    pub(super) record: Option<PathBuf>,
    reports_out_of_memory: bool,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

pub(super) fn configure(
    source: Source,
    record: Option<PathBuf>,
    reports_out_of_memory: bool,
) -> Result<(), Error> {
    let config = Config {
        source,
        record,
        reports_out_of_memory,
    };
    CONFIG.set(config).map_err(|_| {
        let text = "PyTorch's memory was chosen before in this process, and cannot be changed";
        Error::new(ErrorKind::InUse, text)
    })
}

pub(super) fn reports_out_of_memory() -> bool {
    CONFIG
        .get()
        .is_none_or(|config| config.reports_out_of_memory)
}

pub(super) fn config() -> Result<&'static Config, Error> {
    CONFIG.get().ok_or_else(|| {
        invalid("call cudamem_torch_use_arena or cudamem_torch_use_pool before PyTorch allocates")
    })
}

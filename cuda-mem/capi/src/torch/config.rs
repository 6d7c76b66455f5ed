//! What was chosen to serve PyTorch, once for a process.

use std::path::PathBuf;
use std::sync::OnceLock;

use cuda_mem::{Error, ErrorKind, ledger};

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
    /// None if there is a path.
    pub(super) recorder: Option<ledger::Recorder>,
    reports_out_of_memory: bool,
}

static CONFIG: OnceLock<Config> = OnceLock::new();

/// # Safety
///
/// The recorder of the options is null or not released.
pub(super) unsafe fn configure(
    mut source: Source,
    record: Option<PathBuf>,
    reports_out_of_memory: bool,
) -> Result<(), Error> {
    let recorder = match &mut source {
        Source::Arena(options) => &mut options.recorder,
        Source::Pool(options) => &mut options.recorder,
    };
    // Devices are used for the first time later, when the caller may have released it.
    let recorder = std::mem::replace(recorder, std::ptr::null());
    if record.is_some() && !recorder.is_null() {
        return Err(invalid(
            "`record` and a recorder in the options are both given; one of them records",
        ));
    }
    // SAFETY: promised by the caller, in the words of the section above.
    let recorder = unsafe { recorder.as_ref() }.map(|recorder| recorder.recorder().clone());
    let config = Config {
        recorder,
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

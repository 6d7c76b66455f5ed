//! The tool that is notified of blocks through NVTX, if there is one.

use std::ffi::CStr;
use std::io::Write as _;
use std::path::Path;
use std::sync::OnceLock;

use cuda_driver_sys::AttemptFailure;
use cuda_driver_sys::nvtx::{self, NvtxLoadError, NvtxTool};

use super::Ledger;
use crate::base::error::{Error, Result};
use crate::base::lock::LockedOnce;
use crate::driver::raw;
use crate::driver::raw::nvtx::Heap;

/// What a tool is to see: a [`Setting`].
const VARIABLE: &str = "CUDA_MEM_NVTX";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// `off`: no tool is notified.
    Off,
    /// `on`, the default: blocks of memory that every tool takes.
    On,
    /// `mapped`: blocks of whatever memory arenas have, which some tools refuse.
    Mapped,
}

type Found = Result<Option<&'static NvtxTool>, NvtxLoadError>;

/// What was found; unset until something asks with [`tool`].
static FOUND: LockedOnce<Found> = LockedOnce::new();

impl Ledger {
    /// The library of the tool that arenas tell of their blocks, such as compute-sanitizer's. `None` if no tool asks to be
    /// told, if `CUDA_MEM_NVTX` is `off`, or if there was no arena yet: the first one attaches to the tool that
    /// `NVTX_INJECTION64_PATH` names.
    ///
    /// # Errors
    ///
    /// Why the tool that asked cannot be notified: [`NotFound`](crate::ErrorKind::NotFound) if its library cannot be
    /// opened, [`NotSupported`](crate::ErrorKind::NotSupported) if it does not take NVTX's memory extension;
    /// [`Forked`](crate::ErrorKind::Forked) in a fork.
    ///
    /// ```
    /// use cuda_mem::ledger::Ledger;
    ///
    /// match Ledger::nvtx_tool() {
    ///     Ok(Some(tool)) => println!("{} sees the blocks of arenas", tool.display()),
    ///     Ok(None) => {}
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    #[doc(alias("nvtxMemHeapRegister", "nvtxMemRegionsRegister"))]
    pub fn nvtx_tool() -> Result<Option<&'static Path>> {
        match FOUND.get()? {
            None => Ok(None),
            Some(Ok(tool)) => Ok(tool.map(NvtxTool::path)),
            Some(Err(error)) => Err(Error::from(error.clone())),
        }
    }
}

/// A tool to be notified. Its functions note addresses, and access no memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tool(&'static NvtxTool);

/// The tool, attached to by the first call. A failure is written to the standard error stream then, because a program
/// that runs under a tool should not go unchecked unnoticed. CUDA must be initialised.
fn tool() -> Option<Tool> {
    let found = FOUND.get_or_try_init(|| Ok(attach())).ok()?;
    let tool = found.as_ref().ok()?;
    tool.map(Tool)
}

/// The tool, for an arena whose memory it takes: `is_plain` if that is from `cuMemAlloc`. Of other memory
/// compute-sanitizer takes no heap and counts the attempt as an error (measured), so it is notified only if the environment wants
/// it. CUDA must be initialised.
pub(crate) fn tool_for(is_plain: bool) -> Option<Tool> {
    tool().filter(|_| is_plain || setting() == Setting::Mapped)
}

/// Whether there is a tool, for which an arena of a device should take its memory from `cuMemAlloc`: see [`tool_for`]. CUDA must be
/// initialised.
pub(crate) fn needs_plain_memory() -> bool {
    tool().is_some() && setting() == Setting::On
}

fn attach() -> Found {
    if setting() == Setting::Off {
        return Ok(None);
    }
    let found = nvtx::load();
    if let Err(error) = &found {
        // Tools that take other parts of NVTX name themselves by the same variable; they lack nothing.
        let is_wrong = !matches!(
            error.attempt().reason,
            AttemptFailure::NvtxRefused | AttemptFailure::NvtxWithoutMemory
        );
        if is_wrong {
            let _ = writeln!(std::io::stderr(), "{error}");
        }
    }
    found
}

/// What the environment says, read once.
fn setting() -> Setting {
    static SETTING: OnceLock<Setting> = OnceLock::new();
    *SETTING.get_or_init(|| {
        let text = std::env::var_os(VARIABLE).unwrap_or_default();
        match text.to_string_lossy().trim() {
            "off" => Setting::Off,
            "" | "on" => Setting::On,
            "mapped" => Setting::Mapped,
            other => {
                let _ = writeln!(
                    std::io::stderr(),
                    "{VARIABLE} is ignored: it is {other:?}, and may be on, off or mapped"
                );
                Setting::On
            }
        }
    })
}

impl Tool {
    /// `None` if the tool refuses the heap.
    pub(crate) fn register_heap(self, address: u64, bytes: u64) -> Option<Heap> {
        // SAFETY: the tool filled the table in.
        unsafe { raw::nvtx::register_heap(self.0.table(), address, bytes) }
    }

    /// The heap's regions must have ended.
    pub(crate) fn unregister_heap(self, heap: Heap) {
        // SAFETY: the tool filled the table in. NVTX lets a tool ignore a heap that it does not have.
        unsafe { raw::nvtx::unregister_heap(self.0.table(), heap) };
    }

    /// A region of a heap, with its name.
    pub(crate) fn register_region(self, heap: Heap, address: u64, bytes: u64, name: Option<&CStr>) {
        // SAFETY: the tool filled the table in. Where the region lies is the tool's to judge: it accesses nothing.
        unsafe { raw::nvtx::register_region(self.0.table(), heap, address, bytes) };
        if let Some(name) = name {
            // SAFETY: the tool filled the table in, and was just told of a region that begins there.
            unsafe { raw::nvtx::name_region(self.0.table(), address, name) };
        }
    }

    pub(crate) fn unregister_region(self, address: u64) {
        // SAFETY: the tool filled the table in, and judges addresses of which it was not told.
        unsafe { raw::nvtx::unregister_region(self.0.table(), address) };
    }
}

//! Finding the tool to be notified, and attaching to it.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::path::{Path, PathBuf};

use libloading::Library;
use once_cell::sync::OnceCell;

use super::{
    NVTX_EXT_COMPATID_MEM, NVTX_EXT_MEM_SLOT_COUNT, NVTX_EXT_MODULEID_MEM, NVTX_VERSION,
    NvtxExtInitializeInjectionFunc_t, NvtxMemTable, nvtxExtModuleInfo_t, nvtxExtModuleSegment_t,
};
use crate::opening::{address, open_library, requested};
use crate::{Attempt, AttemptFailure};

/// The environment variable in which a tool names its library. NVTX's own.
///
/// Ignored in a process that runs with more rights than its caller (set-user-id and the like).
#[cfg(target_pointer_width = "64")]
pub const NVTX_INJECTION_VARIABLE: &str = "NVTX_INJECTION64_PATH";
/// The environment variable in which a tool names its library. NVTX's own.
///
/// Ignored in a process that runs with more rights than its caller (set-user-id and the like).
#[cfg(not(target_pointer_width = "64"))]
pub const NVTX_INJECTION_VARIABLE: &str = "NVTX_INJECTION32_PATH";

/// The value of the variable that NVTX takes for "no tool".
const NO_TOOL: &str = "./.";

/// A tool that is notified of memory. Its library stays open for the life of the process.
pub struct NvtxTool {
    path: PathBuf,
    table: NvtxMemTable,
}

impl NvtxTool {
    /// The functions that the tool has filled in.
    #[must_use]
    pub fn table(&self) -> &NvtxMemTable {
        &self.table
    }

    /// The name or path by which its library was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl fmt::Debug for NvtxTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NvtxTool")
            .field("path", &self.path)
            .field("table", &self.table)
            .finish()
    }
}

/// The tool that the environment names cannot be notified of memory.
#[derive(Clone)]
pub struct NvtxLoadError {
    attempt: Attempt,
}

impl NvtxLoadError {
    /// The library, and why it does not do.
    #[must_use]
    pub fn attempt(&self) -> &Attempt {
        &self.attempt
    }
}

impl fmt::Display for NvtxLoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no tool is notified of memory through NVTX: ")?;
        crate::opening::write_attempts(f, std::slice::from_ref(&self.attempt))?;
        write!(f, ". {NVTX_INJECTION_VARIABLE} names it")
    }
}

/// The message, which is what a `main` that returns an error shows; `{:#?}` prints the structure.
impl fmt::Debug for NvtxLoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        f.debug_struct("NvtxLoadError")
            .field("attempt", &self.attempt)
            .finish()
    }
}

// No source: the text has the loader's own words.
impl std::error::Error for NvtxLoadError {}

/// Attaches to the tool that [`NVTX_INJECTION_VARIABLE`] names, once: later calls return the same tool or the same
/// failure. `None` if the variable names none.
///
/// Call it after `cuInit`: compute-sanitizer wants CUDA to be initialised before any notification.
///
/// # Errors
///
/// [`NvtxLoadError`] says why the tool cannot be notified of memory.
pub fn load() -> Result<Option<&'static NvtxTool>, NvtxLoadError> {
    static TOOL: OnceCell<Option<Result<NvtxTool, NvtxLoadError>>> = OnceCell::new();
    let found = TOOL.get_or_init(|| {
        let path = requested(NVTX_INJECTION_VARIABLE).filter(|path| path != NO_TOOL)?;
        Some(open(path.into()))
    });
    match found {
        None => Ok(None),
        Some(Ok(tool)) => Ok(Some(tool)),
        Some(Err(error)) => Err(error.clone()),
    }
}

/// Attaches to the tool whose library is at `path`.
///
/// Every call attaches anew, and the library stays open for the life of the process.
///
/// # Safety
///
/// The file's initialisers run, and what it exports and fills in must be what `nvToolsExtMem.h` says.
///
/// # Errors
///
/// [`NvtxLoadError`] says why the tool cannot be notified of memory.
pub unsafe fn load_from(path: impl AsRef<Path>) -> Result<&'static NvtxTool, NvtxLoadError> {
    open(path.as_ref().to_path_buf()).map(|tool| &*Box::leak(Box::new(tool)))
}

fn open(path: PathBuf) -> Result<NvtxTool, NvtxLoadError> {
    match attach(&path) {
        Ok(table) => Ok(NvtxTool { path, table }),
        Err(reason) => Err(NvtxLoadError {
            attempt: Attempt { path, reason },
        }),
    }
}

fn attach(path: &Path) -> Result<NvtxMemTable, AttemptFailure> {
    // SAFETY: the variable, or the caller of `load_from`, must name a valid library.
    let library = unsafe { open_library(path) }?;
    let initialize = initialize(&library).ok_or(AttemptFailure::NotNvtx)?;
    // From here on the tool may have kept an address of its own, so its library is never closed.
    std::mem::forget(library);
    let table = exchange(initialize).ok_or(AttemptFailure::NvtxRefused)?;
    // Without any of these, the tool would not know what is in use, or would go on believing it.
    let is_enough = table.nvtxMemHeapRegister.is_some()
        && table.nvtxMemHeapUnregister.is_some()
        && table.nvtxMemRegionsRegister.is_some()
        && table.nvtxMemRegionsUnregister.is_some();
    if is_enough {
        Ok(table)
    } else {
        Err(AttemptFailure::NvtxWithoutMemory)
    }
}

fn initialize(library: &Library) -> Option<NvtxExtInitializeInjectionFunc_t> {
    let address = address(library, c"InitializeInjectionNvtxExtension");
    // SAFETY: null is `None`; else NVTX names the signature by the symbol, and the library stays open.
    unsafe {
        std::mem::transmute::<*const c_void, Option<NvtxExtInitializeInjectionFunc_t>>(address)
    }
}

/// Hands the tool an empty table. `None` if it refuses.
fn exchange(initialize: NvtxExtInitializeInjectionFunc_t) -> Option<NvtxMemTable> {
    let mut slots = [0_isize; NVTX_EXT_MEM_SLOT_COUNT];
    let mut segment = nvtxExtModuleSegment_t {
        segmentId: 1,
        slotCount: slots.len(),
        functionSlots: slots.as_mut_ptr(),
    };
    let mut info = nvtxExtModuleInfo_t {
        nvtxVer: NVTX_VERSION,
        structSize: size_of::<nvtxExtModuleInfo_t>() as u16,
        moduleId: NVTX_EXT_MODULEID_MEM,
        compatId: NVTX_EXT_COMPATID_MEM,
        segmentsCount: 1,
        segments: &raw mut segment,
        getExportFunction: None,
        extInfo: std::ptr::null(),
    };
    // SAFETY: NVTX has a tool write function addresses to at most `slotCount` slots of each segment before it returns,
    // and keep none of these structs.
    let answer: c_int = unsafe { initialize(&raw mut info) };
    if answer == 0 {
        return None;
    }
    let mut filled = slots.into_iter();
    // SAFETY: the names are asked for in the order of their slots, and NVTX gives each slot one function with the
    // signature of its header, for structs of the compatibility number that was handed over.
    let table = unsafe {
        NvtxMemTable::fill(|_| {
            std::ptr::with_exposed_provenance(filled.next().unwrap_or(0) as usize)
        })
    };
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::super::{NVTX_MEM_SYMBOLS, nvtxDomainHandle_t, nvtxMemHeapHandle_t};
    use super::*;

    unsafe extern "C" fn reset(_: nvtxDomainHandle_t, _: nvtxMemHeapHandle_t) {}

    unsafe extern "C" fn fills_slot_2(info: *mut nvtxExtModuleInfo_t) -> c_int {
        // SAFETY: the only caller is `exchange`, which hands in a struct.
        let info = unsafe { &*info };
        assert_eq!((info.nvtxVer, info.moduleId, info.compatId), (3, 1, 0x0102));
        assert_eq!(info.segmentsCount, 1);
        // SAFETY: as above, with one segment.
        let segment = unsafe { &*info.segments };
        assert_eq!((segment.segmentId, segment.slotCount), (1, 63));
        let function: super::super::PFN_nvtxMemHeapReset = reset;
        // SAFETY: the table has more slots than two.
        let slot = unsafe { segment.functionSlots.add(2) };
        // SAFETY: as above.
        unsafe { slot.write((function as *const c_void).expose_provenance() as isize) };
        1
    }

    unsafe extern "C" fn refuses(_: *mut nvtxExtModuleInfo_t) -> c_int {
        0
    }

    #[test]
    fn a_slot_is_the_function_of_its_number() {
        assert_eq!(NVTX_MEM_SYMBOLS[2], c"nvtxMemHeapReset");
        let table = exchange(fills_slot_2).expect("it does not refuse");
        assert_eq!(table.count(), 1);
        let call = table.nvtxMemHeapReset.expect("it was filled in");
        // SAFETY: it is `reset` above.
        unsafe { call(std::ptr::null_mut(), std::ptr::null_mut()) };
        assert!(exchange(refuses).is_none());
    }

    #[test]
    #[cfg(not(miri))] // Miri does not open libraries.
    fn a_library_that_is_not_there_is_named() {
        // SAFETY: there is no such file.
        let error = unsafe { load_from("/nowhere/tool.so") }.expect_err("no such file");
        let text = error.to_string();
        assert!(
            text.contains("/nowhere/tool.so") && text.contains("NVTX_INJECTION"),
            "{text}"
        );
        assert_eq!(format!("{error:?}"), text);
        assert!(format!("{error:#?}").starts_with("NvtxLoadError {"));
        assert!(matches!(error.attempt().reason, AttemptFailure::Open(_)));
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn a_library_that_is_no_tool_is_told_apart() {
        // SAFETY: the C library is open already.
        let error = unsafe { load_from("libc.so.6") }.expect_err("the C library is no tool");
        assert!(matches!(error.attempt().reason, AttemptFailure::NotNvtx));
        assert!(
            error
                .to_string()
                .contains("InitializeInjectionNvtxExtension"),
            "{error}"
        );
    }
}

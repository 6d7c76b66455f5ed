//! Filling the table: any source of addresses will do.

use std::ffi::{CStr, c_void};
use std::fmt;

use crate::version::{MissingSymbol, Symbol};
use crate::{DriverTable, SYMBOLS};

/// The fields of [`DriverTable`] as addresses. Same size and order, see the assertions below.
type Slots = [*const c_void; SYMBOLS.len()];

const _: () = assert!(size_of::<DriverTable>() == size_of::<Slots>());
const _: () = assert!(align_of::<DriverTable>() == align_of::<Slots>());

impl DriverTable {
    /// Asks `resolve` for the address of every symbol; a null address leaves the field `None`.
    ///
    /// The source may be `dlsym`, `cuGetProcAddress`, or functions that a test supplies.
    ///
    /// # Safety
    ///
    /// Each address must be null or that of a function with the signature that the header
    /// declares for the symbol, and must stay valid as long as the table or a copy is used.
    ///
    /// ```
    /// use cuda_driver_sys::{CUresult, DriverTable};
    /// use std::ffi::{c_int, c_void};
    ///
    /// unsafe extern "C" fn version(out: *mut c_int) -> CUresult {
    ///     unsafe { out.write(13000) };
    ///     CUresult::CUDA_SUCCESS
    /// }
    /// // SAFETY: the one function given has the signature of cuDriverGetVersion.
    /// let table = unsafe {
    ///     DriverTable::fill(|name| match name.to_bytes() {
    ///         b"cuDriverGetVersion" => version as *const c_void,
    ///         _ => std::ptr::null(),
    ///     })
    /// };
    /// assert!(table.has("cuDriverGetVersion"));
    /// assert!(!table.has("cuInit"));
    /// ```
    pub unsafe fn fill(mut resolve: impl FnMut(&'static CStr) -> *const c_void) -> Self {
        let mut slots: Slots = [std::ptr::null(); SYMBOLS.len()];
        for (slot, symbol) in slots.iter_mut().zip(&SYMBOLS) {
            *slot = resolve(symbol.c_name());
        }
        // SAFETY: DriverTable is `repr(C)` with one `Option<fn>` a symbol, generated from the same
        // list in the same order; `Option<fn>` has the layout of a pointer, null being `None`.
        // The caller vouches for the signatures.
        unsafe { std::mem::transmute::<Slots, DriverTable>(slots) }
    }

    /// Whether the driver exports `symbol` (a real symbol name, such as `cuMemAlloc_v2`).
    #[must_use]
    pub fn has(&self, symbol: &str) -> bool {
        Symbol::index(symbol).is_some_and(|index| !self.slots()[index].is_null())
    }

    /// `Ok` if the driver exports `symbol`.
    ///
    /// # Errors
    ///
    /// [`MissingSymbol`], with the CUDA version that introduced the function.
    pub fn require(&self, symbol: &'static str) -> Result<(), MissingSymbol> {
        if self.has(symbol) {
            Ok(())
        } else {
            Err(MissingSymbol::new(symbol))
        }
    }

    /// How many functions the driver exports, of the [`SYMBOLS`] that these bindings know.
    #[must_use]
    pub fn count(&self) -> usize {
        self.slots().iter().filter(|slot| !slot.is_null()).count()
    }

    fn slots(&self) -> &Slots {
        // SAFETY: as in `fill`; reading a function pointer as an address is always valid.
        unsafe { &*std::ptr::from_ref(self).cast::<Slots>() }
    }
}

impl fmt::Debug for DriverTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "DriverTable({} of {} functions)",
            self.count(),
            SYMBOLS.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CUresult, PFN_cuInit, PFN_cuMemAlloc_v2, PFN_cuMemPoolTrimTo};

    unsafe extern "C" fn init(flags: std::ffi::c_uint) -> CUresult {
        CUresult(flags)
    }

    /// The first and the last field, and some between, must be reached under their own names.
    #[test]
    fn every_field_gets_the_address_of_its_own_symbol() {
        let mut asked = Vec::new();
        // SAFETY: only cuInit gets an address, and `init` has its signature.
        let table = unsafe {
            DriverTable::fill(|name| {
                asked.push(name);
                let init: PFN_cuInit = init;
                if name == c"cuInit" {
                    init as *const c_void
                } else {
                    std::ptr::null()
                }
            })
        };
        assert_eq!(asked.len(), SYMBOLS.len());
        assert_eq!(table.count(), 1);
        let call = table.cuInit.expect("it was supplied");
        // SAFETY: it is `init` above.
        assert_eq!(unsafe { call(7) }, CUresult(7));
        assert!(table.cuMemAlloc_v2.is_none());
        assert_eq!(
            table
                .require("cuMemPoolTrimTo")
                .expect_err("not supplied")
                .since,
            Some(crate::CudaVersion::new(11, 2))
        );
        let _: (Option<PFN_cuMemAlloc_v2>, Option<PFN_cuMemPoolTrimTo>) =
            (table.cuMemAlloc_v2, table.cuMemPoolTrimTo);
    }

    #[test]
    fn each_field_lies_at_the_index_of_its_symbol() {
        let at = |name| Symbol::index(name).map(|index| index * size_of::<usize>());
        assert_eq!(
            at("cuMemAlloc_v2"),
            Some(std::mem::offset_of!(DriverTable, cuMemAlloc_v2))
        );
        assert_eq!(
            at("cuArray3DCreate"),
            Some(std::mem::offset_of!(DriverTable, cuArray3DCreate))
        );
        assert_eq!(
            at("cuWaitExternalSemaphoresAsync_ptsz"),
            Some(std::mem::offset_of!(
                DriverTable,
                cuWaitExternalSemaphoresAsync_ptsz
            ))
        );
        assert_eq!(
            at("cuMemPoolTrimTo"),
            Some(std::mem::offset_of!(DriverTable, cuMemPoolTrimTo))
        );
    }

    #[test]
    fn an_empty_table_has_nothing_and_says_so() {
        let table = DriverTable::default();
        assert_eq!(table.count(), 0);
        let missing = table.require("cuMemPoolCreate").expect_err("empty");
        assert_eq!(
            missing.to_string(),
            "the driver has no cuMemPoolCreate, which came with CUDA 11.2; a newer driver is needed"
        );
        assert!(
            MissingSymbol::new("cuTeapot")
                .to_string()
                .contains("no function")
        );
    }
}

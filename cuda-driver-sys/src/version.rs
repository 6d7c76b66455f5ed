//! CUDA versions, and the symbols that came with them.

use std::ffi::CStr;
use std::fmt;

/// A CUDA version, as `cuDriverGetVersion` and `CUDA_VERSION` count it: 13.5 is 13050.
///
/// ```
/// use cuda_driver_sys::CudaVersion;
/// assert_eq!(CudaVersion::new(11, 2).to_string(), "11.2");
/// assert!(CudaVersion::from_raw(13050) > CudaVersion::new(12, 9));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CudaVersion(u32);

impl CudaVersion {
    /// Version `major.minor`.
    #[must_use]
    pub const fn new(major: u32, minor: u32) -> Self {
        Self(major * 1000 + minor * 10)
    }

    /// From the driver's own number, such as 13050.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// The driver's own number, such as 13050.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }

    /// 13 of 13.5.
    #[must_use]
    pub const fn major(self) -> u32 {
        self.0 / 1000
    }

    /// 5 of 13.5.
    #[must_use]
    pub const fn minor(self) -> u32 {
        self.0 % 1000 / 10
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major(), self.minor())
    }
}

/// One exported symbol of the driver, such as `cuMemAlloc_v2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Symbol {
    name: &'static CStr,
    since: CudaVersion,
}

impl Symbol {
    pub(crate) const fn new(name: &'static CStr, since: u32) -> Self {
        Self {
            name,
            since: CudaVersion(since),
        }
    }

    /// The symbol with this real name (`cuMemAlloc_v2`, not `cuMemAlloc`, which is another one).
    ///
    /// ```
    /// use cuda_driver_sys::{CudaVersion, Symbol};
    /// let pool = Symbol::find("cuMemPoolCreate").expect("known");
    /// assert_eq!(pool.since(), CudaVersion::new(11, 2));
    /// assert!(Symbol::find("cuTeapot").is_none());
    /// ```
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Symbol> {
        let index = Self::index(name)?;
        crate::SYMBOLS.get(index)
    }

    /// The position in [`SYMBOLS`](crate::SYMBOLS), which is also that of the table's field.
    pub(crate) fn index(name: &str) -> Option<usize> {
        crate::SYMBOLS
            .binary_search_by(|symbol| symbol.name.to_bytes().cmp(name.as_bytes()))
            .ok()
    }

    /// The name that is looked up in the driver.
    #[must_use]
    pub const fn c_name(&self) -> &'static CStr {
        self.name
    }

    /// The name as text.
    #[must_use]
    pub fn name(&self) -> &'static str {
        // Every name is an ASCII identifier; a generated one that is not would show as "?".
        self.name.to_str().unwrap_or("?")
    }

    /// The first CUDA version whose driver exports it.
    #[must_use]
    pub const fn since(&self) -> CudaVersion {
        self.since
    }
}

/// The driver does not export a function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MissingSymbol {
    /// What was looked for.
    pub symbol: &'static str,
    /// The first CUDA version whose driver has it; `None` for a name these bindings do not know.
    pub since: Option<CudaVersion>,
}

impl MissingSymbol {
    /// The error for a symbol that was not found.
    #[must_use]
    pub fn new(symbol: &'static str) -> Self {
        let since = Symbol::find(symbol).map(Symbol::since);
        Self { symbol, since }
    }
}

impl fmt::Display for MissingSymbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.since {
            Some(since) => write!(
                f,
                "the driver has no {}, which came with CUDA {since}; a newer driver is needed",
                self.symbol
            ),
            None => write!(f, "{} is no function of the CUDA driver API", self.symbol),
        }
    }
}

/// The message; `{:#?}` prints the structure.
impl fmt::Debug for MissingSymbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        f.debug_struct("MissingSymbol")
            .field("symbol", &self.symbol)
            .field("since", &self.since)
            .finish()
    }
}

impl std::error::Error for MissingSymbol {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_symbol_is_printed_as_its_message_and_on_request_as_its_structure() {
        for symbol in ["cuMemPoolCreate", "cuTeapot"] {
            let missing = MissingSymbol::new(symbol);
            assert_eq!(format!("{missing:?}"), missing.to_string());
            let structure = format!("{missing:#?}");
            assert!(structure.starts_with("MissingSymbol {"), "{structure}");
            assert!(structure.contains("since"), "{structure}");
        }
    }
}

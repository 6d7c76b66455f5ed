//! `cuGetProcAddress`: looks up a function by base name, in the ABI of the requested version.

use std::ffi::{c_char, c_int, c_void};

use cuda_driver_sys::{
    CUdriverProcAddressQueryResult, CUresult, CudaVersion, SYMBOLS, Symbol, cuuint64_t,
};

use crate::configuration::Configuration;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::private;
use crate::table;

const LEGACY_STREAM: u64 = 1;
const PER_THREAD_STREAM: u64 = 2;

const FOUND: CUdriverProcAddressQueryResult =
    CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SUCCESS;
const NOT_FOUND: CUdriverProcAddressQueryResult =
    CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
const TOO_OLD: CUdriverProcAddressQueryResult =
    CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;

/// The ABIs of a function: its base name and `_v2`, `_v3` …, for one kind of default stream.
fn variants(base: &str, per_thread: bool) -> impl Iterator<Item = &'static Symbol> {
    SYMBOLS.iter().filter(move |symbol| {
        let Some(rest) = symbol.name().strip_prefix(base) else {
            return false;
        };
        let (version, twin) = match rest.strip_suffix("_ptsz").or(rest.strip_suffix("_ptds")) {
            Some(version) => (version, true),
            None => (rest, false),
        };
        let number = version.strip_prefix("_v");
        let is_variant = version.is_empty()
            || number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
        is_variant && twin == per_thread
    })
}

/// Whether a name contains an ABI version or a kind of default stream.
fn has_suffix(name: &str) -> bool {
    let version = name.rsplit_once("_v").map(|(_, version)| version);
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    name.ends_with("_ptsz") || name.ends_with("_ptds") || version.is_some_and(is_number)
}

/// The newest ABI up to `wanted` that the driver has, or why there is none.
fn look_up(
    base: &str,
    wanted: CudaVersion,
    per_thread: bool,
) -> Result<&'static Symbol, CUdriverProcAddressQueryResult> {
    // Measured: a symbol is not a base name.
    if has_suffix(base) {
        return Err(NOT_FOUND);
    }
    let exported = |symbol: &&Symbol| table::find(symbol.name()).is_some();
    let newest = |per_thread| {
        variants(base, per_thread)
            .filter(exported)
            .filter(|symbol| symbol.since() <= wanted)
            .max_by_key(|symbol| symbol.since())
    };
    // Functions without a stream have no twin.
    let found = if per_thread { newest(true) } else { None };
    match found.or_else(|| newest(false)) {
        Some(symbol) => Ok(symbol),
        None if variants(base, false).any(|symbol| exported(&symbol)) => Err(TOO_OLD),
        None => Err(NOT_FOUND),
    }
}

type Found = Result<*mut c_void, CUdriverProcAddressQueryResult>;

fn get(
    name: In<c_char>,
    out: Out<*mut c_void>,
    version: c_int,
    flags: cuuint64_t,
) -> Answer<Found> {
    out.required()?;
    let name = name.text()?;
    let known = LEGACY_STREAM | PER_THREAD_STREAM;
    // Measured: a negative version counts as very large, yet not as too new.
    let newest = Configuration::get().version;
    let version = u32::try_from(version).unwrap_or(newest);
    if flags & !known != 0 || version > newest {
        return Err(INVALID_VALUE);
    }
    let mut elsewhere = private::ELSEWHERE.iter();
    if let Some(export) = elsewhere.find(|export| export.name == name) {
        return Ok(Ok(export.address()));
    }
    let per_thread = flags & PER_THREAD_STREAM != 0;
    match look_up(&name, CudaVersion::from_raw(version), per_thread) {
        Ok(symbol) => address(symbol).map(Ok),
        Err(reason) => Ok(Err(reason)),
    }
}

exports! {
    early fn cuGetProcAddress(
        _, name: In<c_char>, out: Out<*mut c_void>, version: c_int, flags: u64
    ) {
        // Nothing is written if nothing is found.
        match get(name, out, version, flags)? {
            Ok(address) => out.write(address),
            Err(_) => Err(CUresult::CUDA_ERROR_NOT_FOUND),
        }
    }

    early fn cuGetProcAddress_v2(
        _, name: In<c_char>, out: Out<*mut c_void>, version: c_int, flags: u64,
        status: Out<CUdriverProcAddressQueryResult>
    ) {
        // The call succeeds, and the status says whether anything was found.
        match get(name, out, version, flags)? {
            Ok(address) => {
                status.write_if_wanted(FOUND);
                out.write(address)
            }
            Err(reason) => {
                status.write_if_wanted(reason);
                out.write(std::ptr::null_mut())
            }
        }
    }
}

fn address(symbol: &Symbol) -> Answer<*mut c_void> {
    let export = table::find(symbol.name()).ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    Ok(export.address())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(base: &str, version: u32, per_thread: bool) -> &'static str {
        match look_up(base, CudaVersion::from_raw(version), per_thread) {
            Ok(symbol) => symbol.name(),
            Err(NOT_FOUND) => "not found",
            Err(_) => "too old",
        }
    }

    #[test]
    fn the_version_chooses_the_abi() {
        assert_eq!(name("cuMemAlloc", 3020, false), "cuMemAlloc_v2");
        assert_eq!(name("cuCtxCreate", 12000, false), "cuCtxCreate_v2");
        assert_eq!(name("cuCtxCreate", 12050, false), "cuCtxCreate_v4");
        let prefetch = "cuMemPrefetchAsync";
        assert_eq!(name(prefetch, 12010, false), prefetch);
        assert_eq!(name(prefetch, 12020, false), "cuMemPrefetchAsync_v2");
        assert_eq!(name(prefetch, 12020, true), "cuMemPrefetchAsync_v2_ptsz");
        assert_eq!(name("cuMemPoolCreate", 11010, false), "too old");
        assert_eq!(name("cuTeapot", 13000, false), "not found");
        assert_eq!(name("cuMemAlloc_v2", 13000, false), "not found");
        assert_eq!(name("cuMemFreeAsync_ptsz", 13000, true), "not found");
        // A longer name is a different function.
        assert_eq!(name("cuMemAllo", 13000, false), "not found");
        assert_eq!(name("cuCtxSynchronize", 12000, false), "cuCtxSynchronize");
    }

    #[test]
    fn the_flag_chooses_the_twin() {
        assert_eq!(name("cuMemFreeAsync", 13000, true), "cuMemFreeAsync_ptsz");
        assert_eq!(name("cuMemcpyHtoD", 13000, true), "cuMemcpyHtoD_v2_ptds");
        assert_eq!(name("cuEventQuery", 13000, true), "cuEventQuery");
    }
}

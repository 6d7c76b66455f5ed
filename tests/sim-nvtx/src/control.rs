//! What the tool of this process knows, for tests.

use std::ffi::c_void;
use std::path::{Path, PathBuf};

use cuda_sim_support::find::built_library;
use cuda_sim_support::library::Library;
use cuda_sim_support::library_file;

/// Sets the library path explicitly, for programs that cargo did not build beside it.
const LIBRARY_VARIABLE: &str = "NVTX_SIM_LIBRARY";

const FILE: &str = library_file!("nvtx_sim");

/// The built library: `$NVTX_SIM_LIBRARY`, or beside the running program, or in the target folder where this crate was
/// built.
#[must_use]
pub fn library_path() -> Option<PathBuf> {
    built_library(LIBRARY_VARIABLE, FILE)
}

type ReadState =
    unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void, *const u8, usize), *mut c_void);

/// Asks the tool that this process is attached to.
#[derive(Clone, Copy, Debug)]
pub struct Control(ReadState);

/// A region that was registered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where it begins.
    pub address: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Its name, or nothing.
    pub name: String,
}

/// What a tool knows.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The heaps: address and bytes.
    pub heaps: Vec<(u64, u64)>,
    /// The regions that have not ended.
    pub regions: Vec<Region>,
    /// All that was wrong so far.
    pub faults: Vec<String>,
    /// How many heaps there were.
    pub all_heaps: u64,
    /// How many regions there were.
    pub all_regions: u64,
}

impl Control {
    /// The tool with this library, by the same path by which the process attached to it. `None` if it is not open, or is
    /// another tool.
    #[must_use]
    pub fn of(library: &Path) -> Option<Self> {
        let address = Library::if_open(library)?.address(c"nvtxsim_state");
        // SAFETY: null is `None`; else it is this crate's function, and the tool's library is never closed.
        let read = unsafe { std::mem::transmute::<*mut c_void, Option<ReadState>>(address) };
        read.map(Self)
    }

    /// What it knows now.
    #[must_use]
    pub fn state(self) -> State {
        let mut text = Vec::new();
        // SAFETY: `append` takes a vector of bytes, and the tool's text is valid during the call.
        unsafe { (self.0)(append, (&raw mut text).cast()) };
        parse(&String::from_utf8_lossy(&text))
    }
}

unsafe extern "C" fn append(data: *mut c_void, text: *const u8, len: usize) {
    // SAFETY: `state` hands in a vector.
    let to = unsafe { &mut *data.cast::<Vec<u8>>() };
    // SAFETY: the tool hands in so many bytes.
    to.extend_from_slice(unsafe { std::slice::from_raw_parts(text, len) });
}

fn parse(text: &str) -> State {
    let mut state = State::default();
    for line in text.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let mut parts = rest.splitn(3, ' ');
        let mut number = || parts.next().and_then(|text| text.parse().ok()).unwrap_or(0);
        match word {
            "all" => (state.all_heaps, state.all_regions) = (number(), number()),
            "heap" => state.heaps.push((number(), number())),
            "region" => {
                let (address, bytes) = (number(), number());
                let name = parts.next().unwrap_or_default().to_owned();
                state.regions.push(Region {
                    address,
                    bytes,
                    name,
                });
            }
            "fault" => state.faults.push(rest.to_owned()),
            _ => {}
        }
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_tool_writes_is_read() {
        let state = parse("all 3 7\nheap 100 50\nregion 110 5 src/main.rs:7 x\nfault no good\n");
        assert_eq!((state.all_heaps, state.all_regions), (3, 7));
        assert_eq!(state.heaps, [(100, 50)]);
        let region = &state.regions[0];
        assert_eq!((region.address, region.bytes), (110, 5));
        assert_eq!(region.name, "src/main.rs:7 x");
        assert_eq!(state.faults, ["no good"]);
    }
}

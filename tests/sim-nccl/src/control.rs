//! Control of a simulated NCCL loaded in this process: counts, failures, faults.
//!
//! The library that a test opens and the one it links have separate memory. Everything here uses the opened one.

use std::ffi::{CStr, CString, c_char, c_void};
use std::io;
use std::path::Path;

use cuda_driver_sys::nccl::{ncclComm_t, ncclResult_t};
use cuda_sim_support::library::Library;

use crate::simnccl::IDENTITY;

type Act = extern "C" fn();
type CountOf = extern "C" fn(*const c_char) -> u64;
type Fail = extern "C" fn(*const c_char, u64, u32) -> u64;
type Kill = extern "C" fn(u64) -> u64;
type Hold = extern "C" fn(u64, u64) -> u64;
type ReadLive = extern "C" fn(*mut Live);
type ReadCommunicator = extern "C" fn(u64, *mut Communicator) -> u64;
type Line = extern "C" fn(u64, *mut c_char, usize) -> usize;
type Identify = extern "C" fn() -> *const c_char;

/// Counts of live objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Live {
    /// Communicators, each rank's counted.
    pub communicators: u64,
    /// Registrations of `ncclCommRegister`.
    pub registrations: u64,
    /// Windows, each rank's counted.
    pub windows: u64,
    /// Allocations of `ncclMemAlloc`.
    pub memories: u64,
}

/// One rank's communicator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Communicator {
    /// The address that an `ncclComm_t` of it has.
    pub handle: u64,
    /// Its rank.
    pub rank: u64,
    /// The number of ranks.
    pub ranks: u64,
    /// The ordinal of its device.
    pub device: u64,
}

/// A loaded simulator. Cheap to copy; the library stays open until the process exits.
#[derive(Clone, Copy, Debug)]
pub struct Control {
    reset: Act,
    calls: CountOf,
    fail: Fail,
    kill: Kill,
    hold: Hold,
    live: ReadLive,
    communicator: ReadCommunicator,
    fault: Line,
}

impl Control {
    /// The simulated NCCL at `path`. One that is opened by the same path is the same simulator.
    ///
    /// # Errors
    ///
    /// If nothing can be opened there, or the library is not this simulator.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        // SAFETY: the caller names the simulator, whose only initialiser reads settings.
        let library = unsafe { Library::open(path) };
        let library = library.map_err(|_| {
            let path = path.display();
            io::Error::other(format!("{path} cannot be opened"))
        })?;
        let address = |name: &CStr| {
            let address = library.address(name);
            let wrong = || {
                let path = path.display();
                io::Error::other(format!(
                    "{path} is not the simulated NCCL, or another version"
                ))
            };
            Some(address)
                .filter(|address| !address.is_null())
                .ok_or_else(wrong)
        };
        macro_rules! function {
            ($name:literal, $ty:ty) => {{
                let address = address($name)?;
                // SAFETY: only the simulator exports this name, with this signature: both sides are built from one
                // crate, whose version is part of the identity.
                unsafe { std::mem::transmute::<*mut c_void, $ty>(address) }
            }};
        }
        let identify = function!(c"simnccl_identify", Identify);
        // SAFETY: only the simulator exports this name, and it returns a constant string.
        let identity = unsafe { CStr::from_ptr(identify()) };
        if identity != IDENTITY {
            let path = path.display();
            let text = format!("{path} is another version of the simulated NCCL");
            return Err(io::Error::other(text));
        }
        Ok(Self {
            reset: function!(c"simnccl_reset", Act),
            calls: function!(c"simnccl_calls", CountOf),
            fail: function!(c"simnccl_fail", Fail),
            kill: function!(c"simnccl_kill", Kill),
            hold: function!(c"simnccl_hold", Hold),
            live: function!(c"simnccl_live", ReadLive),
            communicator: function!(c"simnccl_communicator", ReadCommunicator),
            fault: function!(c"simnccl_fault", Line),
        })
    }

    /// Clears counts, faults, and failures that have not occurred. Live objects are unaffected.
    pub fn reset(&self) {
        (self.reset)();
    }

    /// How often `function` was called since the last reset.
    #[must_use]
    pub fn calls(&self, function: &str) -> u64 {
        CString::new(function).map_or(0, |name| (self.calls)(name.as_ptr()))
    }

    /// The `nth` call of `function` from now answers `code` and does nothing; 1 is the next one. A later failure of the
    /// same call replaces it. Functions that return text ignore it.
    ///
    /// # Panics
    ///
    /// If the simulator has no function of this name, because a failure that never occurs would prove nothing.
    pub fn fail(&self, function: &str, nth: u64, code: ncclResult_t) {
        let name = CString::new(function);
        let is_known = name.is_ok_and(|name| (self.fail)(name.as_ptr(), nth, code.0) != 0);
        assert!(is_known, "the simulated NCCL has no function {function}");
    }

    /// Ends a rank as if its process died: its later calls fail, except those that free it, and the other ranks get
    /// `ncclRemoteError`. False if there is no such communicator.
    pub fn kill(&self, comm: ncclComm_t) -> bool {
        (self.kill)(comm.addr() as u64) != 0
    }

    /// Lets the calls of a communicator that does not block stay in progress, as if NCCL's own thread waited for other ranks, until
    /// `is_held` is false again. False if there is no such communicator.
    pub fn hold(&self, comm: ncclComm_t, is_held: bool) -> bool {
        (self.hold)(comm.addr() as u64, is_held.into()) != 0
    }

    /// The communicators, in the order of their creation.
    #[must_use]
    pub fn communicators(&self) -> Vec<Communicator> {
        let found = (0..).map_while(|index| {
            let mut found = Communicator::default();
            ((self.communicator)(index, &raw mut found) != 0).then_some(found)
        });
        found.collect()
    }

    /// What the program has not released.
    #[must_use]
    pub fn live(&self) -> Live {
        let mut live = Live::default();
        (self.live)(&raw mut live);
        live
    }

    /// What was wrong since the last reset: leaks, memory freed while registered, handles that are not there, calls
    /// before the last one was complete.
    #[must_use]
    pub fn faults(&self) -> Vec<String> {
        let lines = (0..).map_while(|index| {
            let mut buffer = vec![0_u8; 512];
            let len = (self.fault)(index, buffer.as_mut_ptr().cast(), buffer.len());
            buffer.truncate(len.min(buffer.len() - 1));
            (len > 0).then(|| String::from_utf8_lossy(&buffer).into_owned())
        });
        lines.collect()
    }
}

impl Communicator {
    /// Its handle, as [`Control::kill`] takes it.
    #[must_use]
    pub fn as_raw(&self) -> ncclComm_t {
        std::ptr::without_provenance_mut(self.handle as usize)
    }
}

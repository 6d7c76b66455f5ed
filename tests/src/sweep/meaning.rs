//! What it means in a sweep that a call fails, where that is neither an error nor a report: the one table of all tours,
//! which name the rows that hold for them. What a row says instead, the tour asserts itself.

use cuda_mem::sys::CUresult;
use cuda_sim::Live;

/// When a row holds.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// Always.
    Ever,
    /// For the first call of the tour.
    First,
    /// For the calls behind so many.
    Behind(usize),
    /// For this code.
    Answering(CUresult),
    /// If the tour says so. It is asked once a failure.
    If(fn() -> bool),
}

/// Calls whose failure is answered in another way.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// These.
    pub functions: &'static [&'static str],
    /// When.
    pub when: When,
}

impl Answer {
    pub(super) fn is_of(&self, index: usize, function: &str, code: CUresult) -> bool {
        self.functions.contains(&function)
            && match self.when {
                When::Ever => true,
                When::First => index == 0,
                When::Behind(calls) => index > calls,
                When::Answering(answer) => code == answer,
                When::If(asked) => asked(),
            }
    }
}

const INVALID: When = When::Answering(CUresult::CUDA_ERROR_INVALID_VALUE);

const fn ever(functions: &'static [&'static str]) -> Answer {
    Answer {
        functions,
        when: When::Ever,
    }
}

/// It is asked first whether the library is the stub, and after cuInit for the version.
pub const STUB: Answer = Answer {
    functions: &["cuDriverGetVersion"],
    when: When::First,
};

/// The answer to "is it done?".
pub const NOT_READY: Answer = Answer {
    functions: &["cuStreamQuery", "cuEventQuery"],
    when: When::Answering(CUresult::CUDA_ERROR_NOT_READY),
};

/// Whether a stream has come to a free is asked early, to let go of the stream; without an answer it is kept, and asked
/// again.
pub const ASKED_EARLY: Answer = ever(&["cuStreamQuery"]);

/// The answer that an address is none of the driver's.
pub const UNKNOWN_ADDRESS: Answer = Answer {
    functions: &["cuPointerGetAttribute"],
    when: INVALID,
};

/// The answer that the driver is older than the attribute: what it tells of is not there.
pub const UNKNOWN_ATTRIBUTE: Answer = Answer {
    functions: &["cuDeviceGetAttribute"],
    when: INVALID,
};

/// A stream of which it is not known whether somebody captures it is taken for one that is not, and the next call tells.
/// What cannot be kept from disturbing captures comes later.
pub const CAPTURES: Answer = ever(&["cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode"]);

/// Who is not said to reach a pool does not reach it.
pub const WHO_REACHES: Answer = ever(&["cuMemPoolGetAccess"]);

/// The devices that may reach it, which are listed at these calls of the tour.
pub const fn devices_behind(calls: usize) -> Answer {
    Answer {
        functions: &["cuDeviceGetCount", "cuDeviceGet"],
        when: When::Behind(calls),
    }
}

/// Memory of a buffer that cannot be freed now is freed later.
pub const FREED_LATER: Answer = Answer {
    functions: &["cuMemFreeAsync"],
    when: INVALID,
};

/// What could not be ordered behind a launch is remembered, and ordered before its next use.
pub const ORDERED_LATER: Answer = ever(&["cuEventRecord", "cuStreamWaitEvent", "cuEventCreate"]);

/// The same where the context could not be made current to make the event for it: calls behind so many of the tour.
pub const fn ordered_later_behind(calls: usize) -> Answer {
    Answer {
        functions: &["cuCtxGetCurrent", "cuCtxSetCurrent"],
        when: When::Behind(calls),
    }
}

/// What may be left behind where a failure was reported.
#[derive(Clone, Copy, Debug)]
pub struct Left {
    /// By these; by any if there are none.
    pub functions: &'static [&'static str],
    /// What there was, with those numbers of what there is that may differ.
    pub differs: fn(before: Live, now: Live) -> Live,
}

impl Left {
    pub(super) fn is_of(&self, function: &str, before: Live, now: Live) -> bool {
        let may_leave = self.functions.is_empty() || self.functions.contains(&function);
        may_leave && now == (self.differs)(before, now)
    }
}

/// A block of memory that may be in use still, with its bytes and what it holds on to.
const fn block(before: Live, now: Live) -> Live {
    Live {
        allocations: now.allocations,
        bytes: now.bytes,
        pools: now.pools,
        streams: now.streams,
        events: now.events,
        primary_retains: now.primary_retains,
        ..before
    }
}

/// A free in a default stream wants the context to be current. If it cannot be, the memory is not freed.
pub const NOT_BOUND: Left = Left {
    functions: &["cuCtxGetCurrent", "cuCtxSetCurrent"],
    differs: block,
};

/// Memory of no pool waits for its stream, in its context, before it is freed. Where that fails it may be in use, and stays.
pub const NOT_WAITED_FOR: Left = Left {
    functions: &["cuStreamSynchronize", "cuCtxGetCurrent", "cuCtxSetCurrent"],
    differs: block,
};

/// What seems to stay keeps its pool.
pub const NOT_FREED: Left = Left {
    functions: &["cuMemFreeAsync"],
    differs: block,
};

/// A shared mapping whose end could not be put in order stays, rather than end under the work of another stream.
pub const NOT_ORDERED: Left = Left {
    functions: &[
        "cuEventCreate",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuCtxGetCurrent",
        "cuCtxSetCurrent",
    ],
    differs: block,
};

/// Host memory that could not be waited for, freed or unregistered.
pub const HOST_MEMORY: Left = Left {
    functions: &[
        "cuMemFreeHost",
        "cuMemHostUnregister",
        "cuStreamSynchronize",
        "cuCtxSynchronize",
        // Said before each of these, so that they disturb no capture.
        "cuThreadExchangeStreamCaptureMode",
    ],
    differs: |before, now| Live {
        host_allocations: now.host_allocations,
        registrations: now.registrations,
        primary_retains: now.primary_retains,
        ..before
    },
};

/// Mapped memory that could not be waited for or unmapped, with its addresses, and what may still be copied.
pub const MAPPED_MEMORY: Left = Left {
    functions: &[
        "cuMemUnmap",
        "cuMemRelease",
        "cuMemAddressFree",
        "cuStreamSynchronize",
        "cuMemcpyAsync",
    ],
    differs: |before, now| Live {
        physical_allocations: now.physical_allocations,
        physical_bytes: now.physical_bytes,
        reservations: now.reservations,
        mappings: now.mappings,
        primary_retains: now.primary_retains,
        ..before
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_holds_for_its_calls_alone() {
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let of = |answer: Answer, index, function| answer.is_of(index, function, invalid);
        assert!(of(STUB, 0, "cuDriverGetVersion") && !of(STUB, 1, "cuDriverGetVersion"));
        assert!(of(FREED_LATER, 9, "cuMemFreeAsync") && !of(NOT_READY, 9, "cuStreamQuery"));
        assert!(
            of(devices_behind(5), 6, "cuDeviceGet") && !of(devices_behind(5), 5, "cuDeviceGet")
        );
        assert!(!of(CAPTURES, 9, "cuMemFreeAsync"));
        let before = Live::default();
        let more = Live {
            registrations: 1,
            ..before
        };
        assert!(HOST_MEMORY.is_of("cuMemFreeHost", before, more));
        assert!(!HOST_MEMORY.is_of("cuMemAllocHost", before, more));
        assert!(!MAPPED_MEMORY.is_of("cuMemUnmap", before, more));
    }
}

//! What the failure of a call means in a sweep, where it is neither returned nor reported: one table for all scenarios,
//! which name the rows that hold for them. What happens instead, a scenario asserts itself.

use cuda_mem::sys::CUresult;
use cuda_sim::Live;

/// When a row holds.
#[derive(Clone, Copy, Debug)]
pub enum When {
    /// Always.
    Always,
    /// For the first call of the scenario.
    First,
    /// After this many calls.
    After(usize),
    /// If the call answers this code.
    Answering(CUresult),
    /// If the scenario says so, which is asked once per failure.
    If(fn() -> bool),
}

/// Calls whose failure is neither returned nor reported.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The names of the calls.
    pub functions: &'static [&'static str],
    /// When that holds.
    pub when: When,
}

impl Answer {
    pub(super) fn matches(&self, index: usize, function: &str, code: CUresult) -> bool {
        self.functions.contains(&function)
            && match self.when {
                When::Always => true,
                When::First => index == 0,
                When::After(calls) => index > calls,
                When::Answering(answer) => code == answer,
                When::If(asked) => asked(),
            }
    }
}

const INVALID: When = When::Answering(CUresult::CUDA_ERROR_INVALID_VALUE);

const fn always(functions: &'static [&'static str]) -> Answer {
    Answer {
        functions,
        when: When::Always,
    }
}

/// A free that is refused once, maybe because of a capture that is over now, is tried again. In every scenario.
pub(super) const FREED_AGAIN: Answer = Answer {
    functions: &[super::FREE],
    when: INVALID,
};

/// The first call asks whether the library is the stub; the version is read after cuInit.
pub const STUB: Answer = Answer {
    functions: &["cuDriverGetVersion"],
    when: When::First,
};

/// A regular answer of a query.
pub const NOT_READY: Answer = Answer {
    functions: &["cuStreamQuery", "cuEventQuery"],
    when: When::Answering(CUresult::CUDA_ERROR_NOT_READY),
};

/// An early query of whether a stream has reached a free, so that the stream can be released. Without an answer the
/// stream is kept, and queried again.
pub const ASKED_EARLY: Answer = always(&["cuStreamQuery"]);

/// The answer for an address unknown to the driver.
pub const UNKNOWN_ADDRESS: Answer = Answer {
    functions: &["cuPointerGetAttribute"],
    when: INVALID,
};

/// The answers for memory of which the driver tells no access: what a device reaches, it may write.
pub const UNTOLD_ACCESS: [Answer; 2] = {
    let functions: &[&str] = &["cuMemGetAccess"];
    let unsupported = When::Answering(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    [
        Answer {
            functions,
            when: INVALID,
        },
        Answer {
            functions,
            when: unsupported,
        },
    ]
};

/// The answer of a driver older than the attribute: the feature counts as absent.
pub const UNKNOWN_ATTRIBUTE: Answer = Answer {
    functions: &["cuDeviceGetAttribute"],
    when: INVALID,
};

/// If the capture state of a stream is unknown, the stream counts as not captured, and the next call fails if it is.
/// Calls that could invalidate a capture are deferred.
pub const CAPTURES: Answer = always(&["cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode"]);

/// Without an answer, a device has no access to a pool.
pub const WHO_REACHES: Answer = always(&["cuMemPoolGetAccess"]);

/// The devices that may have access, listed after this many calls of the scenario.
pub const fn devices_after(calls: usize) -> Answer {
    Answer {
        functions: &["cuDeviceGetCount", "cuDeviceGet"],
        when: When::After(calls),
    }
}

/// A use that could not be ordered after a launch is ordered before the next one.
pub const ORDERED_LATER: Answer = always(&["cuEventRecord", "cuStreamWaitEvent", "cuEventCreate"]);

/// The same, if the context of the event could not be made current: after this many calls of the scenario.
pub const fn ordered_later_after(calls: usize) -> Answer {
    Answer {
        functions: &["cuCtxGetCurrent", "cuCtxSetCurrent"],
        when: When::After(calls),
    }
}

/// The host waits where one stream could not be made to wait for another.
pub const HOST_WAITS: Answer = always(&["cuEventRecord", "cuStreamWaitEvent", "cuEventCreate"]);

/// What a reported failure may leave behind.
#[derive(Clone, Copy, Debug)]
pub struct Leftover {
    /// The calls that may leave it; all calls if this is empty.
    pub functions: &'static [&'static str],
    /// `before`, with the numbers of `now` that may differ.
    pub differs: fn(before: Live, now: Live) -> Live,
}

impl Leftover {
    pub(super) fn matches(&self, function: &str, before: Live, now: Live) -> bool {
        let may_leave = self.functions.is_empty() || self.functions.contains(&function);
        may_leave && now == (self.differs)(before, now)
    }
}

/// A block that may still be in use, with its bytes and what it keeps alive.
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

/// A free in a default stream needs a current context. Without one, the memory is not freed.
pub const NOT_BOUND: Leftover = Leftover {
    functions: &["cuCtxGetCurrent", "cuCtxSetCurrent"],
    differs: block,
};

/// Memory outside pools is freed after a wait for its stream, in its context. If the wait fails, it is not freed.
pub const NOT_WAITED_FOR: Leftover = Leftover {
    functions: &["cuStreamSynchronize", "cuCtxGetCurrent", "cuCtxSetCurrent"],
    differs: block,
};

/// A block that could not be freed keeps its pool alive.
pub const NOT_FREED: Leftover = Leftover {
    functions: &["cuMemFreeAsync"],
    differs: block,
};

/// Memory that a graph has left, and that could not be freed.
pub const LEFT_BY_A_GRAPH: Leftover = Leftover {
    functions: &[super::FREE],
    differs: |before, now| Live {
        graph_allocations: now.graph_allocations,
        ..before
    },
};

/// A shared mapping stays if its end could not be ordered after the work of other streams.
pub const NOT_ORDERED: Leftover = Leftover {
    functions: &[
        "cuEventCreate",
        "cuEventRecord",
        "cuStreamWaitEvent",
        "cuCtxGetCurrent",
        "cuCtxSetCurrent",
    ],
    differs: block,
};

/// A pool whose export failed is never destroyed.
pub const NOT_DESTROYED: Leftover = Leftover {
    functions: &["cuMemPoolExportToShareableHandle"],
    differs: |before, now| Live {
        pools: now.pools,
        ..before
    },
};

/// Host memory that could not be waited for, freed or unregistered.
pub const HOST_MEMORY: Leftover = Leftover {
    functions: &[
        "cuMemFreeHost",
        "cuMemHostUnregister",
        "cuStreamSynchronize",
        "cuCtxSynchronize",
        // Called before each of these, so that they invalidate no capture.
        "cuThreadExchangeStreamCaptureMode",
    ],
    differs: |before, now| Live {
        host_allocations: now.host_allocations,
        registrations: now.registrations,
        primary_retains: now.primary_retains,
        // Those in the cache of the context that is kept.
        events: now.events,
        ..before
    },
};

/// Mapped memory that could not be waited for or unmapped, with its addresses, and memory that is still being copied.
pub const MAPPED_MEMORY: Leftover = Leftover {
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

mod tests {
    use anyhow::Result;

    use super::*;
    use crate::environment::Environment;

    #[apply(case_of_harness)]
    fn a_row_holds_for_its_calls_alone(_: &Environment) -> Result<()> {
        let invalid = CUresult::CUDA_ERROR_INVALID_VALUE;
        let of = |answer: Answer, index, function| answer.matches(index, function, invalid);
        assert!(of(STUB, 0, "cuDriverGetVersion") && !of(STUB, 1, "cuDriverGetVersion"));
        assert!(
            of(UNKNOWN_ADDRESS, 9, "cuPointerGetAttribute") && !of(NOT_READY, 9, "cuStreamQuery")
        );
        assert!(of(devices_after(5), 6, "cuDeviceGet") && !of(devices_after(5), 5, "cuDeviceGet"));
        assert!(!of(CAPTURES, 9, "cuMemFreeAsync"));
        let before = Live::default();
        let more = Live {
            registrations: 1,
            ..before
        };
        assert!(HOST_MEMORY.matches("cuMemFreeHost", before, more));
        assert!(!HOST_MEMORY.matches("cuMemAllocHost", before, more));
        assert!(!MAPPED_MEMORY.matches("cuMemUnmap", before, more));
        Ok(())
    }
}

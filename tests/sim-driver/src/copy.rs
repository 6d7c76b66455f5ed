//! Copies and memsets: checked when submitted, done by the stream.
//!
//! Measured: on a stream that was made by the program they need no current context.

use std::ffi::{c_uchar, c_uint, c_ushort, c_void};

use cuda_driver_sys::{CU_STREAM_LEGACY, CUcontext, CUdeviceptr, CUstream};

use crate::clock::{Point, StreamId};
use crate::export::{Answer, Call, INVALID_VALUE, exports};
use crate::memory::bytes;
use crate::pool::Block;
use crate::queue::{Pattern, Task};
use crate::sanitizer::{self, Access};
use crate::state::{State, from_handle, state};

/// As long as a stream has taken no more than this, a copy from pageable memory takes its bytes
/// when it is submitted.
const STAGED: usize = 2 << 20;

/// What an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Device,
    Pinned,
    Pageable,
}

/// What the function's name says about one end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Host(u64),
    Device(u64),
    /// The address decides.
    Any(u64),
}

impl State {
    /// What lies at an address, without checking the order.
    fn place(&mut self, address: u64) -> Option<Place> {
        if let Some((_, allocation)) = self.allocation(address) {
            return Some(if allocation.is_host {
                Place::Pinned
            } else {
                Place::Device
            });
        }
        self.pool_at(address).map(|_| Place::Device)
    }

    /// Checks one end of a copy or memset: INVALID_VALUE where the simulated device has nothing.
    pub(crate) fn touch(
        &mut self,
        what: &'static str,
        at: Point,
        side: Side,
        len: usize,
    ) -> Answer<Place> {
        let (Side::Host(address) | Side::Device(address) | Side::Any(address)) = side;
        if address == 0 {
            return Err(INVALID_VALUE);
        }
        if let Some((start, block)) = self.graph_block(address) {
            // Measured: known only from the launch to the free.
            let block = block.ok_or(INVALID_VALUE)?.clone();
            return self.touch_graph_block(what, at, (address, len as u64), (start, block));
        }
        let Some(place) = self.place(address) else {
            return match side {
                Side::Device(_) => Err(INVALID_VALUE),
                Side::Host(_) | Side::Any(_) => Ok(Place::Pageable),
            };
        };
        let len = len as u64;
        let access = Access {
            what,
            at,
            address,
            len,
        };
        if let Some((start, allocation)) = self.allocation(address) {
            let freed = allocation.freed;
            if address + len > start + allocation.size {
                return Err(INVALID_VALUE);
            }
            if freed.is_some() {
                sanitizer::access_after_free(&mut self.reports, access, freed);
            }
            return Ok(place);
        }
        let device = self.stream(at.stream)?.device;
        let Self {
            pools,
            clocks,
            reports,
            ranges,
            ..
        } = self;
        let pool = ranges.range(..=address).next_back();
        let pool = pool.and_then(|(_, id)| pools.get_mut(id));
        let pool = pool.ok_or(INVALID_VALUE)?;
        // The device has no access to memory of the host that it was not given.
        if matches!(side, Side::Device(_)) && pool.access_of(device) == 0 {
            return Err(INVALID_VALUE);
        }
        let base = pool.base();
        let offset = address - base;
        // Measured: the driver knows the bytes that were asked for, and refuses all others.
        let Some((start, block)) = pool.space.block(offset) else {
            if let Some(freed) = pool.space.freed(offset) {
                sanitizer::access_after_free(reports, access, freed);
            }
            return Err(INVALID_VALUE);
        };
        let is_inside = offset + len <= start + block.size;
        sanitizer::access(reports, clocks, base + start, block, access);
        if is_inside {
            Ok(place)
        } else {
            Err(INVALID_VALUE)
        }
    }
}

impl State {
    /// As [`touch`](Self::touch), for a live block of graph memory.
    fn touch_graph_block(
        &mut self,
        what: &'static str,
        at: Point,
        (address, len): (u64, u64),
        (start, mut block): (u64, Block),
    ) -> Answer<Place> {
        let access = Access {
            what,
            at,
            address,
            len,
        };
        sanitizer::access(&mut self.reports, &self.clocks, start, &mut block, access);
        let is_inside = address + len <= start + block.size;
        if let Some((_, Some(place))) = self.graph_block(address) {
            *place = block;
        }
        if is_inside {
            Ok(Place::Device)
        } else {
            Err(INVALID_VALUE)
        }
    }
}

/// How long the caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    /// Until the copy is done.
    Done,
    /// Only if the copy touches pageable memory, which the device cannot reach by itself.
    Pageable,
    /// Not at all, unless pageable memory has to be read.
    Never,
}

fn copy((handle, call): (CUstream, Call), to: Side, from: Side, len: usize, wait: Wait) -> Answer {
    let (mark, past) = {
        let mut state = state()?;
        let id = state.resolve(handle, call)?;
        if len == 0 && wait != Wait::Done {
            return Ok(());
        }
        let (Side::Host(to_at) | Side::Device(to_at) | Side::Any(to_at)) = to;
        let (Side::Host(from_at) | Side::Device(from_at) | Side::Any(from_at)) = from;
        if state.is_recording(id)? {
            return state.record_copy(id, to_at, from_at, len);
        }
        let at = state.begin(id)?;
        let (mut target, mut source) = (Place::Pinned, Place::Pinned);
        if len > 0 {
            target = state.touch("copy to", at, to, len)?;
            source = state.touch("copy from", at, from, len)?;
        }
        let (to, from) = (to_at, from_at);
        let queue = &state.stream(id)?.queue;
        let is_up = source == Place::Pageable && target != Place::Pageable;
        let staged = is_up && len + queue.staged() <= STAGED;
        if staged {
            let bytes = bytes::read(from, len);
            queue.push(Task::Write { to, bytes })?;
        } else if len > 0 {
            queue.push(Task::Copy { to, from, len })?;
        }
        let pageable = [target, source].contains(&Place::Pageable) && !staged;
        if wait != Wait::Done && !pageable {
            return Ok(());
        }
        (state.stream(id)?.queue.mark(), state.clocks.past(id))
    };
    mark.wait();
    state()?.note_observed(&[past]);
    Ok(())
}

fn fill((handle, call): (CUstream, Call), to: u64, pattern: Pattern, count: usize) -> Answer {
    let size = pattern.size();
    let len = count.checked_mul(size).ok_or(INVALID_VALUE)?;
    let mut state = state()?;
    let id: StreamId = state.resolve(handle, call)?;
    if count == 0 {
        return Ok(());
    }
    if !to.is_multiple_of(size as u64) {
        return Err(INVALID_VALUE);
    }
    if state.is_recording(id)? {
        return state.record_fill(id, to, pattern, count);
    }
    let at = state.begin(id)?;
    state.touch("memset", at, Side::Device(to), len)?;
    state
        .stream(id)?
        .queue
        .push(Task::Fill { to, pattern, count })
}

/// The stream of the functions that take none.
fn default(call: Call) -> (CUstream, Call) {
    let handle = if call.per_thread {
        std::ptr::null_mut()
    } else {
        CU_STREAM_LEGACY
    };
    (handle, call)
}

fn host(pointer: *const c_void) -> Side {
    Side::Host(pointer.expose_provenance() as u64)
}

exports! {
    plain fn cuMemcpy(call, to: CUdeviceptr, from: CUdeviceptr, len: usize) twin cuMemcpy_ptds {
        copy(default(call), Side::Any(to), Side::Any(from), len, Wait::Done)
    }

    plain fn cuMemcpyAsync(
        call, to: CUdeviceptr, from: CUdeviceptr, len: usize, stream: CUstream
    ) twin cuMemcpyAsync_ptsz {
        copy((stream, call), Side::Any(to), Side::Any(from), len, Wait::Pageable)
    }

    plain fn cuMemcpyHtoD_v2(
        call, to: CUdeviceptr, from: *const c_void, len: usize
    ) twin cuMemcpyHtoD_v2_ptds {
        copy(default(call), Side::Device(to), host(from), len, Wait::Done)
    }

    plain fn cuMemcpyDtoH_v2(
        call, to: *mut c_void, from: CUdeviceptr, len: usize
    ) twin cuMemcpyDtoH_v2_ptds {
        copy(default(call), host(to), Side::Device(from), len, Wait::Done)
    }

    plain fn cuMemcpyDtoD_v2(
        call, to: CUdeviceptr, from: CUdeviceptr, len: usize
    ) twin cuMemcpyDtoD_v2_ptds {
        // From device to device the driver does not wait, whatever the name promises.
        copy(default(call), Side::Device(to), Side::Device(from), len, Wait::Never)
    }

    plain fn cuMemcpyHtoDAsync_v2(
        call, to: CUdeviceptr, from: *const c_void, len: usize, stream: CUstream
    ) twin cuMemcpyHtoDAsync_v2_ptsz {
        copy((stream, call), Side::Device(to), host(from), len, Wait::Pageable)
    }

    plain fn cuMemcpyDtoHAsync_v2(
        call, to: *mut c_void, from: CUdeviceptr, len: usize, stream: CUstream
    ) twin cuMemcpyDtoHAsync_v2_ptsz {
        copy((stream, call), host(to), Side::Device(from), len, Wait::Pageable)
    }

    plain fn cuMemcpyDtoDAsync_v2(
        call, to: CUdeviceptr, from: CUdeviceptr, len: usize, stream: CUstream
    ) twin cuMemcpyDtoDAsync_v2_ptsz {
        copy((stream, call), Side::Device(to), Side::Device(from), len, Wait::Never)
    }

    plain fn cuMemcpyPeerAsync(
        call, to: CUdeviceptr, to_context: CUcontext,
        from: CUdeviceptr, from_context: CUcontext, len: usize, stream: CUstream
    ) twin cuMemcpyPeerAsync_ptsz {
        {
            let state = state()?;
            for context in [to_context, from_context].map(from_handle).into_iter() {
                if context != 0 {
                    state.context(context)?;
                }
            }
        }
        copy((stream, call), Side::Device(to), Side::Device(from), len, Wait::Never)
    }

    plain fn cuMemsetD8_v2(
        call, to: CUdeviceptr, value: c_uchar, count: usize
    ) twin cuMemsetD8_v2_ptds {
        fill(default(call), to, Pattern::D8(value), count)
    }

    plain fn cuMemsetD16_v2(
        call, to: CUdeviceptr, value: c_ushort, count: usize
    ) twin cuMemsetD16_v2_ptds {
        fill(default(call), to, Pattern::D16(value), count)
    }

    plain fn cuMemsetD32_v2(
        call, to: CUdeviceptr, value: c_uint, count: usize
    ) twin cuMemsetD32_v2_ptds {
        fill(default(call), to, Pattern::D32(value), count)
    }

    plain fn cuMemsetD8Async(
        call, to: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream
    ) twin cuMemsetD8Async_ptsz {
        fill((stream, call), to, Pattern::D8(value), count)
    }

    plain fn cuMemsetD16Async(
        call, to: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream
    ) twin cuMemsetD16Async_ptsz {
        fill((stream, call), to, Pattern::D16(value), count)
    }

    plain fn cuMemsetD32Async(
        call, to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream
    ) twin cuMemsetD32Async_ptsz {
        fill((stream, call), to, Pattern::D32(value), count)
    }
}

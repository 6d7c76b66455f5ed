//! Copies and memsets: checked at submission, executed by the stream.
//!
//! Measured: on a stream that the program created they need no current context.

use std::ffi::{c_uchar, c_uint, c_ushort, c_void};

use cuda_driver_sys::{CU_STREAM_LEGACY, CUcontext, CUdeviceptr, CUstream};

use crate::alloc::Kind;
use crate::clock::{Point, StreamId};
use crate::export::{Answer, Call, INVALID_VALUE, exports};
use crate::memory::bytes;
use crate::plane::{FilledRows, Rows, fill_rows};
use crate::pool::Block;
use crate::queue::{Pattern, Task};
use crate::sanitizer::{self, Access};
use crate::state::{State, from_handle, state};

/// While a stream holds no more staged bytes than this, a copy from pageable memory reads them at submission.
pub(crate) const STAGED: usize = 2 << 20;

/// What memory an address belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Device,
    Pinned,
    Pageable,
    /// Managed memory passed as a host address. Measured: the copy is done when the call returns.
    Managed,
}

/// What the function's name says about one end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Host(u64),
    Device(u64),
    /// Determined by the address.
    Any(u64),
}

impl Side {
    pub(crate) fn address(self) -> u64 {
        let (Self::Host(address) | Self::Device(address) | Self::Any(address)) = self;
        address
    }
}

/// Which device must be able to access the memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    /// The device of a stream, for fills.
    Stream(StreamId),
    /// This device, which need not be the stream's. Measured: for a copy the current context decides, and the stream
    /// only if no context is current.
    Device(usize),
    /// The device of a context passed to the copy.
    Named(usize),
}

impl State {
    /// The device that must be able to access the memory of a copy on this stream.
    fn copier(&self, id: StreamId) -> Answer<usize> {
        match self.current().and_then(|current| self.context(current)) {
            Ok(context) => Ok(context.device),
            Err(_) => Ok(self.stream(id)?.device),
        }
    }

    /// Checks one end of a copy or memset: INVALID_VALUE where the simulated device has no memory.
    pub(crate) fn touch(
        &mut self,
        what: &'static str,
        at: Point,
        by: By,
        side: Side,
        len: usize,
    ) -> Answer<Place> {
        let address = side.address();
        // An address overflow is beyond the end of any block.
        let end = address.checked_add(len as u64);
        if address == 0 || end.is_none() {
            return Err(INVALID_VALUE);
        }
        if let Some((start, block)) = self.graph_block(address) {
            // Measured: known only between the launch and the free.
            let block = block.ok_or(INVALID_VALUE)?.clone();
            return self.touch_graph_block(what, at, (address, len as u64), (start, block));
        }
        let len = len as u64;
        let access = Access {
            what,
            at,
            address,
            len,
        };
        if let Some(answer) = self.touch_mapped(access, by) {
            return answer.map(|()| Place::Device);
        }
        if let Some((start, allocation)) = self.allocation(address) {
            let freed = allocation.freed;
            if address + len > start + allocation.size {
                return Err(INVALID_VALUE);
            }
            // Measured: copies of this memory cross devices without further setup, fills do not. Managed memory is
            // accessible to every device.
            if let By::Stream(id) = by
                && allocation.kind == Kind::Device
            {
                let stream = self.stream(id)?;
                if stream.device != allocation.device
                    && !self.has_opened(stream.context, allocation.context)
                {
                    return Err(INVALID_VALUE);
                }
            }
            let place = match (allocation.kind, side) {
                (Kind::Pinned, _) => Place::Pinned,
                (Kind::Managed, Side::Host(_)) => Place::Managed,
                (Kind::Managed | Kind::Device, _) => Place::Device,
            };
            if freed.is_some() {
                sanitizer::access_after_free(&mut self.reports, access, freed);
            }
            return Ok(place);
        }
        if let Some(answer) = self.touch_registered(access) {
            return answer.map(|()| Place::Pinned);
        }
        let (device, is_copy) = match by {
            By::Stream(id) => (self.stream(id)?.device, false),
            By::Device(device) | By::Named(device) => (device, true),
        };
        if let Some(answer) = self.touch_imported(access, (device, is_copy), side) {
            return answer;
        }
        let Self {
            pools,
            clocks,
            reports,
            ranges,
            ..
        } = self;
        let pool = ranges.range(..=address).next_back();
        let pool = pool.and_then(|(_, id)| pools.get_mut(id));
        let Some(pool) = pool.filter(|pool| pool.holds(address)) else {
            return match side {
                // Documented: the direction that the function's name says is only a hint. The program may take it back
                // before the work runs, so the queue looks again.
                Side::Device(_) if self.is_system_allocated(address, len, access.writes()) => {
                    Ok(Place::Device)
                }
                Side::Device(_) => Err(INVALID_VALUE),
                Side::Host(_) | Side::Any(_) => Ok(Place::Pageable),
            };
        };
        // Measured: a copy never accepts host pool memory as device memory, and treats it as pageable if the device has
        // no access.
        let is_open = pool.is_open_to(device);
        let is_named_device = matches!(side, Side::Device(_));
        let place = match (pool.is_host(), is_open) {
            (true, _) if is_copy && is_named_device => return Err(INVALID_VALUE),
            (true, true) => Place::Pinned,
            (true, false) if is_copy => Place::Pageable,
            (false, true) => Place::Device,
            (_, false) => return Err(INVALID_VALUE),
        };
        let base = pool.base();
        let offset = address - base;
        // Measured: the driver knows the requested bytes, and refuses all others.
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

    /// The device at one end of a copy between devices: that of its context, which must own the memory or have access
    /// to it.
    fn end_of_peer_copy(&self, id: StreamId, context: CUcontext, address: u64) -> Answer<usize> {
        let device = match from_handle(context) {
            0 => self.copier(id)?,
            context => self.context(context)?.device,
        };
        match self.allocation(address) {
            Some((_, found)) if found.kind == Kind::Device && found.device != device => {
                Err(INVALID_VALUE)
            }
            _ => Ok(device),
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

/// When the caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// Until the copy is done.
    Done,
    /// Only if the copy uses pageable memory, which the device cannot access by itself, or managed memory as a host
    /// address.
    Pageable,
    /// Never, unless pageable memory must be read.
    Never,
}

/// The contexts passed to a copy between devices: destination and source.
pub(crate) type Contexts = Option<(CUcontext, CUcontext)>;

fn copy(stream: (CUstream, Call), to: Side, from: Side, len: usize, wait: Wait) -> Answer {
    copy_between(stream, to, from, len, wait, None)
}

fn copy_between(
    stream: (CUstream, Call),
    to: Side,
    from: Side,
    len: usize,
    wait: Wait,
    contexts: Contexts,
) -> Answer {
    let rows = Rows::one(to.address(), from.address(), len);
    copy_rows(stream, to, from, rows, wait, contexts)
}

/// Copies rows between two places, which are where the rows begin.
pub(crate) fn copy_rows(
    (handle, call): (CUstream, Call),
    to: Side,
    from: Side,
    rows: Rows,
    wait: Wait,
    contexts: Contexts,
) -> Answer {
    let (to_len, from_len) = (rows.target_span()?, rows.source_span()?);
    let (mark, past) = {
        let mut state = state()?;
        let id = state.resolve(handle, call)?;
        let (target_address, source_address) = (to.address(), from.address());
        let (writer, reader) = match contexts {
            None => {
                let copier = state.copier(id)?;
                (copier, copier)
            }
            Some((there, here)) => (
                state.end_of_peer_copy(id, there, target_address)?,
                state.end_of_peer_copy(id, here, source_address)?,
            ),
        };
        let by = if contexts.is_none() {
            By::Device
        } else {
            By::Named
        };
        if to_len == 0 && wait != Wait::Done {
            return Ok(());
        }
        if state.is_recording(id)? {
            return state.record_copy(id, to, from, rows);
        }
        let at = state.begin(id)?;
        let (mut target, mut source) = (Place::Pinned, Place::Pinned);
        if to_len > 0 {
            target = state.touch("copy to", at, by(writer), to, to_len)?;
            source = state.touch("copy from", at, by(reader), from, from_len)?;
            state.bring(writer, to, to_len);
        }
        let queue = &state.stream(id)?.queue;
        let is_up = source == Place::Pageable && target != Place::Pageable;
        let staged = is_up && rows.width * rows.height + queue.staged() <= STAGED;
        if staged {
            for (to, from) in rows.rows() {
                let bytes = bytes::read(from, rows.width);
                queue.push(Task::Write { to, bytes })?;
            }
        } else if to_len > 0 {
            queue.push(Task::Copy(rows))?;
        }
        let waits = |place| match place {
            Place::Device | Place::Pinned => false,
            Place::Pageable => !staged,
            Place::Managed => true,
        };
        if wait != Wait::Done && !waits(target) && !waits(source) {
            return Ok(());
        }
        (state.stream(id)?.queue.mark(), state.clocks.past(id))
    };
    mark.wait();
    state()?.note_observed(&[past]);
    Ok(())
}

/// Fills one row.
fn fill(stream: (CUstream, Call), to: u64, pattern: Pattern, count: usize) -> Answer {
    let pitch = count.checked_mul(pattern.size()).ok_or(INVALID_VALUE)?;
    let (width, height) = (count, 1);
    fill_rows(
        stream,
        FilledRows {
            to,
            pitch,
            pattern,
            width,
            height,
        },
    )
}

/// The stream of functions without a stream argument.
pub(crate) fn default(call: Call) -> (CUstream, Call) {
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
        // The driver does not wait for copies between devices, whatever the name suggests.
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
        let (to, from, contexts) = (Side::Device(to), Side::Device(from), (to_context, from_context));
        copy_between((stream, call), to, from, len, Wait::Never, Some(contexts))
    }

    plain fn cuMemcpyPeer(
        call, to: CUdeviceptr, to_context: CUcontext,
        from: CUdeviceptr, from_context: CUcontext, len: usize
    ) twin cuMemcpyPeer_ptds {
        // As with other copies between devices, the driver does not wait.
        let (to, from, contexts) = (Side::Device(to), Side::Device(from), (to_context, from_context));
        copy_between(default(call), to, from, len, Wait::Never, Some(contexts))
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

//! Memory with a pitch, and copies and memsets in two dimensions.

use std::ffi::{c_uchar, c_uint, c_ushort};

use cuda_driver_sys::{CUDA_MEMCPY2D, CUdeviceptr, CUmemorytype, CUresult, CUstream};

use crate::alloc::Kind;
use crate::clock::StreamId;
use crate::copy::{By, Side, Wait, copy_rows, default};
use crate::export::{Answer, Call, INVALID_VALUE, In, Out, exports};
use crate::logs;
use crate::memory::bytes;
use crate::queue::{Pattern, Task};
use crate::state::{State, state};

/// Measured: rows begin at multiples of this.
const PITCH: usize = 512;

/// Rows of bytes, from one place to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    pub(crate) to: u64,
    pub(crate) to_pitch: usize,
    pub(crate) from: u64,
    pub(crate) from_pitch: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// Bytes from the first of the first row to the last of the last one; `None` if they overflow.
fn span(width: usize, height: usize, pitch: usize) -> Option<usize> {
    match height.checked_sub(1) {
        Some(rows) if width > 0 => rows.checked_mul(pitch)?.checked_add(width),
        _ => Some(0),
    }
}

impl Rows {
    /// One row.
    pub(crate) fn one(to: u64, from: u64, len: usize) -> Self {
        Self {
            to,
            to_pitch: len,
            from,
            from_pitch: len,
            width: len,
            height: 1,
        }
    }

    pub(crate) fn target_span(self) -> Answer<usize> {
        span(self.width, self.height, self.to_pitch).ok_or(INVALID_VALUE)
    }

    pub(crate) fn source_span(self) -> Answer<usize> {
        span(self.width, self.height, self.from_pitch).ok_or(INVALID_VALUE)
    }

    /// The ranges it writes and reads. They were checked at submission.
    pub(crate) fn ranges(&self) -> [(u64, usize); 3] {
        let to = self.target_span().unwrap_or_default();
        let from = self.source_span().unwrap_or_default();
        [(self.to, to), (self.from, from), (0, 0)]
    }

    /// Address of each row at both ends.
    pub(crate) fn rows(self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.height as u64).map(move |row| {
            (
                self.to + row * self.to_pitch as u64,
                self.from + row * self.from_pitch as u64,
            )
        })
    }

    pub(crate) fn run(self) {
        for (to, from) in self.rows() {
            bytes::copy(to, from, self.width);
        }
    }
}

/// Rows of elements, filled with one value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilledRows {
    pub(crate) to: u64,
    pub(crate) pitch: usize,
    pub(crate) pattern: Pattern,
    /// In elements.
    pub(crate) width: usize,
    pub(crate) height: usize,
}

impl FilledRows {
    pub(crate) fn span(&self) -> Answer<usize> {
        let width = self.width.checked_mul(self.pattern.size());
        let span = width.and_then(|width| span(width, self.height, self.pitch));
        span.ok_or(INVALID_VALUE)
    }

    pub(crate) fn run(self) {
        for row in 0..self.height as u64 {
            let to = self.to + row * self.pitch as u64;
            self.pattern.fill(to, self.width);
        }
    }

    /// Measured: address and pitch are multiples of the element, and rows do not overlap.
    pub(crate) fn check(&self) -> Answer {
        let size = self.pattern.size();
        let width = self.width.checked_mul(size).ok_or(INVALID_VALUE)?;
        let is_straight = self.to.is_multiple_of(size as u64) && self.pitch.is_multiple_of(size);
        if !is_straight || self.height > 1 && self.pitch < width {
            return Err(INVALID_VALUE);
        }
        Ok(())
    }
}

/// One end of a copy: the memory, the first byte's offset, and the pitch.
pub(crate) fn end(
    kind: CUmemorytype,
    (host, device, array): (u64, u64, bool),
    (x, y, pitch): (usize, usize, usize),
    width: usize,
) -> Answer<(Side, usize)> {
    // Measured: with a pitch of 0, a row begins where the one before it ends.
    let tight = x.checked_add(width).ok_or(INVALID_VALUE)?;
    let pitch = if pitch == 0 { tight } else { pitch };
    if pitch < tight {
        return Err(INVALID_VALUE);
    }
    let offset = y.checked_mul(pitch).and_then(|start| start.checked_add(x));
    let offset = offset.ok_or(INVALID_VALUE)? as u64;
    let at = |start: u64| start.checked_add(offset).filter(|_| start != 0);
    let side = match kind {
        CUmemorytype::CU_MEMORYTYPE_HOST => at(host).map(Side::Host),
        CUmemorytype::CU_MEMORYTYPE_DEVICE => at(device).map(Side::Device),
        CUmemorytype::CU_MEMORYTYPE_UNIFIED => at(device).map(Side::Any),
        CUmemorytype::CU_MEMORYTYPE_ARRAY if array => {
            let why = "the simulated driver has no arrays";
            return logs::refuse(CUresult::CUDA_ERROR_NOT_SUPPORTED, why);
        }
        _ => None,
    };
    Ok((side.ok_or(INVALID_VALUE)?, pitch))
}

fn copy((stream, call): (CUstream, Call), plan: In<CUDA_MEMCPY2D>, waits: bool) -> Answer {
    let plan = plan.read()?;
    let source = (
        plan.srcHost.expose_provenance() as u64,
        plan.srcDevice,
        !plan.srcArray.is_null(),
    );
    let target = (
        plan.dstHost.expose_provenance() as u64,
        plan.dstDevice,
        !plan.dstArray.is_null(),
    );
    let width = plan.WidthInBytes;
    let from_place = (plan.srcXInBytes, plan.srcY, plan.srcPitch);
    let to_place = (plan.dstXInBytes, plan.dstY, plan.dstPitch);
    let (from, from_pitch) = end(plan.srcMemoryType, source, from_place, width)?;
    let (to, to_pitch) = end(plan.dstMemoryType, target, to_place, width)?;
    let rows = Rows {
        to: to.address(),
        to_pitch,
        from: from.address(),
        from_pitch,
        width,
        height: if width == 0 { 0 } else { plan.Height },
    };
    let is_inside = matches!((to, from), (Side::Device(_), Side::Device(_)));
    // Measured: as in one dimension, copies between devices do not wait.
    let wait = match (waits, is_inside) {
        (true, false) => Wait::Done,
        (true, true) => Wait::Never,
        (false, _) => Wait::Pageable,
    };
    copy_rows((stream, call), to, from, rows, wait, None)
}

/// Fills rows, in the order of a stream.
pub(crate) fn fill_rows((handle, call): (CUstream, Call), rows: FilledRows) -> Answer {
    let mut state = state()?;
    let id: StreamId = state.resolve(handle, call)?;
    if rows.width == 0 || rows.height == 0 {
        return Ok(());
    }
    rows.check()?;
    let len = rows.span()?;
    if state.is_recording(id)? {
        return state.record_fill(id, rows);
    }
    let at = state.begin(id)?;
    let side = Side::Device(rows.to);
    state.touch("memset", at, By::Stream(id), side, len)?;
    let device = state.stream(id)?.device;
    state.bring(device, side, len);
    state.stream(id)?.queue.push(Task::FillRows(rows))
}

impl State {
    /// Measured: rows are multiples of 512 bytes, and any failure clears both outputs.
    fn allocate_rows(
        &mut self,
        width: usize,
        height: usize,
        element: c_uint,
    ) -> Answer<(u64, usize)> {
        self.current()?;
        self.refuse_while_recording()?;
        if width == 0 || height == 0 || ![4, 8, 16].contains(&element) {
            return Err(INVALID_VALUE);
        }
        let pitch = width.checked_next_multiple_of(PITCH).ok_or(INVALID_VALUE)?;
        let size = pitch.checked_mul(height).ok_or(INVALID_VALUE)?;
        Ok((self.allocate(size, Kind::Device)?, pitch))
    }
}

exports! {
    plain fn cuMemAllocPitch_v2(
        _, address: Out<CUdeviceptr>, pitch: Out<usize>, width: usize, height: usize,
        element: c_uint
    ) {
        address.required()?;
        pitch.required()?;
        address.write(0)?;
        pitch.write(0)?;
        let (start, row) = state()?.allocate_rows(width, height, element)?;
        pitch.write(row)?;
        address.write(start)
    }

    plain fn cuMemcpy2D_v2(call, plan: In<CUDA_MEMCPY2D>) twin cuMemcpy2D_v2_ptds {
        copy(default(call), plan, true)
    }

    // The same here: the device has no pitch that it refuses.
    plain fn cuMemcpy2DUnaligned_v2(
        call, plan: In<CUDA_MEMCPY2D>
    ) twin cuMemcpy2DUnaligned_v2_ptds {
        copy(default(call), plan, true)
    }

    plain fn cuMemcpy2DAsync_v2(
        call, plan: In<CUDA_MEMCPY2D>, stream: CUstream
    ) twin cuMemcpy2DAsync_v2_ptsz {
        copy((stream, call), plan, false)
    }

    plain fn cuMemsetD2D8_v2(
        call, to: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize
    ) twin cuMemsetD2D8_v2_ptds {
        let pattern = Pattern::D8(value);
        fill_rows(default(call), FilledRows { to, pitch, pattern, width, height })
    }

    plain fn cuMemsetD2D16_v2(
        call, to: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize
    ) twin cuMemsetD2D16_v2_ptds {
        let pattern = Pattern::D16(value);
        fill_rows(default(call), FilledRows { to, pitch, pattern, width, height })
    }

    plain fn cuMemsetD2D32_v2(
        call, to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize
    ) twin cuMemsetD2D32_v2_ptds {
        let pattern = Pattern::D32(value);
        fill_rows(default(call), FilledRows { to, pitch, pattern, width, height })
    }

    plain fn cuMemsetD2D8Async(
        call, to: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize,
        stream: CUstream
    ) twin cuMemsetD2D8Async_ptsz {
        let pattern = Pattern::D8(value);
        fill_rows((stream, call), FilledRows { to, pitch, pattern, width, height })
    }

    plain fn cuMemsetD2D16Async(
        call, to: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize,
        stream: CUstream
    ) twin cuMemsetD2D16Async_ptsz {
        let pattern = Pattern::D16(value);
        fill_rows((stream, call), FilledRows { to, pitch, pattern, width, height })
    }

    plain fn cuMemsetD2D32Async(
        call, to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize,
        stream: CUstream
    ) twin cuMemsetD2D32Async_ptsz {
        let pattern = Pattern::D32(value);
        fill_rows((stream, call), FilledRows { to, pitch, pattern, width, height })
    }
}

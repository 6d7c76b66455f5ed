//! Memset nodes: what the program gave, and the rows that it means.

use cuda_driver_sys::{CUDA_MEMSET_NODE_PARAMS, CUcontext};

use super::Op;
use crate::clock::{Point, StreamId};
use crate::copy::{By, Side};
use crate::export::{Answer, INVALID_VALUE};
use crate::plane::FilledRows;
use crate::queue::{Pattern, Task};
use crate::state::State;

/// Of a captured memset. Measured with one row: there is no pitch. A guess: more rows keep theirs.
pub(super) fn captured(rows: FilledRows) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS {
        dst: rows.to,
        pitch: if rows.height > 1 { rows.pitch } else { 0 },
        value: match rows.pattern {
            Pattern::D8(value) => value.into(),
            Pattern::D16(value) => value.into(),
            Pattern::D32(value) => value,
        },
        elementSize: rows.pattern.size() as u32,
        width: rows.width,
        height: rows.height,
    }
}

/// What is filled. Measured: the pitch of a single row is ignored, and a value too wide is cut.
fn rows(given: &CUDA_MEMSET_NODE_PARAMS) -> Answer<FilledRows> {
    let pattern = match given.elementSize {
        1 => Pattern::D8(given.value as u8),
        2 => Pattern::D16(given.value as u16),
        4 => Pattern::D32(given.value),
        _ => return Err(INVALID_VALUE),
    };
    let tight = given.width.checked_mul(pattern.size());
    let pitch = match given.height {
        1 => tight.ok_or(INVALID_VALUE)?,
        _ => given.pitch,
    };
    Ok(FilledRows {
        to: given.dst,
        pitch,
        pattern,
        width: given.width,
        height: given.height,
    })
}

impl State {
    /// The operation of a memset node.
    pub(super) fn fill_op(
        &mut self,
        given: CUDA_MEMSET_NODE_PARAMS,
        context: CUcontext,
    ) -> Answer<Op> {
        self.check_context(context)?;
        if given.width == 0 || given.height == 0 {
            return Err(INVALID_VALUE);
        }
        let rows = rows(&given)?;
        rows.check()?;
        self.check_memory(Side::Device(rows.to), rows.span()?)?;
        Ok(Op::Fill(given))
    }

    pub(super) fn perform_fill(
        &mut self,
        at: Point,
        stream: StreamId,
        given: &CUDA_MEMSET_NODE_PARAMS,
    ) -> Answer {
        let rows = rows(given)?;
        let (side, len) = (Side::Device(rows.to), rows.span()?);
        let by = By::Stream(stream);
        if self.touch("memset", at, by, side, len).is_err() {
            return self.report_lost_work("memset", rows.to, stream);
        }
        self.stream(stream)?.queue.push(Task::FillRows(rows))
    }
}

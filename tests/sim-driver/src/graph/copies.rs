//! Copy nodes: what the program gave, and the rows that it means.

use cuda_driver_sys::{CUDA_MEMCPY3D, CUcontext, CUmemorytype};

use super::Op;
use crate::clock::{Point, StreamId};
use crate::copy::{By, Place, STAGED, Side};
use crate::export::{Answer, INVALID_VALUE};
use crate::memory::bytes;
use crate::plane::{Rows, end};
use crate::queue::Task;
use crate::state::{State, from_handle};

/// The parameters of a copy node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copied(pub(super) CUDA_MEMCPY3D);

// SAFETY: the simulator takes the pointers as numbers; only a launch uses the memory, as any copy does.
unsafe impl Send for Copied {}

/// Layers of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layers {
    pub(super) to: Side,
    pub(super) from: Side,
    rows: Rows,
    depth: usize,
    to_layer: usize,
    from_layer: usize,
}

impl Layers {
    /// The rows of each layer.
    fn all(self) -> impl Iterator<Item = Rows> {
        (0..self.depth as u64).map(move |layer| Rows {
            to: self.rows.to + layer * self.to_layer as u64,
            from: self.rows.from + layer * self.from_layer as u64,
            ..self.rows
        })
    }

    fn span(&self, rows: usize, layer: usize) -> Answer<usize> {
        let before = self.depth.saturating_sub(1).checked_mul(layer);
        let span = before.and_then(|before| before.checked_add(rows));
        span.ok_or(INVALID_VALUE)
    }

    /// Bytes from the first to the last one written and read.
    fn spans(&self) -> Answer<[usize; 2]> {
        Ok([
            self.span(self.rows.target_span()?, self.to_layer)?,
            self.span(self.rows.source_span()?, self.from_layer)?,
        ])
    }
}

/// Moves a side to a layer. Measured: a layer is as high as the array, or without a height as the copied rows.
fn layer(
    side: Side,
    pitch: usize,
    (y, z): (usize, usize),
    rows: usize,
    height: usize,
) -> Answer<(Side, usize)> {
    let tight = y.checked_add(rows).ok_or(INVALID_VALUE)?;
    let height = if height == 0 { tight } else { height };
    if height < tight {
        return Err(INVALID_VALUE);
    }
    let layer = pitch.checked_mul(height).ok_or(INVALID_VALUE)?;
    let skipped = layer.checked_mul(z).ok_or(INVALID_VALUE)? as u64;
    let moved = side.address().checked_add(skipped).ok_or(INVALID_VALUE)?;
    Ok((side.at(moved), layer))
}

impl Copied {
    /// Of a captured copy. Measured with one row: the kinds of memory are those of the function, and there is no pitch.
    /// A guess: more rows keep their pitch.
    pub(super) fn captured(to: Side, from: Side, rows: Rows) -> Self {
        let mut given = CUDA_MEMCPY3D {
            WidthInBytes: rows.width,
            Height: rows.height,
            Depth: 1,
            ..CUDA_MEMCPY3D::default()
        };
        if rows.height > 1 {
            (given.srcPitch, given.dstPitch) = (rows.from_pitch, rows.to_pitch);
        }
        given.srcMemoryType = from.kind();
        given.dstMemoryType = to.kind();
        let host = |address: u64| std::ptr::with_exposed_provenance_mut(address as usize);
        match from {
            Side::Host(address) => given.srcHost = host(address),
            Side::Device(address) | Side::Any(address) => given.srcDevice = address,
        }
        match to {
            Side::Host(address) => given.dstHost = host(address),
            Side::Device(address) | Side::Any(address) => given.dstDevice = address,
        }
        Self(given)
    }

    /// What is copied.
    pub(super) fn layers(&self) -> Answer<Layers> {
        let given = &self.0;
        let host = given.srcHost.expose_provenance() as u64;
        let source = (host, given.srcDevice, !given.srcArray.is_null());
        let host = given.dstHost.expose_provenance() as u64;
        let target = (host, given.dstDevice, !given.dstArray.is_null());
        let (width, height) = (given.WidthInBytes, given.Height);
        let place = (given.srcXInBytes, given.srcY, given.srcPitch);
        let (from, from_pitch) = end(given.srcMemoryType, source, place, width)?;
        let place = (given.dstXInBytes, given.dstY, given.dstPitch);
        let (to, to_pitch) = end(given.dstMemoryType, target, place, width)?;
        let place = (given.srcY, given.srcZ);
        let (from, from_layer) = layer(from, from_pitch, place, height, given.srcHeight)?;
        let place = (given.dstY, given.dstZ);
        let (to, to_layer) = layer(to, to_pitch, place, height, given.dstHeight)?;
        let rows = Rows {
            to: to.address(),
            to_pitch,
            from: from.address(),
            from_pitch,
            width,
            height,
        };
        let depth = given.Depth;
        Ok(Layers {
            to,
            from,
            rows,
            depth,
            to_layer,
            from_layer,
        })
    }
}

impl Side {
    fn kind(self) -> CUmemorytype {
        match self {
            Self::Host(_) => CUmemorytype::CU_MEMORYTYPE_HOST,
            Self::Device(_) => CUmemorytype::CU_MEMORYTYPE_DEVICE,
            Self::Any(_) => CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        }
    }

    fn at(self, address: u64) -> Self {
        match self {
            Self::Host(_) => Self::Host(address),
            Self::Device(_) => Self::Device(address),
            Self::Any(_) => Self::Any(address),
        }
    }
}

impl State {
    /// The context of a copy or memset node. Measured: null is the current one.
    pub(super) fn check_context(&self, context: CUcontext) -> Answer {
        let named = match from_handle(context) {
            0 => self.current(),
            context => Ok(context),
        };
        let context = named.and_then(|context| self.context(context));
        context.map(|_| ()).map_err(|_| INVALID_VALUE)
    }

    /// Checks the memory of a node. Measured: known memory holds all the bytes, whatever the node calls it; only what
    /// it calls the device's must be known.
    pub(super) fn check_memory(&mut self, side: Side, len: usize) -> Answer {
        let (address, len) = (side.address(), len as u64);
        let end = address.checked_add(len).ok_or(INVALID_VALUE)?;
        let known = match self.graphs.memory.block(address) {
            Some((start, block)) => Some((start, block.size)),
            None => self.range_without_context(address),
        };
        match known {
            Some((start, size)) if end <= start + size => Ok(()),
            None if !matches!(side, Side::Device(_)) => Ok(()),
            _ => Err(INVALID_VALUE),
        }
    }

    /// The operation of a copy node.
    pub(super) fn copy_op(&mut self, given: CUDA_MEMCPY3D, context: CUcontext) -> Answer<Op> {
        self.check_context(context)?;
        if [given.WidthInBytes, given.Height, given.Depth].contains(&0) {
            return Err(INVALID_VALUE);
        }
        let copied = Copied(given);
        let layers = copied.layers()?;
        let [to_len, from_len] = layers.spans()?;
        self.check_memory(layers.to, to_len)?;
        self.check_memory(layers.from, from_len)?;
        Ok(Op::Copy(copied))
    }

    /// Submits a copy node. True if the launch has to wait for it.
    ///
    /// Measured: pageable memory is read by the launch itself, and a launch that writes there waits. A guess: it is read
    /// when the node runs if it is large, or if the node depends on another one, which may write there.
    pub(super) fn perform_copy(
        &mut self,
        at: Point,
        stream: StreamId,
        copied: &Copied,
        is_root: bool,
    ) -> Answer<bool> {
        let layers = copied.layers()?;
        let [to_len, from_len] = layers.spans()?;
        if to_len == 0 {
            return Ok(false);
        }
        let by = By::Device(self.stream(stream)?.device);
        // Measured: memory that is misnamed is copied all the same.
        let (to, from) = (layers.to.address(), layers.from.address());
        let source = self.touch("copy from", at, by, Side::Any(from), from_len);
        let target = self.touch("copy to", at, by, Side::Any(to), to_len);
        let is_gone =
            |place, at, len, writes| place == Ok(Place::Pageable) && self.is_gone(at, len, writes);
        let is_lost = is_gone(source, from, from_len, false) || is_gone(target, to, to_len, true);
        let (Ok(source), Ok(target), false) = (source, target, is_lost) else {
            return self.report_lost_work("copy", to, stream).map(|()| false);
        };
        let queue = &self.stream(stream)?.queue;
        let is_up = source == Place::Pageable && target != Place::Pageable;
        let is_small = queue.staged().saturating_add(from_len) <= STAGED;
        for rows in layers.all() {
            if !(is_up && is_root && is_small) {
                queue.push(Task::Copy(rows))?;
                continue;
            }
            for (to, from) in rows.rows() {
                let bytes = bytes::read(from, rows.width);
                queue.push(Task::Write { to, bytes })?;
            }
        }
        Ok(target == Place::Pageable)
    }
}

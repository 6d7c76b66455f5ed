//! Recording a stream into a graph.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::marker::PhantomData;

use bytemuck::Pod;
use cuda_driver_sys::{CUdeviceptr, CUgraph, CUresult, CUstreamCaptureMode};

use super::{AnyBuffer, Block, Graph, GraphOwned, Parts, PersistentAllocation};
use crate::base::error::{ErrorKind, Result};
use crate::base::report;
use crate::driver::raw;
use crate::memory::buffer::{DeviceBuffer, bytes_of};
use crate::memory::slice::{
    DeviceMemory, DeviceMemoryMut, DeviceSlice, DeviceSliceMut, Span, sealed,
};
use crate::stream::Stream;
use crate::stream::deferred::After;
use crate::stream::{deferred, recording};

/// What the driver refuses *other code* while a stream is captured. A refused call also invalidates the capture.
///
/// Whatever the mode, no call of this crate invalidates a capture of this crate that has begun before: it passes, or it
/// is refused with [`Capturing`](crate::ErrorKind::Capturing), as is all use of the captured stream, a wait for its whole
/// context, and use of the legacy default stream while a thread captures its
/// [per-thread stream](crate::Context::per_thread_stream).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum CaptureMode {
    /// No thread may do anything that could wait for the device, such as synchronising, allocating in another stream,
    /// or querying a stream.
    Global,
    /// The same for calls of the capturing thread only.
    #[default]
    ThreadLocal,
    /// Only operations on the captured stream itself, and waiting for its whole context, are refused.
    Relaxed,
}

impl CaptureMode {
    fn raw(self) -> CUstreamCaptureMode {
        match self {
            Self::Global => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL,
            Self::ThreadLocal => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            Self::Relaxed => CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED,
        }
    }
}

/// A stream that is being recorded. From [`Stream::capture`].
pub struct Capture {
    pub(super) stream: Stream,
    pub(super) parts: RefCell<Parts>,
    is_over: Cell<bool>,
    /// Dropped after the capture ended: until then this crate refuses all other use of the stream.
    note: Option<recording::CaptureToken>,
    /// In two of the modes the driver requires the thread that began the capture to end it.
    not_send: PhantomData<*mut ()>,
}

/// Graph memory that is being recorded, between its allocation and its free. Dropping it records the free, as with a
/// [`DeviceBuffer`]. It cannot outlive the capture.
pub struct GraphBuffer<'c, T: Pod> {
    capture: &'c Capture,
    index: usize,
    /// 0 if there are no bytes, or it was freed or left.
    address: CUdeviceptr,
    len: usize,
    element: PhantomData<T>,
}

impl Stream {
    /// Records what `record` does with the capture into a graph; nothing runs before the graph is launched. Needs CUDA
    /// 11.4. The legacy default stream cannot be captured.
    ///
    /// Waits for calls of other threads that use the stream now, such as a [`synchronize`](Self::synchronize), or wait for
    /// its whole context. If the stream and the legacy default stream wait for each other, it waits for calls that use that
    /// one too; so it is with a thread's own stream, and with those that other code makes without
    /// `CU_STREAM_NON_BLOCKING`.
    ///
    /// Meanwhile all other use of the stream through this crate fails with [`Capturing`](crate::ErrorKind::Capturing) and
    /// does not affect the capture; a buffer of the stream that is dropped is freed after the capture. If `record` fails or
    /// panics, the capture ends and leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The error of `record`; [`Capturing`](crate::ErrorKind::Capturing) if the stream is captured already, or the
    /// capture was invalidated (see [`CaptureMode`]); otherwise any driver error.
    ///
    /// ```
    /// # use cuda_mem::Driver;
    /// # use cuda_mem::interop::{CaptureMode, Instantiate};
    /// # cuda_sim::use_if_no_driver();
    /// # let device = Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// let result = device.default_pool()?.alloc::<u32>(&stream, 100)?;
    /// let (graph, result) = stream.capture(CaptureMode::default(), |capture| {
    ///     let result = capture.adopt(result);
    ///     let mut numbers = capture.alloc::<u32>(100)?;
    ///     numbers.as_mut_slice().fill(7)?;
    ///     numbers.copy_out(&result)?;
    ///     Ok(result)
    /// })?;
    /// let mut exec = graph.instantiate(Instantiate::default())?;
    /// for _ in 0..3 {
    ///     exec.launch(&stream)?;
    /// }
    /// assert_eq!(exec.buffer(&result)?.to_vec()?, [7; 100]);
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    ///
    /// Graph memory cannot leave the capture:
    ///
    /// ```compile_fail
    /// # use cuda_mem::Stream;
    /// # use cuda_mem::interop::CaptureMode;
    /// # fn example(stream: Stream) -> Result<(), cuda_mem::Error> {
    /// stream.capture(CaptureMode::default(), |capture| capture.alloc::<u32>(100))?;
    /// # Ok(())
    /// # }
    /// ```
    #[doc(alias("cuStreamBeginCapture", "cuStreamEndCapture"))]
    #[track_caller]
    pub fn capture<R>(
        &self,
        mode: CaptureMode,
        record: impl FnOnce(&Capture) -> Result<R>,
    ) -> Result<(Graph, R)> {
        self.release_deferred();
        let note = self.as_ref().begin_capture(mode.raw()).map_err(|error| {
            error.meaning(
                CUresult::CUDA_ERROR_ILLEGAL_STATE,
                ErrorKind::Capturing,
                "somebody captures the stream already",
            )
        })?;
        let capture = Capture {
            stream: self.clone(),
            parts: RefCell::new(Parts::new()),
            is_over: Cell::new(false),
            note: Some(note),
            not_send: PhantomData,
        };
        let recorded = record(&capture)?;
        let raw = capture.end()?;
        let mut parts = capture.parts.replace(Parts::new());
        if let Some(note) = &capture.note {
            parts.dependencies = note.take_dependencies();
        }
        for owned in &mut parts.owned {
            owned.is_captured = true;
        }
        let graph = Graph::own(self.context(), raw, parts);
        Ok((graph, recorded))
    }
}

impl Capture {
    /// The stream that is recorded.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Records an allocation of `len` elements of graph memory. The contents are unspecified.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the size overflows; otherwise any driver error. Device
    /// memory is only checked at the launch.
    #[doc(alias = "cuMemAllocAsync")]
    pub fn alloc<T: Pod>(&self, len: usize) -> Result<GraphBuffer<'_, T>> {
        let bytes = bytes_of::<T>(len)?;
        let address = if bytes == 0 {
            0
        } else {
            let open = self.stream.as_ref().submit_recorded()?;
            // SAFETY: the stream is live and captured, so this makes a node, and the memory is the graph's
            // (R67).
            unsafe { raw::alloc::from_current_pool(open.queue(), bytes) }
                .map_err(|error| error.asked(|| format!("{bytes} bytes of graph memory")))?
        };
        let mut parts = self.parts.borrow_mut();
        let index = parts.blocks.len();
        parts.blocks.push(Block {
            address,
            bytes,
            is_freed: false,
            owned: None,
            is_alone: false,
        });
        Ok(GraphBuffer {
            capture: self,
            index,
            address,
            len,
            element: PhantomData,
        })
    }

    /// A buffer in memory that several graphs use. Nothing is recorded for it; the graph keeps the memory alive. If
    /// only this graph uses the memory, that remains so until the graph is dropped.
    pub(crate) fn buffer_of<T: Pod>(
        &self,
        memory: impl AnyBuffer,
        address: CUdeviceptr,
        len: usize,
        is_alone: bool,
    ) -> GraphBuffer<'_, T> {
        let mut parts = self.parts.borrow_mut();
        let owned = parts.shared_owned(memory);
        let index = parts.blocks.len();
        parts.blocks.push(Block {
            address,
            bytes: len * size_of::<T>(),
            is_freed: address == 0,
            owned: Some(owned),
            is_alone,
        });
        GraphBuffer {
            capture: self,
            index,
            address,
            len,
            element: PhantomData,
        }
    }

    /// Gives a buffer to the graph, so that copies from and to it can be recorded.
    pub fn adopt<T: Pod + Send + Sync>(&self, buffer: DeviceBuffer<T>) -> GraphOwned<T> {
        self.parts.borrow_mut().adopt(buffer)
    }

    fn end(&self) -> Result<CUgraph> {
        self.is_over.set(true);
        // SAFETY: this value began the capture.
        unsafe { self.stream.as_ref().end_capture() }
    }
}

impl Parts {
    /// Marks a block of memory that several graphs use as free from here on, in capture order.
    fn give_back(&mut self, index: usize) -> bool {
        let Some(block) = self.blocks.get_mut(index) else {
            return false;
        };
        let owned = block.owned.and_then(|owned| self.owned.get(owned));
        let Some(owned) = owned else {
            return false;
        };
        // Its graph writes there at every launch.
        if !block.is_alone {
            block.is_freed = true;
            owned.buffer.take_back(block.address);
        }
        true
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        if !self.is_over.get() {
            let table = self.stream.context().driver().table();
            report::release("capture", || {
                let graph = match self.end() {
                    Ok(graph) => graph,
                    // The capture was invalidated already, and has ended: nothing is left.
                    Err(error) if error.kind() == ErrorKind::Capturing => return Ok(()),
                    Err(error) => return Err(error),
                };
                // SAFETY: the graph was handed out just now, and nobody has it.
                unsafe { raw::graph::destroy(table, graph) }
            });
        }
        self.note = None;
        self.stream.release_deferred();
        deferred::poll(After::Call);
    }
}

impl fmt::Debug for Capture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Capture({:?})", self.stream)
    }
}

impl<T: Pod> GraphBuffer<'_, T> {
    /// The address, fixed from now on; 0 if there are no bytes. It is valid only in graph order.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.address
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All elements, for reading. Copies are recorded, and go to memory of the same capture.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        DeviceSlice::new(self.span().recorded())
    }

    /// All elements, for writing. Fills and copies are recorded; the sources of copies are memory of the same capture.
    pub fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        DeviceSliceMut::new(self.span().recorded())
    }

    /// Records a copy of an adopted buffer of the same length into this memory.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](ErrorKind::InvalidValue) if the lengths differ; also, without effect on the capture, if the
    /// stream's device has no access to the buffer. Otherwise any driver error.
    #[doc(alias = "cuMemcpyDtoDAsync")]
    pub fn copy_in(&mut self, from: &GraphOwned<T>) -> Result<()> {
        self.require_reach_of(from)?;
        self.span().check_len(from.len, "source")?;
        let source = self.beside(from);
        self.span().recorded().submit_copy(&source, None)
    }

    /// Records a copy of this memory into an adopted buffer of the same length.
    ///
    /// # Errors
    ///
    /// As [`copy_in`](Self::copy_in).
    #[doc(alias = "cuMemcpyDtoDAsync")]
    pub fn copy_out(&self, to: &GraphOwned<T>) -> Result<()> {
        self.require_reach_of(to)?;
        self.span().check_len(to.len, "target")?;
        let target = self.beside(to);
        target.recorded().submit_copy(&self.span(), None)
    }

    /// Leaves the memory allocated after a launch; the token gives access to it in the instance. In memory that graphs
    /// of a [`CapturePool`](crate::arena::CapturePool) share, it holds what this graph wrote until another one of them
    /// is launched.
    #[must_use]
    pub fn persist(mut self) -> PersistentAllocation<T> {
        let left = PersistentAllocation {
            owner: self.capture.parts.borrow().id,
            index: self.index,
            address: self.address,
            len: self.len,
            element: PhantomData,
        };
        self.address = 0;
        left
    }

    /// Records the free, as dropping does, and returns the result.
    ///
    /// # Errors
    ///
    /// Any driver error; the launch leaves the memory allocated then.
    #[doc(alias = "cuMemFreeAsync")]
    pub fn free(mut self) -> Result<()> {
        self.release()
    }

    fn release(&mut self) -> Result<()> {
        if self.address == 0 || self.capture.is_over.get() {
            return Ok(());
        }
        let address = std::mem::take(&mut self.address);
        if self.capture.parts.borrow_mut().give_back(self.index) {
            return Ok(());
        }
        let stream = &self.capture.stream;
        let open = stream.as_ref().submit_recorded()?;
        // SAFETY: the memory was allocated in this capture, and all its uses are recorded before this. No
        // other free of it is recorded (R72).
        unsafe { raw::alloc::free(open.queue(), address) }?;
        let mut parts = self.capture.parts.borrow_mut();
        if let Some(block) = parts.blocks.get_mut(self.index) {
            block.is_freed = true;
        }
        Ok(())
    }

    fn span(&self) -> Span<'_, T> {
        // SAFETY: the memory is valid in the order of the recorded stream from its allocation to its free;
        // the buffer is borrowed.
        unsafe { self.capture.span_of(self.address, self.len, true) }
    }

    fn require_reach_of(&self, adopted: &GraphOwned<T>) -> Result<()> {
        let parts = self.capture.parts.borrow();
        parts.require_reach_of(adopted, self.capture.stream.context())
    }

    fn beside(&self, adopted: &GraphOwned<T>) -> Span<'_, T> {
        // SAFETY: the graph owns the buffer, so it is valid at every launch, which the buffer's own stream
        // is ordered with.
        unsafe {
            self.capture
                .span_of(adopted.address, adopted.len, adopted.on_device)
        }
    }
}

impl Capture {
    /// # Safety
    ///
    /// As for [`Span::new`].
    pub(super) unsafe fn span_of<T: Pod>(
        &self,
        address: CUdeviceptr,
        len: usize,
        on_device: bool,
    ) -> Span<'_, T> {
        let device = on_device.then(|| self.stream.device());
        // SAFETY: the caller's. What is a device's is said to be the stream's: then the copy is recorded as a plain one.
        unsafe { Span::new(address, len, &self.stream, device) }
    }
}

impl<T: Pod> sealed::Memory for GraphBuffer<'_, T> {}

impl<T: Pod> DeviceMemory for GraphBuffer<'_, T> {
    type Element = T;

    fn as_slice(&self) -> DeviceSlice<'_, T> {
        self.as_slice()
    }
}

impl<T: Pod> DeviceMemoryMut for GraphBuffer<'_, T> {
    fn as_mut_slice(&mut self) -> DeviceSliceMut<'_, T> {
        self.as_mut_slice()
    }
}

impl<T: Pod> Drop for GraphBuffer<'_, T> {
    fn drop(&mut self) {
        report::release("graph buffer", || self.release());
    }
}

impl<T: Pod> fmt::Debug for GraphBuffer<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "GraphBuffer({} elements at {:#x})",
            self.len, self.address
        )
    }
}

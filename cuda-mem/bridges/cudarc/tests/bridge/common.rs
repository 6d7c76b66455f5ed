//! What the tests share.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::{DeviceBuffer, Driver, MemoryPool, Resource};
use cuda_mem_cudarc_bridge::{Buffer, borrow_stream};
use cudarc::driver::{CudaContext, CudaStream, result};

/// The first device, as both crates see it.
pub(crate) struct Machine {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) device: cuda_mem::Device,
    pub(crate) pool: MemoryPool,
}

impl Machine {
    pub(crate) fn new() -> Result<Self> {
        let device = Driver::load()?.device(0)?;
        Ok(Self {
            context: CudaContext::new(0)?,
            device,
            pool: MemoryPool::builder(&device).build()?,
        })
    }

    pub(crate) fn stream(&self) -> Result<Arc<CudaStream>> {
        Ok(self.context.new_stream()?)
    }

    pub(crate) fn buffer(&self, stream: &Arc<CudaStream>, from: &[u32]) -> Result<Buffer<u32>> {
        let memory = self.pool.alloc_from(&borrow_stream(stream)?, from)?;
        Ok(Buffer::new(memory, stream)?)
    }

    /// Part of an arena.
    pub(crate) fn part(&self, stream: &Arc<CudaStream>, from: &[u32]) -> Result<DeviceBuffer<u32>> {
        let arena = Resource::from(cuda_mem::Arena::builder(&self.device).build()?);
        Ok(arena.alloc_from(&borrow_stream(stream)?, from)?)
    }

    /// Bytes of the pool that are in use.
    pub(crate) fn used(&self) -> Result<u64> {
        Ok(self.pool.stats()?.used.current)
    }
}

/// Holds up a stream until it is opened, or dropped.
pub(crate) struct Gate(Option<Sender<()>>);

impl Gate {
    pub(crate) fn close(stream: &CudaStream) -> Result<Self> {
        unsafe extern "C" fn wait(receiver: *mut c_void) {
            // SAFETY: `close` made it of a box, and a host function runs once.
            let receiver = unsafe { Box::from_raw(receiver.cast::<Receiver<()>>()) };
            // Ends when the gate is dropped, too.
            let _ = receiver.recv_timeout(Duration::from_secs(60));
        }
        let (sender, receiver) = channel();
        let receiver = Box::into_raw(Box::new(receiver)).cast();
        stream.context().bind_to_thread()?;
        // SAFETY: the stream is live, and `wait` takes what it is given here.
        unsafe { result::stream::launch_host_function(stream.cu_stream(), wait, receiver) }?;
        Ok(Self(Some(sender)))
    }

    pub(crate) fn open(mut self) {
        self.0.take();
    }

    /// Opens it after a while, on another thread.
    pub(crate) fn open_later(self, delay: Duration) -> thread::JoinHandle<()> {
        thread::spawn(move || {
            thread::sleep(delay);
            self.open();
        })
    }
}

/// Fails if the stream's work is done, or is done within a moment: it should be waiting for another one.
pub(crate) fn require_held_up(stream: &CudaStream) -> Result<()> {
    let event = stream.record_event(None)?;
    thread::sleep(Duration::from_millis(30));
    ensure!(!event.try_is_complete()?, "the stream did not wait");
    Ok(())
}

/// Fails if the stream's work is not done soon.
pub(crate) fn require_free(stream: &CudaStream) -> Result<()> {
    let event = stream.record_event(None)?;
    for _ in 0..2000 {
        if event.try_is_complete()? {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(5));
    }
    anyhow::bail!("the stream waits for something")
}

/// The simulated driver, if that is what cudarc has opened.
pub(crate) fn simulator() -> Option<cuda_sim::Control> {
    cuda_sim::Control::open("libcuda.so").ok()
}

/// Says which back end the tests run on.
pub(crate) fn announce() -> Result<()> {
    // SAFETY: as in `restart_if_no_driver`.
    let present = unsafe { cudarc::driver::sys::is_culib_present() };
    ensure!(present, "there is no CUDA driver");
    let name = CudaContext::new(0)?.name().context("the first device")?;
    let kind = if simulator().is_some() {
        "simulated driver"
    } else {
        "driver"
    };
    println!("back end: {kind}, {name}");
    Ok(())
}

//! cudarc with the workloads that other allocators run too.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use cudarc::driver::sys::{CUmemPool_attribute, CUmemoryPool};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, sys};

use crate::mix::Allocator;
use crate::workloads::{Options, Rival, run_all};
use crate::{allocate, gpt2, machine, set_tracking};

const SUBJECTS: [&str; 2] = ["cudarc", "cudarc-untracked"];

pub(crate) fn run() -> Result<()> {
    let options = Options::read(std::env::args().skip(1), &SUBJECTS)?;
    let trace = gpt2::read()?;
    machine::require_driver()?;
    let context = CudaContext::new(0).context("the first device")?;
    eprintln!("cudarc {}, {}", version(), machine::Machine::of(&context)?);
    for subject in &options.subjects {
        set_tracking(&context, subject == "cudarc");
        run_all(subject, &options, &trace, &|| Cudarc::new(&context))?;
        context.check_err()?;
    }
    Ok(())
}

/// The version in the lock file.
fn version() -> &'static str {
    let lock = include_str!("../Cargo.lock");
    let after = lock.split_once("name = \"cudarc\"\nversion = \"");
    after
        .and_then(|(_, rest)| rest.split_once('"'))
        .map_or("of unknown version", |(version, _)| version)
}

/// All instances allocate from the device's one default pool.
struct Cudarc {
    context: Arc<CudaContext>,
    pool: CUmemoryPool,
}

// SAFETY: a pool's handle may be used from every thread.
unsafe impl Sync for Cudarc {}

impl Cudarc {
    /// Empties the pool, so that it is like a new one.
    fn new(context: &Arc<CudaContext>) -> Result<Self> {
        context.synchronize()?;
        let mut pool = std::ptr::null_mut();
        // SAFETY: the handle is written before the call returns; the device is the context's.
        unsafe { sys::cuDeviceGetDefaultMemPool(&raw mut pool, context.cu_device()) }.result()?;
        // SAFETY: the default pool lives as long as the process.
        unsafe { sys::cuMemPoolTrimTo(pool, 0) }.result()?;
        let mut from_here = 0_u64;
        // SAFETY: as above; the attribute is a 64-bit number, and 0 resets the high-water mark.
        unsafe {
            sys::cuMemPoolSetAttribute(
                pool,
                CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
                (&raw mut from_here).cast(),
            )
        }
        .result()?;
        Ok(Self {
            context: Arc::clone(context),
            pool,
        })
    }
}

impl Allocator for Cudarc {
    type Stream = Arc<CudaStream>;
    type Block = CudaSlice<u8>;

    #[inline]
    fn allocate(&self, stream: &Arc<CudaStream>, bytes: usize) -> Result<CudaSlice<u8>> {
        allocate(stream, bytes)
    }

    #[inline]
    fn free(&self, _: &Arc<CudaStream>, block: CudaSlice<u8>) -> Result<()> {
        drop(block);
        Ok(())
    }
}

impl Rival for Cudarc {
    fn stream(&self) -> Result<Arc<CudaStream>> {
        Ok(self.context.new_stream()?)
    }

    fn fill(&self, stream: &Arc<CudaStream>, block: &mut CudaSlice<u8>) -> Result<()> {
        Ok(stream.memset_zeros(block)?)
    }

    fn synchronize(&self, stream: &Arc<CudaStream>) -> Result<()> {
        Ok(stream.synchronize()?)
    }

    fn reserved_peak(&self) -> Result<u64> {
        let mut bytes = 0_u64;
        // SAFETY: the default pool lives as long as the process; the attribute is a 64-bit number.
        unsafe {
            sys::cuMemPoolGetAttribute(
                self.pool,
                CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
                (&raw mut bytes).cast(),
            )
        }
        .result()?;
        Ok(bytes)
    }
}

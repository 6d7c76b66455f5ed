//! Code under test: it adds two lists of numbers on a GPU.

use cuda_mem::kernel::{Image, Launch};
use cuda_mem::{DeviceBuffer, Driver, MemoryPool, Result};

/// The kernel, compiled to PTX. This one is shortened: a real one has instructions.
pub const PTX: &str = "
    .version 7.0
    .target sm_70
    .address_size 64
    .visible .entry vector_add(.param .u64 sum, .param .u64 a, .param .u64 b, .param .u64 count) { ret; }
";

/// The sums of two lists of the same length.
///
/// # Errors
///
/// Any error of the driver. No memory is left behind.
///
/// # Panics
///
/// If the lists differ in length.
pub fn add(driver: Driver, a: &[f32], b: &[f32]) -> Result<Vec<f32>> {
    assert_eq!(a.len(), b.len(), "lists of the same length");
    let device = driver.device(0)?;
    let context = device.primary_context()?;
    let stream = context.stream()?;
    let pool = MemoryPool::builder(&device).build()?;

    let (a, b) = (pool.alloc_from(&stream, a)?, pool.alloc_from(&stream, b)?);
    let mut sum: DeviceBuffer<f32> = pool.alloc_zeroed(&stream, a.len())?;
    let kernel = context.load(&Image::ptx(PTX)?)?.function("vector_add")?;
    let threads = Launch::over(a.len(), 256);
    // SAFETY: `vector_add` takes three addresses and the number of elements at each.
    unsafe { kernel.launch(&stream, threads, (&mut sum, &a, &b, a.len() as u64)) }?;
    sum.to_vec()
}

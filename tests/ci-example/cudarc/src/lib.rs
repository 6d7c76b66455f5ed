//! Code under test: it adds two lists of numbers on a GPU, through cudarc.

use cudarc::driver::{CudaContext, DriverError, LaunchConfig, PushKernelArg as _};
use cudarc::nvrtc::Ptx;

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
/// Any error of the driver.
///
/// # Panics
///
/// If the lists differ in length, or have 2^32 elements or more.
pub fn add(a: &[f32], b: &[f32]) -> Result<Vec<f32>, DriverError> {
    assert_eq!(a.len(), b.len(), "lists of the same length");
    let elements = u32::try_from(a.len()).expect("fewer than 2^32 elements");
    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    let (a, b) = (stream.clone_htod(a)?, stream.clone_htod(b)?);
    let mut sum = stream.alloc_zeros::<f32>(a.len())?;
    let kernel = context.load_module(Ptx::from_src(PTX))?.load_function("vector_add")?;
    let count = a.len() as u64;
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut sum).arg(&a).arg(&b).arg(&count);
    // SAFETY: `vector_add` takes three addresses and the number of elements at each.
    unsafe { launch.launch(LaunchConfig::for_num_elems(elements)) }?;
    stream.clone_dtoh(&sum)
}

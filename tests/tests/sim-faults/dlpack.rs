//! Every driver call of tensors for other libraries, and from them, fails once, in turn, with several codes. Each time
//! the caller gets a typed error, or the destructor reports; nothing is left over, nothing panics.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::interop::dlpack::{ImportedTensor, ManagedTensor};
use cuda_mem::sys::CUresult;
use cuda_mem::{DeviceBuffer, Driver, Error, Stream};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::sweep::meaning::{CAPTURES, HOST_WAITS, NOT_WAITED_FOR, STUB, UNKNOWN_ADDRESS};
use cuda_mem_tests::sweep::{self, Scenario};

/// Imports a tensor, which is deleted if it is refused.
fn import(tensor: ManagedTensor, stream: &Stream) -> Result<ImportedTensor<u32>, Error> {
    let raw = tensor.into_raw();
    // SAFETY: handed out just now, and ordered with the stream by the caller.
    let imported = unsafe { ImportedTensor::from_raw(raw, stream) };
    if imported.is_err() {
        // SAFETY: it was refused, so nobody else has it.
        drop(unsafe { ManagedTensor::from_raw(raw) });
    }
    imported
}

fn tensors(driver: Driver) -> Result<(), Error> {
    let device = driver.devices()?.swap_remove(0);
    let context = device.primary_context()?;
    let (home, other) = (context.stream()?, context.stream()?);
    let pool = device.default_pool()?;
    for names_producer in [false, true] {
        let buffer = pool.alloc_from(&home, &[1_u32, 2, 3])?;
        let tensor = ManagedTensor::new(buffer, &[3])?;
        other.wait_for(&home)?;
        let mut tensor = import(tensor, &other)?;
        if names_producer {
            // SAFETY: the buffer is freed in this stream.
            unsafe { tensor.set_producer_stream(&home) };
        }
        tensor.as_mut_slice()?.fill(7)?;
        assert_eq!(tensor.as_slice().to_vec()?, [7; 3]);
    }
    context.synchronize()
}

const SCENARIO: Scenario = Scenario {
    run: tensors,
    at_least: 40,
    answers: &[STUB, CAPTURES, UNKNOWN_ADDRESS, HOST_WAITS],
    leftovers: &[NOT_WAITED_FOR],
};

#[apply(case)]
fn every_call_of_tensors_fails_once(env: &Environment) -> Result<()> {
    sweep::every_call_fails_once(env, SCENARIO).map(drop)
}

#[apply(case)]
fn a_tensor_that_cannot_be_waited_for_comes_back(env: &Environment) -> Result<()> {
    let (pool, stream, control) = (env.pool()?, env.stream()?, env.control()?);
    let buffer = pool.alloc_from(&stream, &[1_u32, 2, 3])?;
    let tensor = import(ManagedTensor::new(buffer, &[3])?, &stream)?;
    control.fail("cuStreamSynchronize", 1, CUresult::CUDA_ERROR_UNKNOWN);
    let Err(failed) = tensor.free() else {
        bail!("the failure was lost");
    };
    ensure!(
        failed.error.function() == Some("cuStreamSynchronize"),
        "{failed}"
    );
    ensure!(pool.stats()?.used.current == 12, "it was not deleted");
    let tensor = failed.object.context("the tensor was not given back")?;
    ensure!(tensor.as_slice().to_vec()? == [1, 2, 3]);
    tensor.free()?;
    ensure!(pool.stats()?.used.current == 0);
    Ok(())
}

/// The code of the consumer, which may be of another language, is not unwound.
#[apply(case)]
fn a_panic_stays_inside_the_deleter(env: &Environment) -> Result<()> {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("as an owner may");
        }
    }
    let (pool, stream) = (env.pool()?, env.stream()?);
    let owner = pool.alloc_zeroed::<u8>(&stream, 3)?;
    // SAFETY: `owner` outlives the buffer, and is not used meanwhile.
    let buffer = unsafe { DeviceBuffer::<u8>::borrow_raw(&stream, owner.as_raw(), 3, Panics) };
    let raw = ManagedTensor::new(buffer, &[3])?.into_raw();
    // SAFETY: handed out just now, and valid.
    let deleter = unsafe { (*raw).deleter }.context("there is no deleter")?;
    let before = drop_counts().failures;
    // SAFETY: a consumer calls it once.
    unsafe { deleter(raw) };
    ensure!(drop_counts().failures == before + 1, "it is reported");
    Ok(())
}

//! Tensors that are not taken.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::interop::dlpack::{
    DLDataType, DLDataTypeCode, DLDeviceType, DLPackVersion, ImportedTensor, ManagedTensor,
    TensorElement, TensorFlags,
};
use cuda_mem::{ErrorKind, MemoryPool, Stream};

use super::Producer;
use crate::environment::Environment;

/// The tensor is refused, and stays the caller's.
fn ensure_refused<T: TensorElement>(
    producer: &Producer,
    stream: &Stream,
    kind: ErrorKind,
    text: &str,
) -> Result<()> {
    let raw = producer.produce();
    // SAFETY: produced just now, of memory that outlives it.
    let answer = unsafe { ImportedTensor::<T>::from_raw(raw, stream) };
    let error = answer
        .err()
        .context("it was taken")
        .context(text.to_owned())?;
    ensure!(error.kind() == kind, "{:?}: {error}", error.kind());
    ensure!(error.to_string().contains(text), "{error}");
    ensure!(
        producer.deleted.get() == 0,
        "the caller deletes it: {error}"
    );
    // SAFETY: it was refused, so nobody else has it.
    drop(unsafe { ManagedTensor::from_raw(raw) });
    ensure!(producer.deleted.get() == 1);
    Ok(())
}

#[apply(case)]
fn a_refused_tensor_stays_with_the_caller(env: &Environment) -> Result<()> {
    use ErrorKind::{InvalidValue, NotSupported};

    let stream = env.stream()?;
    let theirs = env.pool()?.alloc_from(&stream, &[4_u32; 6])?;
    let made = || Producer::new(&theirs).shaped([2, 3]);
    ensure_refused::<f32>(&made(), &stream, InvalidValue, "uint32, and float32")?;
    ensure_refused::<i32>(&made(), &stream, InvalidValue, "uint32, and int32")?;
    ensure_refused::<u64>(&made(), &stream, InvalidValue, "uint32, and uint64")?;

    let refused = |kind, text: &str, change: &dyn Fn(&mut Producer)| {
        let mut producer = made();
        change(&mut producer);
        ensure_refused::<u32>(&producer, &stream, kind, text)
    };
    refused(NotSupported, "DLPack 2.0", &|it| {
        it.version = DLPackVersion { major: 2, minor: 0 };
    })?;
    refused(NotSupported, "DLPack 0.8", &|it| {
        it.version = DLPackVersion { major: 0, minor: 8 };
    })?;
    for strides in [[1, 2], [4, 1], [3, 2], [-3, 1], [0, 1]] {
        refused(NotSupported, "only row-major", &|it| {
            it.strides = Some(strides.to_vec());
        })?;
    }
    refused(InvalidValue, "negative length", &|it| it.shape[0] = -1)?;
    refused(InvalidValue, "beyond the address space", &|it| {
        it.shape[0] = i64::MAX
    })?;
    refused(InvalidValue, "no tensor has -2 dimensions", &|it| {
        it.tensor.ndim = -2
    })?;
    refused(InvalidValue, "an alignment of 4", &|it| {
        it.tensor.byte_offset = 1
    })?;
    refused(InvalidValue, "beyond the address space", &|it| {
        it.tensor.byte_offset = u64::MAX
    })?;
    refused(InvalidValue, "24 bytes and no address", &|it| {
        it.tensor.data = std::ptr::null_mut();
    })?;
    refused(NotSupported, "cpu:0", &|it| {
        it.tensor.device.device_type = DLDeviceType::CPU;
        it.tensor.device.device_id = 0;
    })?;
    refused(NotSupported, "type 10", &|it| {
        it.tensor.device.device_type = DLDeviceType(10)
    })?;
    // The driver knows better.
    for other in [DLDeviceType::CUDA_HOST, DLDeviceType::CUDA_MANAGED] {
        refused(InvalidValue, "that it is device memory", &|it| {
            it.tensor.device.device_type = other;
        })?;
    }
    refused(InvalidValue, "cuda:99, and the driver", &|it| {
        it.tensor.device.device_id = 99
    })?;
    let mut local = [0_u32; 6];
    let local = local.as_mut_ptr().cast();
    refused(InvalidValue, "does not know its address", &|it| {
        it.tensor.data = local
    })?;
    ensure!(theirs.to_vec()? == [4; 6]);
    Ok(())
}

#[apply(case)]
fn a_pointer_or_type_that_does_not_fit_is_refused(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    // SAFETY: a null pointer is refused.
    let answer = unsafe { ImportedTensor::<u8>::from_raw(std::ptr::null_mut(), &stream) };
    ensure!(answer.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    // Two numbers of four bits in a byte, or in two.
    let theirs = env.pool()?.alloc_zeroed::<u8>(&stream, 8)?;
    let pairs = DLDataType::new(DLDataTypeCode(17), 4, 2);
    let mut producer = Producer::new(&theirs);
    producer.tensor.dtype = pairs;
    for (flags, is_taken) in [
        (TensorFlags::empty(), true),
        (TensorFlags::IS_SUBBYTE_TYPE_PADDED, false),
    ] {
        producer.flags = flags;
        let raw = producer.produce();
        // SAFETY: produced just now, of memory that outlives it.
        let answer = unsafe { ImportedTensor::<u8>::from_raw_as(raw, &stream, pairs) };
        ensure!(answer.is_ok() == is_taken, "{answer:?}");
        if answer.is_err() {
            // SAFETY: it was refused, so nobody else has it.
            drop(unsafe { ManagedTensor::from_raw(raw) });
        }
        drop(answer);
    }
    ensure!(producer.deleted.get() == 2);
    let producer = Producer::new(&theirs);
    let raw = producer.produce();
    // SAFETY: produced just now, of memory that outlives it.
    let answer = unsafe { ImportedTensor::<u64>::from_raw_as(raw, &stream, DLDataType::U8) };
    ensure!(answer.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    // SAFETY: it was refused, so nobody else has it.
    drop(unsafe { ManagedTensor::from_raw(raw) });
    ensure!(producer.deleted.get() == 1);
    Ok(())
}

#[apply(case_of_two)]
fn a_tensor_of_a_device_out_of_reach_is_refused(env: &Environment) -> Result<()> {
    let devices = [env.driver.device(0)?, env.driver.device(1)?];
    let [here, there] = devices.map(|device| device.primary_context());
    let streams = [here?.stream()?, there?.stream()?];
    let [here, there] = devices.map(|device| MemoryPool::builder(&device).build());
    let (here, there) = (here?, there?);
    let theirs = there.alloc_from(&streams[1], &[3_u8; 100])?;
    let producer = Producer::new(&theirs);
    ensure_refused::<u8>(
        &producer,
        &streams[0],
        ErrorKind::InvalidValue,
        "has no access to it",
    )?;
    let producer = Producer::new(&theirs);
    let tensor = producer.import::<u8>(&streams[1])?;
    ensure!(tensor.device() == theirs.device());
    let mut copy = here.alloc::<u8>(&streams[0], 100)?;
    copy.copy_from_device(&tensor)?;
    ensure!(copy.to_vec()? == [3; 100]);
    drop(tensor);
    ensure!(producer.deleted.get() == 1);
    Ok(())
}

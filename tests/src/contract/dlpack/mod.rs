//! Tensors for other libraries, and from them.

mod ends;
mod exports;
mod refusals;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::interop::dlpack::{
    DLDataType, DLDevice, DLDeviceType, DLManagedTensorVersioned, DLPackVersion, DLTensor,
    ImportedTensor, ManagedTensor, TensorElement, TensorFlags,
};
use cuda_mem::{DeviceBuffer, MemoryPool, Stream};

use crate::environment::Environment;

/// How often something was given back.
#[derive(Clone, Debug, Default)]
struct Count(Arc<AtomicUsize>);

impl Count {
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// A tensor as another library makes it: of memory of its own, with a deleter that only counts.
#[derive(Clone, Debug)]
struct Producer {
    tensor: DLTensor,
    shape: Vec<i64>,
    strides: Option<Vec<i64>>,
    version: DLPackVersion,
    flags: TensorFlags,
    deleted: Count,
}

impl Producer {
    /// One dimension, of the whole buffer.
    fn new<T: TensorElement>(buffer: &DeviceBuffer<T>) -> Self {
        Self {
            tensor: DLTensor {
                data: std::ptr::with_exposed_provenance_mut(buffer.as_raw() as usize),
                device: DLDevice {
                    device_type: DLDeviceType::CUDA,
                    device_id: buffer.stream().device().ordinal().cast_signed(),
                },
                ndim: 1,
                dtype: T::DATA_TYPE,
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
            shape: vec![buffer.len() as i64],
            strides: None,
            version: DLPackVersion { major: 1, minor: 0 },
            flags: TensorFlags::empty(),
            deleted: Count::default(),
        }
    }

    fn shaped<const N: usize>(mut self, shape: [i64; N]) -> Self {
        self.shape = shape.to_vec();
        self.tensor.ndim = N as i32;
        self
    }

    fn strided<const N: usize>(mut self, strides: [i64; N]) -> Self {
        self.strides = Some(strides.to_vec());
        self
    }

    /// What a consumer gets. It has to be deleted once.
    fn produce(&self) -> *mut DLManagedTensorVersioned {
        unsafe extern "C" fn delete(raw: *mut DLManagedTensorVersioned) {
            // SAFETY: made by `produce`, and deleted once.
            let managed = unsafe { Box::from_raw(raw) };
            // SAFETY: as above.
            let producer = unsafe { Box::from_raw(managed.manager_ctx.cast::<Producer>()) };
            producer.deleted.add();
        }
        let own = Box::leak(Box::new(self.clone()));
        let mut dl_tensor = own.tensor;
        dl_tensor.shape = own.shape.as_mut_ptr();
        if let Some(strides) = &mut own.strides {
            dl_tensor.strides = strides.as_mut_ptr();
        }
        Box::into_raw(Box::new(DLManagedTensorVersioned {
            version: own.version,
            flags: own.flags,
            deleter: Some(delete),
            dl_tensor,
            manager_ctx: std::ptr::from_mut(own).cast::<c_void>(),
        }))
    }

    /// Imports a new one.
    fn import<T: TensorElement>(&self, stream: &Stream) -> Result<ImportedTensor<T>> {
        // SAFETY: produced just now, of memory that outlives it, as each test sees to.
        Ok(unsafe { ImportedTensor::from_raw(self.produce(), stream) }?)
    }
}

/// The pool has handed out this many bytes, as far as the driver tells.
fn ensure_used(env: &Environment, pool: &MemoryPool, bytes: u64) -> Result<()> {
    if env.need(11, 3).is_ok() {
        let used = pool.stats()?.used.current;
        ensure!(used == bytes, "{used} bytes are in use");
    }
    Ok(())
}

/// The numbers behind a pointer of a tensor that has as many dimensions.
fn numbers(first: *const i64, ndim: usize) -> Vec<i64> {
    // SAFETY: the tensor has as many dimensions, and nobody writes to it.
    unsafe { std::slice::from_raw_parts(first, ndim) }.to_vec()
}

/// A buffer goes to a consumer, who reads the description, writes in a stream of its own and hands the memory on.
#[apply(case)]
fn a_tensor_goes_out_and_comes_back(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let (home, other) = (context.stream()?, context.stream()?);
    let pool = env.pool()?;
    let buffer = pool.alloc_from(&home, &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
    let address = buffer.as_raw();
    let buffer = buffer.move_to(&other)?;
    let tensor = ManagedTensor::new(buffer, &[2, 3])?;
    let described = *tensor.tensor().context("another version")?;
    ensure!(described.data.addr() as u64 == address && described.byte_offset == 0);
    ensure!(described.device.device_type == DLDeviceType::CUDA);
    ensure!(described.device.device_id == env.device()?.ordinal().cast_signed());
    ensure!(described.ndim == 2 && described.dtype == DLDataType::F32);
    ensure!(numbers(described.shape, 2) == [2, 3] && numbers(described.strides, 2) == [3, 1]);
    ensure!(tensor.flags().is_empty() && tensor.version().major == 1);

    // SAFETY: made just now, for this stream.
    let mut imported = unsafe { ImportedTensor::<f32>::from_raw(tensor.into_raw(), &other) }?;
    ensure!(imported.shape() == [2, 3] && imported.len() == 6 && !imported.is_empty());
    ensure!(imported.as_raw() == address && *imported.stream() == other);
    ensure!(imported.device() == Some(env.device()?));
    ensure!(imported.as_slice().to_vec()? == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let third = context.stream()?;
    imported.as_mut_slice()?.on(&third)?.fill(7.0)?;
    let mut copy = pool.alloc::<f32>(&home, 6)?;
    copy.copy_from_device(&imported)?;
    ensure!(copy.to_vec()? == [7.0; 6]);
    ensure_used(env, &pool, 48)?;
    imported.free()?;
    ensure_used(env, &pool, 24)?;
    Ok(())
}

#[apply(case)]
fn a_tensor_of_another_library_is_used_and_given_back_once(env: &Environment) -> Result<()> {
    let (stream, other) = (env.stream()?, env.stream()?);
    let theirs = env
        .pool()?
        .alloc_from(&stream, &[1_u32, 2, 3, 4, 5, 6, 7, 8])?;
    let mut producer = Producer::new(&theirs).shaped([3, 2]).strided([2, 1]);
    producer.tensor.byte_offset = 8;
    let mut tensor = producer.import::<u32>(&stream)?;
    ensure!(tensor.shape() == [3, 2] && tensor.data_type() == DLDataType::U32);
    ensure!(tensor.as_raw() == theirs.as_raw() + 8);
    ensure!(tensor.as_slice().to_vec()? == [3, 4, 5, 6, 7, 8]);
    tensor.as_mut_slice()?.slice_mut(1..)?.fill(9)?;
    ensure!(tensor.as_slice().read_on(&other)?.to_vec()? == [3, 9, 9, 9, 9, 9]);
    ensure!(format!("{tensor:?}").contains("[3, 2]"), "{tensor:?}");
    ensure!(producer.deleted.get() == 0);
    drop(tensor);
    ensure!(producer.deleted.get() == 1, "deleted once");
    ensure!(theirs.to_vec()? == [1, 2, 3, 9, 9, 9, 9, 9]);
    Ok(())
}

#[apply(case)]
fn a_read_only_tensor_is_not_written(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let buffer = env.pool()?.alloc_from(&stream, &[1_u8, 2, 3])?;
    let tensor = ManagedTensor::builder(buffer, DLDataType::U8)
        .read_only()
        .build()?;
    ensure!(tensor.flags() == TensorFlags::READ_ONLY);
    // SAFETY: made just now, for this stream.
    let mut tensor = unsafe { ImportedTensor::<u8>::from_raw(tensor.into_raw(), &stream) }?;
    ensure!(tensor.flags() == TensorFlags::READ_ONLY);
    let refused = tensor.as_mut_slice().map(|_| ());
    let kind = refused.map_err(|error| error.kind());
    ensure!(kind == Err(cuda_mem::ErrorKind::NotPermitted));
    ensure!(tensor.as_slice().to_vec()? == [1, 2, 3]);
    Ok(())
}

/// Elements that have no `TensorElement` of their own.
#[apply(case)]
fn elements_of_a_type_that_is_given(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let pool = env.pool()?;
    for data_type in [DLDataType::F16, DLDataType::BF16, DLDataType::U16] {
        let buffer = pool.alloc_from(&stream, &[1_u16, 2])?;
        let tensor = ManagedTensor::builder(buffer, data_type).build()?;
        ensure!(
            tensor
                .tensor()
                .is_some_and(|tensor| tensor.dtype == data_type)
        );
        let raw = tensor.into_raw();
        // SAFETY: made just now, for this stream.
        let tensor = unsafe { ImportedTensor::<u16>::from_raw_as(raw, &stream, data_type) }?;
        ensure!(tensor.data_type() == data_type && tensor.as_slice().to_vec()? == [1, 2]);
    }
    ensure_used(env, &pool, 0)?;
    Ok(())
}

#[apply(case)]
fn tensors_without_elements_are_exchanged_too(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let pool = env.pool()?;
    for (len, shape) in [(0, &[0][..]), (0, &[2, 0]), (5, &[0, 7])] {
        let buffer = pool.alloc::<f64>(&stream, len)?;
        let tensor = ManagedTensor::new(buffer, shape)?;
        let described = tensor.tensor().context("another version")?;
        ensure!(described.data.is_null(), "{described:?}");
        ensure!(described.device.device_type == DLDeviceType::CUDA);
        // SAFETY: made just now, for this stream.
        let mut tensor = unsafe { ImportedTensor::<f64>::from_raw(tensor.into_raw(), &stream) }?;
        ensure!(tensor.is_empty() && tensor.as_raw() == 0 && tensor.shape() == shape);
        ensure!(tensor.as_slice().to_vec()?.is_empty());
        tensor.as_mut_slice()?.zero()?;
        tensor.free()?;
        ensure_used(env, &pool, 0)?;
    }
    // A single element has no dimensions.
    let buffer = pool.alloc_from(&stream, &[5.0_f64])?;
    let tensor = ManagedTensor::new(buffer, &[])?;
    ensure!(tensor.tensor().is_some_and(|tensor| tensor.ndim == 0));
    // SAFETY: made just now, for this stream.
    let tensor = unsafe { ImportedTensor::<f64>::from_raw(tensor.into_raw(), &stream) }?;
    ensure!(tensor.shape().is_empty() && tensor.as_slice().to_vec()? == [5.0]);
    Ok(())
}

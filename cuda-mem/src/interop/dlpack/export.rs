//! Buffers of this crate as tensors.

use std::fmt;
use std::ptr;

use bytemuck::Pod;

use super::abi::{
    DLDevice, DLDeviceType, DLManagedTensorVersioned, DLPackVersion, DLTensor, TensorFlags,
};
use super::data_type::{DLDataType, TensorElement};
use super::layout;
use super::tensor::ManagedTensor;
use crate::base::error::{Error, ErrorKind, Failed, Result};
use crate::base::report;
use crate::driver::pointer::MemoryKind;
use crate::memory::buffer::DeviceBuffer;

impl ManagedTensor {
    /// A tensor of this shape, row-major, that owns the buffer. For other strides, types and flags see
    /// [`builder`](Self::builder).
    ///
    /// Consumers use the memory in the order of the buffer's stream. The deleter frees it in that order too, as
    /// dropping the buffer would: without waiting, on any thread. A consumer that works in a stream of its own is best
    /// served by [`DeviceBuffer::move_to`] before: then its stream waits for the data, and the free waits for its work.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](ErrorKind::InvalidValue) if the shape has more elements than the buffer; otherwise any driver
    /// error. The buffer is in the error.
    ///
    /// ```
    /// use cuda_mem::interop::dlpack::ManagedTensor;
    ///
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// let buffer = device.default_pool()?.alloc_zeroed::<f32>(&stream, 6)?;
    /// let tensor = ManagedTensor::new(buffer, &[2, 3])?;
    /// assert_eq!(tensor.tensor().map(|tensor| tensor.ndim), Some(2));
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn new<T: TensorElement>(
        buffer: DeviceBuffer<T>,
        shape: &[usize],
    ) -> Result<Self, Failed<DeviceBuffer<T>>> {
        Self::builder(buffer, T::DATA_TYPE).shape(shape).build()
    }

    /// A tensor of elements of any type that is as large as a `T`.
    ///
    /// ```
    /// use cuda_mem::interop::dlpack::{DLDataType, ManagedTensor};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// let buffer = device.default_pool()?.alloc_zeroed::<u16>(&stream, 6)?;
    /// let transposed = ManagedTensor::builder(buffer, DLDataType::BF16)
    ///     .shape(&[2, 3])
    ///     .strides(&[1, 2])
    ///     .build()?;
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub fn builder<T: Pod + Send + Sync>(
        buffer: DeviceBuffer<T>,
        data_type: DLDataType,
    ) -> ManagedTensorBuilder<T> {
        ManagedTensorBuilder {
            shape: vec![buffer.len()],
            buffer,
            data_type,
            strides: None,
            flags: TensorFlags::empty(),
        }
    }
}

/// A tensor in the making. From [`ManagedTensor::builder`].
#[must_use = "nothing is made before `build`"]
pub struct ManagedTensorBuilder<T: Pod> {
    buffer: DeviceBuffer<T>,
    data_type: DLDataType,
    shape: Vec<usize>,
    strides: Option<Vec<usize>>,
    flags: TensorFlags,
}

impl<T: Pod + Send + Sync> ManagedTensorBuilder<T> {
    /// The length of each dimension. Without it there is one dimension, of the whole buffer.
    pub fn shape(mut self, shape: &[usize]) -> Self {
        self.shape = shape.to_vec();
        self
    }

    /// The distance of neighbours in each dimension, in elements. Without it the tensor is row-major.
    pub fn strides(mut self, strides: &[usize]) -> Self {
        self.strides = Some(strides.to_vec());
        self
    }

    /// Tells the consumer not to write to the memory.
    pub fn read_only(mut self) -> Self {
        self.flags |= TensorFlags::READ_ONLY;
        self
    }

    /// Makes the tensor. Makes up to three driver calls, to learn where the memory is, and does not wait.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](ErrorKind::InvalidValue) if shape and strides differ in number or reach beyond the buffer, or
    /// if the elements have another size; otherwise any driver error. The buffer is in the error.
    pub fn build(mut self) -> Result<ManagedTensor, Failed<DeviceBuffer<T>>> {
        match self.describe() {
            Ok((device, extents)) => Ok(self.export(device, extents)),
            Err(error) => Err(Failed::new(error, self.buffer)),
        }
    }

    /// The place of the memory, and shape and strides, one after the other.
    fn describe(&mut self) -> Result<(DLDevice, Box<[i64]>)> {
        self.data_type.require_size_of::<T>()?;
        let extents = self.extents()?;
        // Consumers know no stream but the buffer's.
        self.buffer.wait_for_pending_uses()?;
        Ok((place_of(&self.buffer)?, extents))
    }

    fn extents(&self) -> Result<Box<[i64]>> {
        let (shape, len) = (&self.shape, self.buffer.len());
        let too_large = || {
            Error::invalid(format!(
                "a tensor of shape {shape:?} reaches beyond the address space"
            ))
        };
        let strides = match &self.strides {
            Some(strides) if strides.len() == shape.len() => strides.clone(),
            Some(strides) => {
                return Err(Error::invalid(format!(
                    "there are {} strides for {} dimensions; give one for each",
                    strides.len(),
                    shape.len()
                )));
            }
            None => layout::row_major(shape).ok_or_else(too_large)?,
        };
        let reach = layout::reach(shape, &strides).ok_or_else(too_large)?;
        if reach > len {
            return Err(Error::invalid(format!(
                "a tensor of shape {shape:?} and strides {strides:?} needs {reach} elements, and the buffer has \
                 {len}; allocate more, or take a smaller shape"
            )));
        }
        if i32::try_from(shape.len()).is_err() {
            return Err(too_large());
        }
        let mut extents = layout::signed(shape).ok_or_else(too_large)?;
        extents.extend(layout::signed(&strides).ok_or_else(too_large)?);
        Ok(extents.into_boxed_slice())
    }

    fn export(self, device: DLDevice, extents: Box<[i64]>) -> ManagedTensor {
        let ndim = self.shape.len();
        let data = match self.buffer.as_raw() {
            address if !self.shape.contains(&0) => {
                ptr::with_exposed_provenance_mut(address as usize)
            }
            _ => ptr::null_mut(),
        };
        let exported = Box::leak(Box::new(Exported {
            managed: DLManagedTensorVersioned {
                version: DLPackVersion::CURRENT,
                manager_ctx: ptr::null_mut(),
                deleter: Some(delete_exported::<T>),
                flags: self.flags,
                dl_tensor: DLTensor {
                    data,
                    device,
                    // Checked with the extents.
                    ndim: ndim as i32,
                    dtype: self.data_type,
                    shape: ptr::null_mut(),
                    strides: ptr::null_mut(),
                    byte_offset: 0,
                },
            },
            _buffer: self.buffer,
            extents,
        }));
        // Only now, when they stay where they are.
        if ndim > 0 {
            let (shape, strides) = exported.extents.split_at_mut(ndim);
            exported.managed.dl_tensor.shape = shape.as_mut_ptr();
            exported.managed.dl_tensor.strides = strides.as_mut_ptr();
        }
        let whole: *mut Exported<T> = exported;
        // SAFETY: leaked just now, so it is live, and this is the only pointer to it.
        let managed = unsafe { &raw mut (*whole).managed };
        // SAFETY: as above.
        unsafe { (*managed).manager_ctx = whole.cast() };
        // SAFETY: a field of a live value. The deleter takes the whole value back, on any thread: what it holds is
        // `Send`.
        unsafe { ManagedTensor::from_raw(managed) }
    }
}

/// What a consumer has, until it calls the deleter.
struct Exported<T: Pod> {
    managed: DLManagedTensorVersioned,
    _buffer: DeviceBuffer<T>,
    /// Shape and strides, to which the tensor points.
    extents: Box<[i64]>,
}

/// The deleter of a buffer's tensor. It is called by code of other languages, so nothing may unwind out of it; in a fork
/// it leaves everything to the parent.
unsafe extern "C" fn delete_exported<T: Pod>(raw: *mut DLManagedTensorVersioned) {
    if raw.is_null() {
        return;
    }
    report::release("DLPack tensor", || {
        // SAFETY: the consumer has not deleted the tensor before.
        let whole: *mut Exported<T> = unsafe { (*raw).manager_ctx }.cast();
        // SAFETY: `export` leaked this box and put its address there, and a deleter is called once.
        let exported = unsafe { Box::from_raw(whole) };
        // A buffer that was borrowed from other code runs that code's destructor, which may panic.
        report::caught(|| drop(exported)).ok_or_else(|| {
            let text = "the owner of the memory panicked when the tensor was deleted";
            Error::new(ErrorKind::Other, text)
        })
    });
}

/// Where DLPack says that the memory is.
fn place_of<T: Pod>(buffer: &DeviceBuffer<T>) -> Result<DLDevice> {
    let device = buffer.stream().device();
    let on = |device_type, device_id| DLDevice {
        device_type,
        device_id,
    };
    if buffer.as_raw() == 0 {
        // No memory; consumers expect what the others have.
        return Ok(on(DLDeviceType::CUDA, device.ordinal().cast_signed()));
    }
    match device.driver().place_of(buffer.as_raw())? {
        Some((MemoryKind::Device, ordinal)) => Ok(on(DLDeviceType::CUDA, ordinal)),
        Some((MemoryKind::Host, _)) => Ok(on(DLDeviceType::CUDA_HOST, 0)),
        Some((MemoryKind::Managed, _)) => Ok(on(DLDeviceType::CUDA_MANAGED, 0)),
        Some((MemoryKind::Other(_), _)) | None => Err(Error::not_supported(format!(
            "the driver does not say where {} is, so no tensor can; copy it to memory of a device",
            buffer.in_words()
        ))),
    }
}

impl<T: Pod> fmt::Debug for ManagedTensorBuilder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagedTensorBuilder")
            .field("buffer", &self.buffer)
            .field("data_type", &self.data_type)
            .field("shape", &self.shape)
            .field("strides", &self.strides)
            .field("flags", &self.flags)
            .finish()
    }
}

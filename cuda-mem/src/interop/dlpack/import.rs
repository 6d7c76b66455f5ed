//! Tensors of other libraries as memory for streams.

use std::fmt;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use bytemuck::Pod;
use cuda_driver_sys::{CUdeviceptr, CUpointer_attribute};

use super::abi::{
    DLDevice, DLDeviceType, DLManagedTensorVersioned, DLPackVersion, DLTensor, TensorFlags,
};
use super::data_type::{DLDataType, TensorElement};
use super::layout;
use super::tensor::{delete, other_version};
use crate::base::error::{Error, ErrorKind, Failed, Result};
use crate::base::lock::Lock;
use crate::driver::device::Device;
use crate::driver::pointer::MemoryKind;
use crate::driver::raw;
use crate::memory::buffer::{DeviceBuffer, ExternalOwner, Refused};
use crate::memory::slice::{self as slices, DeviceMemory, DeviceSlice, DeviceSliceMut};
use crate::stream::join::order_outside_captures;
use crate::stream::{Stream, StreamRef};

/// Memory of another library, described by a DLPack tensor, for use in the order of a stream.
///
/// Its elements are a slice, row-major. It can be the source of copies and an argument of kernels that read; if the
/// producer allows writing, [`as_mut_slice`](Self::as_mut_slice) gives a slice to write to.
///
/// Dropping it waits on the host for the stream, because the producer may use the memory again once its deleter has been
/// called, and then calls the deleter, once. While the stream is captured, that is done after the capture. To avoid the
/// wait, name the stream in whose order the producer uses the memory:
/// [`set_producer_stream`](Self::set_producer_stream). If the stream cannot be waited for, because of a fault in it or
/// in a fork, the deleter is not called.
#[must_use = "dropping it gives the memory back"]
pub struct ImportedTensor<T: Pod> {
    buffer: DeviceBuffer<T>,
    about: Arc<About>,
}

impl<T: TensorElement> ImportedTensor<T> {
    /// Takes a tensor over, to use its memory in the order of `stream`. Makes a few driver calls, to see that the
    /// stream's device reaches the memory, and does not wait.
    ///
    /// **If this fails, the tensor stays the caller's**, who has to call its deleter, as
    /// [`ManagedTensor::from_raw`](super::ManagedTensor::from_raw) does when it is dropped.
    ///
    /// # Safety
    ///
    /// - The pointer is null, or points to a tensor that its producer has described as DLPack says, and that nobody else
    ///   reads or deletes. Its deleter may be called on any thread.
    /// - The memory is valid for work that is submitted to `stream` from now on, until the deleter is called. The
    ///   producer was told this stream, or has ordered its work before it in another way.
    /// - Meanwhile nothing else writes to the memory, nor reads it if it is written to through this value, except in
    ///   order with the stream.
    ///
    /// # Errors
    ///
    /// - [`NotSupported`](ErrorKind::NotSupported): another major version of DLPack; memory that is not CUDA's; strides
    ///   that are not row-major.
    /// - [`InvalidValue`](ErrorKind::InvalidValue): elements of another type; a null pointer, negative length or
    ///   misaligned address; more elements than the address space has; memory that is not where the tensor says, or that
    ///   the stream's device does not reach.
    /// - Otherwise any driver error.
    ///
    /// ```
    /// use cuda_mem::interop::dlpack::{ImportedTensor, ManagedTensor};
    ///
    /// # cuda_sim::use_if_no_driver();
    /// # let device = cuda_mem::Driver::load()?.device(0)?;
    /// # let stream = device.primary_context()?.stream()?;
    /// # let buffer = device.default_pool()?.alloc_zeroed::<f32>(&stream, 6)?;
    /// let raw = ManagedTensor::new(buffer, &[6])?.into_raw();
    /// // SAFETY: made just now, of memory in the order of this stream.
    /// match unsafe { ImportedTensor::<f64>::from_raw(raw, &stream) } {
    ///     Ok(_) => unreachable!("its elements are `f32`"),
    ///     // SAFETY: the tensor is still ours, and nobody else has it.
    ///     Err(_) => drop(unsafe { ManagedTensor::from_raw(raw) }),
    /// }
    /// # Ok::<(), cuda_mem::Error>(())
    /// ```
    pub unsafe fn from_raw(raw: *mut DLManagedTensorVersioned, stream: &Stream) -> Result<Self> {
        // SAFETY: the caller's.
        unsafe { Self::from_raw_as(raw, stream, T::DATA_TYPE) }
    }
}

impl<T: Pod> ImportedTensor<T> {
    /// As [`from_raw`](Self::from_raw), for elements of a type that is given.
    ///
    /// # Safety
    ///
    /// The same conditions.
    ///
    /// # Errors
    ///
    /// The same errors.
    pub unsafe fn from_raw_as(
        raw: *mut DLManagedTensorVersioned,
        stream: &Stream,
        data_type: DLDataType,
    ) -> Result<Self> {
        data_type.require_size_of::<T>()?;
        let Some(raw) = NonNull::new(raw) else {
            return Err(Error::invalid(
                "there is no tensor at a null pointer".to_owned(),
            ));
        };
        let managed = raw.as_ptr();
        // SAFETY: the caller vouches for a tensor, and every version has this field in this place.
        let version = unsafe { (*managed).version };
        if version.major != DLPackVersion::CURRENT.major {
            return Err(other_version(version));
        }
        // SAFETY: the tensor is of this version, and nobody writes to it.
        let managed = unsafe { &*managed };
        if managed.flags.contains(TensorFlags::IS_SUBBYTE_TYPE_PADDED)
            && !data_type.bits.is_multiple_of(8)
        {
            return Err(Error::not_supported(format!(
                "the tensor gives each lane of its {data_type} bytes of its own, and only packed ones are understood; \
                 ask its producer for those"
            )));
        }
        // SAFETY: the caller vouches for the description.
        let found = unsafe { Described::of::<T>(&managed.dl_tensor, data_type) }?;
        let (address, device) = found.place(stream)?;
        let about = Arc::new(About {
            shape: found.shape,
            data_type,
            flags: managed.flags,
            producer: Lock::default(),
        });
        let owner = Box::new(Tensor {
            raw,
            is_empty: found.len == 0,
            about: Arc::clone(&about),
        });
        // SAFETY: the caller vouches for the memory until the deleter is called, which is not before the stream has been
        // waited for. `Described` has checked size and alignment.
        let buffer = unsafe { DeviceBuffer::kept(stream, device, address, found.len, owner) };
        Ok(Self { buffer, about })
    }

    /// Lets the producer's stream wait for this tensor's when the tensor is dropped, instead of the host, which waits only
    /// if the streams cannot be ordered.
    ///
    /// # Safety
    ///
    /// Whatever uses the memory after the deleter was called does so in the order of `producer`.
    #[doc(alias("cuEventRecord", "cuStreamWaitEvent"))]
    pub unsafe fn set_producer_stream(&mut self, producer: &Stream) {
        // In a fork the deleter is not called.
        if let Some(mut stream) = self.about.producer.lock_unless_forked() {
            *stream = Some(producer.clone());
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The length of each dimension.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.about.shape
    }

    /// The type of the elements.
    #[must_use]
    pub fn data_type(&self) -> DLDataType {
        self.about.data_type
    }

    /// What the producer says about the tensor.
    #[must_use]
    pub fn flags(&self) -> TensorFlags {
        self.about.flags
    }

    /// The stream in whose order the memory is used.
    #[must_use]
    pub fn stream(&self) -> &Stream {
        self.buffer.stream()
    }

    /// The device that the memory belongs to; `None` for host and managed memory, and if there is no memory.
    #[must_use]
    pub fn device(&self) -> Option<Device> {
        self.buffer.device()
    }

    /// The device address of the first element, to be used in the order of [`stream`](Self::stream); 0 if there is no
    /// memory.
    #[must_use]
    pub fn as_raw(&self) -> CUdeviceptr {
        self.buffer.as_raw()
    }

    /// All elements, row-major, for reading.
    pub fn as_slice(&self) -> DeviceSlice<'_, T> {
        self.buffer.as_slice()
    }

    /// All elements, row-major, for writing.
    ///
    /// # Errors
    ///
    /// [`NotPermitted`](ErrorKind::NotPermitted) if the producer says that the tensor is read-only.
    pub fn as_mut_slice(&mut self) -> Result<DeviceSliceMut<'_, T>> {
        if self.flags().contains(TensorFlags::READ_ONLY) {
            return Err(Error::not_permitted(
                "the tensor's producer says that it is read-only; copy it to write to it"
                    .to_owned(),
            ));
        }
        Ok(self.buffer.as_mut_slice())
    }

    /// Gives the memory back, as dropping does, but returns the result.
    ///
    /// # Errors
    ///
    /// Any driver error, including faults of earlier work; [`Capturing`](ErrorKind::Capturing) while the stream is
    /// captured. The error contains the tensor, and its deleter was not called.
    #[doc(alias = "cuStreamSynchronize")]
    pub fn free(self) -> Result<(), Failed<Self>> {
        let Self { buffer, about } = self;
        let freed = buffer.free();
        freed.map_err(|failed| failed.map(|buffer| Self { buffer, about }))
    }
}

impl<T: Pod> slices::sealed::Memory for ImportedTensor<T> {}

impl<T: Pod> DeviceMemory for ImportedTensor<T> {
    type Element = T;

    fn as_slice(&self) -> DeviceSlice<'_, T> {
        self.as_slice()
    }
}

/// What a tensor's description says, as far as it can be checked without the driver.
#[derive(Debug)]
pub(super) struct Described {
    /// Of the first element; 0 if there are no elements.
    pub(super) address: CUdeviceptr,
    pub(super) len: usize,
    shape: Vec<usize>,
    device: DLDevice,
}

impl Described {
    /// # Safety
    ///
    /// `shape` and, unless null, `strides` point to as many numbers as there are dimensions.
    pub(super) unsafe fn of<T>(tensor: &DLTensor, data_type: DLDataType) -> Result<Self> {
        if tensor.dtype != data_type {
            return Err(Error::invalid(format!(
                "the tensor has elements of {}, and {data_type} were asked for; ask for those, or convert the tensor",
                tensor.dtype
            )));
        }
        // SAFETY: the caller's.
        let shape = unsafe { numbers(tensor.shape, tensor.ndim) }?.ok_or_else(|| {
            Error::invalid(format!(
                "the tensor has {} dimensions and no shape",
                tensor.ndim
            ))
        })?;
        let lens = shape.iter().map(|len| usize::try_from(*len));
        let lens = lens.collect::<Result<Vec<usize>, _>>().map_err(|_| {
            Error::invalid(format!(
                "no tensor has the shape {shape:?}, with a negative length"
            ))
        })?;
        let size =
            layout::count(&lens).and_then(|len| Some((len, len.checked_mul(size_of::<T>())?)));
        let Some((len, bytes)) = size else {
            return Err(Error::invalid(format!(
                "a tensor of shape {shape:?} reaches beyond the address space"
            )));
        };
        // SAFETY: the caller's.
        let strides = unsafe { numbers(tensor.strides, tensor.ndim) }?;
        if let Some(strides) = strides
            && !layout::is_row_major(&lens, strides)
        {
            return Err(Error::not_supported(format!(
                "the tensor has the shape {shape:?} and the strides {strides:?}, and only row-major tensors without \
                 gaps are understood; make it contiguous first"
            )));
        }
        Ok(Self {
            address: first_address::<T>(tensor, bytes)?,
            len,
            shape: lens,
            device: tensor.device,
        })
    }

    /// The address for the stream's device, and the device that the memory belongs to. The driver is asked, so that a
    /// wrong description is refused here, and does not end as a fault of the device.
    fn place(&self, stream: &Stream) -> Result<(CUdeviceptr, Option<Device>)> {
        let allowed: &[MemoryKind] = match self.device.device_type {
            // Some producers call managed memory the device's.
            DLDeviceType::CUDA => &[MemoryKind::Device, MemoryKind::Managed],
            DLDeviceType::CUDA_HOST => &[MemoryKind::Host],
            DLDeviceType::CUDA_MANAGED => &[MemoryKind::Managed],
            _ => {
                return Err(Error::not_supported(format!(
                    "the tensor is on {}, and only CUDA, pinned and managed memory can be used; copy it there first",
                    self.device
                )));
            }
        };
        // Refuses forks and contexts that have ended, also if there is no memory.
        let _current = stream.context().bind()?;
        if self.address == 0 {
            return Ok((0, None));
        }
        let driver = stream.device().driver();
        let (kind, ordinal) = driver.place_of(self.address)?.ok_or_else(|| {
            Error::invalid(format!(
                "the tensor says that it is on {}, and the driver does not know its address {:#x}",
                self.device, self.address
            ))
        })?;
        let is_elsewhere = kind == MemoryKind::Device && ordinal != self.device.device_id;
        if !allowed.contains(&kind) || is_elsewhere {
            return Err(Error::invalid(format!(
                "the tensor says that it is on {}, and the driver that it is {kind} memory of device {ordinal}",
                self.device
            )));
        }
        let device = match kind {
            MemoryKind::Device => Some(driver.device(ordinal.unsigned_abs() as usize)?),
            _ => None,
        };
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
        // SAFETY: the attribute is 8 bytes wide.
        let address = unsafe { raw::pointer::wide(driver.table(), attribute, self.address) };
        match address {
            Ok(address) => Ok((address, device)),
            // The address has no meaning on the device of the current context (measured).
            Err(error) if error.kind() == ErrorKind::InvalidValue => Err(Error::invalid(format!(
                "the tensor is on {}, and {} has no access to it; take a stream of the tensor's device",
                self.device,
                stream.device()
            ))),
            Err(error) => Err(error),
        }
    }
}

/// The numbers of a tensor's dimensions; `None` for a null pointer.
///
/// # Safety
///
/// Unless null, the pointer is that of this many numbers, which nobody writes while the result lives.
unsafe fn numbers<'a>(first: *mut i64, ndim: i32) -> Result<Option<&'a [i64]>> {
    let Ok(ndim) = usize::try_from(ndim) else {
        return Err(Error::invalid(format!("no tensor has {ndim} dimensions")));
    };
    if ndim == 0 {
        return Ok(Some(&[]));
    }
    if first.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's.
    Ok(Some(unsafe { slice::from_raw_parts(first, ndim) }))
}

/// The address of the first of these bytes; 0 if there are none.
fn first_address<T>(tensor: &DLTensor, bytes: usize) -> Result<CUdeviceptr> {
    if bytes == 0 {
        return Ok(0);
    }
    let data = tensor.data.expose_provenance() as CUdeviceptr;
    let offset = tensor.byte_offset;
    let first = data.checked_add(offset);
    let Some(address) = first.filter(|first| first.checked_add(bytes as u64).is_some()) else {
        return Err(Error::invalid(format!(
            "{bytes} bytes at {data:#x} and {offset} more reach beyond the address space"
        )));
    };
    if data == 0 {
        return Err(Error::invalid(format!(
            "the tensor has {bytes} bytes and no address"
        )));
    }
    if address % align_of::<T>() as u64 != 0 {
        return Err(Error::invalid(format!(
            "the tensor starts at {address:#x}, and its elements need an alignment of {} bytes; copy it first",
            align_of::<T>()
        )));
    }
    Ok(address)
}

/// What stays known of a tensor.
struct About {
    shape: Vec<usize>,
    data_type: DLDataType,
    flags: TensorFlags,
    /// In whose order the producer uses the memory after its deleter was called.
    producer: Lock<Option<Stream>>,
}

/// Calls the deleter when nothing here uses the memory any more.
struct Tensor {
    raw: NonNull<DLManagedTensorVersioned>,
    is_empty: bool,
    about: Arc<About>,
}

// SAFETY: the tensor is not read any more, and its deleter may be called on any thread, as the caller of `from_raw`
// vouches.
unsafe impl Send for Tensor {}
// SAFETY: as for `Send`; a shared borrow does not touch the tensor.
unsafe impl Sync for Tensor {}

impl ExternalOwner for Tensor {
    fn wait(&self, stream: StreamRef<'_>) -> Result<bool> {
        if self.is_empty {
            return Ok(true);
        }
        // Cloned out: the driver is not called under the lock.
        let producer = self.about.producer.lock()?.clone();
        let Some(producer) = producer else {
            return stream.wait_unless_captured().map(|()| true);
        };
        // Or else the producer's stream would be drawn into the capture.
        stream.refuse_captured(CAPTURED)?;
        // The host can always wait instead, also where the producer's stream is captured.
        let ordered = order_outside_captures(stream, producer.as_ref());
        ordered
            .or_else(|_| stream.wait_unless_captured())
            .map(|()| true)
    }

    fn release(self: Box<Self>, _: &Stream) -> Result<(), Refused> {
        // Nobody calls this after `wait`, which has done everything.
        Ok(())
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: the tensor was taken over, and ends here. A buffer drops its owner only after `wait`, and not in a fork.
        unsafe { delete(self.raw) };
    }
}

const CAPTURED: &str = "the stream that uses the tensor is being captured into a graph, so the tensor cannot be given \
                        back; do that before or after";

impl<T: Pod> fmt::Debug for ImportedTensor<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImportedTensor")
            .field("address", &format_args!("{:#x}", self.as_raw()))
            .field("shape", &self.about.shape)
            .field("data_type", &self.about.data_type)
            .field("flags", &self.about.flags)
            .field("stream", self.stream())
            .finish_non_exhaustive()
    }
}

const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<ImportedTensor<f32>>();
};

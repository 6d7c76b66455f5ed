//! The CUDA array interface of Python libraries.

#![forbid(unsafe_code)]

use cuda_driver_sys::CUdeviceptr;

use super::data_type::TensorElement;
use super::exchange_stream::ExchangeStream;
use super::layout;
use crate::base::error::{Error, Result};
use crate::memory::slice::DeviceSlice;

/// The fields of `__cuda_array_interface__`, version 3.
///
/// It names memory and owns none: keep the memory alive, and in the same place, as long as others have these values.
///
/// ```
/// use cuda_mem::interop::dlpack::ArrayInterface;
///
/// # cuda_sim::use_if_no_driver();
/// # let device = cuda_mem::Driver::load()?.device(0)?;
/// # let stream = device.primary_context()?.stream()?;
/// let buffer = device.default_pool()?.alloc_zeroed::<f32>(&stream, 6)?;
/// let interface = ArrayInterface::of(buffer.as_slice(), &[2, 3])?;
/// assert_eq!(interface.typestr, "<f4");
/// assert_eq!(interface.data, (buffer.as_raw(), true));
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayInterface {
    /// The length of each dimension.
    pub shape: Vec<usize>,
    /// The type of the elements, as [`DLDataType::typestr`](super::DLDataType::typestr) writes it.
    pub typestr: String,
    /// The address of the first element, 0 if there is none, and whether it must not be written to.
    pub data: (CUdeviceptr, bool),
    /// The distance of neighbours in each dimension, in bytes; `None` for row-major.
    pub strides: Option<Vec<isize>>,
    /// The stream in whose order the memory is used, see [`ExchangeStream::of_array_interface`].
    pub stream: Option<i64>,
}

impl ArrayInterface {
    /// The version that these fields follow.
    pub const VERSION: u32 = 3;

    /// A row-major, read-only array of the slice's first elements, in the order of its stream.
    ///
    /// To let others write, set `data.1` to false while you have the memory exclusively.
    ///
    /// Another thread's own stream has no number here. Then the host waits for it, and the array names no stream.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the shape has more elements than the slice;
    /// [`NotSupported`](crate::ErrorKind::NotSupported) if the type has no name there; any driver error of
    /// [`DeviceSlice::wait_for_pending_uses`].
    pub fn of<T: TensorElement>(slice: DeviceSlice<'_, T>, shape: &[usize]) -> Result<Self> {
        T::DATA_TYPE.require_size_of::<T>()?;
        let typestr = T::DATA_TYPE.typestr()?;
        let len = slice.len();
        let Some(count) = layout::count(shape).filter(|count| *count <= len) else {
            return Err(Error::invalid(format!(
                "an array of shape {shape:?} has more elements than the {len} of the slice"
            )));
        };
        slice.wait_for_pending_uses()?;
        let stream = match slice.stream().is_foreign() {
            true => {
                slice.stream().as_ref().wait_unless_captured()?;
                ExchangeStream::Unordered
            }
            false => ExchangeStream::of(slice.stream()),
        };
        Ok(Self {
            shape: shape.to_vec(),
            typestr,
            data: (if count == 0 { 0 } else { slice.as_raw() }, true),
            strides: None,
            stream: stream.for_array_interface(),
        })
    }
}

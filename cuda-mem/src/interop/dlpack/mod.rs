//! Tensors for other libraries, and from them, without a copy: DLPack, and the CUDA array interface.
//!
//! PyTorch, JAX, CuPy and others exchange tensors by [DLPack](https://dmlc.github.io/dlpack/latest/): a C struct that
//! describes memory and has a function to give it back. A [`ManagedTensor`] makes one of a buffer, an [`ImportedTensor`]
//! uses one of another library in the order of a stream. The structs of version 1 are here by their own names.
//! [`ExchangeStream`] says what the numbers mean by which libraries name streams, and [`ArrayInterface`] has the fields of
//! the older `__cuda_array_interface__`.
//!
//! ```
//! use cuda_mem::interop::dlpack::{ImportedTensor, ManagedTensor};
//! use cuda_mem::{Driver, MemoryPool};
//!
//! # cuda_sim::use_if_no_driver();
//! let device = Driver::load()?.device(0)?;
//! let stream = device.primary_context()?.stream()?;
//! let pool = MemoryPool::builder(&device).build()?;
//!
//! let x = pool.alloc_from(&stream, &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
//! let raw = ManagedTensor::new(x, &[2, 3])?.into_raw();   // for another library …
//!
//! // SAFETY: the tensor is one of this stream, and nobody else has it.
//! let y = unsafe { ImportedTensor::<f32>::from_raw(raw, &stream) }?;   // … and from one
//! assert_eq!(y.shape(), [2, 3]);
//! assert_eq!(y.as_slice().to_vec()?[5], 6.0);
//! drop(y);                                                // calls the deleter, which frees `x` in its stream
//! # Ok::<(), cuda_mem::Error>(())
//! ```
//!
//! # Order
//!
//! A tensor does not say in which stream its memory is used. Two things have to be agreed on:
//!
//! | | when it is handed over | when it is given back |
//! |---|---|---|
//! | to others | the consumer's stream waits for the buffer's | the deleter frees in the order of the buffer's stream |
//! | | [`DeviceBuffer::move_to`](crate::DeviceBuffer::move_to) the consumer's stream does both | |
//! | from others | the producer is told our stream's [number](ExchangeStream::of), and makes it wait | the host waits for our stream, or the [producer's stream](ImportedTensor::set_producer_stream) does |
//!
//! A consumer that works in other streams than the one it named must order them itself before it calls the deleter.

mod abi;
mod array_interface;
mod data_type;
mod exchange_stream;
mod export;
mod import;
mod layout;
mod tensor;
#[cfg(test)]
mod tests;

pub use abi::{
    DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned, DLPackVersion, DLTensor,
    TensorFlags,
};
pub use array_interface::ArrayInterface;
pub use data_type::{DLDataType, DLDataTypeCode, TensorElement};
pub use exchange_stream::ExchangeStream;
pub use export::ManagedTensorBuilder;
pub use import::ImportedTensor;
pub use tensor::ManagedTensor;

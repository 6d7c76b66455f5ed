//! NCCL, opened at run time: communicators over several GPUs, and memory that is registered with them.
//!
//! NCCL moves data between GPUs of one host or of many. Each GPU is a *rank* of a [`Communicator`], and all ranks make the
//! same calls in the same order. This module finds the library, starts operations on buffers in the order of their streams,
//! and reports what goes wrong elsewhere: a rank that ends, a call that never comes. Without NCCL,
//! [`Nccl::load`] is an error of the kind [`NcclMissing`](crate::ErrorKind::NcclMissing), and everything else works.
//!
//! [`RegisteredResource`] gives out memory that NCCL takes as it is, so that buffers from an arena over it need no
//! registration of their own.
//!
//! ```
//! use cuda_mem::Driver;
//! use cuda_mem::collective::{Nccl, ReduceOp};
//!
//! # cuda_sim::use_if_no_driver();
//! # nccl_sim::use_if_no_nccl();
//! let device = Driver::load()?.device(0)?;
//! let context = device.primary_context()?;
//! let stream = context.stream()?;
//!
//! let nccl = Nccl::load()?;
//! let communicators = nccl.communicators(&[context]).join()?; // one rank for each context
//! let mut numbers = device.default_pool()?.alloc_from(&stream, &[1.0f32, 2.0])?;
//! communicators[0].all_reduce_in_place(&mut numbers, ReduceOp::Sum)?; // the sum over all ranks: of one
//! communicators[0].synchronize(&stream)?;
//! assert_eq!(numbers.to_vec()?, [1.0, 2.0]);
//! # Ok::<(), cuda_mem::Error>(())
//! ```

mod communicator;
mod element;
mod ending;
mod group;
mod join;
mod library;
mod operation;
mod registration;
mod resource;
mod state;
mod wait;

pub use communicator::Communicator;
pub use element::{Bf16, Element, F16, ReduceOp};
pub use group::Group;
pub use join::{CommunicatorBuilder, CommunicatorsBuilder};
pub use library::{Nccl, NcclVersion, UniqueId};
pub use resource::{RegisteredResource, RegisteredResourceBuilder};

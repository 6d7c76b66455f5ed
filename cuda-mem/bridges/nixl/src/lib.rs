//! Memory of [cuda-mem](cuda_mem) that [NIXL](nixl_sys) registers and transfers.
//!
//! NIXL moves memory between machines, over network cards and other ways. Its Rust bindings, nixl-sys, take anything that tells its
//! address and its size. This package adds what makes memory of cuda-mem safe there: it refuses memory that cannot be
//! registered, waits for streams, and frees nothing that is registered.
//!
//! ```
//! # cuda_sim::use_if_no_driver();
//! use cuda_mem::Driver;
//! use cuda_mem::mapped::MappedMemory;
//! use cuda_mem_nixl::{Buffer, Error};
//! use nixl_sys::{MemType, XferDescList};
//!
//! let device = Driver::load()?.device(0)?;
//! let stream = device.primary_context()?.stream()?;
//! let memory = MappedMemory::collective(&device)?.build(4 << 20)?;
//! let mut cache = Buffer::new(memory.into_buffer::<f32>(&stream, 1 << 20)?.into_buffer())?;
//!
//! let agent = match cuda_mem_nixl::agent("decoder") {
//!     Ok(agent) => agent,
//!     Err(Error::NixlMissing) => return Ok(()), // nixl-sys would end the process
//!     Err(other) => return Err(other.into()),
//! };
//! cache.register(&agent, None)?;
//! {
//!     // SAFETY: the transfer is complete before the borrow ends.
//!     let all = unsafe { cache.descriptor_mut() }?;
//!     let block = all.slice(..1000)?;
//!     let mut list = XferDescList::new(MemType::Vram)?;
//!     list.add_storage_desc(&block)?;
//!     // … `agent.create_xfer_req`, `post_xfer_req`, and `get_xfer_status` until that says success
//! }
//! let received = cache.memory()?.to_vec()?;
//! # let _ = received;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | what | how |
//! |---|---|
//! | memory that NIXL registers | [`Buffer`] |
//! | all of it, or a part, in NIXL's lists | [`Descriptor`] |
//! | an agent, or an error where there is no NIXL | [`agent`](fn@agent), [`is_available`] |
//! | memory that could not be freed | [`leaked_bytes`] |
//!
//! # What was tried
//!
//! Nothing here has run with NIXL itself, or with a network card. The tests use the simulated driver and a small stand-in for
//! NIXL's library, which records its calls and transfers nothing.
//!
//! # What stays unsafe
//!
//! nixl-sys has safe functions that take numbers for addresses, and its handles do not borrow the memory. This package gives
//! out descriptors only by unsafe functions, which say [what to promise](Buffer::descriptor); what a program does with
//! addresses that it got elsewhere is beyond it.

mod agent;
mod buffer;
mod descriptor;
mod error;
mod reach;
mod registrations;

pub use agent::{agent, configured_agent, is_available};
pub use buffer::{Buffer, leaked_bytes};
pub use descriptor::Descriptor;
pub use error::{Error, Refused, Result};

// As NIXL demands of memory, and as of their counterparts in cuda-mem.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Buffer<f32>>();
    shared::<Descriptor<'_, f32>>();
    shared::<Error>();
};

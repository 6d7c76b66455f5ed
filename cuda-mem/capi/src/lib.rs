//! The C interface of cuda-mem. Its documentation for users is the header, `include/cudamem.h`, and the book.
//!
//! Every function returns a [`Status`](status::Status), and keeps the text of an error for the calling thread. No
//! function unwinds. All may be called from any thread, unless they say otherwise.

pub mod adaptor;
pub mod arena;
pub mod copy;
pub mod device;
pub mod pool;
pub mod resource;
pub mod status;
pub mod stream;
pub mod torch;

#[cfg(test)]
cuda_mem_watchdog::watch_program!();

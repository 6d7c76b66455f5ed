//! The C interface of cuda-mem. Its documentation for users is the header, `include/cudamem.h`, and the book.
//!
//! Every function returns a [`Status`](status::Status), and keeps the text of an error for the calling thread. No
//! function unwinds. All may be called from any thread, unless they say otherwise.

pub mod adaptor;
pub mod arena;
pub mod copy;
pub mod device;
mod log_file;
mod options;
pub mod pool;
pub mod python;
pub mod recorder;
pub mod resource;
pub mod snapshot;
pub mod status;
pub mod stream;
pub mod torch;

/// The version of this header, for the preprocessor.
pub const CUDAMEM_VERSION_MAJOR: u32 = 0;
/// See CUDAMEM_VERSION_MAJOR.
pub const CUDAMEM_VERSION_MINOR: u32 = 1;

#[cfg(test)]
cuda_mem_watchdog::watch_program!();

#[cfg(test)]
mod tests {
    #[test]
    fn the_version_is_the_packages() {
        let found = format!(
            "{}.{}.",
            super::CUDAMEM_VERSION_MAJOR,
            super::CUDAMEM_VERSION_MINOR
        );
        assert!(env!("CARGO_PKG_VERSION").starts_with(&found));
    }
}

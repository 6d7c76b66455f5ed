//! Two programs share a buffer: the first one allocates it and waits, the second one doubles the numbers in it.
//!
//! ```sh
//! cargo run --example ipc      # in two terminals, without a GPU too
//! ```

#[cfg(target_os = "linux")]
mod channel;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    cuda_mem_console::main(channel::run)
}

#[cfg(not(target_os = "linux"))]
fn main() -> std::process::ExitCode {
    eprintln!(
        "this example sends descriptors, for Linux; on Windows memory is shared by `MemoryPool::export_handle`"
    );
    std::process::ExitCode::FAILURE
}

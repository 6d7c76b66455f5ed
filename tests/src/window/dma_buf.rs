//! Memory of a device as a dma-buf.

use std::io::{Seek, SeekFrom};
use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Result, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::cpu_mapping::CpuMappingKind;

use super::{mapped, memory};
use crate::environment::{Backend, Environment, Skip, host_page};

fn need_dma_bufs(env: &Environment) -> Result<()> {
    if env.device()?.gpu_direct()?.dma_buf {
        return Ok(());
    }
    Err(Skip("the device gives no dma-bufs".to_owned()).into())
}

#[apply(case)]
fn a_dma_buf_is_as_long_as_its_pages(env: &Environment) -> Result<()> {
    need_dma_bufs(env)?;
    let stream = env.stream()?;
    let plain = memory::<u8>(&stream, CpuMappingKind::Copies, 2 << 20)?;
    let small = memory::<u8>(&stream, CpuMappingKind::Copies, 1000)?;
    let mapped = mapped(env, &stream, 5 << 20)?;
    // Whole pages, since those around a block of a pool are not always given.
    let pooled = env.pool()?.alloc::<u8>(&stream, 2 << 20)?;
    for (what, buffer) in [
        ("plain", &plain),
        ("small", &small),
        ("mapped", &*mapped),
        ("pooled", &pooled),
    ] {
        let shown = buffer.export_dma_buf()?;
        let whole = (shown.offset() + buffer.size_bytes()).next_multiple_of(host_page());
        ensure!(shown.size_bytes() == whole, "{what}: {shown:?}");
        ensure!(
            buffer.as_raw() as usize % host_page() == shown.offset(),
            "{what}: {shown:?}"
        );
        // SAFETY: the descriptor is open, and this call only reads.
        let flags = unsafe { libc::fcntl(shown.as_fd().as_raw_fd(), libc::F_GETFD) };
        ensure!(
            flags & libc::FD_CLOEXEC != 0,
            "{what}: programs that are started have it too"
        );
        let mut file = std::fs::File::from(shown.as_fd().try_clone_to_owned()?);
        let end = file.seek(SeekFrom::End(0))?;
        ensure!(end == shown.size_bytes() as u64, "{what}: {end}");
    }
    let none = env.pool()?.alloc::<u8>(&stream, 0)?;
    let error = none.export_dma_buf().map(drop).expect_err("no bytes");
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    let host = memory::<u8>(&stream, CpuMappingKind::HostMapped, 1 << 20)?;
    let error = host.export_dma_buf().map(drop).expect_err("of the host");
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    // A machine with one way to the device knows no other.
    match plain.export_dma_buf_over_pcie() {
        Ok(shown) => ensure!(shown.size_bytes() == 2 << 20),
        Err(error) => ensure!(error.kind() == ErrorKind::NotSupported, "{error}"),
    }
    Ok(())
}

/// Maps a descriptor as a window does, and says with which error number it failed.
fn map(shown: &impl AsFd, bytes: usize) -> Result<i32> {
    use std::os::fd::AsRawFd;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let file = shown.as_fd().as_raw_fd();
    // SAFETY: a new mapping, where the system chooses.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            access,
            libc::MAP_SHARED,
            file,
            0,
        )
    };
    if at == libc::MAP_FAILED {
        let error = std::io::Error::last_os_error();
        return Ok(error.raw_os_error().unwrap_or(-1));
    }
    // SAFETY: mapped just now, and not used.
    unsafe { libc::munmap(at, bytes) };
    Ok(0)
}

#[apply(case)]
fn a_dma_buf_can_be_mapped_if_the_device_says_so(env: &Environment) -> Result<()> {
    need_dma_bufs(env)?;
    let stream = env.stream()?;
    let buffer = memory::<u8>(&stream, CpuMappingKind::Copies, 2 << 20)?;
    let shown = buffer.export_dma_buf()?;
    let errno = map(&shown, shown.size_bytes())?;
    let says_so = env.device()?.gpu_direct()?.dma_buf_mapping;
    match (says_so, env.backend) {
        (true, _) => ensure!(errno == 0, "errno {errno}"),
        // ENOTSUPP of the kernel, which no C library knows.
        (false, Backend::Gpu) => ensure!(errno == 524, "errno {errno}"),
        // No file of a program's own answers that.
        (false, Backend::Sim) => ensure!(errno == libc::EACCES, "errno {errno}"),
    }
    Ok(())
}

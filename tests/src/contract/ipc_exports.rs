//! Exports and imports that fail.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};

use anyhow::{Result, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::mapped::PhysicalMemory;

use crate::environment::Environment;

/// Runs something while this process can open no descriptor.
fn without_descriptors<T>(what: impl FnOnce() -> T) -> Result<T> {
    let mut usual = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid place for the answer.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut usual) };
    ensure!(read == 0, "{}", std::io::Error::last_os_error());
    // The lowest number that is free: new ones have to be below the limit.
    let lowest = File::open("/dev/null")?.as_raw_fd();
    let none = libc::rlimit {
        rlim_cur: lowest.cast_unsigned().into(),
        ..usual
    };
    // SAFETY: a valid limit, not above the highest.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none) };
    ensure!(set == 0, "{}", std::io::Error::last_os_error());
    let outcome = what();
    // SAFETY: the limit that was there.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const usual) };
    ensure!(set == 0, "{}", std::io::Error::last_os_error());
    Ok(outcome)
}

/// Pools with fabric handles apart, whose failed export ruins them (R127).
#[apply(case_alone)]
fn an_export_that_failed_may_be_tried_again(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.shareable_pool()?, env.stream()?);
    let mut buffer = pool.alloc_from(&stream, &[1, 2, 3])?;
    let refused = without_descriptors(|| pool.export_fd())?;
    ensure!(refused.is_err(), "there was no descriptor for it");
    drop(pool.alloc::<u8>(&stream, 1000)?);
    buffer.fill(4)?;
    ensure!(buffer.to_vec()? == [4; 3]);
    drop(pool.export_fd()?);
    Ok(())
}

#[apply(case)]
fn a_descriptor_of_a_file_is_not_taken_for_memory(env: &Environment) -> Result<()> {
    env.need(11, 2)?;
    let file = tempfile::tempfile()?;
    let refused = PhysicalMemory::import_fd(env.driver, file.as_fd(), 2 << 20);
    let error = refused.err().map(|error| (error.kind(), error.to_string()));
    ensure!(
        matches!(&error, Some((ErrorKind::InvalidValue, text)) if text.contains("not of physical memory")),
        "{error:?}"
    );
    Ok(())
}

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

/// A driver that went on with such a pool aborted the process at the latest when it destroyed it (R192).
#[apply(case_alone)]
fn a_pool_whose_export_failed_serves_no_more(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.shareable_pool()?, env.stream()?);
    let refused = without_descriptors(|| pool.export_fd())?;
    ensure!(refused.is_err(), "there was no descriptor for it");
    let errors = [
        pool.alloc::<u8>(&stream, 1000).err(),
        pool.export_fd().err(),
    ];
    for error in errors {
        let kind = error.as_ref().map(cuda_mem::Error::kind);
        ensure!(kind == Some(ErrorKind::NotPermitted), "{error:?}");
    }
    let other = env.shareable_pool()?;
    drop(other.export_fd()?);
    ensure!(other.alloc_from(&stream, &[1, 2, 3])?.to_vec()? == [1, 2, 3]);
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

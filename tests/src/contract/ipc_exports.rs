//! Exports and imports that fail.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};

use anyhow::{Result, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::driver::HandleTypes;
use cuda_mem::mapped::PhysicalMemory;

use crate::environment::Environment;

/// Runs `what` while this process can open only `left` more descriptors.
fn with_descriptors<T>(left: usize, what: impl FnOnce() -> T) -> Result<T> {
    let mut usual = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid place for the answer.
    let read = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut usual) };
    ensure!(read == 0, "{}", std::io::Error::last_os_error());
    // New ones take the lowest free numbers, which have to be below the limit.
    let free = (0..=left)
        .map(|_| File::open("/dev/null"))
        .collect::<Result<Vec<_>, _>>()?;
    let limit = free[left].as_raw_fd();
    drop(free);
    let few = libc::rlimit {
        rlim_cur: limit.cast_unsigned().into(),
        ..usual
    };
    // SAFETY: a valid limit, not above the highest.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) };
    ensure!(set == 0, "{}", std::io::Error::last_os_error());
    let outcome = what();
    // SAFETY: the limit that was there.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const usual) };
    ensure!(set == 0, "{}", std::io::Error::last_os_error());
    Ok(outcome)
}

/// A driver that tried aborted the process at the latest when it destroyed the pool (R192).
#[apply(case_alone)]
fn an_export_without_descriptors_changes_nothing(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for left in [0, 1] {
        let pool = env.shareable_pool()?;
        let refused = with_descriptors(left, || pool.export_fd())?;
        let error = refused.err().map(|error| (error.kind(), error.to_string()));
        ensure!(
            matches!(&error, Some((ErrorKind::System, text)) if text.contains("two descriptors")),
            "{left}: {error:?}"
        );
        ensure!(pool.alloc_from(&stream, &[1, 2, 3])?.to_vec()? == [1, 2, 3]);
        drop(with_descriptors(2, || pool.export_fd())??);
        stream.synchronize()?;
        pool.close()?;
    }
    Ok(())
}

#[apply(case)]
fn memory_is_imported_in_granules(env: &Environment) -> Result<()> {
    let memory = PhysicalMemory::builder(&env.device()?)
        .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
        .build(1)?;
    let (descriptor, bytes) = (memory.export_fd()?, memory.size_bytes());
    for wrong in [1, bytes - 1, bytes + 1] {
        let refused = PhysicalMemory::import_fd(env.driver, &descriptor, wrong);
        let error = refused.err().map(|error| (error.kind(), error.to_string()));
        ensure!(
            matches!(&error, Some((ErrorKind::InvalidValue, text)) if text.contains("granularity")),
            "{wrong}: {error:?}"
        );
    }
    let same = PhysicalMemory::import_fd(env.driver, descriptor, bytes)?;
    ensure!(same.location() == memory.location() && same.size_bytes() == bytes);
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

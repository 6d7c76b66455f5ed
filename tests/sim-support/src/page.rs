//! The page size of the host.

use std::sync::OnceLock;

/// Bytes of a page of the host: 4096 on x86-64, up to 64 KiB on aarch64.
pub fn host_page() -> u64 {
    static PAGE: OnceLock<u64> = OnceLock::new();
    *PAGE.get_or_init(page_of_system)
}

#[cfg(unix)]
fn page_of_system() -> u64 {
    // SAFETY: no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    u64::try_from(page).unwrap_or(4096)
}

#[cfg(windows)]
fn page_of_system() -> u64 {
    use windows_sys::Win32::System::SystemInformation::{GetSystemInfo, SYSTEM_INFO};

    let mut info = SYSTEM_INFO::default();
    // SAFETY: `info` is valid for a write.
    unsafe { GetSystemInfo(&raw mut info) };
    u64::from(info.dwPageSize)
}

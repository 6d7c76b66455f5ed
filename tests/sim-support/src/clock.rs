//! The time of launches and aborts, which the simulated driver and NCCL compare.

/// Nanoseconds on the clock that all libraries of a process share.
#[cfg(unix)]
#[must_use]
pub fn monotonic_ns() -> u64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `now` is valid for a write.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    (now.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(now.tv_nsec as u64)
}

/// Nanoseconds on the clock that all libraries of a process share.
#[cfg(windows)]
#[must_use]
pub fn monotonic_ns() -> u64 {
    use windows_sys::Win32::System::Performance::{
        QueryPerformanceCounter, QueryPerformanceFrequency,
    };

    let (mut ticks, mut per_second) = (0, 0);
    // SAFETY: both are valid for a write. Neither call fails since Windows XP.
    unsafe { QueryPerformanceCounter(&raw mut ticks) };
    // SAFETY: as above.
    unsafe { QueryPerformanceFrequency(&raw mut per_second) };
    let ns = i128::from(ticks) * 1_000_000_000 / i128::from(per_second.max(1));
    ns as u64
}

//! Failures that come with an `errno`: from gdrcopy's library, and from mapping a dma-buf.

use std::io;

use cuda_driver_sys::gdr::GdrLoadError;

use super::{Cause, Error, ErrorKind};

/// The answer of the driver's kernel module when it does not support something. No C library knows the number, so it
/// would print as an unknown error.
const ENOTSUPP: i32 = 524;

impl Error {
    /// A function returned a positive error number.
    pub(crate) fn errno(function: &'static str, errno: i32) -> Self {
        Self::from(Cause::Errno {
            function,
            error: io::Error::from_raw_os_error(errno),
            asked: None,
        })
    }

    pub(crate) fn gdr_lacks(function: &'static str) -> Self {
        Self::from(Cause::GdrLacks(function))
    }

    /// `gdr_open` failed with this error number.
    pub(crate) fn gdr_closed(errno: i32) -> Self {
        Self::from(Cause::GdrClosed(io::Error::from_raw_os_error(errno)))
    }

    pub(crate) fn no_window(reasons: String) -> Self {
        Self::from(Cause::NoCpuMapping(reasons))
    }

    /// The system's error number, if a function returned one.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        self.io_error()?.raw_os_error()
    }

    /// The operating system's error, if one is the cause.
    ///
    /// [`source`](std::error::Error::source) returns none, because the message contains the same text.
    ///
    /// ```
    /// use std::io;
    ///
    /// // SAFETY: there is no such file.
    /// let error = unsafe { cuda_mem::kernel::Image::open("/nowhere/kernels.ptx") }.unwrap_err();
    /// assert_eq!(error.io_error().map(io::Error::kind), Some(io::ErrorKind::NotFound));
    /// assert!(error.to_string().starts_with("reading code failed: "));
    /// ```
    #[must_use]
    pub fn io_error(&self) -> Option<&io::Error> {
        match self.cause() {
            Cause::Errno { error, .. } | Cause::GdrClosed(error) | Cause::System { error, .. } => {
                Some(error)
            }
            _ => None,
        }
    }
}

impl From<GdrLoadError> for Error {
    fn from(error: GdrLoadError) -> Self {
        Self::from(Cause::GdrLoad(error))
    }
}

/// The system's text, or ours where the system has none.
pub(super) fn words(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(ENOTSUPP) => {
            format!("ENOTSUPP ({ENOTSUPP}), the driver's kernel module does not do this")
        }
        // A library that finds the module too old sets no number.
        Some(0) => "no error number".to_owned(),
        _ => error.to_string(),
    }
}

/// What to do about a device file that cannot be opened.
pub(super) fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "Load gdrcopy's kernel module (gdrdrv), and pass the device into the container"
        }
        io::ErrorKind::PermissionDenied => "Let this user read and write it",
        _ if error.raw_os_error() == Some(0) => {
            "The kernel module is older than the library; install both in one version"
        }
        _ => "See dmesg, and whether library and kernel module are of one version",
    }
}

pub(super) fn kind_of_errno(error: &io::Error) -> ErrorKind {
    match (error.raw_os_error(), error.kind()) {
        (Some(ENOTSUPP), _) | (_, io::ErrorKind::Unsupported) => ErrorKind::NotSupported,
        (_, io::ErrorKind::InvalidInput) => ErrorKind::InvalidValue,
        (_, io::ErrorKind::OutOfMemory) => ErrorKind::OutOfMemory,
        (_, io::ErrorKind::PermissionDenied) => ErrorKind::NotPermitted,
        _ => ErrorKind::System,
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn an_error_number_says_function_and_request() {
        let error = Error::errno("gdr_pin_buffer_v2", libc::EINVAL).asked(|| "64 KiB".to_owned());
        assert_eq!(error.kind(), ErrorKind::InvalidValue);
        assert_eq!(error.function(), Some("gdr_pin_buffer_v2"));
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
        let text = error.to_string();
        assert!(
            text.contains("gdr_pin_buffer_v2") && text.contains("64 KiB"),
            "{text}"
        );
    }

    #[test]
    fn the_number_that_no_library_knows_is_not_supported() {
        let error = Error::errno("mmap", ENOTSUPP);
        assert_eq!(error.kind(), ErrorKind::NotSupported);
        let text = error.to_string();
        assert!(
            text.contains("ENOTSUPP (524)") && !text.contains("Unknown"),
            "{text}"
        );
    }

    #[test]
    fn a_device_that_does_not_open_says_what_is_missing() {
        for (errno, part) in [
            (libc::ENOENT, "gdrdrv)"),
            (libc::EACCES, "read and write"),
            (libc::EIO, "dmesg"),
            (0, "gdrdrv: no error number. The kernel module is older"),
        ] {
            let error = Error::gdr_closed(errno);
            assert_eq!(error.kind(), ErrorKind::GdrMissing);
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}

//! Code to load.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use crate::base::error::{Error, Result};

/// Code for a device: PTX, which the driver compiles for the device on loading, or a binary, which suits only some
/// devices.
///
/// ```
/// use cuda_mem::kernel::Image;
///
/// let image = Image::ptx(".version 7.0\n.target sm_70\n.address_size 64")?;
/// println!("{image:?}"); // what it is, and its bytes
/// assert!(Image::ptx("with a \0 inside").is_err());
/// # Ok::<(), cuda_mem::Error>(())
/// ```
#[derive(Clone)]
pub struct Image<'a> {
    kind: &'static str,
    bytes: Cow<'a, [u8]>,
}

/// How binaries begin: an ELF file, and several of them in one.
const CUBIN: [u8; 4] = *b"\x7fELF";
const FATBIN: [u8; 4] = [0x50, 0xed, 0x55, 0xba];

impl<'a> Image<'a> {
    /// PTX text, without the terminating 0 that the driver expects. The driver reports errors in it on loading.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if there is a 0 inside, or it begins as a binary does.
    pub fn ptx(text: &str) -> Result<Image<'static>> {
        if text.as_bytes().starts_with(&CUBIN) || text.as_bytes().starts_with(&FATBIN) {
            // The driver would take it for one, and believe what it says of itself.
            let text = "PTX is a text, and this begins as a binary does; take `Image::binary`";
            return Err(Error::invalid(text.to_owned()));
        }
        if text.contains('\0') {
            let text =
                "PTX is a text, and this one has a 0 inside; take `Image::binary` for a binary";
            return Err(Error::invalid(text.to_owned()));
        }
        let mut bytes = text.as_bytes().to_vec();
        bytes.push(0);
        Ok(Image {
            kind: "PTX",
            bytes: Cow::Owned(bytes),
        })
    }

    /// A cubin or fatbin, as NVIDIA's compilers make them.
    ///
    /// # Safety
    ///
    /// It must be complete and valid. The driver reads as far as the binary itself says, so a truncated or forged one
    /// causes out-of-bounds reads.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if it begins like neither.
    pub unsafe fn binary(bytes: impl Into<Cow<'a, [u8]>>) -> Result<Self> {
        let bytes = bytes.into();
        let kind = match bytes.get(..4) {
            Some(start) if start == CUBIN => "cubin",
            Some(start) if start == FATBIN => "fatbin",
            _ => {
                return Err(Error::invalid(format!(
                    "these {} bytes are neither a cubin nor a fatbin; they begin with {:02x?}",
                    bytes.len(),
                    &bytes[..bytes.len().min(4)]
                )));
            }
        };
        Ok(Self { kind, bytes })
    }

    /// The contents of a file: a binary if it begins like one, otherwise PTX.
    ///
    /// # Safety
    ///
    /// As [`binary`](Self::binary), if it is one.
    ///
    /// # Errors
    ///
    /// [`System`](crate::ErrorKind::System) if the file cannot be read; else as [`ptx`](Self::ptx).
    pub unsafe fn open(path: impl AsRef<Path>) -> Result<Image<'static>> {
        let bytes = std::fs::read(path).map_err(|error| Error::system("reading code", error))?;
        if bytes.starts_with(&CUBIN) || bytes.starts_with(&FATBIN) {
            // SAFETY: the caller vouches for the file.
            return unsafe { Image::binary(bytes) };
        }
        let text = String::from_utf8(bytes).map_err(|_| {
            Error::invalid("the file is no cubin, no fatbin, and no text".to_owned())
        })?;
        // A 0 at the end is what some tools write.
        Image::ptx(text.trim_end_matches('\0'))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Writes its kind and size.
impl fmt::Display for Image<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} bytes", self.kind, self.bytes.len())
    }
}

impl fmt::Debug for Image<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({}, {} bytes)", self.kind, self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_binary_is_said_so() {
        for bytes in [&b""[..], b"\x7fEL", b"plain text"] {
            // SAFETY: nothing is loaded.
            let error = unsafe { Image::binary(bytes) }.expect_err("it is none");
            assert!(error.to_string().contains("neither a cubin"), "{error}");
        }
        for (bytes, kind) in [(&CUBIN, "cubin"), (&FATBIN, "fatbin")] {
            // SAFETY: nothing is loaded.
            let image = unsafe { Image::binary(&bytes[..]) };
            assert!(image.is_ok_and(|image| image.kind == kind));
        }
    }

    #[test]
    fn a_binary_is_no_text() {
        let error = Image::ptx("\x7fELF, and what makes the driver read elsewhere");
        assert!(error.is_err_and(|error| error.to_string().contains("begins as a binary")));
    }

    #[test]
    fn ptx_gets_the_zero_that_the_driver_wants() {
        let image = Image::ptx("ab").expect("it is a text");
        assert_eq!(image.bytes(), b"ab\0");
    }
}

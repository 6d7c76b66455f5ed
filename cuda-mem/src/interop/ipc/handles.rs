//! Handles that are sent between processes as bytes.

use std::fmt;

use super::wire;
use crate::base::error::{Error, Result};

/// The kinds of bytes.
pub(super) mod kind {
    pub(crate) const FABRIC: u8 = 1;
    pub(crate) const POINTER: u8 = 2;
    pub(crate) const BUFFER: u8 = 3;
    pub(crate) const EVENT: u8 = 4;
}

/// Reads a handle that a safe function passes to the driver. The caller of the read vouches for it.
macro_rules! trusted {
    ($name:ident, $import:literal, $from:literal, $where:literal) => {
        impl $name {
            /// Reads what [`to_bytes`](Self::to_bytes) wrote.
            ///
            /// # Safety
            ///
            /// The bytes come from [`to_bytes`](Self::to_bytes) of a live handle
            #[doc = concat!($where, ", and only trusted processes could write them on their way.")]
            /// The checksum in them detects accidents, not forgeries.
            #[doc = concat!("[`", $import, "`](", $from, $import, ")")]
            /// gives them to the driver, and bytes that no driver wrote can crash the process.
            ///
            /// # Errors
            ///
            /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the bytes were cut or changed, or are something
            /// else.
            ///
            /// ```compile_fail,E0133
            #[doc = concat!("use cuda_mem::interop::", stringify!($name), ";")]
            ///
            #[doc = concat!("let _ = ", stringify!($name), "::from_bytes(b\"from anywhere\"); // error: unsafe")]
            /// ```
            pub unsafe fn from_bytes(bytes: &[u8]) -> Result<Self> {
                Self::open(bytes)
            }
        }
    };
}

/// 64 bytes of the driver, distinguished by type. On the wire they carry a kind and a checksum.
macro_rules! opaque {
    ($(#[$doc:meta])* $name:ident, $kind:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name(pub(super) [u8; 64]);

        impl $name {
            /// The bytes to send.
            #[must_use]
            pub fn to_bytes(&self) -> Vec<u8> {
                wire::seal(kind::$kind, &self.0)
            }

            fn open(bytes: &[u8]) -> Result<Self> {
                match wire::open($what, bytes)? {
                    (kind::$kind, body) => body.try_into().map(Self).map_err(|_| wrong($what)),
                    _ => Err(wrong($what)),
                }
            }

            /// The driver's own 64 bytes, for programs that do not use this crate.
            #[must_use]
            pub fn as_raw(&self) -> &[u8; 64] {
                &self.0
            }

            /// From the driver's own 64 bytes.
            ///
            /// # Safety
            ///
            /// A driver must have written them for this purpose. Others can crash the process.
            #[must_use]
            pub unsafe fn from_raw(bytes: [u8; 64]) -> Self {
                Self(bytes)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!(stringify!($name), "(64 bytes)"))
            }
        }
    };
}

opaque! {
    /// A pool, for processes on all machines of one NVLink fabric.
    #[doc(alias = "CUmemFabricHandle")]
    FabricHandle, FABRIC, "a fabric handle"
}

opaque! {
    /// The location of a buffer in its pool. A [`SharedBuffer`] also contains its size.
    #[doc(alias = "CUmemPoolPtrExportData")]
    PointerToken, POINTER, "a pointer token"
}

opaque! {
    /// An event that another process may open.
    #[doc(alias = "CUipcEventHandle")]
    EventHandle, EVENT, "an event handle"
}

trusted! { FabricHandle, "ImportedPool::from_fabric", "crate::interop::", "of a pool on the same fabric" }
trusted! { EventHandle, "Context::import_event", "crate::", "of an event on this machine" }

impl PointerToken {
    /// Reads what [`to_bytes`](Self::to_bytes) wrote. Safe, because every function that takes a token is unsafe: its
    /// caller vouches for the token.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the bytes were cut or changed, or are something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        Self::open(bytes)
    }
}

/// A buffer of another process: its location in its pool, and its element size and count. From
/// [`DeviceBuffer::export`](crate::DeviceBuffer::export).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedBuffer {
    pub(super) token: PointerToken,
    pub(super) len: u64,
    pub(super) element_size: u64,
}

impl SharedBuffer {
    /// Its location in the pool.
    #[must_use]
    pub fn token(&self) -> PointerToken {
        self.token
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no elements. Such a buffer cannot be exported.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Size of one element, in bytes.
    #[must_use]
    pub fn element_size(&self) -> u64 {
        self.element_size
    }

    /// The bytes to send.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut body = self.token.0.to_vec();
        body.extend_from_slice(&self.len.to_le_bytes());
        body.extend_from_slice(&self.element_size.to_le_bytes());
        wire::seal(kind::BUFFER, &body)
    }

    /// Reads what [`to_bytes`](Self::to_bytes) wrote. Safe, because every function that takes a description is unsafe:
    /// its caller vouches for the description.
    ///
    /// # Errors
    ///
    /// [`InvalidValue`](crate::ErrorKind::InvalidValue) if the bytes were cut or changed, or are something else.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let what = "a shared buffer";
        let (kind::BUFFER, body) = wire::open(what, bytes)? else {
            return Err(wrong(what));
        };
        let (token, rest) = body.split_first_chunk::<64>().ok_or_else(|| wrong(what))?;
        let (len, rest) = rest.split_first_chunk::<8>().ok_or_else(|| wrong(what))?;
        let element_size: [u8; 8] = rest.try_into().map_err(|_| wrong(what))?;
        Ok(Self {
            token: PointerToken(*token),
            len: u64::from_le_bytes(*len),
            element_size: u64::from_le_bytes(element_size),
        })
    }

    /// The number of elements, if they have the size of this type.
    pub(super) fn len_of<T>(&self) -> Result<usize> {
        let size = size_of::<T>();
        if self.element_size != size as u64 {
            return Err(Error::invalid(format!(
                "the shared buffer has elements of {} bytes, and {} has {size}",
                self.element_size,
                std::any::type_name::<T>()
            )));
        }
        let bytes = self.len.checked_mul(self.element_size);
        let len = usize::try_from(self.len).ok();
        match (len, bytes) {
            (Some(len), Some(1..=0x7fff_ffff_ffff_ffff)) => Ok(len),
            _ => Err(Error::invalid(format!(
                "{} elements of {} bytes are more than any address space has, or none",
                self.len, self.element_size
            ))),
        }
    }
}

fn wrong(what: &str) -> Error {
    Error::invalid(format!("the bytes are whole, but not those of {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUFFER: SharedBuffer = SharedBuffer {
        token: PointerToken([7; 64]),
        len: 3,
        element_size: 4,
    };

    #[test]
    fn bytes_are_read_back_as_what_they_were_and_as_nothing_else() {
        let bytes = BUFFER.to_bytes();
        assert_eq!(SharedBuffer::from_bytes(&bytes).expect("whole"), BUFFER);
        assert!(SharedBuffer::from_bytes(&bytes[..bytes.len() - 1]).is_err());
        assert!(PointerToken::from_bytes(&bytes).is_err());
        let token = BUFFER.token.to_bytes();
        assert_eq!(
            PointerToken::from_bytes(&token).expect("whole"),
            BUFFER.token
        );
        assert!(EventHandle::open(&token).is_err());
        assert!(SharedBuffer::from_bytes(&token).is_err());
    }

    #[test]
    fn another_element_size_and_an_impossible_length_are_refused() {
        assert_eq!(BUFFER.len_of::<u32>().expect("the right type"), 3);
        assert!(BUFFER.len_of::<u64>().is_err());
        for len in [0, 1 << 62, u64::MAX] {
            let wrong = SharedBuffer { len, ..BUFFER };
            assert!(wrong.len_of::<u32>().is_err(), "{len}");
        }
    }
}

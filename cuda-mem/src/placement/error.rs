//! Why memory cannot be placed as requested.

#![forbid(unsafe_code)]

use std::fmt;

use super::pages::LIMIT;
use crate::base::error::{Bytes, Error, ErrorKind};
use crate::driver::capabilities::Capability;

/// Why a request cannot be met, and what would have to change. Converts into an [`Error`](crate::Error).
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// Zero bytes were requested.
    #[error("memory of 0 bytes has no place; ask for at least one byte, or allocate nothing")]
    NoBytes,
    /// The request exceeds any address space.
    #[error(
        "{asked} bytes are more than the {} that can be placed; check how the size was computed",
        Bytes(LIMIT)
    )]
    TooLarge {
        /// Requested bytes.
        asked: u64,
    },
    /// The request names a device that is not in the topology.
    #[error(
        "device {device} is not among the {devices} of the machine; name devices by their places in \
         `Topology::devices`, from 0"
    )]
    NoSuchDevice {
        /// The device that the request names.
        device: usize,
        /// The number of devices in the topology.
        devices: usize,
    },
    /// A device cannot do what the request needs.
    #[error(
        "device {device} lacks {} ({}), which {purpose} needs; {remedy}",
        capability.name(),
        capability.attribute().0
    )]
    Missing {
        /// The device.
        device: usize,
        /// The capability that it lacks.
        capability: Capability,
        /// Why it is needed.
        purpose: &'static str,
        /// What to change.
        remedy: &'static str,
    },
    /// The host's NUMA node nearest to a device is unknown.
    #[error(
        "device {device} names no NUMA node of the host (CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID), which \
         {purpose} needs; {remedy}"
    )]
    NoHostNode {
        /// The device.
        device: usize,
        /// Why it is needed.
        purpose: &'static str,
        /// What to change.
        remedy: &'static str,
    },
    /// A device cannot access the memory of another one.
    #[error(
        "device {from} cannot use memory of device {to}: cuDeviceCanAccessPeer({from}, {to}) says no; \
         make device {from} the home, leave it out of the peers and copy, or ask for memory of the host \
         (`AccessPattern::Shared`)"
    )]
    NoPeerAccess {
        /// The device that needs access.
        from: usize,
        /// The device that holds the memory.
        to: usize,
    },
    /// The requested page size is not available.
    #[error(
        "{place} has no pages of {asked} bytes, it has {}; ask for one of these, or for none",
        Sizes(offered)
    )]
    PageSize {
        /// The requested page size, in bytes.
        asked: u64,
        /// The page sizes available there, in ascending order.
        offered: Vec<u64>,
        /// The location of the memory.
        place: &'static str,
    },
    /// The request exceeds the total memory of the device.
    #[error(
        "device {device} has {}, which is less than the {} asked for{}",
        Bytes(*capacity),
        Bytes(*asked),
        NotStriped(striping.as_deref(), remedy)
    )]
    NoRoom {
        /// The device.
        device: usize,
        /// Bytes requested from this device, in whole pages.
        asked: u64,
        /// Bytes of the device, in whole pages.
        capacity: u64,
        /// Why the memory was not striped over several devices; `None` if striping was not tried.
        striping: Option<Box<PlaceError>>,
        /// What to change. Any one of these changes is enough.
        remedy: String,
    },
    /// A device cannot hold its part of striped memory.
    #[error(
        "device {device} has room for {}, which is less than its part of {}",
        Bytes(*capacity),
        Bytes(*share)
    )]
    NoRoomForShare {
        /// The device.
        device: usize,
        /// Bytes of the part.
        share: u64,
        /// Free bytes of the device if known, otherwise its total, in whole pages.
        capacity: u64,
    },
    /// Two requested properties are incompatible on any topology.
    #[error("{first} and {second} do not go together: {why}; {remedy}")]
    Conflict {
        /// The first property.
        first: &'static str,
        /// The second property.
        second: &'static str,
        /// Why they are incompatible.
        why: &'static str,
        /// What to change.
        remedy: &'static str,
    },
}

/// Prints the message, as [`Error`](crate::Error) does; `{:#?}` prints the structure.
impl fmt::Debug for PlaceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return fmt::Display::fmt(self, f);
        }
        macro_rules! structure {
            ($($variant:ident { $($field:ident),* })*) => {
                match self {$(
                    Self::$variant { $($field),* } => f
                        .debug_struct(stringify!($variant))
                        $(.field(stringify!($field), $field))*
                        .finish(),
                )*}
            };
        }
        structure! {
            NoBytes {}
            TooLarge { asked }
            NoSuchDevice { device, devices }
            Missing { device, capability, purpose, remedy }
            NoHostNode { device, purpose, remedy }
            NoPeerAccess { from, to }
            PageSize { asked, offered, place }
            NoRoom { device, asked, capacity, striping, remedy }
            NoRoomForShare { device, share, capacity }
            Conflict { first, second, why, remedy }
        }
    }
}

struct Sizes<'a>(&'a [u64]);

impl fmt::Display for Sizes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none that can be chosen");
        }
        for (index, size) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { " and " };
            write!(f, "{comma}{size}")?;
        }
        Ok(())
    }
}

struct NotStriped<'a>(Option<&'a PlaceError>, &'a str);

impl fmt::Display for NotStriped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => write!(f, "; {}", self.1),
            Some(why @ PlaceError::NoRoomForShare { .. }) => {
                write!(
                    f,
                    ", and it is not spread over its peers: {why}; {}",
                    self.1
                )
            }
            // That says what to change.
            Some(why) => write!(f, ", and it is not spread over its peers: {why}"),
        }
    }
}

impl From<PlaceError> for Error {
    fn from(error: PlaceError) -> Self {
        let kind = match &error {
            PlaceError::NoSuchDevice { .. } => ErrorKind::InvalidDevice,
            PlaceError::NoRoom { asked, .. } | PlaceError::NoRoomForShare { share: asked, .. } => {
                return Self::new(ErrorKind::OutOfMemory, error.to_string()).with_asked(*asked);
            }
            PlaceError::Missing { .. }
            | PlaceError::NoHostNode { .. }
            | PlaceError::NoPeerAccess { .. }
            | PlaceError::PageSize { .. } => ErrorKind::NotSupported,
            PlaceError::NoBytes | PlaceError::TooLarge { .. } | PlaceError::Conflict { .. } => {
                ErrorKind::InvalidValue
            }
        };
        Self::new(kind, error.to_string())
    }
}

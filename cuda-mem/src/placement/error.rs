//! Why memory cannot be placed as asked.

#![forbid(unsafe_code)]

use std::fmt;

use super::capabilities::Capability;
use super::pages::LIMIT;
use crate::base::error::{Bytes, Error, ErrorKind};

/// Why a request cannot be met, and what would have to change. Turns into an [`Error`](crate::Error).
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    /// No bytes were asked for.
    #[error("memory of 0 bytes has no place; ask for at least one byte, or allocate nothing")]
    NoBytes,
    /// More bytes than any address space has.
    #[error(
        "{asked} bytes are more than the {} that can be placed; check how the size was computed",
        Bytes(LIMIT)
    )]
    TooLarge {
        /// Bytes asked for.
        asked: u64,
    },
    /// The request names a device that the machine has not.
    #[error(
        "device {device} is not among the {devices} of the machine; name devices by their places in \
         `Topology::devices`, from 0"
    )]
    NoSuchDevice {
        /// The device named.
        device: usize,
        /// How many there are.
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
        /// What it cannot do.
        capability: Capability,
        /// What this is for.
        purpose: &'static str,
        /// What to change.
        remedy: &'static str,
    },
    /// A device does not know the NUMA node of the host that is nearest to it.
    #[error(
        "device {device} names no NUMA node of the host (CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID), which \
         {purpose} needs; {remedy}"
    )]
    NoHostNode {
        /// The device.
        device: usize,
        /// What this is for.
        purpose: &'static str,
        /// What to change.
        remedy: &'static str,
    },
    /// A device cannot use the memory of another one.
    #[error(
        "device {from} cannot use memory of device {to}: cuDeviceCanAccessPeer({from}, {to}) says no; \
         make device {from} the home, leave it out of the peers and copy, or ask for memory of the host \
         (`AccessPattern::Shared`)"
    )]
    NoPeerAccess {
        /// The device that would read and write.
        from: usize,
        /// The device whose memory it is.
        to: usize,
    },
    /// There are no pages of the size asked for.
    #[error(
        "{place} has no pages of {asked} bytes, it has {}; ask for one of these, or for none",
        Sizes(offered)
    )]
    PageSize {
        /// Bytes of a page, as asked for.
        asked: u64,
        /// The sizes that can be asked for there, the smallest first.
        offered: Vec<u64>,
        /// Where the memory would be.
        place: &'static str,
    },
    /// The device has less memory than asked for, used or not.
    #[error(
        "device {device} has {}, which is less than the {} asked for{}",
        Bytes(*capacity),
        Bytes(*asked),
        NotStriped(striping.as_deref(), remedy)
    )]
    NoRoom {
        /// The device.
        device: usize,
        /// Bytes asked for of this device, in whole pages.
        asked: u64,
        /// Bytes that it has in whole pages.
        capacity: u64,
        /// Why the memory was not spread over several devices; `None` if there was nothing to try.
        striping: Option<Box<PlaceError>>,
        /// What to change. Each of it would do.
        remedy: String,
    },
    /// A device cannot hold its part of memory that is spread over several.
    #[error(
        "device {device} has room for {}, which is less than its part of {}",
        Bytes(*capacity),
        Bytes(*share)
    )]
    NoRoomForShare {
        /// The device.
        device: usize,
        /// Bytes of its part.
        share: u64,
        /// Bytes that it has, or that are free if that is known, in whole pages.
        capacity: u64,
    },
    /// Two things asked for are not to be had together, whatever the machine.
    #[error("{first} and {second} do not go together: {why}; {remedy}")]
    Conflict {
        /// One.
        first: &'static str,
        /// The other.
        second: &'static str,
        /// Why.
        why: &'static str,
        /// What to change.
        remedy: &'static str,
    },
}

/// The message, as of [`Error`](crate::Error); `{:#?}` prints the structure.
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

//! What a value of the variable leaves visible, and the explanation.

#![forbid(unsafe_code)]

use std::fmt;

use super::identity::VisibleDevice;
use super::parse::Way;
use crate::driver::load::start::VISIBLE_DEVICES as VARIABLE;

/// The devices of a machine that a value of `CUDA_VISIBLE_DEVICES` leaves visible. From
/// [`Visibility::parse`](crate::placement::Visibility::parse).
///
/// Displays as sentences that say what is visible, where the list ended and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visible {
    value: Option<String>,
    machine: usize,
    pub(super) devices: Vec<VisibleDevice>,
    pub(super) left_out: Vec<VisibleDevice>,
    pub(super) ended_by: Option<Ended>,
    pub(super) repeated: Option<Repeated>,
}

/// The item that ended the list. Items before it count, items after it are not read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// The number of the item, from 1.
    pub item: usize,
    /// The item as it is written.
    pub text: String,
    /// What is wrong with it.
    pub reason: EndReason,
}

/// Why an item ends the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// There is nothing between two commas, or after the last one.
    Empty,
    /// It does not begin with a number, and the first item is no UUID.
    NotANumber,
    /// It is a number below zero.
    Negative,
    /// It is beyond the last device.
    Beyond {
        /// How many devices the machine has.
        devices: usize,
    },
    /// No device has a UUID that is or begins with this.
    UnknownUuid,
    /// The UUIDs of several devices begin with this.
    AmbiguousUuid {
        /// The number of matching devices.
        matches: usize,
    },
    /// There is a blank before the UUID, for example after a comma.
    LeadingBlank,
    /// The GPU has MIG on and no instance.
    NoInstance,
}

/// Two items that name the same device. The driver then shows no device at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Repeated {
    /// The first of them, counted from 1.
    pub first: usize,
    /// The second.
    pub again: usize,
}

impl Visible {
    pub(super) fn none(value: Option<&str>, machine: usize) -> Self {
        Self {
            value: value.map(str::to_owned),
            machine,
            devices: Vec::new(),
            left_out: Vec::new(),
            ended_by: None,
            repeated: None,
        }
    }

    /// The devices that a process sees, in the order of its ordinals.
    #[must_use]
    pub fn devices(&self) -> &[VisibleDevice] {
        &self.devices
    }

    /// The item that ended the list, if one did.
    #[must_use]
    pub fn ended_by(&self) -> Option<&Ended> {
        self.ended_by.as_ref()
    }

    /// The items that name one device twice, which leaves no device visible.
    #[must_use]
    pub fn repeated(&self) -> Option<Repeated> {
        self.repeated
    }

    /// Devices that are named but not visible, because a process can see only one MIG instance and no GPU in addition.
    #[must_use]
    pub fn left_out(&self) -> &[VisibleDevice] {
        &self.left_out
    }

    fn by_number(&self) -> bool {
        let value = self.value.as_deref();
        value.is_some_and(|value| !value.is_empty() && Way::of(value) == Way::Number)
    }
}

impl fmt::Display for Visible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value.as_deref() {
            None => write!(f, "{VARIABLE} is not set: ")?,
            Some("") => write!(f, "{VARIABLE} is empty: ")?,
            Some(value) => write!(f, "{VARIABLE}={value}: ")?,
        }
        write!(f, "{} visible.", Named(&self.devices))?;
        if let Some(Repeated { first, again }) = self.repeated {
            write!(
                f,
                " Items {first} and {again} name the same device, and then the driver shows none; name \
                 each device once."
            )?;
        }
        if let Some(ended) = &self.ended_by {
            write!(f, " {ended}.")?;
        }
        if !self.left_out.is_empty() {
            write!(
                f,
                " A process sees one MIG instance and no GPU beside it: {} left out.",
                Named(&self.left_out)
            )?;
        }
        if self.value.as_deref() == Some("") && self.machine > 0 {
            f.write_str(" Unset it to see all devices.")?;
        }
        if self.by_number() && self.machine > 1 {
            f.write_str(
                " Numbers follow CUDA_DEVICE_ORDER (FASTEST_FIRST unless it says PCI_BUS_ID), and not \
                 the order of nvidia-smi and NVML; a UUID names the same device everywhere.",
            )?;
        }
        Ok(())
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { item, text, reason } = self;
        write!(f, "The list ends at item {item}, {text:?}: {reason}")
    }
}

impl fmt::Display for EndReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("it is empty; write the items without gaps"),
            Self::NotANumber => f.write_str("it does not begin with a number"),
            Self::Negative => f.write_str("it is negative"),
            Self::Beyond { devices: 0 } => f.write_str("the machine has no devices"),
            Self::Beyond { devices: 1 } => f.write_str("the machine has 1 device"),
            Self::Beyond { devices } => write!(f, "the machine has {devices} devices"),
            Self::UnknownUuid => f.write_str("no device has a UUID that begins so"),
            Self::AmbiguousUuid { matches } => {
                write!(
                    f,
                    "the UUIDs of {matches} devices begin so; write more of it"
                )
            }
            Self::LeadingBlank => {
                f.write_str("there is a blank before it, which UUIDs may not have")
            }
            Self::NoInstance => {
                f.write_str("MIG is on there, and it has no instance; make one or turn MIG off")
            }
        }
    }
}

impl fmt::Display for VisibleDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gpu(gpu) => write!(f, "device {gpu}"),
            Self::Mig { gpu, instance } => write!(f, "MIG instance {instance} of device {gpu}"),
        }
    }
}

/// `no device is`, `device 1 is`, `device 1 and device 0 are`.
struct Named<'a>(&'a [VisibleDevice]);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => return f.write_str("no device is"),
            [one] => return write!(f, "{one} is"),
            _ => {}
        }
        for (index, device) in self.0.iter().enumerate() {
            let before = match index {
                0 => "",
                _ if index + 1 == self.0.len() => " and ",
                _ => ", ",
            };
            write!(f, "{before}{device}")?;
        }
        f.write_str(" are")
    }
}

//! Which devices a value of the variable leaves visible, as the driver reads it.
//!
//! Measured on H200s with driver 580. The behaviour with MIG follows the driver's short documentation and is otherwise
//! a guess.

#![forbid(unsafe_code)]

use super::identity::{Identity, VisibleDevice};
use super::number::{Number, is_blank};
use super::outcome::{EndReason, Ended, Repeated, Visible};

/// How a value names devices. Its first item decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Number,
    Uuid,
}

/// The prefix of a UUID. The driver does not distinguish between the two.
const PREFIXES: [&str; 2] = ["GPU-", "MIG-"];

impl Way {
    pub(super) fn of(value: &str) -> Self {
        match after_prefix(value) {
            Some(_) => Self::Uuid,
            None => Self::Number,
        }
    }

    fn find(self, item: &str, machine: &[Identity]) -> Result<VisibleDevice, EndReason> {
        match self {
            Self::Number => by_number(item, machine),
            Self::Uuid => by_uuid(item, machine),
        }
    }
}

fn after_prefix(item: &str) -> Option<&str> {
    PREFIXES
        .into_iter()
        .find_map(|prefix| item.strip_prefix(prefix))
}

/// How the driver interprets `value` on `machine`.
pub(super) fn parse(value: Option<&str>, machine: &[Identity]) -> Visible {
    let mut visible = Visible::none(value, machine.len());
    let mut found = Vec::new();
    match value {
        None => found.extend((0..machine.len()).filter_map(|gpu| shown(gpu, machine).ok())),
        Some("") => {}
        Some(value) => {
            let way = Way::of(value);
            for (index, text) in value.split(',').enumerate() {
                match way.find(text, machine) {
                    Ok(device) => found.push(device),
                    Err(reason) => {
                        visible.ended_by = Some(Ended {
                            item: index + 1,
                            text: text.to_owned(),
                            reason,
                        });
                        break;
                    }
                }
            }
        }
    }
    visible.repeated = repeated(&found);
    if visible.repeated.is_none() {
        (visible.devices, visible.left_out) = one_instance(found);
    }
    visible
}

/// The first item that names a device once more.
fn repeated(found: &[VisibleDevice]) -> Option<Repeated> {
    found.iter().enumerate().find_map(|(again, device)| {
        let first = found[..again].iter().position(|other| other == device)?;
        Some(Repeated {
            first: first + 1,
            again: again + 1,
        })
    })
}

/// A process sees one MIG instance, and then nothing else.
fn one_instance(found: Vec<VisibleDevice>) -> (Vec<VisibleDevice>, Vec<VisibleDevice>) {
    let is_instance = |device: &VisibleDevice| matches!(device, VisibleDevice::Mig { .. });
    match found.iter().copied().find(is_instance) {
        None => (found, Vec::new()),
        Some(first) => found.into_iter().partition(|device| *device == first),
    }
}

fn by_number(item: &str, machine: &[Identity]) -> Result<VisibleDevice, EndReason> {
    match Number::at_start_of(item) {
        Number::None if item.chars().all(is_blank) => Err(EndReason::Empty),
        Number::None => Err(EndReason::NotANumber),
        Number::Negative => Err(EndReason::Negative),
        Number::Value(value) => match usize::try_from(value) {
            Ok(gpu) if gpu < machine.len() => shown(gpu, machine),
            _ => Err(EndReason::Beyond {
                devices: machine.len(),
            }),
        },
    }
}

/// The device that a process sees for this GPU: with MIG on, its first instance.
fn shown(gpu: usize, machine: &[Identity]) -> Result<VisibleDevice, EndReason> {
    match machine[gpu].mig() {
        None => Ok(VisibleDevice::Gpu(gpu)),
        Some([]) => Err(EndReason::NoInstance),
        Some([_, ..]) => Ok(VisibleDevice::Mig { gpu, instance: 0 }),
    }
}

/// The one device whose UUID begins with these digits.
fn by_uuid(item: &str, machine: &[Identity]) -> Result<VisibleDevice, EndReason> {
    let text = after_prefix(item).ok_or_else(|| match item.trim_start_matches(is_blank) {
        "" => EndReason::Empty,
        _ if item.starts_with(is_blank) => EndReason::LeadingBlank,
        _ => EndReason::UnknownUuid,
    })?;
    if let Some((gpu, path)) = text.strip_prefix("GPU-").and_then(|of| of.split_once('/')) {
        return by_place(gpu, path, machine);
    }
    let start = digits(text).ok_or(EndReason::UnknownUuid)?;
    let named = devices(machine).filter(|(_, uuid)| begins(uuid, &start));
    match only(named)?.0 {
        VisibleDevice::Gpu(gpu) => shown(gpu, machine),
        instance => Ok(instance),
    }
}

/// Every GPU and every instance, with its UUID.
fn devices(machine: &[Identity]) -> impl Iterator<Item = (VisibleDevice, &str)> {
    machine.iter().enumerate().flat_map(|(gpu, identity)| {
        let instances = identity.mig().unwrap_or_default().iter().enumerate();
        let instances = instances.filter_map(move |(instance, mig)| {
            Some((VisibleDevice::Mig { gpu, instance }, mig.uuid.as_deref()?))
        });
        std::iter::once((VisibleDevice::Gpu(gpu), identity.uuid())).chain(instances)
    })
}

/// `<UUID of the GPU>/<GPU instance>/<compute instance>`: the numbers are whole, the UUID may be short.
fn by_place(gpu: &str, path: &str, machine: &[Identity]) -> Result<VisibleDevice, EndReason> {
    let start = digits(gpu).ok_or(EndReason::UnknownUuid)?;
    let of = machine
        .iter()
        .enumerate()
        .filter(|(_, identity)| begins(identity.uuid(), &start));
    only(of.flat_map(|(gpu, identity)| {
        let instances = identity.mig().unwrap_or_default().iter().enumerate();
        instances.filter_map(move |(instance, mig)| {
            let own = format!("{}/{}", mig.gpu_instance, mig.compute_instance);
            (path == own).then_some(VisibleDevice::Mig { gpu, instance })
        })
    }))
}

/// The digits of a UUID, or of its beginning, without the dashes, which may be anywhere. What comes after the
/// last one that a UUID has does not count; before it, anything else makes this no UUID.
fn digits(text: &str) -> Option<String> {
    const OF_A_UUID: usize = 32;
    let mut digits = String::new();
    for c in text.chars().filter(|c| *c != '-') {
        if digits.len() == OF_A_UUID {
            break;
        }
        if !c.is_ascii_hexdigit() {
            return None;
        }
        digits.push(c.to_ascii_lowercase());
    }
    // Dashes alone are the beginning of every UUID; nothing is not.
    (!text.is_empty()).then_some(digits)
}

fn begins(uuid: &str, start: &str) -> bool {
    let own = after_prefix(uuid).and_then(digits);
    own.is_some_and(|own| own.starts_with(start))
}

fn only<T>(mut matching: impl Iterator<Item = T>) -> Result<T, EndReason> {
    let first = matching.next().ok_or(EndReason::UnknownUuid)?;
    match matching.count() {
        0 => Ok(first),
        others => Err(EndReason::AmbiguousUuid {
            matches: others + 1,
        }),
    }
}

/// How many devices `value` can leave at most, whatever the machine; `None` if that has no limit.
pub(super) fn at_most(value: Option<&str>) -> Option<usize> {
    let value = value?;
    let way = Way::of(value);
    let mut items = Vec::new();
    for text in value.split(',') {
        let item = match way {
            Way::Number => match Number::at_start_of(text) {
                Number::Value(number) => Ok(number),
                _ => break,
            },
            Way::Uuid if after_prefix(text).is_none() => break,
            Way::Uuid => Err(text),
        };
        // Up to here. Whether the driver gets as far as the repetition depends on the machine.
        if items.contains(&item) {
            break;
        }
        items.push(item);
    }
    Some(items.len())
}

//! Which devices a value of the variable leaves, as the driver reads it.
//!
//! What the driver does with MIG, with UUIDs in capital letters and with numbers beyond 64 bits is
//! taken from its documentation, which is short, and not from measurement.

#![forbid(unsafe_code)]

use super::identity::{Identity, VisibleDevice};
use super::number::{Number, is_blank};
use super::outcome::{EndReason, Ended, Repeated, Visible};

/// How a value names devices. Its first item decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Number,
    Gpu,
    Mig,
}

const GPU: &str = "GPU-";
const MIG: &str = "MIG-";

impl Way {
    pub(super) fn of(value: &str) -> Self {
        match value {
            _ if value.starts_with(GPU) => Self::Gpu,
            _ if value.starts_with(MIG) => Self::Mig,
            _ => Self::Number,
        }
    }

    fn find(self, item: &str, machine: &[Identity]) -> Result<VisibleDevice, EndReason> {
        let (own, other) = match self {
            Self::Number => return by_number(item, machine),
            Self::Gpu => (GPU, MIG),
            Self::Mig => (MIG, GPU),
        };
        if !item.starts_with(own) {
            return Err(match item.trim_start_matches(is_blank) {
                "" => EndReason::Empty,
                _ if item.starts_with(is_blank) => EndReason::LeadingBlank,
                _ if item.starts_with(other) => EndReason::OtherPrefix,
                _ => EndReason::UnknownUuid,
            });
        }
        match self {
            Self::Mig => by_instance(item, machine),
            _ => by_uuid(item, machine).and_then(|gpu| shown(gpu, machine)),
        }
    }
}

/// What the driver makes of `value` on `machine`.
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

/// As what a process sees this GPU: with MIG on, as its first instance.
fn shown(gpu: usize, machine: &[Identity]) -> Result<VisibleDevice, EndReason> {
    match machine[gpu].mig() {
        None => Ok(VisibleDevice::Gpu(gpu)),
        Some([]) => Err(EndReason::NoInstance),
        Some([_, ..]) => Ok(VisibleDevice::Mig { gpu, instance: 0 }),
    }
}

/// The one GPU whose UUID begins so.
fn by_uuid(item: &str, machine: &[Identity]) -> Result<usize, EndReason> {
    only((0..machine.len()).filter(|gpu| machine[*gpu].uuid().starts_with(item)))
}

/// The one instance whose name begins so, in either spelling.
fn by_instance(item: &str, machine: &[Identity]) -> Result<VisibleDevice, EndReason> {
    let all = machine.iter().enumerate().flat_map(|(gpu, identity)| {
        let instances = identity.mig().unwrap_or_default();
        instances.iter().enumerate().map(move |(instance, mig)| {
            let path = (mig.gpu_instance, mig.compute_instance);
            let device = VisibleDevice::Mig { gpu, instance };
            (device, identity.uuid(), mig.uuid.as_deref(), path)
        })
    });
    // `MIG-GPU-<uuid>/<GPU instance>/<compute instance>`: the numbers are whole, the UUID may be short.
    let whole = item.strip_prefix(MIG).filter(|gpu| gpu.starts_with(GPU));
    if let Some((gpu, path)) = whole.and_then(|whole| whole.split_once('/')) {
        return only(all.filter_map(|(device, of, _, own)| {
            (of.starts_with(gpu) && path == format!("{}/{}", own.0, own.1)).then_some(device)
        }));
    }
    only(all.filter_map(|(device, gpu, uuid, _)| {
        let is_uuid = uuid.is_some_and(|uuid| uuid.starts_with(item));
        let is_of_gpu = whole.is_some_and(|whole| gpu.starts_with(whole));
        (is_uuid || is_of_gpu || item == MIG).then_some(device)
    }))
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
    let mut items: Vec<&str> = Vec::new();
    let mut numbers = Vec::new();
    for item in value.split(',') {
        let repeats = match way {
            Way::Number => {
                let Number::Value(number) = Number::at_start_of(item) else {
                    break;
                };
                numbers.push(number);
                numbers[..numbers.len() - 1].contains(&number)
            }
            Way::Gpu if !item.starts_with(GPU) => break,
            Way::Mig if !item.starts_with(MIG) => break,
            Way::Gpu | Way::Mig => items.contains(&item),
        };
        // Up to here. Whether the driver gets as far as the repetition depends on the machine.
        if repeats {
            break;
        }
        items.push(item);
    }
    Some(match way {
        Way::Mig => items.len().min(1),
        Way::Number | Way::Gpu => items.len(),
    })
}

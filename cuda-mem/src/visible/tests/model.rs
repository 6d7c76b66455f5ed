//! The rules once more, slowly: C's own `strtoul` reads numbers, and a UUID is found by trying them all.

use std::ffi::{CString, c_char};

use super::super::{Identity, VisibleDevice};

pub(super) fn visible(value: &str, machine: &[Identity]) -> Vec<VisibleDevice> {
    if value.is_empty() {
        return Vec::new();
    }
    let prefix = ["GPU-", "MIG-"]
        .into_iter()
        .find(|prefix| value.starts_with(prefix));
    let mut devices = Vec::new();
    for item in value.split(',') {
        let named = match prefix {
            None => match strtoul(item) {
                Some(number) if number < machine.len() as u64 => whole(number as usize, machine),
                _ => None,
            },
            Some(prefix) if !item.starts_with(prefix) => None,
            Some(_) => named(item, machine),
        };
        let Some(device) = named else { break };
        devices.push(device);
    }
    let mut apart = devices.clone();
    apart.sort();
    apart.dedup();
    if apart.len() < devices.len() {
        return Vec::new();
    }
    match devices
        .iter()
        .find(|device| **device != VisibleDevice::Gpu(device.gpu()))
    {
        Some(instance) => vec![*instance],
        None => devices,
    }
}

fn whole(gpu: usize, machine: &[Identity]) -> Option<VisibleDevice> {
    match machine[gpu].mig().map(<[_]>::len) {
        None => Some(VisibleDevice::Gpu(gpu)),
        Some(0) => None,
        Some(_) => Some(VisibleDevice::Mig { gpu, instance: 0 }),
    }
}

/// The one device that has a name which fits.
fn named(item: &str, machine: &[Identity]) -> Option<VisibleDevice> {
    let mut found = Vec::new();
    for (gpu, identity) in machine.iter().enumerate() {
        if identity.uuid().starts_with(item) {
            found.push(whole(gpu, machine));
        }
        for (instance, mig) in identity.mig().unwrap_or_default().iter().enumerate() {
            let tail = format!("/{}/{}", mig.gpu_instance, mig.compute_instance);
            let long = format!("MIG-{}", identity.uuid());
            let fits = mig.uuid.as_ref().is_some_and(|uuid| uuid.starts_with(item))
                || long.starts_with(item)
                // The UUID before the numbers may be short, but not so short that it is none.
                || (item.starts_with("MIG-GPU-") && item.ends_with(&tail)
                    && long.starts_with(&item[..item.len() - tail.len()])
                    && item.len() >= "MIG-GPU-".len() + tail.len());
            if fits {
                found.push(Some(VisibleDevice::Mig { gpu, instance }));
            }
        }
    }
    match found[..] {
        [one] => one,
        _ => None,
    }
}

/// `None` for what is no number, and for one below zero.
fn strtoul(text: &str) -> Option<u64> {
    let text = CString::new(text).ok()?;
    let mut end: *mut c_char = std::ptr::null_mut();
    // SAFETY: the text ends in a zero, and `end` is valid for a write of one pointer.
    let number = unsafe { libc::strtoul(text.as_ptr(), &raw mut end, 10) };
    let read = end.addr() - text.as_ptr().addr();
    let read = &text.to_bytes()[..read];
    (!read.is_empty() && (number == 0 || !read.contains(&b'-'))).then_some(number)
}

//! The rules once more, slowly: C's own `strtoul` reads numbers, and a UUID is found by trying them all.

use std::ffi::{CString, c_char};

use super::super::{Identity, VisibleDevice};

pub(super) fn visible(value: &str, machine: &[Identity]) -> Vec<VisibleDevice> {
    if value.is_empty() {
        return Vec::new();
    }
    let is_name = |text: &str| text.starts_with("GPU-") || text.starts_with("MIG-");
    let mut devices = Vec::new();
    for item in value.split(',') {
        let named = if is_name(value) {
            is_name(item).then(|| named(&item[4..], machine)).flatten()
        } else {
            match strtoul(item) {
                Some(number) if number < machine.len() as u64 => whole(number as usize, machine),
                _ => None,
            }
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

/// The one device that has a name which fits. `text` is without the prefix.
fn named(text: &str, machine: &[Identity]) -> Option<VisibleDevice> {
    let mut found = Vec::new();
    for (gpu, identity) in machine.iter().enumerate() {
        if is_start(text, identity.uuid()) {
            found.push(whole(gpu, machine));
        }
        for (instance, mig) in identity.mig().unwrap_or_default().iter().enumerate() {
            let tail = format!("/{}/{}", mig.gpu_instance, mig.compute_instance);
            let of = text
                .strip_prefix("GPU-")
                .and_then(|of| of.strip_suffix(&tail));
            let is_place = of.is_some_and(|of| !of.contains('/') && is_start(of, identity.uuid()));
            let uuid = mig.uuid.as_ref();
            if is_place || uuid.is_some_and(|uuid| is_start(text, uuid)) {
                found.push(Some(VisibleDevice::Mig { gpu, instance }));
            }
        }
    }
    match found[..] {
        [one] => one,
        _ => None,
    }
}

/// Whether the digits of a UUID begin so: the text is worn away from its front together with them.
fn is_start(text: &str, uuid: &str) -> bool {
    let mut own: Vec<char> = uuid[4..].chars().rev().filter(|c| *c != '-').collect();
    for c in text.chars().filter(|c| *c != '-') {
        match own.pop() {
            None => break,
            Some(digit) if c.eq_ignore_ascii_case(&digit) => {}
            Some(_) => return false,
        }
    }
    !text.is_empty()
}

/// `None` for what is no number, and for one below zero. The driver keeps an `int` of it (measured), so
/// that large numbers may be small ones, with either sign.
fn strtoul(text: &str) -> Option<u64> {
    let text = CString::new(text).ok()?;
    let mut end: *mut c_char = std::ptr::null_mut();
    // SAFETY: the text ends in a zero, and `end` is valid for a write of one pointer.
    let number = unsafe { libc::strtoul(text.as_ptr(), &raw mut end, 10) };
    let read = end.addr() - text.as_ptr().addr();
    if read == 0 {
        return None;
    }
    u64::try_from(number as i32).ok()
}

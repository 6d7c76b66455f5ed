//! Devices: who they are and what they can do. Nothing here makes a context.

use std::ffi::{c_char, c_int};

use cuda_driver_sys::{CUdevice_attribute, CUresult, CUuuid};

use crate::attributes;
use crate::context::ContextId;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::knobs::Knobs;
use crate::pool::PoolId;
use crate::state::{State, state};

/// One visible device.
#[derive(Debug)]
pub(crate) struct Device {
    /// Which device of the machine it is.
    pub(crate) index: usize,
    pub(crate) memory: u64,
    /// Bytes that pools and allocations hold.
    pub(crate) taken: u64,
    /// The primary context's handle, the same however often it is retained anew.
    pub(crate) primary: Option<ContextId>,
    pub(crate) retains: u64,
    pub(crate) default_pool: Option<PoolId>,
    /// The pool that plain `cuMemAllocAsync` uses.
    pub(crate) current_pool: Option<PoolId>,
}

impl Device {
    /// Bytes that the device could still give.
    pub(crate) fn available(&self) -> u64 {
        self.memory.saturating_sub(self.taken)
    }
}

/// The devices that a process with this `CUDA_VISIBLE_DEVICES` sees.
pub(crate) fn visible(knobs: &Knobs, value: Option<&str>) -> Vec<Device> {
    let uuids: Vec<String> = (0..knobs.devices).map(uuid_text).collect();
    crate::visible::visible(value, &uuids)
        .into_iter()
        .map(|index| Device {
            index,
            memory: knobs.memory,
            taken: 0,
            primary: None,
            retains: 0,
            default_pool: None,
            current_pool: None,
        })
        .collect()
}

/// Distinct, the same in every run, and recognisable: the first bytes differ most.
fn uuid(index: usize) -> [u8; 16] {
    let mut bytes = *b"\0\0\0\0cuda-sim\0\0\0\0";
    // Consecutive devices get unlike prefixes, so that abbreviations work.
    let mixed = (index as u32 + 1).wrapping_mul(0x9e37_79b1);
    bytes[..4].copy_from_slice(&mixed.to_be_bytes());
    bytes[12..].copy_from_slice(&(index as u32).to_be_bytes());
    bytes
}

/// As NVML and `CUDA_VISIBLE_DEVICES` write it.
fn uuid_text(index: usize) -> String {
    let hex: Vec<String> = uuid(index)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let part = |range: std::ops::Range<usize>| hex[range].concat();
    let parts = [
        part(0..4),
        part(4..6),
        part(6..8),
        part(8..10),
        part(10..16),
    ];
    format!("GPU-{}", parts.join("-"))
}

impl State {
    pub(crate) fn device(&self, ordinal: c_int) -> Answer<&Device> {
        let ordinal = self.ordinal(ordinal)?;
        self.devices
            .get(ordinal)
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// A device number of the program as an index.
    pub(crate) fn ordinal(&self, ordinal: c_int) -> Answer<usize> {
        usize::try_from(ordinal)
            .ok()
            .filter(|ordinal| *ordinal < self.devices.len())
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }
}

exports! {
    plain fn cuDeviceGet(_, out: Out<c_int>, ordinal: c_int) {
        out.required()?;
        state()?.device(ordinal)?;
        out.write(ordinal)
    }

    plain fn cuDeviceGetCount(_, out: Out<c_int>) {
        out.write(c_int::try_from(state()?.devices.len()).unwrap_or(c_int::MAX))
    }

    plain fn cuDeviceGetName(_, out: Out<c_char>, len: c_int, device: c_int) {
        let index = state()?.device(device)?.index;
        out.write_text(len, &format!("Simulated GPU {index}"))
    }

    plain fn cuDeviceGetUuid(_, out: Out<CUuuid>, device: c_int) {
        write_uuid(out, device)
    }

    plain fn cuDeviceGetUuid_v2(_, out: Out<CUuuid>, device: c_int) {
        write_uuid(out, device)
    }

    plain fn cuDeviceTotalMem_v2(_, out: Out<usize>, device: c_int) {
        out.write(state()?.device(device)?.memory as usize)
    }

    plain fn cuDeviceGetAttribute(
        _, out: Out<c_int>, attribute: CUdevice_attribute, device: c_int
    ) {
        out.required()?;
        let state = state()?;
        let index = state.device(device)?.index;
        let value = attributes::value(state.knobs, index, attribute.0);
        out.write(value.ok_or(INVALID_VALUE)?)
    }

    plain fn cuDeviceGetPCIBusId(_, out: Out<c_char>, len: c_int, device: c_int) {
        let bus = attributes::pci_bus(state()?.device(device)?.index);
        out.write_text(len, &format!("0000:{bus:02X}:00.0"))
    }

    plain fn cuDeviceGetByPCIBusId(_, out: Out<c_int>, text: In<c_char>) {
        out.required()?;
        let text = text.text()?.to_ascii_uppercase();
        let state = state()?;
        let found = state.devices.iter().position(|device| {
            let bus = attributes::pci_bus(device.index);
            [format!("0000:{bus:02X}:00.0"), format!("{bus:02X}:00.0")].contains(&text)
        });
        let found = found.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        out.write(c_int::try_from(found).unwrap_or(0))
    }
}

fn write_uuid(out: Out<CUuuid>, device: c_int) -> Answer {
    let bytes = uuid(state()?.device(device)?.index);
    out.write(CUuuid {
        bytes: bytes.map(|byte| byte as c_char),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_differ_in_their_first_digits() {
        let mut prefixes: Vec<String> = (0..16).map(|index| uuid_text(index)[..7].into()).collect();
        prefixes.sort();
        prefixes.dedup();
        assert_eq!(prefixes.len(), 16);
        assert_eq!(uuid_text(0).len(), "GPU-".len() + 36);
    }

    #[test]
    fn the_variable_chooses_and_orders() {
        let knobs = Knobs {
            devices: 4,
            ..Knobs::default()
        };
        let shown = |value: &str| -> Vec<usize> {
            visible(&knobs, Some(value))
                .iter()
                .map(|d| d.index)
                .collect()
        };
        assert_eq!(shown("2,0"), [2, 0]);
        assert_eq!(shown(&uuid_text(3)[..8]), [3]);
    }
}

//! Devices: identity and capabilities. Nothing here creates a context.

use std::ffi::{c_char, c_int, c_uint};

use cuda_driver_sys::{CUdevice_attribute, CUresult, CUuuid};

use crate::attributes;
use crate::configuration::Configuration;
use crate::context::ContextId;
use crate::export::{Answer, INVALID_VALUE, In, Out, exports};
use crate::pool::PoolId;
use crate::state::{State, state};
use crate::visible::Gpu;

/// One visible device.
#[derive(Debug)]
pub(crate) struct Device {
    /// Index in the machine.
    pub(crate) index: usize,
    /// Index of its MIG instance. Otherwise an instance is like the whole device.
    pub(crate) instance: Option<usize>,
    pub(crate) memory: u64,
    /// Bytes held by pools and allocations.
    pub(crate) taken: u64,
    /// The primary context's handle, which every retain returns.
    pub(crate) primary: Option<ContextId>,
    pub(crate) retains: u64,
    pub(crate) primary_flags: c_uint,
    pub(crate) default_pool: Option<PoolId>,
    /// The pool of plain `cuMemAllocAsync`.
    pub(crate) current_pool: Option<PoolId>,
}

impl Device {
    /// Bytes that the device can still provide.
    pub(crate) fn available(&self) -> u64 {
        self.memory.saturating_sub(self.taken)
    }
}

/// The devices that a process with this `CUDA_VISIBLE_DEVICES` sees.
pub(crate) fn visible(configuration: &Configuration, value: Option<&str>) -> Vec<Device> {
    let machine: Vec<Gpu> = (0..configuration.devices)
        .map(|index| Gpu {
            uuid: text("GPU", uuid(index, None)),
            instances: configuration
                .mig
                .iter()
                .find(|(device, _)| *device == index)
                .map(|(_, count)| {
                    let instances = 0..*count;
                    instances
                        .map(|instance| text("MIG", uuid(index, Some(instance))))
                        .collect()
                }),
        })
        .collect();
    crate::visible::visible(value, &machine)
        .into_iter()
        .map(|shown| Device {
            index: shown.gpu,
            instance: shown.instance,
            memory: configuration.memory,
            taken: 0,
            primary: None,
            retains: 0,
            primary_flags: 0,
            default_pool: None,
            current_pool: None,
        })
        .collect()
}

/// The UUID of a device or of one of its instances: distinct, the same in every run, and recognisable. The first bytes
/// differ most.
fn uuid(index: usize, instance: Option<usize>) -> [u8; 16] {
    let mut bytes = *b"\0\0\0\0cuda-sim\0\0\0\0";
    // Consecutive devices get dissimilar prefixes, so that abbreviations work.
    let part = instance.map_or(0, |instance| (instance as u32 + 1) << 16);
    let mixed = (index as u32 + 1 + part).wrapping_mul(0x9e37_79b1);
    bytes[..4].copy_from_slice(&mixed.to_be_bytes());
    bytes[12..].copy_from_slice(&(index as u32 + part).to_be_bytes());
    bytes
}

/// In the notation of NVML and `CUDA_VISIBLE_DEVICES`.
fn text(prefix: &str, uuid: [u8; 16]) -> String {
    let hex: Vec<String> = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let part = |range: std::ops::Range<usize>| hex[range].concat();
    let parts = [
        part(0..4),
        part(4..6),
        part(6..8),
        part(8..10),
        part(10..16),
    ];
    format!("{prefix}-{}", parts.join("-"))
}

impl State {
    pub(crate) fn device(&self, ordinal: c_int) -> Answer<&Device> {
        let ordinal = self.ordinal(ordinal)?;
        self.devices
            .get(ordinal)
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Converts a device number of the program to an index.
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
        let index = state()?.device(device)?.index;
        write_uuid(out, uuid(index, None))
    }

    plain fn cuDeviceGetUuid_v2(_, out: Out<CUuuid>, device: c_int) {
        let (index, instance) = state()?.device(device).map(|d| (d.index, d.instance))?;
        write_uuid(out, uuid(index, instance))
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
        let value = attributes::value(state.configuration, index, attribute.0);
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

fn write_uuid(out: Out<CUuuid>, bytes: [u8; 16]) -> Answer {
    out.write(CUuuid {
        bytes: bytes.map(|byte| byte as c_char),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uuid_text(index: usize) -> String {
        text("GPU", uuid(index, None))
    }

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
        let configuration = Configuration {
            devices: 4,
            ..Configuration::default()
        };
        let shown = |value: &str| -> Vec<usize> {
            visible(&configuration, Some(value))
                .iter()
                .map(|d| d.index)
                .collect()
        };
        assert_eq!(shown("2,0"), [2, 0]);
        assert_eq!(shown(&uuid_text(3)[..8]), [3]);
    }

    #[test]
    fn an_instance_has_a_name_of_its_own() {
        let configuration = Configuration {
            devices: 2,
            mig: vec![(1, 3)],
            ..Configuration::default()
        };
        let name = text("MIG", uuid(1, Some(2)));
        for value in [name, format!("MIG-{}/3/0", uuid_text(1))] {
            let shown = visible(&configuration, Some(&value));
            assert_eq!((shown[0].index, shown[0].instance), (1, Some(2)), "{value}");
        }
    }
}

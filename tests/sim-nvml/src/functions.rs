//! The functions of NVML.

use std::ffi::{c_char, c_int, c_uint};

use cuda_driver_sys::nvml::{
    NVML_MEMORY_V2, NvmlTable, nvmlBAR1Memory_t, nvmlComputeMode_t, nvmlDevice_t, nvmlMemory_t,
    nvmlMemory_v2_t, nvmlPciInfo_t, nvmlProcessInfo_t, nvmlReturn_t,
};

use crate::configuration::{BAR1, Configuration};
use crate::export::{Device, Out, Text, end, enter, exports, start};
use crate::machine::{self, handle};

/// Maximum number of MIG instances per GPU.
const MOST_INSTANCES: c_uint = 7;

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlInit_v2() -> nvmlReturn_t {
    if let Some(code) = Configuration::get().error {
        return nvmlReturn_t(code);
    }
    start();
    nvmlReturn_t::NVML_SUCCESS
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlShutdown() -> nvmlReturn_t {
    enter(end)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlErrorString(code: nvmlReturn_t) -> *const c_char {
    if code.name().is_some() {
        c"a known code".as_ptr()
    } else {
        c"an unknown code".as_ptr()
    }
}

const _: fn(&mut NvmlTable) = |table| {
    table.nvmlInit_v2 = Some(nvmlInit_v2);
    table.nvmlShutdown = Some(nvmlShutdown);
    table.nvmlErrorString = Some(nvmlErrorString);
};

exports! {
    fn nvmlSystemGetDriverVersion(out: Out<c_char>, room: c_uint) {
        out.write_text(room, "580.159.04")
    }

    fn nvmlSystemGetCudaDriverVersion_v2(out: Out<c_int>) {
        out.write(Configuration::get().version.cast_signed())
    }

    fn nvmlDeviceGetCount_v2(out: Out<c_uint>) {
        out.write(Configuration::get().devices as c_uint)
    }

    fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, out: Out<nvmlDevice_t>) {
        let found = handle((index as usize, None));
        machine::unit(found)?;
        out.write(found)
    }

    fn nvmlDeviceGetHandleByUUID(text: Text, out: Out<nvmlDevice_t>) {
        let text = text.read()?;
        let found = machine::units().find(|unit| machine::uuid(*unit) == text);
        out.write(handle(found.ok_or(nvmlReturn_t::NVML_ERROR_NOT_FOUND)?))
    }

    fn nvmlDeviceGetHandleByPciBusId_v2(text: Text, out: Out<nvmlDevice_t>) {
        let text = text.read()?.to_ascii_uppercase();
        let found = (0..Configuration::get().devices).find(|gpu| {
            let bus = machine::pci_bus(*gpu);
            let short = format!("{bus:02X}:00.0");
            text == short || text == format!("0000:{short}") || text == format!("00000000:{short}")
        });
        out.write(handle((found.ok_or(nvmlReturn_t::NVML_ERROR_NOT_FOUND)?, None)))
    }

    fn nvmlDeviceGetIndex(device: Device, out: Out<c_uint>) {
        let (gpu, instance) = device.unit()?;
        out.write(instance.unwrap_or(gpu) as c_uint)
    }

    fn nvmlDeviceGetName(device: Device, out: Out<c_char>, room: c_uint) {
        out.write_text(room, &machine::name(device.unit()?))
    }

    fn nvmlDeviceGetUUID(device: Device, out: Out<c_char>, room: c_uint) {
        out.write_text(room, &machine::uuid(device.unit()?))
    }

    fn nvmlDeviceGetPciInfo_v3(device: Device, out: Out<nvmlPciInfo_t>) {
        let (gpu, _) = device.unit()?;
        let bus = machine::pci_bus(gpu);
        out.write(nvmlPciInfo_t {
            busIdLegacy: padded(&format!("0000:{bus:02X}:00.0")),
            domain: 0,
            bus,
            device: 0,
            pciDeviceId: 0x2335_10de,
            pciSubSystemId: 0,
            busId: padded(&format!("00000000:{bus:02X}:00.0")),
        })
    }

    fn nvmlDeviceGetMemoryInfo(device: Device, out: Out<nvmlMemory_t>) {
        let memory = machine::memory(device.unit()?);
        out.write(nvmlMemory_t {
            total: memory.total,
            free: memory.free,
            used: memory.used + memory.reserved,
        })
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: Device, out: Out<nvmlMemory_v2_t>) {
        let unit = device.unit()?;
        if out.read()?.version != NVML_MEMORY_V2 {
            return Err(nvmlReturn_t::NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
        }
        out.write(machine::memory(unit))
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device: Device, out: Out<nvmlBAR1Memory_t>) {
        device.gpu()?;
        let free = Configuration::get().bar1_free;
        out.write(nvmlBAR1Memory_t {
            bar1Total: BAR1,
            bar1Free: free,
            bar1Used: BAR1 - free,
        })
    }

    fn nvmlDeviceGetMigMode(device: Device, current: Out<c_uint>, pending: Out<c_uint>) {
        let mode = c_uint::from(Configuration::get().instances(device.gpu()?).is_some());
        current.write(mode)?;
        pending.write(mode)
    }

    fn nvmlDeviceGetMaxMigDeviceCount(device: Device, out: Out<c_uint>) {
        device.gpu()?;
        out.write(MOST_INSTANCES)
    }

    fn nvmlDeviceGetMigDeviceHandleByIndex(
        device: Device, index: c_uint, out: Out<nvmlDevice_t>
    ) {
        let gpu = device.gpu()?;
        if index >= MOST_INSTANCES {
            return Err(nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT);
        }
        if index as usize >= Configuration::get().instances(gpu).unwrap_or(0) {
            return Err(nvmlReturn_t::NVML_ERROR_NOT_FOUND);
        }
        out.write(handle((gpu, Some(index as usize))))
    }

    fn nvmlDeviceGetComputeRunningProcesses_v3(
        device: Device, count: Out<c_uint>, infos: Out<nvmlProcessInfo_t>
    ) {
        let found = machine::processes(device.unit()?);
        let room = count.read()? as usize;
        count.write(found.len() as c_uint)?;
        if found.len() > room {
            return Err(nvmlReturn_t::NVML_ERROR_INSUFFICIENT_SIZE);
        }
        infos.write_all(&found)
    }

    fn nvmlDeviceGetComputeMode(device: Device, out: Out<nvmlComputeMode_t>) {
        let gpu = device.gpu()?;
        let set = Configuration::get().compute_mode.iter().find(|(index, _)| *index == gpu);
        out.write(nvmlComputeMode_t(set.map_or(0, |(_, mode)| *mode)))
    }
}

/// `text` in an array of `ROOM` bytes, padded with zeros.
fn padded<const ROOM: usize>(text: &str) -> [c_char; ROOM] {
    let mut place = [0; ROOM];
    for (to, byte) in place[..ROOM - 1].iter_mut().zip(text.bytes()) {
        *to = byte as c_char;
    }
    place
}

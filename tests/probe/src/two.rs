//! Two devices, each with its context and a stream, for questions about what lies between them.

use std::ffi::{c_int, c_void};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::lab::{Lab, OK, cu, name, yes};

/// The first two devices.
#[derive(Debug)]
pub(crate) struct Two {
    pub(crate) contexts: [CUcontext; 2],
    pub(crate) streams: [CUstream; 2],
}

/// Asks in a process of its own. Says nothing where there are not two devices.
pub(crate) fn apart(lab: &Lab, part: &str, body: impl FnOnce(&Two) -> Result<()>) {
    let label = lab.label(part);
    crate::child::ask(&label, crate::child::LIMIT, || {
        lab.fine("cuInit", cu!(lab, cuInit(0)))?;
        let mut count = 0;
        lab.fine(
            "cuDeviceGetCount",
            cu!(lab, cuDeviceGetCount(&raw mut count)),
        )?;
        if count < 2 {
            return Ok(());
        }
        lab.start()?;
        let mut second = std::ptr::null_mut();
        let code = cu!(lab, cuDevicePrimaryCtxRetain(&raw mut second, 1));
        lab.fine("cuDevicePrimaryCtxRetain", code)?;
        let first_stream = lab.stream()?;
        lab.current(second)?;
        let second_stream = lab.stream()?;
        lab.current(lab.context())?;
        body(&Two {
            contexts: [lab.context(), second],
            streams: [first_stream, second_stream],
        })
    });
}

/// One entry of a list of accesses.
pub(crate) fn wish(kind: u32, id: c_int, flags: u32) -> CUmemAccessDesc {
    CUmemAccessDesc {
        location: location(CUmemLocationType(kind), id),
        flags: CUmemAccess_flags(flags),
    }
}

impl Two {
    /// Makes the context of a device current, or none.
    pub(crate) fn enter(&self, lab: &Lab, device: Option<usize>) -> Result<()> {
        let context = device.map_or(std::ptr::null_mut(), |device| self.contexts[device]);
        lab.current(context)
    }

    pub(crate) fn synchronise(&self, lab: &Lab) -> Result<()> {
        self.streams
            .iter()
            .try_for_each(|stream| lab.synchronise(*stream))
    }

    /// A block of the device's own pool and stream, filled with `byte` and synchronised with.
    pub(crate) fn block(
        &self,
        lab: &Lab,
        pool: CUmemoryPool,
        device: usize,
        bytes: u64,
        byte: u8,
    ) -> Result<CUdeviceptr> {
        let block = lab.alloc(pool, bytes, self.streams[device])?;
        self.fill(lab, block, device, bytes, byte)?;
        Ok(block)
    }

    /// Fills memory of a device by that device.
    pub(crate) fn fill(
        &self,
        lab: &Lab,
        block: CUdeviceptr,
        device: usize,
        bytes: u64,
        byte: u8,
    ) -> Result<()> {
        self.enter(lab, Some(device))?;
        let stream = self.streams[device];
        let code = cu!(lab, cuMemsetD8Async(block, byte, bytes as usize, stream));
        lab.fine("cuMemsetD8Async", code)?;
        lab.synchronise(stream)
    }

    /// Whether memory of a device, read by that device, holds nothing but `byte`.
    pub(crate) fn holds(
        &self,
        lab: &Lab,
        block: CUdeviceptr,
        device: usize,
        bytes: usize,
        byte: u8,
    ) -> Result<bool> {
        self.enter(lab, Some(device))?;
        let mut found = vec![!byte; bytes];
        let to = found.as_mut_ptr().cast::<c_void>();
        lab.fine("cuMemcpyDtoH", cu!(lab, cuMemcpyDtoH_v2(to, block, bytes)))?;
        Ok(found.iter().all(|found| *found == byte))
    }
}

/// A pool of device memory, or with `kind` 2 or 3 of the host's.
pub(crate) fn pool_at(lab: &Lab, kind: u32, id: c_int, max: usize) -> Result<CUmemoryPool> {
    let (code, pool) = lab.pool_with(&CUmemPoolProps {
        location: location(CUmemLocationType(kind), id),
        maxSize: max,
        ..Lab::props()
    });
    lab.fine("cuMemPoolCreate", code)?;
    Ok(pool)
}

pub(crate) fn set_access(lab: &Lab, pool: CUmemoryPool, wishes: &[CUmemAccessDesc]) -> CUresult {
    cu!(lab, cuMemPoolSetAccess(pool, wishes.as_ptr(), wishes.len()))
}

/// What a device may do in a pool, as it is printed.
pub(crate) fn access_of(lab: &Lab, pool: CUmemoryPool, device: c_int) -> String {
    let mut flags = CUmemAccess_flags(77);
    let mut place = location(CUmemLocationType(1), device);
    let code = cu!(
        lab,
        cuMemPoolGetAccess(&raw mut flags, pool, &raw mut place)
    );
    if code == OK {
        flags.0.to_string()
    } else {
        name(code)
    }
}

/// One number of an address.
pub(crate) fn attribute(lab: &Lab, id: u32, address: CUdeviceptr) -> (CUresult, u64) {
    let mut value = 0_u64;
    let place = (&raw mut value).cast::<c_void>();
    let code = cu!(
        lab,
        cuPointerGetAttribute(place, CUpointer_attribute(id), address)
    );
    (code, value)
}

/// A code, and behind it how a synchronise with the stream went if the call was accepted.
pub(crate) fn and_synchronise(lab: &Lab, code: CUresult, stream: CUstream) -> String {
    if code != OK {
        return name(code);
    }
    match cu!(lab, cuStreamSynchronize(stream)) {
        OK => name(code),
        then => format!("{}, then {}", name(code), name(then)),
    }
}

/// The same, and whether the bytes are where they should be.
pub(crate) fn arrived(code: &str, there: bool) -> String {
    if code == "SUCCESS" {
        format!("{code}, arrived {}", yes(there))
    } else {
        code.into()
    }
}

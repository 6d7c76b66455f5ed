//! Two devices, each with its context and a stream, for questions about what lies between them.

use std::ffi::{c_int, c_void};

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name, yes};

/// The first two devices.
#[derive(Debug)]
pub(crate) struct Two {
    pub(crate) contexts: [CUcontext; 2],
    pub(crate) streams: [CUstream; 2],
}

/// Asks in a process of its own. Says nothing where there are not two devices.
pub(crate) fn apart(env: &Environment, part: &str, body: impl FnOnce(&Two) -> Result<()>) {
    let label = env.label(part);
    crate::child::ask(&label, crate::child::LIMIT, || {
        env.fine("cuInit", cu!(env, cuInit(0)))?;
        let mut count = 0;
        env.fine(
            "cuDeviceGetCount",
            cu!(env, cuDeviceGetCount(&raw mut count)),
        )?;
        if count < 2 {
            return Ok(());
        }
        env.start()?;
        let mut second = std::ptr::null_mut();
        let code = cu!(env, cuDevicePrimaryCtxRetain(&raw mut second, 1));
        env.fine("cuDevicePrimaryCtxRetain", code)?;
        let first_stream = env.stream()?;
        env.current(second)?;
        let second_stream = env.stream()?;
        env.current(env.context())?;
        body(&Two {
            contexts: [env.context(), second],
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
    pub(crate) fn enter(&self, env: &Environment, device: Option<usize>) -> Result<()> {
        let context = device.map_or(std::ptr::null_mut(), |device| self.contexts[device]);
        env.current(context)
    }

    pub(crate) fn synchronise(&self, env: &Environment) -> Result<()> {
        self.streams
            .iter()
            .try_for_each(|stream| env.synchronise(*stream))
    }

    /// A block of the device's own pool and stream, filled with `byte` and synchronised with.
    pub(crate) fn block(
        &self,
        env: &Environment,
        pool: CUmemoryPool,
        device: usize,
        bytes: u64,
        byte: u8,
    ) -> Result<CUdeviceptr> {
        let block = env.alloc(pool, bytes, self.streams[device])?;
        self.fill(env, block, device, bytes, byte)?;
        Ok(block)
    }

    /// Fills memory of a device by that device.
    pub(crate) fn fill(
        &self,
        env: &Environment,
        block: CUdeviceptr,
        device: usize,
        bytes: u64,
        byte: u8,
    ) -> Result<()> {
        self.enter(env, Some(device))?;
        let stream = self.streams[device];
        let code = cu!(env, cuMemsetD8Async(block, byte, bytes as usize, stream));
        env.fine("cuMemsetD8Async", code)?;
        env.synchronise(stream)
    }

    /// Whether memory of a device, read by that device, holds nothing but `byte`.
    pub(crate) fn holds(
        &self,
        env: &Environment,
        block: CUdeviceptr,
        device: usize,
        bytes: usize,
        byte: u8,
    ) -> Result<bool> {
        self.enter(env, Some(device))?;
        let mut found = vec![!byte; bytes];
        let to = found.as_mut_ptr().cast::<c_void>();
        env.fine("cuMemcpyDtoH", cu!(env, cuMemcpyDtoH_v2(to, block, bytes)))?;
        Ok(found.iter().all(|found| *found == byte))
    }
}

/// A pool of device memory, or with `kind` 2 or 3 of the host's.
pub(crate) fn pool_at(env: &Environment, kind: u32, id: c_int, max: usize) -> Result<CUmemoryPool> {
    let (code, pool) = env.pool_with(&CUmemPoolProps {
        location: location(CUmemLocationType(kind), id),
        maxSize: max,
        ..Environment::props()
    });
    env.fine("cuMemPoolCreate", code)?;
    Ok(pool)
}

pub(crate) fn set_access(
    env: &Environment,
    pool: CUmemoryPool,
    wishes: &[CUmemAccessDesc],
) -> CUresult {
    cu!(env, cuMemPoolSetAccess(pool, wishes.as_ptr(), wishes.len()))
}

/// What a device may do in a pool, as it is printed.
pub(crate) fn access_of(env: &Environment, pool: CUmemoryPool, device: c_int) -> String {
    let mut flags = CUmemAccess_flags(77);
    let mut place = location(CUmemLocationType(1), device);
    let code = cu!(
        env,
        cuMemPoolGetAccess(&raw mut flags, pool, &raw mut place)
    );
    if code == OK {
        flags.0.to_string()
    } else {
        name(code)
    }
}

/// One number of an address.
pub(crate) fn attribute(env: &Environment, id: u32, address: CUdeviceptr) -> (CUresult, u64) {
    let mut value = 0_u64;
    let place = (&raw mut value).cast::<c_void>();
    let code = cu!(
        env,
        cuPointerGetAttribute(place, CUpointer_attribute(id), address)
    );
    (code, value)
}

/// A code, and behind it how a synchronise with the stream went if the call was accepted.
pub(crate) fn and_synchronise(env: &Environment, code: CUresult, stream: CUstream) -> String {
    if code != OK {
        return name(code);
    }
    match cu!(env, cuStreamSynchronize(stream)) {
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

//! A pool of a node's memory, imported by another process: who copies its memory before access was set, and after.

use anyhow::Result;
use cuda_driver_sys::*;

use crate::environment::{Environment, OK, cu, name};
use crate::managed::managed;
use crate::twin::pair;
use crate::two::{access_of, and_synchronise, set_access, wish};

const LEN: usize = 1000;

pub(crate) fn copies(env: &Environment) -> Result<()> {
    pair(
        env,
        "",
        |other| {
            let pool = other.wire.take_pool(env)?;
            let address = other.wire.take_pointer(env, pool)?;
            ask(env, "at first", pool, address)?;
            let code = set_access(env, pool, &[wish(1, 0, 3)]);
            env.code("access of the device", code);
            ask(env, "then", pool, address)
        },
        |wire| {
            let props = CUmemPoolProps {
                handleTypes: CUmemAllocationHandleType(1),
                location: location(CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, 0),
                ..Environment::props()
            };
            let (code, pool) = env.pool_with(&props);
            env.fine("cuMemPoolCreate", code)?;
            env.fine("access", set_access(env, pool, &[wish(1, 0, 3)]))?;
            let stream = env.stream()?;
            let block = env.alloc(pool, LEN as u64, stream)?;
            env.synchronise(stream)?;
            wire.send_pool(env, pool)?;
            wire.send_pointer(env, block)?;
            wire.wait().or(Ok(()))
        },
    );
    Ok(())
}

fn ask(env: &Environment, when: &str, pool: CUmemoryPool, address: CUdeviceptr) -> Result<()> {
    env.say(format!("{when}, access"), access_of(env, pool, 0));
    let stream = env.stream()?;
    let mut bytes = vec![5_u8; LEN];
    let here = bytes.as_mut_ptr();
    let pageable = here.expose_provenance() as u64;
    let (plain, moving) = (env.plain(LEN)?, managed(env, LEN)?);
    for (kind, at) in [
        ("plain", plain),
        ("managed", moving),
        ("pageable", pageable),
    ] {
        let code = cu!(env, cuMemcpy(address, at, LEN));
        env.code(format!("{when}, cuMemcpy from {kind}"), code);
        let code = cu!(env, cuMemcpy(at, address, LEN));
        env.code(format!("{when}, cuMemcpy to {kind}"), code);
        let code = cu!(env, cuMemcpyAsync(address, at, LEN, stream));
        let then = and_synchronise(env, code, stream);
        env.say(format!("{when}, cuMemcpyAsync from {kind}"), then);
        let code = cu!(env, cuMemcpyAsync(at, address, LEN, stream));
        let then = and_synchronise(env, code, stream);
        env.say(format!("{when}, cuMemcpyAsync to {kind}"), then);
    }
    let code = cu!(env, cuMemcpyDtoH_v2(here.cast(), address, LEN));
    env.code(format!("{when}, cuMemcpyDtoH"), code);
    let code = cu!(env, cuMemcpyHtoD_v2(address, here.cast(), LEN));
    env.code(format!("{when}, cuMemcpyHtoD"), code);
    let code = cu!(env, cuMemcpyDtoD_v2(address, plain, LEN));
    env.code(format!("{when}, cuMemcpyDtoD"), code);
    let place = std::ptr::with_exposed_provenance_mut(address as usize);
    let code = cu!(env, cuMemcpyDtoH_v2(place, plain, LEN));
    env.code(format!("{when}, cuMemcpyDtoH into it"), code);
    let code = cu!(env, cuMemsetD8Async(address, 3, LEN, stream));
    let then = match code {
        OK => and_synchronise(env, code, stream),
        code => name(code),
    };
    env.say(format!("{when}, cuMemsetD8Async"), then);
    Ok(())
}

//! Two devices: what an address says of itself, seen from each. Nothing is asked where there is
//! one device.

use anyhow::Result;

use crate::environment::{Environment, cu, name, yes};
use crate::two::{apart, attribute, pool_at, set_access, wish};

/// Memory of the second device.
pub(crate) fn addresses(env: &Environment) -> Result<()> {
    apart(env, "", |two| {
        let pool = pool_at(env, 1, 1, 0)?;
        let block = two.block(env, pool, 1, 1000, 1)?;
        two.enter(env, Some(1))?;
        let plain = env.plain(1000)?;
        for access in [0, 3] {
            let code = set_access(env, pool, &[wish(1, 0, access)]);
            env.fine("cuMemPoolSetAccess", code)?;
            for (from, current) in [("0", Some(0)), ("1", Some(1)), ("none", None)] {
                two.enter(env, current)?;
                for (what, address) in [("pool", block), ("plain", plain)] {
                    let part =
                        |id: &str| format!("{what} memory, access {access}, context {from}, {id}");
                    for id in [2, 9, 16] {
                        let (code, value) = attribute(env, id, address);
                        env.say(part(&id.to_string()), format!("{}, {value}", name(code)));
                    }
                    let (code, value) = attribute(env, 3, address);
                    let same = yes(value == address);
                    env.say(part("3 is the address"), format!("{}, {same}", name(code)));
                    let (mut base, mut len) = (0, 0);
                    let code = cu!(
                        env,
                        cuMemGetAddressRange_v2(&raw mut base, &raw mut len, address)
                    );
                    env.say(part("range"), format!("{}, {len} B", name(code)));
                }
            }
        }
        Ok(())
    });
    Ok(())
}

/// Memory of a host's pool, taken on a stream of the second device.
pub(crate) fn host_memory(env: &Environment) -> Result<()> {
    apart(env, "", |two| {
        for kind in [2, 3] {
            let pool = pool_at(env, kind, 0, 0)?;
            two.enter(env, Some(1))?;
            let (code, block) = env.try_alloc(pool, 4096, two.streams[1]);
            env.code(format!("location {kind}, allocate"), code);
            for access in [None, Some(0), Some(1)] {
                if let Some(device) = access {
                    let code = set_access(env, pool, &[wish(1, device, 3)]);
                    env.fine("cuMemPoolSetAccess", code)?;
                }
                for (from, current) in [("0", Some(0)), ("1", Some(1)), ("none", None)] {
                    two.enter(env, current)?;
                    let given = access.map_or("nobody".into(), |device| device.to_string());
                    let part = |what: &str| {
                        format!("location {kind}, given to {given}, context {from}, {what}")
                    };
                    for id in [2, 3, 9, 16] {
                        let (code, value) = attribute(env, id, block);
                        let value = if id == 3 { 0 } else { value };
                        env.say(part(&id.to_string()), format!("{}, {value}", name(code)));
                    }
                }
            }
        }
        Ok(())
    });
    Ok(())
}

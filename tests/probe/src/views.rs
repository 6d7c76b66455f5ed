//! Two devices: what an address says of itself, seen from each. Nothing is asked where there is
//! one device.

use anyhow::Result;

use crate::lab::{Lab, cu, name, yes};
use crate::two::{apart, attribute, pool_at, set_access, wish};

/// Memory of the second device.
pub(crate) fn addresses(lab: &Lab) -> Result<()> {
    apart(lab, "", |two| {
        let pool = pool_at(lab, 1, 1, 0)?;
        let block = two.block(lab, pool, 1, 1000, 1)?;
        two.enter(lab, Some(1))?;
        let plain = lab.plain(1000)?;
        for access in [0, 3] {
            let code = set_access(lab, pool, &[wish(1, 0, access)]);
            lab.fine("cuMemPoolSetAccess", code)?;
            for (from, current) in [("0", Some(0)), ("1", Some(1)), ("none", None)] {
                two.enter(lab, current)?;
                for (what, address) in [("pool", block), ("plain", plain)] {
                    let part =
                        |id: &str| format!("{what} memory, access {access}, context {from}, {id}");
                    for id in [2, 9, 16] {
                        let (code, value) = attribute(lab, id, address);
                        lab.say(part(&id.to_string()), format!("{}, {value}", name(code)));
                    }
                    let (code, value) = attribute(lab, 3, address);
                    let same = yes(value == address);
                    lab.say(part("3 is the address"), format!("{}, {same}", name(code)));
                    let (mut base, mut len) = (0, 0);
                    let code = cu!(
                        lab,
                        cuMemGetAddressRange_v2(&raw mut base, &raw mut len, address)
                    );
                    lab.say(part("range"), format!("{}, {len} B", name(code)));
                }
            }
        }
        Ok(())
    });
    Ok(())
}

/// Memory of a host's pool, taken on a stream of the second device.
pub(crate) fn host_memory(lab: &Lab) -> Result<()> {
    apart(lab, "", |two| {
        for kind in [2, 3] {
            let pool = pool_at(lab, kind, 0, 0)?;
            two.enter(lab, Some(1))?;
            let (code, block) = lab.try_alloc(pool, 4096, two.streams[1]);
            lab.code(format!("location {kind}, allocate"), code);
            for access in [None, Some(0), Some(1)] {
                if let Some(device) = access {
                    let code = set_access(lab, pool, &[wish(1, device, 3)]);
                    lab.fine("cuMemPoolSetAccess", code)?;
                }
                for (from, current) in [("0", Some(0)), ("1", Some(1)), ("none", None)] {
                    two.enter(lab, current)?;
                    let given = access.map_or("nobody".into(), |device| device.to_string());
                    let part = |what: &str| {
                        format!("location {kind}, given to {given}, context {from}, {what}")
                    };
                    for id in [2, 3, 9, 16] {
                        let (code, value) = attribute(lab, id, block);
                        let value = if id == 3 { 0 } else { value };
                        lab.say(part(&id.to_string()), format!("{}, {value}", name(code)));
                    }
                }
            }
        }
        Ok(())
    });
    Ok(())
}

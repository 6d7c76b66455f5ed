//! Roughly the smallest limit under which a workload runs. A smaller one may happen to work.

use anyhow::Result;
use cuda_mem::{Arena, Device, ErrorKind, Stream};

use crate::is_asked_for;
use crate::replay::{pass, steps};
use crate::subjects::Subject;
use crate::workloads::all;

const METHOD: &str = "max_bytes of a new arena under which two passes of a workload succeed, and fail with 2 MiB less, over the most \
     bytes asked for at one moment; by bisection between once and twice those, streams synchronised between passes";

const STEP: u64 = 2 << 20;

pub(crate) fn measure(device: &Device) -> Result<()> {
    let context = device.primary_context()?;
    println!("\n{METHOD}\n");
    println!(
        "{:<30} {:>14} {:>14} {:>8}",
        "workload", "asked, MB", "least, MB", "ratio"
    );
    for workload in all()?
        .iter()
        .filter(|workload| is_asked_for(&workload.name))
    {
        let streams: cuda_mem::Result<Vec<Stream>> =
            (0..workload.streams).map(|_| context.stream()).collect();
        let (streams, steps) = (streams?, steps(workload)?);
        let runs_under = |limit: u64| -> Result<bool> {
            let arena = Arena::builder(device).max_bytes(limit).build()?;
            let resource = Subject::Arena(arena);
            for _ in 0..2 {
                let Err(error) = pass(&resource, &streams, &steps, workload.slots) else {
                    continue;
                };
                let refusal = error.downcast_ref::<cuda_mem::Error>();
                return match refusal.map(cuda_mem::Error::kind) {
                    Some(ErrorKind::OutOfMemory) => Ok(false),
                    _ => Err(error),
                };
            }
            Ok(true)
        };
        let (mut fails, mut runs) = (
            workload.peak.saturating_sub(1) / STEP,
            (2 * workload.peak).div_ceil(STEP),
        );
        if !runs_under(runs * STEP)? {
            println!(
                "{:<30} {:>14.0} {:>14}",
                workload.name,
                workload.peak as f64 / 1e6,
                "above twice"
            );
            continue;
        }
        while runs - fails > 1 {
            let limit = fails.midpoint(runs);
            if runs_under(limit * STEP)? {
                runs = limit;
            } else {
                fails = limit;
            }
        }
        println!(
            "{:<30} {:>14.0} {:>14.0} {:>8.4}",
            workload.name,
            workload.peak as f64 / 1e6,
            (runs * STEP) as f64 / 1e6,
            (runs * STEP) as f64 / workload.peak as f64
        );
    }
    Ok(())
}

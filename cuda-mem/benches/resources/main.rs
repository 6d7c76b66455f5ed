//! Cost of memory resources: each adaptor by itself, each resource that calls the driver, the ledger at each level, and
//! all resources on RMM's `random_allocations`.
//!
//! `cargo bench -p cuda-mem --bench resources [-- --json]`. `--quick` leaves out what takes long, for a check on the
//! simulated driver; `--adaptors` and `--watched` measure only these.

#[path = "../common/mod.rs"]
mod common;

mod adaptors;
mod ledger;
mod pairs;
mod traced;
mod watched;
mod workload;

use anyhow::Result;
use serde_json::json;

use common::{cpu, open};

fn main() -> Result<()> {
    let has = |option: &str| std::env::args().any(|argument| argument == option);
    let (json, quick) = (has("--json"), has("--quick"));
    let (driver, backend) = open()?;
    let device = driver.device(0)?;
    let stream = device.primary_context()?.stream()?;
    if has(watched::UNDER_TOOL) {
        println!("{}", watched::told(&device, &stream)?);
        return Ok(());
    }
    let heading = format!(
        "back end: {backend}, {}, CUDA {}, {}",
        device.name()?,
        driver.version(),
        cpu()
    );

    if has("--watched") {
        println!("{heading}");
        watched::show(&watched::measure(&device, &stream)?);
        traced::show(&traced::measure(&device, &stream)?);
        return Ok(());
    }
    let adaptors = adaptors::measure(&stream)?;
    if has("--adaptors") {
        println!("{heading}");
        adaptors::show(&adaptors);
        return Ok(());
    }
    let pairs = pairs::measure(driver, &stream, quick)?;
    let ledger = ledger::measure(driver, &stream)?;
    let watched = watched::measure(&device, &stream)?;
    let traced = traced::measure(&device, &stream)?;
    let runs = workload::measure(driver, &stream, quick)?;
    if json {
        let report = json!({
            "benchmark": "resources",
            "backend": backend,
            "device": device.name()?,
            "driver": driver.version().to_string(),
            "cpu": cpu(),
            "adaptors": { "method": adaptors::METHOD, "rows": adaptors::json(&adaptors) },
            "pairs": { "method": pairs::METHOD, "rows": pairs::json(&pairs) },
            "ledger": { "method": ledger::METHOD, "rows": ledger::json(&ledger) },
            "watched": { "method": watched::METHOD, "rows": watched::json(&watched) },
            "traced": { "method": traced::METHOD, "rows": traced::json(&traced) },
            "random_allocations": { "method": workload::METHOD, "rows": workload::json(&runs) },
        });
        println!("{report}");
        return Ok(());
    }
    println!("{heading}");
    adaptors::show(&adaptors);
    pairs::show(&pairs);
    ledger::show(&ledger);
    watched::show(&watched);
    traced::show(&traced);
    workload::show(&runs);
    Ok(())
}

//! Machines that lack something: each setting of the simulator in a process of its own. What can be made
//! is told beforehand, truly, and what cannot says why.

use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::driver::{AllocationType, HandleTypes, Location, Support};
use cuda_mem::{Driver, ErrorKind, MemoryPool, PoolBuilder};
use cuda_mem_tests::environment::Environment;

/// In this process a machine is described instead of tested.
const CHILD: &str = "CUDA_MEM_TEST_SUPPORT_CHILD";

/// The kinds that are asked about, by name.
fn kinds(driver: Driver) -> Result<Vec<(&'static str, PoolBuilder)>> {
    let device = driver.device(0)?;
    let at = |location, kind| MemoryPool::builder_at(driver, location, kind);
    let shared = |types| MemoryPool::builder(&device).handle_types(types);
    Ok(vec![
        ("plain", MemoryPool::builder(&device)),
        ("descriptor", shared(HandleTypes::POSIX_FILE_DESCRIPTOR)),
        ("fabric", shared(HandleTypes::FABRIC)),
        ("win32", shared(HandleTypes::WIN32)),
        ("host", at(Location::Host, AllocationType::Pinned)),
        ("numa", at(Location::HostNuma(0), AllocationType::Pinned)),
        ("managed", at(Location::Anywhere, AllocationType::Managed)),
        (
            "decompression",
            MemoryPool::builder(&device).hw_decompress(true),
        ),
    ])
}

/// Prints a line for each kind, after checking that building agrees, and that asking twice makes no
/// second trial.
fn describe(env: &Environment) -> Result<()> {
    for (name, builder) in kinds(env.driver)? {
        let control = env.control()?;
        let support = builder.support()?;
        control.reset();
        ensure!(builder.support()? == support, "{name}: the answer stays");
        ensure!(
            control.calls("cuMemPoolCreate") == 0,
            "{name}: tried a second time"
        );
        ensure!(control.live().pools == 0, "{name}: a trial was left over");
        match (support, builder.build()) {
            // An engine that is not there is no reason for the driver to refuse the pool.
            (Support::No(_), Ok(_)) if name == "decompression" => {}
            (Support::Yes, Ok(_)) => {}
            (Support::No(_), Err(error)) => {
                let known = matches!(
                    error.kind(),
                    ErrorKind::NotSupported | ErrorKind::InvalidValue
                );
                ensure!(known, "{name}: {error}");
            }
            (support, Ok(_)) => bail!("{name}: {support}, and a pool was made"),
            (support, Err(error)) => bail!("{name}: {support}, but {error}"),
        }
        // SAFETY: this is the only thread.
        unsafe { MemoryPool::destroy_spares() }?;
        println!("{name}: {support}");
    }
    Ok(())
}

/// The machine that the settings make supports `yes` and nothing else. Returns what it says.
fn machine(settings: &[(&str, &str)], yes: &[&str]) -> Result<String> {
    let output = Command::new(std::env::current_exe()?)
        .env(CHILD, "1")
        .env_remove("CUDA_VISIBLE_DEVICES")
        .envs(settings.iter().copied())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{settings:?}: {text}{errors}");
    let found: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_suffix(": yes"))
        .collect();
    ensure!(found == yes, "{settings:?}:\n{text}");
    Ok(text)
}

/// What the machine says of one kind.
fn said<'a>(text: &'a str, name: &str) -> Result<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        .with_context(|| format!("nothing about {name}:\n{text}"))
}

const ALL: [&str; 6] = ["plain", "descriptor", "fabric", "host", "numa", "managed"];

#[apply(case)]
fn an_h200_has_all_but_windows_handles_and_the_engine(_: &Environment) -> Result<()> {
    let text = machine(&[], &ALL)?;
    ensure!(said(&text, "decompression")? == "no (not on this device)");
    Ok(())
}

#[apply(case)]
fn without_pools_there_is_none_on_the_device(_: &Environment) -> Result<()> {
    let text = machine(&[("CUDA_SIM_POOLS", "0")], &[])?;
    ensure!(said(&text, "plain")? == "no (not on this device)", "{text}");
    Ok(())
}

#[apply(case)]
fn each_kind_may_be_missing(_: &Environment) -> Result<()> {
    for (setting, missing) in [
        ("CUDA_SIM_HOST_POOLS", "host"),
        ("CUDA_SIM_NUMA_POOLS", "numa"),
        ("CUDA_SIM_MANAGED_POOLS", "managed"),
    ] {
        let rest: Vec<&str> = ALL.into_iter().filter(|kind| *kind != missing).collect();
        machine(&[(setting, "0")], &rest)?;
    }
    Ok(())
}

/// Advertised, and refused when one is made: only a trial tells (R2).
#[apply(case)]
fn handle_types_that_are_a_lie_are_found_out(_: &Environment) -> Result<()> {
    let text = machine(
        &[("CUDA_SIM_BROKEN_HANDLE_TYPES", "9")],
        &["plain", "host", "numa", "managed"],
    )?;
    ensure!(
        said(&text, "descriptor")?.starts_with("no (tried"),
        "{text}"
    );
    let text = machine(
        &[("CUDA_SIM_HANDLE_TYPES", "0")],
        &["plain", "host", "numa", "managed"],
    )?;
    ensure!(
        said(&text, "descriptor")? == "no (not on this device)",
        "{text}"
    );
    Ok(())
}

/// From 12.2 on there are NUMA pools, and from 12.9 on an attribute that says so (R4).
#[apply(case)]
fn an_old_driver_is_named_and_a_middling_one_is_tried(_: &Environment) -> Result<()> {
    let old = machine(
        &[("CUDA_SIM_DRIVER_VERSION", "11080")],
        &["plain", "descriptor"],
    )?;
    for (kind, since) in [
        ("numa", "12.2"),
        ("fabric", "12.3"),
        ("host", "13.0"),
        ("managed", "13.0"),
        ("decompression", "12.8"),
    ] {
        let said = said(&old, kind)?;
        let wanted = format!("no (needs CUDA {since}, the driver has 11.8)");
        ensure!(said == wanted, "{kind}: {said}");
    }
    machine(
        &[("CUDA_SIM_DRIVER_VERSION", "12060")],
        &["plain", "descriptor", "fabric", "numa"],
    )?;
    let without = [
        ("CUDA_SIM_DRIVER_VERSION", "12060"),
        ("CUDA_SIM_NUMA_POOLS", "0"),
    ];
    let text = machine(&without, &["plain", "descriptor", "fabric"])?;
    ensure!(said(&text, "numa")?.starts_with("no (tried"), "{text}");
    Ok(())
}

/// Plays the part that another process has for this one, if it has one.
pub(crate) fn as_child() -> Option<Result<()>> {
    std::env::var_os(CHILD)?;
    Some(Environment::get_sim().and_then(describe))
}

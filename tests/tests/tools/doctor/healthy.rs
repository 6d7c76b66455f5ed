//! Machines that have what programs want, and what is told of them.

use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::sys::LIBRARY_VARIABLE;
use cuda_mem_tests::environment::{Backend, Environment, sim_path};

use super::{HANDLE, KINDS, doctor, document, ended, found, has, joined, list, machine};

/// Whatever the driver under test is, real or not.
#[apply(case)]
fn the_driver_under_test_is_described_and_left_alone(env: &Environment) -> Result<()> {
    let sim = sim_path()?.display().to_string();
    let mut command = doctor(&[(LIBRARY_VARIABLE, &sim)], &["--json"])?;
    if env.backend == Backend::Gpu {
        command.env_remove(LIBRARY_VARIABLE);
        if let Some(devices) = std::env::var_os("CUDA_VISIBLE_DEVICES") {
            command.env("CUDA_VISIBLE_DEVICES", devices);
        }
    }
    let value = document(command)?;
    let driver = &value["driver"];
    ensure!(
        driver["simulated"] == (env.backend == Backend::Sim),
        "{driver}"
    );
    ensure!(driver["error"].is_null() && driver["path"].is_string());
    let file = driver["file"].as_str().context("no file")?;
    ensure!(PathBuf::from(file).is_file(), "{file}");
    let device = &value["devices"][0];
    ensure!(device["name"] == env.device()?.name()?.as_str(), "{device}");
    ensure!(device["context"]["active_after"] == false, "{device}");
    Ok(())
}

#[apply(case)]
fn the_simulated_h200_is_ready(_: &Environment) -> Result<()> {
    let value = machine(&[])?;
    ensure!(value["verdict"] == "ready" && value["exit_code"] == 0);
    ensure!(value["driver"]["simulated"] == true && value["driver"]["cuda_version"] == "13.0");
    ensure!(value["environment"]["CUDA_VISIBLE_DEVICES"].is_null());
    let [device] = list(&value["devices"])? else {
        bail!("not one device: {value}");
    };
    found(device, "ready", &[], &[])?;
    ensure!(joined(&device["advice"])?.is_empty(), "{device:#}");
    has(
        &joined(&value["hints"])?,
        &["device 0", "release threshold", "raise it"],
    )?;
    ensure!(joined(&device["because"])?.is_empty());
    ensure!(device["strategy"]["kind"] == "pool" && device["measured"].is_null());
    // The other kinds are none of Windows'.
    let there: &[&str] = if cfg!(windows) {
        &["plain", HANDLE, "host"]
    } else {
        &KINDS
    };
    for kind in KINDS {
        ensure!(
            device["pools"][kind]["supported"] == there.contains(&kind),
            "{kind}: {device:#}"
        );
    }
    ensure!(device["default_pool"]["release_threshold_bytes"] == 0);
    Ok(())
}

/// Programs rely on the types, also where nothing is known.
#[apply(case)]
fn every_field_has_its_type(_: &Environment) -> Result<()> {
    for version in ["11000", "13000"] {
        let value = machine(&[("CUDA_SIM_DRIVER_VERSION", version)])?;
        let device = &value["devices"][0];
        for text in [
            "name",
            "uuid",
            "driver_model",
            "compute_capability",
            "verdict",
        ] {
            ensure!(device[text].is_string(), "{text}: {device:#}");
        }
        for number in ["ordinal", "total_bytes", "multiprocessors"] {
            ensure!(device[number].is_u64(), "{number}: {device:#}");
        }
        let can = &device["capabilities"];
        let handles = &can["pool_handle_types"];
        ensure!(handles["bits"].is_u64() && handles["names"].is_array());
        let flags = [
            "memory_pools",
            "virtual_memory",
            "unified_addressing",
            "concurrent_managed_access",
            "pageable_memory_access",
            "host_page_tables",
            "gpu_direct_rdma",
            "dma_buf",
            "host_memory_pools",
        ];
        let pools = KINDS.iter().map(|kind| &device["pools"][kind]);
        for answer in flags.iter().map(|flag| &can[flag]).chain(pools) {
            let supported = answer["supported"].as_bool().context("no answer")?;
            ensure!(answer["reason"].is_string() != supported, "{answer}");
            ensure!(answer["cause"].is_string() != supported, "{answer}");
            ensure!(
                answer["needs_cuda"].is_string() == (answer["cause"] == "driver_too_old"),
                "{answer}"
            );
        }
    }
    Ok(())
}

#[apply(case)]
fn tables_tell_the_same(_: &Environment) -> Result<()> {
    let (code, text) = ended(doctor(&[("CUDA_SIM_DEVICES", "2")], &["--simulate"])?)?;
    ensure!(code == 0, "{text}");
    let words = [
        "CUDA 13.0",
        "SIMULATED",
        "CUDA_VISIBLE_DEVICES: not set",
        "Simulated GPU 1",
        "139.8 GiB",
        "pool handle types",
        "default pool keeps",
        "reaches devices",
        "[1] not on this device",
        "] the release threshold of the pool that the device has by itself",
        "device 1: ready",
        "result: ready (exit code 0)",
    ];
    has(&text, &words)?;
    if cfg!(windows) {
        has(&text, &["WIN32", "shared by handle"])
    } else {
        let shared = ["POSIX_FILE_DESCRIPTOR | FABRIC", "shared by descriptor"];
        has(&text, &shared)
    }
}

#[apply(case)]
fn a_hint_is_said_once_whatever_the_number_of_devices(_: &Environment) -> Result<()> {
    // Both hints there are; the last device has no pools, so that the first is not about it.
    let three = [
        ("CUDA_SIM_DEVICES", "3"),
        ("CUDA_SIM_DRIVER_VERSION", "12020"),
        ("CUDA_SIM_NO_POOLS", "2"),
    ];
    let value = machine(&three)?;
    let [threshold, newer] = list(&value["hints"])? else {
        bail!("not two hints: {:#}", value["hints"]);
    };
    has(
        &threshold.to_string(),
        &["devices 0, 1,", "release threshold 0"],
    )?;
    has(&newer.to_string(), &["pools of host", "CUDA 13.0"])?;
    for device in list(&value["devices"])? {
        let advice = joined(&device["advice"])?;
        ensure!(!advice.contains("release threshold"), "{advice}");
    }
    let (_, text) = ended(doctor(&three, &["--simulate"])?)?;
    ensure!(text.matches("hint: ").count() == 2, "{text}");
    ensure!(
        text.matches("Pools of this crate keep").count() == 1,
        "{text}"
    );
    Ok(())
}

#[apply(case)]
fn measuring_times_both_and_says_how(_: &Environment) -> Result<()> {
    let value = document(doctor(&[], &["--simulate", "--json", "--measure"])?)?;
    let measured = &value["devices"][0]["measured"];
    for time in ["default_ns_per_pair", "direct_ns_per_pair", "ratio"] {
        ensure!(
            measured[time].as_f64().is_some_and(|time| time > 0.0),
            "{measured}"
        );
    }
    ensure!(measured["free_bytes"].as_u64().is_some_and(|free| free > 0));
    has(
        measured["method"].as_str().unwrap_or_default(),
        &["1000 pairs", "median"],
    )?;
    let (_, text) = ended(doctor(&[], &["--simulate", "--measure"])?)?;
    has(
        &text,
        &["method: ", "cuMemAlloc, a pair", "nothing about a GPU"],
    )
}

#[apply(case)]
fn without_memory_to_measure_with_it_is_limited(_: &Environment) -> Result<()> {
    let little = [("CUDA_SIM_MEMORY", "1M")];
    let value = document(doctor(&little, &["--simulate", "--json", "--measure"])?)?;
    let device = &value["devices"][0];
    found(
        device,
        "limited",
        &["could not be measured", "OUT_OF_MEMORY"],
        &["1 MiB"],
    )?;
    ensure!(device["measured"]["error"].is_string() && value["exit_code"] == 1);
    Ok(())
}

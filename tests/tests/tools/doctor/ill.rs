//! Machines that lack something: what is missing, why, and what to do.

use anyhow::{Context as _, Result, ensure};
use cuda_mem_tests::environment::Environment;
use serde_json::Value;

use super::{HANDLE, doctor, ended, found, has, joined, list, machine};

/// One device without pools.
fn is_slow(setting: (&str, &str), cause: &str, because: &str, advice: &[&str]) -> Result<Value> {
    let value = machine(&[setting])?;
    ensure!(value["exit_code"] == 1, "{setting:?}: {value:#}");
    let device = &value["devices"][0];
    found(
        device,
        "works, slowly",
        &["no memory pools", because],
        advice,
    )
    .with_context(|| format!("{setting:?}"))?;
    let strategy = &device["strategy"];
    ensure!(
        strategy["kind"] == "direct" && strategy["cause"] == cause,
        "{strategy}"
    );
    for kind in ["plain", HANDLE] {
        ensure!(
            device["pools"][kind]["supported"] == false,
            "{setting:?}: {device:#}"
        );
    }
    // The same for people.
    let (code, text) = ended(doctor(&[setting], &["--simulate"])?)?;
    ensure!(code == 1, "{text}");
    has(
        &text,
        &["cuMemAlloc [", "device 0: works, slowly", "(exit code 1)"],
    )?;
    Ok(value)
}

#[apply(case)]
fn without_pools_somebody_has_to_be_asked(_: &Environment) -> Result<()> {
    let reason = "not on this device";
    // Of Windows it is known that newer drivers have pools.
    let asked = if cfg!(windows) {
        "update the driver of Windows"
    } else {
        "ask the administrator"
    };
    let advice = [asked, "--measure", "Fallback::Refuse"];
    is_slow(("CUDA_SIM_POOLS", "0"), "device", reason, &advice)?;
    Ok(())
}

#[apply(case)]
fn windows_is_named_with_the_way_out(_: &Environment) -> Result<()> {
    let model = "CUDA_SIM_DRIVER_MODEL";
    let advice = ["TCC mode", "update the driver", "-dm 0"];
    let value = is_slow((model, "tcc"), "device", "driver model: TCC", &advice)?;
    ensure!(value["devices"][0]["driver_model"] == "TCC");
    // Outside Windows nothing tells the model but what is missing.
    is_slow(
        (model, "wddm"),
        "device",
        "not on this device",
        &["WDDM", "update the driver"],
    )?;
    Ok(())
}

#[apply(case)]
fn a_virtual_gpu_is_recognised(_: &Environment) -> Result<()> {
    let advice = ["points to a virtual GPU", "ask the administrator"];
    is_slow(
        ("CUDA_SIM_VGPU", "1"),
        "device",
        "not on this device",
        &advice,
    )?;
    Ok(())
}

/// The device says that it has pools, and the matrix must not.
#[apply(case)]
fn pools_that_are_a_lie_are_told_with_the_code(_: &Environment) -> Result<()> {
    let code = "CUDA_ERROR_NOT_SUPPORTED";
    let value = is_slow(("CUDA_SIM_BROKEN_POOLS", "1"), "refused", code, &[code])?;
    let device = &value["devices"][0];
    ensure!(device["capabilities"]["memory_pools"]["supported"] == true);
    ensure!(device["strategy"]["code"] == 801 && device["pools"]["plain"]["code"] == 801);
    Ok(())
}

#[apply(case)]
fn an_old_driver_is_told_which_to_install(_: &Environment) -> Result<()> {
    let old = ("CUDA_SIM_DRIVER_VERSION", "11000");
    let because = "needs CUDA 11.2, the driver has 11.0";
    let advice = ["CUDA 11.2 or newer", "version 460"];
    let value = is_slow(old, "driver_too_old", because, &advice)?;
    ensure!(value["devices"][0]["strategy"]["needs_cuda"] == "11.2");
    // Pools, but not all of them.
    let value = machine(&[("CUDA_SIM_DRIVER_VERSION", "11020")])?;
    found(
        &value["devices"][0],
        "limited",
        &["CUDA 11.2", "statistics"],
        &["CUDA 11.5", "495"],
    )?;
    let value = machine(&[("CUDA_SIM_DRIVER_VERSION", "12020")])?;
    found(&value["devices"][0], "ready", &[], &[])?;
    has(&joined(&value["hints"])?, &["CUDA 13.0", "version 580"])
}

#[apply(case)]
fn sharing_that_is_missing_or_a_lie_is_a_limit(_: &Environment) -> Result<()> {
    let value = machine(&[("CUDA_SIM_HANDLE_TYPES", "0")])?;
    let missing = [&*format!("no pools that are shared by {HANDLE}")];
    found(
        &value["devices"][0],
        "limited",
        &missing,
        &["virtual GPUs", "miss nothing"],
    )?;
    ensure!(value["exit_code"] == 1 && value["verdict"] == "limited");
    // `CU_MEM_HANDLE_TYPE_WIN32`, or descriptors.
    let own = if cfg!(windows) { "2" } else { "1" };
    let value = machine(&[("CUDA_SIM_BROKEN_HANDLE_TYPES", own)])?;
    let lie = ["promised and cannot be made", "(801)"];
    found(
        &value["devices"][0],
        "limited",
        &lie,
        &["PoolBuilder::support"],
    )?;
    if cfg!(windows) {
        // It promises no handles of fabrics.
        return Ok(());
    }
    // Few need these.
    let value = machine(&[("CUDA_SIM_BROKEN_HANDLE_TYPES", "8")])?;
    found(&value["devices"][0], "ready", &[], &["fabric handles"])
}

#[apply(case)]
fn devices_are_judged_one_by_one(_: &Environment) -> Result<()> {
    let mixed = [("CUDA_SIM_DEVICES", "2"), ("CUDA_SIM_NO_POOLS", "1")];
    let value = machine(&mixed)?;
    ensure!(
        value["exit_code"] == 1 && value["verdict"] == "works, slowly",
        "the worst counts"
    );
    found(&value["devices"][0], "ready", &[], &[])?;
    found(&value["devices"][1], "works, slowly", &[], &[])?;
    let (_, text) = ended(doctor(&mixed, &["--simulate"])?)?;
    has(
        &text,
        &[
            "device 0: ready",
            "device 1: works, slowly",
            "not on every device",
        ],
    )?;
    // The bad one hidden, all is well.
    let mut good = mixed.to_vec();
    good.push(("CUDA_VISIBLE_DEVICES", "0"));
    let value = machine(&good)?;
    ensure!(value["exit_code"] == 0, "{value:#}");
    ensure!(value["environment"]["CUDA_VISIBLE_DEVICES"] == "0");
    Ok(())
}

#[apply(case)]
fn peers_are_listed_in_both_directions(_: &Environment) -> Result<()> {
    let settings = [("CUDA_SIM_DEVICES", "3"), ("CUDA_SIM_NO_PEERS", "0-1")];
    let value = machine(&settings)?;
    let mut reached = Vec::new();
    for device in list(&value["devices"])? {
        for peer in list(&device["peers"])? {
            ensure!(peer["error"].is_null(), "{peer}");
            if peer["reached"] == true {
                reached.push((device["ordinal"].as_u64(), peer["ordinal"].as_u64()));
            }
        }
    }
    let pairs = [(0, 2), (1, 2), (2, 0), (2, 1)].map(|(a, b)| (Some(a), Some(b)));
    ensure!(reached == pairs, "{reached:?}");
    Ok(())
}

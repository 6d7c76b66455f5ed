//! Machines where there is nothing to examine.

use anyhow::{Result, ensure};
use cuda_mem::sys::LIBRARY_VARIABLE;
use cuda_mem_tests::environment::{Environment, sim_path};
use serde_json::{Value, json};

use super::{doctor, document, ended, has, joined, list};

/// Exit code 2, no device, this verdict and these words in the advice, in both forms. Returns the
/// error.
fn is_left(set: &[(&str, &str)], flags: &[&str], verdict: &str, advice: &str) -> Result<Value> {
    let json: Vec<&str> = flags.iter().copied().chain(["--json"]).collect();
    let mut value = document(doctor(set, &json)?)?;
    ensure!(
        value["exit_code"] == 2 && value["verdict"] == verdict,
        "{set:?}: {value:#}"
    );
    ensure!(
        list(&value["devices"])?.is_empty() && list(&value["hints"])?.is_empty(),
        "{value:#}"
    );
    // What was opened is told, also where it does not start.
    let driver = &value["driver"];
    let is_opened = verdict != "no driver";
    ensure!(
        driver["path"].is_string() == is_opened && driver["file"].is_string() == is_opened,
        "{driver:#}"
    );
    ensure!(driver["cuda_version"].is_null(), "{driver:#}");
    ensure!(
        driver["simulated"] == if is_opened { json!(true) } else { json!(null) },
        "{driver:#}"
    );
    has(&joined(&value["advice"])?, &[advice])?;
    let (code, text) = ended(doctor(set, flags)?)?;
    ensure!(code == 2, "{text}");
    has(
        &text,
        &["error: ", &format!("result: {verdict} (exit code 2)")],
    )?;
    let sim = sim_path()?.display().to_string();
    let banner = format!("driver: {sim}");
    ensure!(
        text.contains(&banner) == is_opened && text.contains("SIMULATED") == is_opened,
        "{text}"
    );
    Ok(value["driver"]["error"].take())
}

/// On a machine without a driver this is how it is. On any other, no device is left.
#[apply(case)]
fn the_simulator_is_never_taken_unasked(_: &Environment) -> Result<()> {
    let hidden = [("CUDA_VISIBLE_DEVICES", "")];
    let value = document(doctor(&hidden, &["--json"])?)?;
    ensure!(value["exit_code"] == 2, "{value:#}");
    ensure!(value["driver"]["simulated"] != true, "{value:#}");
    if value["verdict"] == "no driver" {
        let tried = list(&value["driver"]["error"]["tried"])?;
        let paths: Vec<_> = tried
            .iter()
            .filter_map(|one| one["path"].as_str())
            .collect();
        let name = if cfg!(windows) {
            "nvcuda.dll"
        } else {
            "libcuda.so.1"
        };
        ensure!(paths.contains(&name), "{paths:?}");
        ensure!(tried.iter().all(|one| one["reason"].is_string()));
        has(&joined(&value["advice"])?, &["--simulate"])?;
    }
    Ok(())
}

#[apply(case)]
fn a_library_that_is_not_there_is_named(_: &Environment) -> Result<()> {
    let set = [(LIBRARY_VARIABLE, "/nowhere/libcuda.so.1")];
    let error = is_left(&set, &[], "no driver", LIBRARY_VARIABLE)?;
    ensure!(error["kind"] == "DriverMissing", "{error:#}");
    let tried = list(&error["tried"])?;
    ensure!(
        tried.len() == 1 && tried[0]["path"] == "/nowhere/libcuda.so.1",
        "{error:#}"
    );
    Ok(())
}

#[apply(case)]
fn a_stub_is_no_driver(_: &Environment) -> Result<()> {
    let sim = sim_path()?.display().to_string();
    let set = [(LIBRARY_VARIABLE, sim.as_str()), ("CUDA_SIM_STUB", "1")];
    let error = is_left(&set, &[], "no driver", "the toolkit's stub")?;
    has(error["text"].as_str().unwrap_or_default(), &["stub", &sim])
}

/// It is there, so that nothing has to be built.
#[apply(case)]
fn a_simulated_stub_is_no_missing_simulator(_: &Environment) -> Result<()> {
    let set = [("CUDA_SIM_STUB", "1")];
    is_left(&set, &["--simulate"], "no driver", "CUDA_SIM_STUB is set")?;
    let (_, text) = ended(doctor(&set, &["--simulate"])?)?;
    ensure!(!text.contains("cargo build"), "{text}");
    Ok(())
}

#[apply(case)]
fn a_missing_simulator_is_told(_: &Environment) -> Result<()> {
    let set = [("CUDA_SIM_LIBRARY", "/nowhere/libcuda_sim.so")];
    let error = is_left(
        &set,
        &["--simulate"],
        "no driver",
        "cargo build -p cuda-sim",
    )?;
    has(&error.to_string(), &["CUDA_SIM_LIBRARY names", "/nowhere/"])
}

#[apply(case)]
fn no_device_is_told_with_what_may_hide_it(_: &Environment) -> Result<()> {
    let flags = ["--simulate"];
    let error = is_left(
        &[("CUDA_VISIBLE_DEVICES", "7")],
        &flags,
        "no device",
        "CUDA_VISIBLE_DEVICES is \"7\"",
    )?;
    ensure!(
        error["kind"] == "InvalidDevice" && error["code"] == 100,
        "{error:#}"
    );
    ensure!(error["function"] == "cuInit", "{error:#}");
    is_left(
        &[("CUDA_SIM_DEVICES", "0")],
        &flags,
        "no device",
        "CUDA_SIM_DEVICES is \"0\"",
    )?;
    Ok(())
}

#[apply(case)]
fn a_driver_that_does_not_start_is_told_by_its_code(_: &Environment) -> Result<()> {
    let of_the_system = if cfg!(windows) {
        "Device Manager"
    } else {
        "nvidia-uvm"
    };
    for (code, advice) in [
        (803, "two versions"),
        (802, "fabricmanager"),
        (999, of_the_system),
        (46, "compute mode"),
        (54321, "nvidia-smi"),
    ] {
        let text = code.to_string();
        let set = [("CUDA_SIM_INIT_ERROR", text.as_str())];
        let error = is_left(&set, &["--simulate"], "driver does not start", advice)?;
        ensure!(error["code"] == code, "{error:#}");
    }
    Ok(())
}

/// The machine is not to be blamed for it, let alone restarted.
#[apply(case)]
fn a_simulated_failure_is_told_as_one(_: &Environment) -> Result<()> {
    let sim = sim_path()?.display().to_string();
    let failing = ("CUDA_SIM_INIT_ERROR", "803");
    let named = (LIBRARY_VARIABLE, sim.as_str());
    for (set, flags) in [
        (&[failing][..], &["--simulate"][..]),
        (&[failing, named], &[]),
    ] {
        is_left(
            set,
            flags,
            "driver does not start",
            "CUDA_SIM_INIT_ERROR is \"803\"",
        )?;
        let json: Vec<&str> = flags.iter().copied().chain(["--json"]).collect();
        let value = document(doctor(set, &json)?)?;
        for line in joined(&value["advice"])?.lines() {
            let is_real = line.starts_with("Only if a real driver answered this: ");
            ensure!(is_real || !line.contains("restart"), "{line}");
        }
    }
    Ok(())
}

//! Looking at GPUs before touching them, on simulated machines: each in a process of its own.

mod child;

use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::sys::LIBRARY_VARIABLE;
use cuda_mem::sys::nvml::{NVML_LIBRARY_VARIABLE, nvmlReturn_t};
use cuda_mem_tests::environment::{Environment, sim_path};

/// In this process one of the scenarios of `child.rs` runs instead of the tests.
const CHILD: &str = "CUDA_MEM_TEST_NVML_CHILD";

/// Bytes that a choice asks for.
const ASKED: &str = "CUDA_MEM_TEST_NVML_ASKED";

/// What the simulated devices can give out, so that sums are easy.
const MEMORY: (&str, &str) = ("CUDA_SIM_MEMORY", "80G");
const EIGHT: (&str, &str) = ("CUDA_SIM_DEVICES", "8");

/// The outcome of a scenario as a text, on the machine that the settings make.
fn on(settings: &[(&str, &str)], scenario: &str) -> Result<String> {
    let library = nvidia_ml_sim::library_path().context("the simulated NVML was not built")?;
    let mut command = Command::new(std::env::current_exe()?);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CUDA_SIM_") || name.starts_with("NVML_SIM_") {
            command.env_remove(name.as_ref());
        }
    }
    let output = command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env(CHILD, scenario)
        .env(LIBRARY_VARIABLE, sim_path()?)
        .env(NVML_LIBRARY_VARIABLE, library)
        .envs([MEMORY, ("NVML_SIM_RESERVED", "1G")])
        .envs(settings.iter().copied())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{settings:?}: {text}{errors}");
    ensure!(errors.is_empty(), "{settings:?}: {errors}");
    Ok(text)
}

/// What follows a word in the line that starts with `start`.
fn line<'a>(text: &'a str, start: &str) -> Result<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(start))
        .with_context(|| format!("no line {start:?} in\n{text}"))
}

fn contains(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "no {part:?} in\n{text}");
    }
    Ok(())
}

mod looking {
    use super::*;

    #[apply(case)]
    fn eight_gpus_say_what_they_are_and_have(_: &Environment) -> Result<()> {
        let used = ("NVML_SIM_USED", "0:10G,3:70G");
        let processes = ("NVML_SIM_PROCESSES", "3:4711:1K,3:12");
        let modes = ("NVML_SIM_COMPUTE_MODE", "5:2,6:3,7:9");
        let text = on(&[EIGHT, used, processes, modes], "list")?;
        contains(&text, &["driver 580.159.04 cuda 13.0"])?;
        contains(
            line(&text, "0 ")?,
            &[
                "00000000:10:00.0",
                "total 81 free 70 used 10 reserved Some(1)",
            ],
        )?;
        let third = line(&text, "3 ")?;
        contains(
            third,
            &[
                "free 10 used 70",
                "[(4711, Some(1024)), (12, None)]",
                "mig Some(false)",
            ],
        )?;
        contains(
            line(&text, "7 ")?,
            &["00000000:17:00.0", "Other(9)", "Ok([])"],
        )?;
        contains(line(&text, "5 ")?, &["Prohibited"])?;
        contains(line(&text, "6 ")?, &["ExclusiveProcess"])
    }

    /// More processes than the first guess has room for.
    #[apply(case)]
    fn all_processes_are_listed_however_many(_: &Environment) -> Result<()> {
        let many: Vec<String> = (100..140).map(|pid| format!("0:{pid}")).collect();
        let text = on(&[("NVML_SIM_PROCESSES", &many.join(","))], "list")?;
        ensure!(text.matches(", None)").count() == 40, "{text}");
        Ok(())
    }

    /// What is reserved is counted as used, and the type says that it is.
    #[apply(case)]
    fn an_old_library_counts_what_is_reserved_as_used(_: &Environment) -> Result<()> {
        let missing = ("NVML_SIM_MISSING", "nvmlDeviceGetMemoryInfo_v2");
        let text = on(&[("NVML_SIM_USED", "0:10G"), missing], "list")?;
        contains(&text, &["total 81 free 70 used 11 reserved None"])
    }

    #[apply(case)]
    fn a_missing_function_is_an_error_or_an_unknown(_: &Environment) -> Result<()> {
        let missing = "nvmlDeviceGetMigMode,nvmlDeviceGetComputeRunningProcesses_v3";
        let text = on(&[("NVML_SIM_MISSING", missing)], "list")?;
        contains(&text, &["mig None", "Err(SymbolMissing)"])
    }

    #[apply(case)]
    fn a_mig_instance_is_found_from_its_gpu_and_from_cuda(_: &Environment) -> Result<()> {
        let used = ("NVML_SIM_USED", "1.1:5G");
        let text = on(&[EIGHT, ("NVML_SIM_MIG", "1:4"), used], "mig")?;
        ensure!(text == "free 20\nfree 15\nfree 20\nfree 20\n", "{text}");
        Ok(())
    }

    /// G7: NVML counts the machine's devices, the driver those that it shows.
    #[apply(case)]
    fn devices_are_mapped_whatever_the_variable_makes_of_them(_: &Environment) -> Result<()> {
        for (value, expected) in [
            (None, "0=0\n1=1\n2=2\n3=3\n4=4\n5=5\n6=6\n7=7\n"),
            (Some("5,2,7"), "0=5\n1=2\n2=7\n"),
            (Some("3"), "0=3\n"),
        ] {
            let mut settings = vec![EIGHT];
            settings.extend(value.map(|value| ("CUDA_VISIBLE_DEVICES", value)));
            let text = on(&settings, "map")?;
            ensure!(text == expected, "{value:?}: {text}");
        }
        let without = ("NVML_SIM_MISSING", "nvmlDeviceGetHandleByUUID");
        let text = on(&[EIGHT, ("CUDA_VISIBLE_DEVICES", "6,1"), without], "map")?;
        ensure!(text == "0=6\n1=1\n", "by the PCI bus: {text}");
        Ok(())
    }

    #[cfg(unix)]
    #[apply(case)]
    fn a_fork_may_start_the_driver_and_not_ask_nvml(_: &Environment) -> Result<()> {
        ensure!(on(&[], "fork")? == "fine\n");
        Ok(())
    }
}

mod choosing {
    use super::*;

    const USED: (&str, &str) = (
        "NVML_SIM_USED",
        "0:10G,1:60G,2:70G,3:5G,4:30G,5:30G,6:30G,7:30G",
    );

    #[apply(case)]
    fn the_freest_gpu_is_chosen_before_the_driver_is_called(_: &Environment) -> Result<()> {
        let text = on(&[EIGHT, USED], "pick")?;
        contains(&text, &["3 GPU-", "ordinal 3"])?;
        let text = on(&[EIGHT, USED, ("CUDA_VISIBLE_DEVICES", "7,3")], "pick")?;
        contains(&text, &["3 GPU-", "ordinal 1"])
    }

    #[apply(case)]
    fn a_choice_that_is_hidden_from_cuda_says_so(_: &Environment) -> Result<()> {
        let text = on(&[EIGHT, USED, ("CUDA_VISIBLE_DEVICES", "1,2")], "pick")?;
        contains(
            &text,
            &[
                "InvalidDevice: GPU-",
                "which sees GPU-",
                "CUDA_VISIBLE_DEVICES was \"1,2\" when",
            ],
        )
    }

    #[apply(case)]
    fn among_the_visible_ones_the_freest_is_chosen(_: &Environment) -> Result<()> {
        let text = on(&[EIGHT, USED, ("CUDA_VISIBLE_DEVICES", "2,1,4")], "visible")?;
        ensure!(text == "ordinal 2 Simulated GPU 4\n", "{text}");
        let text = on(&[("CUDA_SIM_DEVICES", "0")], "pick")?;
        contains(&text, &["InvalidDevice: no GPU will do: there is none"])?;
        let text = on(&[EIGHT, ("CUDA_VISIBLE_DEVICES", "")], "visible")?;
        contains(&text, &["InvalidDevice: cuInit answered"])
    }

    #[apply(case)]
    fn too_little_memory_says_how_much_each_has(_: &Environment) -> Result<()> {
        let settings = [
            ("CUDA_SIM_DEVICES", "2"),
            ("NVML_SIM_USED", "0:70G,1:60G"),
            (ASKED, "40"),
        ];
        for scenario in ["pick", "visible"] {
            let text = on(&settings, scenario)?;
            contains(
                &text,
                &[
                    "OutOfMemory: no GPU has 40.0 GiB free",
                    "10.0 GiB free of 81.0 GiB",
                    "20.0 GiB free",
                ],
            )?;
        }
        Ok(())
    }

    #[apply(case)]
    fn what_cannot_be_used_is_passed_over(_: &Environment) -> Result<()> {
        let four = ("CUDA_SIM_DEVICES", "4");
        let used = ("NVML_SIM_USED", "3:50G");
        let modes = ("NVML_SIM_COMPUTE_MODE", "0:2,1:3");
        let processes = ("NVML_SIM_PROCESSES", "1:1:1G");
        let settings = [four, used, modes, processes, ("NVML_SIM_LOST", "2")];
        contains(&on(&settings, "pick")?, &["3 GPU-", "ordinal 3"])?;
        let settings = [four, used, modes, processes, ("NVML_SIM_LOST", "2,3")];
        contains(
            &on(&settings, "pick")?,
            &[
                "InvalidDevice",
                "prohibits contexts",
                "has it for itself",
                "NVML_ERROR_GPU_IS_LOST (15)",
            ],
        )?;
        // One process at a time is fine while there is none.
        let settings = [("CUDA_SIM_DEVICES", "1"), ("NVML_SIM_COMPUTE_MODE", "0:3")];
        contains(&on(&settings, "pick")?, &["ordinal 0"])
    }

    /// Where MIG is on, CUDA uses the instances and never the whole GPU.
    #[apply(case)]
    fn instances_stand_for_a_divided_gpu(_: &Environment) -> Result<()> {
        let settings = [
            ("CUDA_SIM_DEVICES", "2"),
            ("NVML_SIM_MIG", "0:2"),
            ("NVML_SIM_USED", "0.0:10G,1:60G"),
        ];
        contains(&on(&settings, "pick")?, &["1 MIG-"])
    }
}

mod opening {
    use super::*;

    #[apply(case)]
    fn a_library_that_is_not_there_is_named(_: &Environment) -> Result<()> {
        let text = on(
            &[(NVML_LIBRARY_VARIABLE, "/nowhere/libnvidia-ml.so.1")],
            "open",
        )?;
        contains(
            &text,
            &[
                "code None",
                "NvmlMissing: no NVML library",
                "/nowhere/libnvidia-ml.so.1",
                NVML_LIBRARY_VARIABLE,
            ],
        )?;
        let driver = sim_path()?.display().to_string();
        let text = on(&[(NVML_LIBRARY_VARIABLE, &driver)], "open")?;
        contains(&text, &["NvmlMissing", "exports no nvmlInit_v2"])
    }

    #[apply(case)]
    fn a_start_that_fails_keeps_its_code(_: &Environment) -> Result<()> {
        for (code, kind) in [
            (9, "DriverMissing"),
            (12, "NvmlMissing"),
            (18, "Other"),
            (4, "NotPermitted"),
            (54321, "Other"),
        ] {
            let text = on(&[("NVML_SIM_ERROR", &code.to_string())], "open")?;
            let name = nvmlReturn_t(code).to_string();
            contains(
                &text,
                &[&format!("code Some({code})"), kind, "nvmlInit_v2", &name],
            )?;
        }
        Ok(())
    }

    /// Choosing goes on without what it can do without, and names what it cannot.
    #[apply(case)]
    fn every_missing_function_is_a_typed_error(_: &Environment) -> Result<()> {
        for symbol in cuda_mem::sys::nvml::NVML_SYMBOLS {
            let symbol = symbol.to_str()?;
            let without = ("NVML_SIM_MISSING", symbol);
            let (scenario, expected): (_, &[&str]) = match symbol {
                "nvmlInit_v2" => ("open", &["NvmlMissing", "exports no nvmlInit_v2"]),
                "nvmlDeviceGetCount_v2" => ("pick", &["SymbolMissing", symbol]),
                "nvmlDeviceGetHandleByIndex_v2" => ("pick", &["InvalidDevice", symbol]),
                "nvmlDeviceGetUUID" | "nvmlDeviceGetIndex" => ("uuid", &["SymbolMissing", symbol]),
                _ => ("pick", &["ordinal 0"]),
            };
            let text = on(&[without, (ASKED, "1")], scenario)?;
            contains(&text, expected).with_context(|| symbol.to_owned())?;
        }
        Ok(())
    }
}

/// Plays the part that another process has for this one, if it has one.
pub(crate) fn as_child() -> Option<Result<()>> {
    let scenario = std::env::var(CHILD).ok()?;
    Some(child::run(&scenario))
}

//! Windows on simulated machines that have gdrcopy, dma-bufs that can be mapped, both, or neither: each machine is a
//! process of its own, because libraries and settings are read once.

mod child;
mod closing;
mod libraries;
mod refusing;

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cuda_mem::sys::LIBRARY_VARIABLE;
use cuda_mem::sys::gdr::GDR_LIBRARY_VARIABLE;
use cuda_mem::sys::nvml::NVML_LIBRARY_VARIABLE;
use cuda_mem_tests::case::Kind;
use cuda_mem_tests::environment::{Environment, sim_path};
use cuda_mem_tests::own_process::output_within;
use cuda_mem_tests::suite::Suite;

/// In this process one of the scenarios runs instead of the tests.
const CHILD: &str = "CUDA_MEM_TEST_WINDOW_CHILD";

/// Every window of any machine, and which kinds of them a machine is to have.
const WINDOWS: Suite = Suite::made_of("windows-of-a-machine", |test| {
    (test.is_in("window") && test.kind == Kind::Any) || test.is_in("sim_machines::gdrcopy::child")
})
.sim_only()
.serial();

/// What the scenario is to find.
const EXPECTED: &str = "CUDA_MEM_TEST_WINDOW_EXPECTED";

/// Longer than any scenario takes that does not hang.
const PATIENCE: Duration = Duration::from_secs(300);

/// CUDA 13.3, whose dma-bufs the host can map.
const NEW: (&str, &str) = ("CUDA_SIM_DRIVER_VERSION", "13030");
const NO_MODULE: (&str, &str) = ("CUDA_SIM_GDR_OPEN_ERROR", "2");
const PERSISTENT: (&str, &str) = ("CUDA_SIM_GDR_PERSISTENT", "1");

fn version(number: &str) -> (&str, &str) {
    ("CUDA_SIM_GDR_VERSION", number)
}

fn mapping(kind: &str) -> (&str, &str) {
    ("CUDA_SIM_GDR_MAPPING", kind)
}

/// What a scenario prints on the machine that the settings make: one with gdrcopy's library unless they name another.
fn on(settings: &[(&str, &str)], scenario: &str, expected: &str) -> Result<String> {
    let gdr = gdrapi_sim::library_path().context("the simulated gdrcopy was not built")?;
    let mut command = Command::new(std::env::current_exe()?);
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CUDA_SIM_") || name.starts_with("NVML_SIM_") {
            command.env_remove(name.as_ref());
        }
    }
    command
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env_remove("GDRCOPY_USE_DMABUF_MMAP")
        .env(CHILD, scenario)
        .env(EXPECTED, expected)
        .env(LIBRARY_VARIABLE, sim_path()?)
        .env(GDR_LIBRARY_VARIABLE, gdr)
        .env(NVML_LIBRARY_VARIABLE, nvml()?)
        .envs(settings.iter().copied());
    let output = output_within(&mut command, PATIENCE)
        .with_context(|| format!("{scenario} with {settings:?}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{scenario} with {settings:?}: {}\n{text}{errors}",
        output.status
    );
    ensure!(errors.is_empty(), "{scenario} with {settings:?}: {errors}");
    Ok(text)
}

fn nvml() -> Result<OsString> {
    let library = nvidia_ml_sim::library_path().context("the simulated NVML was not built")?;
    Ok(library.into_os_string())
}

/// A scenario that says nothing.
fn fine(settings: &[(&str, &str)], scenario: &str, expected: &str) -> Result<()> {
    let text = on(settings, scenario, expected)?;
    ensure!(
        text.is_empty(),
        "{scenario} with {settings:?} says more: {text}"
    );
    Ok(())
}

/// What follows a word in the line that starts with it.
fn line<'a>(text: &'a str, start: &str) -> Result<&'a str> {
    let mut lines = text.lines();
    lines
        .find_map(|line| line.strip_prefix(start))
        .with_context(|| format!("no line {start:?} in {text:?}"))
}

fn contains(text: &str, parts: &[&str]) -> Result<()> {
    for part in parts {
        ensure!(text.contains(part), "no {part:?} in {text}");
    }
    Ok(())
}

/// The bodies that any driver is tested with, on machines whose kinds of windows are known: one that falls back to less
/// than these is a failure.
mod bodies {
    use super::*;

    const ALL: &str = "host-mapped dma-buf gdrcopy copies";
    const GDRCOPY: &str = "host-mapped gdrcopy copies";

    /// All bodies pass, none is skipped, and these kinds were had.
    fn pass(settings: &[(&str, &str)], expected: &str) -> Result<()> {
        let text = on(settings, "bodies", expected)?;
        let all = WINDOWS.tests().len();
        let result = format!("test result: ok. {all} passed; 0 failed; 0 ignored");
        ensure!(text.contains(&result), "{settings:?}: {text}");
        Ok(())
    }

    #[apply(case)]
    fn with_gdrcopy(_: &Environment) -> Result<()> {
        pass(&[], GDRCOPY)
    }

    /// Pins and maps by the first calls, and asks by the first struct.
    #[apply(case)]
    fn with_gdrcopy_of_older_versions(_: &Environment) -> Result<()> {
        for number in ["1.3", "2.0", "2.4"] {
            pass(&[version(number)], GDRCOPY)?;
        }
        Ok(())
    }

    #[apply(case)]
    fn with_gdrcopy_whatever_it_maps_and_keeps(_: &Environment) -> Result<()> {
        for kind in ["wc", "cached", "device"] {
            pass(&[mapping(kind), PERSISTENT], GDRCOPY)?;
        }
        for kind in ["cached", "device"] {
            pass(&[mapping(kind)], GDRCOPY)?;
        }
        Ok(())
    }

    #[apply(case)]
    fn with_dma_bufs(_: &Environment) -> Result<()> {
        pass(&[NEW, NO_MODULE], "host-mapped dma-buf copies")
    }

    #[apply(case)]
    fn with_both(_: &Environment) -> Result<()> {
        pass(&[NEW], ALL)?;
        pass(&[NEW, version("2.6"), mapping("cached"), PERSISTENT], ALL)
    }

    /// A library of 2.6 that has no module, and one that is told to do without.
    #[apply(case)]
    fn with_gdrcopy_through_dma_bufs(_: &Environment) -> Result<()> {
        pass(&[NEW, version("2.6"), NO_MODULE], ALL)?;
        let wanted = ("GDRCOPY_USE_DMABUF_MMAP", "1");
        pass(&[NEW, version("2.6"), wanted, mapping("cached")], ALL)
    }

    #[apply(case)]
    fn with_neither(_: &Environment) -> Result<()> {
        let none = ("CUDA_SIM_DMA_BUF_MMAP", "0");
        pass(&[NEW, none, NO_MODULE], "host-mapped copies")
    }
}

mod opening {
    use super::*;

    /// What is missing is told in these words, with this error number, or -1 for none.
    fn missing(settings: &[(&str, &str)], number: i32, words: &[&str]) -> Result<()> {
        let text = on(settings, "missing", "")?;
        let start = format!("GdrMissing {number}: ");
        ensure!(text.starts_with(&start), "no {start:?} in {text}");
        contains(&text, words)
    }

    #[apply(case)]
    fn a_library_that_is_not_there_is_named(_: &Environment) -> Result<()> {
        let nowhere = "/nowhere/libgdrapi.so.2";
        let words = [nowhere, GDR_LIBRARY_VARIABLE];
        missing(&[(GDR_LIBRARY_VARIABLE, nowhere)], -1, &words)?;
        let driver = sim_path()?.display().to_string();
        missing(
            &[(GDR_LIBRARY_VARIABLE, &driver)],
            -1,
            &[&driver, "gdr_open"],
        )?;
        let without = ("CUDA_SIM_GDR_MISSING", "gdr_open");
        missing(&[without], -1, &["gdr_open"])
    }

    #[apply(case)]
    fn a_module_that_does_not_open_says_why(_: &Environment) -> Result<()> {
        for (errno, words) in [
            ("2", "Load gdrcopy's kernel module (gdrdrv)"),
            ("13", "Let this user read and write it"),
            ("5", "See dmesg"),
        ] {
            let setting = ("CUDA_SIM_GDR_OPEN_ERROR", errno);
            missing(&[setting], errno.parse()?, &["/dev/gdrdrv", words])?;
        }
        Ok(())
    }

    #[apply(case)]
    fn a_module_that_is_too_old_says_so(_: &Environment) -> Result<()> {
        let old = ("CUDA_SIM_GDR_DRIVER_VERSION", "1.9");
        missing(&[old], 0, &["older than the library", "in one version"])
    }

    /// Dma-bufs in place of the module, where the driver's can be mapped.
    #[apply(case)]
    fn a_library_without_a_module_needs_dma_bufs(_: &Environment) -> Result<()> {
        missing(&[version("2.6"), NO_MODULE], 2, &["/dev/gdrdrv"])?;
        let facts = "2.6 NotSupported true true true";
        fine(
            &[NEW, version("2.6"), NO_MODULE],
            "attributes_sanity",
            facts,
        )
    }

    #[apply(case)]
    fn attributes_sanity(_: &Environment) -> Result<()> {
        let module = |number| ("CUDA_SIM_GDR_DRIVER_VERSION", number);
        for (settings, facts) in [
            (vec![], "2.5 2.5 false true false"),
            (vec![PERSISTENT], "2.5 2.5 true true false"),
            (vec![version("2.6"), PERSISTENT], "2.6 2.6 true true false"),
            (vec![module("2.4"), PERSISTENT], "2.5 2.4 false false false"),
            (vec![version("2.4")], "2.4 2.4 false false false"),
            (vec![version("2.0")], "2.0 2.0 false false false"),
            (
                vec![version("1.3")],
                "SymbolMissing SymbolMissing false false false",
            ),
        ] {
            fine(&settings, "attributes_sanity", facts)?;
        }
        Ok(())
    }

    /// Where no window opens on a device's memory, it is the host's.
    #[apply(case)]
    fn memory_that_suits_windows_is_where_they_open(_: &Environment) -> Result<()> {
        for (settings, places) in [
            (vec![NO_MODULE], "Host Host Device Host Host Device"),
            (vec![], "Device Host Device Host Device Device"),
            (
                vec![NEW, NO_MODULE],
                "Device Host Device Device Host Device",
            ),
            (vec![NEW], "Device Host Device Device Device Device"),
        ] {
            fine(&settings, "memory_that_suits", places)?;
        }
        Ok(())
    }

    /// Also where mapped memory cannot be pinned, and it is memory of `cuMemAlloc`.
    #[apply(case)]
    fn memory_for_windows_has_pages_of_its_own(_: &Environment) -> Result<()> {
        fine(&[], "memory_of_any_size", "")?;
        fine(&[("CUDA_SIM_VMM", "0")], "memory_of_any_size", "")
    }

    /// What an old library has no function for is an error that names it.
    #[apply(case)]
    fn wishes_need_version_2_5(_: &Environment) -> Result<()> {
        for number in ["1.3", "2.0", "2.4"] {
            let text = on(&[version(number)], "wishes", "")?;
            contains(
                line(&text, "pcie: ")?,
                &["not gdrcopy: gdrcopy's library has no gdr_pin_buffer_v2"],
            )?;
            for kind in ["wc: ", "cached: ", "device: "] {
                let lacks = "not gdrcopy: gdrcopy's library has no gdr_map_v2";
                contains(line(&text, kind)?, &[lacks])?;
            }
            ensure!(line(&text, "any: ")? == "write-combining", "{text}");
        }
        Ok(())
    }

    /// One function is missing: another is used, or the error names it.
    #[apply(case)]
    fn every_missing_function_is_a_typed_error(_: &Environment) -> Result<()> {
        for (symbols, expected) in [
            ("gdr_pin_buffer_v2", ""),
            ("gdr_map_v2", ""),
            ("gdr_get_info_v2", ""),
            ("gdr_pin_buffer,gdr_map,gdr_get_info", ""),
            ("gdr_copy_to_mapping,gdr_copy_from_mapping,gdr_close", ""),
            ("gdr_pin_buffer,gdr_pin_buffer_v2", "open: gdr_pin_buffer;"),
            ("gdr_map,gdr_map_v2", "open: gdr_map;"),
            ("gdr_get_info,gdr_get_info_v2", "open: gdr_get_info;"),
            ("gdr_get_callback_flag", "flag: gdr_get_callback_flag;"),
            ("gdr_unmap", "close: gdr_unmap;"),
            ("gdr_unpin_buffer", "close: gdr_unpin_buffer;"),
        ] {
            let text = on(&[("CUDA_SIM_GDR_MISSING", symbols)], "without", "")?;
            let Some((start, name)) = expected.split_once(' ') else {
                ensure!(text.is_empty(), "{symbols}: {text}");
                continue;
            };
            contains(
                line(&text, start)?,
                &[&format!("gdrcopy's library has no {name}")],
            )?;
            ensure!(text.lines().count() == 1, "{symbols}: {text}");
        }
        Ok(())
    }

    #[apply(case)]
    fn basic_cumemalloc_and_vmmalloc(_: &Environment) -> Result<()> {
        fine(&[], "memory_by_its_origin", "")
    }
}

mod refusals {
    use super::*;

    #[apply(case)]
    fn a_mapping_of_another_kind_is_a_reason_to_copy(_: &Environment) -> Result<()> {
        for (kind, name) in [
            ("wc", "write-combining"),
            ("cached", "cached"),
            ("device", "device"),
        ] {
            for settings in [vec![mapping(kind)], vec![mapping(kind), NEW]] {
                fine(&settings, "mapping_kinds", name)?;
            }
        }
        Ok(())
    }

    /// gdrcopy's basic_v2_forcepci, and the same of dma-bufs.
    #[apply(case)]
    fn basic_v2_forcepci(_: &Environment) -> Result<()> {
        let pcie = ("CUDA_SIM_DMA_BUF_PCIE", "1");
        for (settings, found) in [
            (
                vec![mapping("cached"), PERSISTENT],
                "gdrcopy write-combining",
            ),
            (vec![mapping("cached")], "InvalidValue gdr_pin_buffer_v2"),
            (vec![], "InvalidValue gdr_pin_buffer_v2"),
            (vec![NEW, pcie], "dma-buf not told"),
            (vec![NEW], "InvalidValue gdr_pin_buffer_v2"),
            (
                vec![NEW, mapping("cached"), PERSISTENT],
                "gdrcopy write-combining",
            ),
        ] {
            fine(&settings, "over_pcie", found)?;
        }
        Ok(())
    }

    #[apply(case)]
    fn a_dma_buf_that_is_not_mapped_says_its_error_number(_: &Environment) -> Result<()> {
        let broken = ("CUDA_SIM_BROKEN_DMA_BUF_MMAP", "1");
        fine(&[NEW, broken, NO_MODULE], "broken_dma_bufs", "copies")?;
        fine(&[NEW, broken], "broken_dma_bufs", "gdrcopy")
    }

    #[apply(case)]
    fn a_device_without_dma_bufs_is_not_asked_for_one(_: &Environment) -> Result<()> {
        fine(&[], "no_dma_bufs", "")?;
        fine(&[NEW, ("CUDA_SIM_DMA_BUF_MMAP", "0")], "no_dma_bufs", "")?;
        fine(&[NEW, ("CUDA_SIM_DMA_BUF", "0")], "no_dma_bufs", "")
    }

    #[apply(case)]
    fn what_does_not_fit_into_bar1_is_not_tried(_: &Environment) -> Result<()> {
        fine(&[NEW, ("NVML_SIM_BAR1_FREE", "128K")], "little_room", "")
    }
}

/// Nothing stays pinned or mapped. gdrcopy's other tests of invalidation use memory that is gone, which does not
/// compile here.
mod ends {
    use super::*;

    /// With the module, and with dma-bufs in its place.
    fn both(scenario: &str) -> Result<()> {
        fine(&[NEW], scenario, "")?;
        fine(&[NEW, version("2.6"), NO_MODULE], scenario, "")
    }

    #[apply(case)]
    fn basic_child_thread_pins_buffer(_: &Environment) -> Result<()> {
        both("child_threads_open_windows")
    }

    #[apply(case)]
    fn invalidation_two_mappings(_: &Environment) -> Result<()> {
        both("invalidation_two_mappings")?;
        fine(&[NEW, PERSISTENT], "invalidation_two_mappings", "")
    }

    #[apply(case)]
    fn leakage_pin_pages_fork(_: &Environment) -> Result<()> {
        both("leakage_pin_pages_fork")
    }

    #[apply(case)]
    fn a_fork_beside_a_call_waits_for_nothing(_: &Environment) -> Result<()> {
        fine(&[], "a_fork_beside_a_call", "")
    }

    #[apply(case)]
    fn failures_leave_nothing(_: &Environment) -> Result<()> {
        both("failures_leave_nothing")
    }

    #[apply(case)]
    fn every_end_gives_back(_: &Environment) -> Result<()> {
        fine(&[], "every_end_gives_back", "")
    }
}

/// Plays the part that another process has for this one, if it has one.
pub(crate) fn as_child() -> Option<Result<()>> {
    let scenario = std::env::var(CHILD).ok()?;
    Some(child::run(&scenario))
}

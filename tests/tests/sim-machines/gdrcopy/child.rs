//! What happens in the processes of their own.

use std::ffi::{CString, c_void};
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::cpu_mapping::{CpuMapping, CpuMappingKind, CpuMappingOptions, CpuMappingReason};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::run;
use cuda_mem_tests::window::{memory, memory_of_any_size};

use super::{EXPECTED, WINDOWS, closing, libraries, refusing};

/// Runs a scenario by its name.
pub(crate) fn run(scenario: &str) -> Result<()> {
    let env = Environment::get_sim()?;
    match scenario {
        "bodies" => return bodies(),
        "missing" => libraries::missing(env)?,
        "memory_that_suits" => libraries::memory_that_suits(env)?,
        "memory_of_any_size" => memory_of_any_size(&env.stream()?)?,
        "attributes_sanity" => libraries::attributes_sanity(env)?,
        "wishes" => libraries::wishes(env)?,
        "without" => {
            libraries::without(env)?;
            return Ok(());
        }
        "memory_by_its_origin" => libraries::memory_by_its_origin(env)?,
        "mapping_kinds" => refusing::mapping_kinds(env)?,
        "over_pcie" => refusing::over_pcie(env)?,
        "broken_dma_bufs" => refusing::broken_dma_bufs(env)?,
        "no_dma_bufs" => refusing::no_dma_bufs(env)?,
        "little_room" => refusing::little_room(env)?,
        "child_threads_open_windows" => closing::child_threads_open_windows(env)?,
        "invalidation_two_mappings" => closing::invalidation_two_mappings(env)?,
        "leakage_pin_pages_fork" => closing::leakage_pin_pages_fork(env)?,
        "a_fork_beside_a_call" => closing::a_fork_beside_a_call(env)?,
        "failures_leave_nothing" => closing::failures_leave_nothing(env)?,
        "every_end_gives_back" => {
            closing::every_end_gives_back(env)?;
            return Ok(());
        }
        other => bail!("no scenario {other}"),
    }
    ensure!(live()? == [0, 0], "something stays pinned");
    Ok(())
}

/// What the parent said, in words.
pub(crate) fn expected() -> Vec<String> {
    let text = std::env::var(EXPECTED).unwrap_or_default();
    text.split(' ').map(str::to_owned).collect()
}

/// Looks at what is pinned after the windows of the suite.
pub(crate) fn bodies() -> Result<()> {
    let code = run::suite(&WINDOWS);
    ensure!(code == ExitCode::SUCCESS, "a test failed");
    ensure!(live()? == [0, 0], "something stays pinned");
    Ok(())
}

#[apply(case_staged)]
fn the_kinds_that_were_named_are_had(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut had = Vec::new();
    for kind in CpuMappingKind::ALL {
        let mut buffer = memory::<u32>(&stream, kind, 1000)?;
        match CpuMappingOptions::new().only([kind]).open(&mut buffer) {
            Ok(window) => had.push(window.kind().to_string()),
            Err(error) => ensure!(error.kind() == ErrorKind::NoCpuMapping, "{error}"),
        }
    }
    ensure!(had == expected(), "{had:?}");
    Ok(())
}

/// Why a kind of window was not taken.
pub(crate) fn reason<T: bytemuck::Pod>(
    window: &CpuMapping<'_, T>,
    kind: CpuMappingKind,
) -> Result<CpuMappingReason> {
    let mut reasons = window.choice().left_out().iter();
    let found = reasons.find(|(other, _)| *other == kind);
    let (_, reason) = found.with_context(|| format!("{kind}: {}", window.choice()))?;
    Ok(reason.clone())
}

/// How much of this process is pinned by gdrcopy's library, and how much of that is mapped.
pub(crate) fn live() -> Result<[u64; 2]> {
    type Count = extern "C" fn() -> u64;

    let path = gdrapi_sim::library_path().context("the simulated gdrcopy was not built")?;
    let path = CString::new(path.into_os_string().into_encoded_bytes())?;
    // SAFETY: the simulated library, which stays open.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_LAZY) };
    let mut counts = [0; 2];
    for (name, count) in [c"simgdr_pins", c"simgdr_mappings"].iter().zip(&mut counts) {
        // SAFETY: the handle is open.
        let address = unsafe { libc::dlsym(library, name.as_ptr()) };
        // SAFETY: null is `None`; the library exports these names with this signature.
        let found = unsafe { std::mem::transmute::<*mut c_void, Option<Count>>(address) };
        *count = found.context("the library does not count")?();
    }
    Ok(counts)
}

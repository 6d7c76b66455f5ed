//! What cannot be had, and what is taken in its place.

use anyhow::{Context as _, Result, bail, ensure};
use cuda_mem::cpu_mapping::{
    CpuMapping, CpuMappingKind, CpuMappingOptions, CpuMappingReason, MappingKind,
};
use cuda_mem::memory::DirectResource;
use cuda_mem::{ErrorKind, Resource};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::window::memory;

use super::child::{expected, live, reason};

const KINDS: [MappingKind; 3] = [
    MappingKind::WriteCombining,
    MappingKind::Cached,
    MappingKind::Device,
];

/// The error for which a kind of window was left out.
fn failure(
    window: &CpuMapping<'_, u32>,
    kind: CpuMappingKind,
) -> Result<std::sync::Arc<cuda_mem::Error>> {
    match reason(window, kind)? {
        CpuMappingReason::Failed(error) => Ok(error),
        other => bail!("{kind}: {other}"),
    }
}

/// The kind of mapping that is expected is had when it is asked for, and named; any other is a reason to copy.
pub(crate) fn mapping_kinds(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let expected = expected().join(" ");
    let mut buffer = memory::<u32>(&stream, CpuMappingKind::Gdrcopy, 1000)?;
    for wanted in KINDS {
        let options = CpuMappingOptions::new().mapping(wanted);
        let mut window = options.open(&mut buffer)?;
        let about_dma_bufs = reason(&window, CpuMappingKind::DmaBuf)?;
        ensure!(
            !matches!(about_dma_bufs, CpuMappingReason::NotNeeded),
            "{about_dma_bufs}"
        );
        if wanted.to_string() == expected {
            ensure!(
                window.kind() == CpuMappingKind::Gdrcopy,
                "{}",
                window.choice()
            );
            ensure!(window.mapping() == Some(wanted), "{:?}", window.mapping());
            let info = window.gdr_info()?.context("it is gdrcopy's")?;
            let is_write_combining = wanted == MappingKind::WriteCombining;
            ensure!(info.wc_mapping() == is_write_combining, "{info:?}");
        } else {
            ensure!(
                window.kind() == CpuMappingKind::Copies,
                "{}",
                window.choice()
            );
            let error = failure(&window, CpuMappingKind::Gdrcopy)?;
            ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
            ensure!(error.function() == Some("gdr_map_v2"), "{error}");
            ensure!(live()? == [0, 0], "what was pinned is given back");
        }
        window.store(3, 5)?;
        ensure!(window.load(3)? == 5);
    }
    Ok(())
}

/// A way over PCIe: had as a write-combining mapping, or refused with a reason.
pub(crate) fn over_pcie(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut buffer = memory::<u32>(&stream, CpuMappingKind::Gdrcopy, 1000)?;
    let mut window = CpuMappingOptions::new()
        .force_pcie(true)
        .open(&mut buffer)?;
    let found = match window.kind() {
        CpuMappingKind::Copies => {
            let error = failure(&window, CpuMappingKind::Gdrcopy)?;
            format!("{:?} {}", error.kind(), error.function().unwrap_or(""))
        }
        kind => format!("{kind} {}", window.mapping().context("mapped")?),
    };
    window.store(3, 5)?;
    ensure!(window.load(3)? == 5);
    ensure!(
        found == expected().join(" "),
        "{found}: {}",
        window.choice()
    );
    Ok(())
}

/// Dma-bufs that are promised and cannot be mapped.
pub(crate) fn broken_dma_bufs(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut buffer = memory::<u32>(&stream, CpuMappingKind::DmaBuf, 1000)?;
    let mut window = CpuMappingOptions::new().open(&mut buffer)?;
    ensure!(
        window.kind().to_string() == expected().join(" "),
        "{}",
        window.choice()
    );
    let error = failure(&window, CpuMappingKind::DmaBuf)?;
    ensure!(error.function() == Some("mmap"), "{error}");
    ensure!(error.raw_os_error() == Some(libc::EACCES), "{error}");
    ensure!(
        window
            .choice()
            .to_string()
            .contains("a dma-buf of 4096 bytes"),
        "{}",
        window.choice()
    );
    window.store(3, 5)?;
    ensure!(window.load(3)? == 5);
    // What nobody else reaches is left as it was: copies wait only for those who asked for it.
    let direct = Resource::new(DirectResource::new(env.device()?));
    let mut plain = direct.alloc::<u8>(&stream, 2 << 20)?;
    let options = CpuMappingOptions::new().refuse([CpuMappingKind::Gdrcopy]);
    let window = options.open(&mut plain)?;
    ensure!(
        window.kind() == CpuMappingKind::Copies,
        "{}",
        window.choice()
    );
    window.close()?;
    ensure!(!plain.sync_memops()?);
    Ok(())
}

/// Dma-bufs that the device does not promise.
pub(crate) fn no_dma_bufs(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut buffer = memory::<u32>(&stream, CpuMappingKind::DmaBuf, 1000)?;
    let window = CpuMappingOptions::new().open(&mut buffer)?;
    let reason = reason(&window, CpuMappingKind::DmaBuf)?;
    ensure!(
        matches!(reason, CpuMappingReason::NoDmaBufMapping),
        "{reason}"
    );
    ensure!(
        window.kind() == CpuMappingKind::Gdrcopy,
        "{}",
        window.choice()
    );
    Ok(())
}

/// 128 KiB of BAR1 are free: windows that need more are copies, and say so.
pub(crate) fn little_room(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let page = 65_536;
    let mut buffer = memory::<u8>(&stream, CpuMappingKind::Gdrcopy, 2 << 20)?;
    // NVML is asked how much is free only where that counts.
    let copies = CpuMappingOptions::new().only([CpuMappingKind::Copies]);
    copies.open(&mut buffer)?.close()?;
    ensure!(!nvml_is_loaded()?);
    for (elements, fits) in [(0..1000, true), (65_000..132_000, false)] {
        let window = CpuMappingOptions::new().range(elements).open(&mut buffer)?;
        let (is_direct, choice) = (window.kind().is_direct(), window.choice().to_string());
        if fits {
            ensure!(is_direct, "{choice}");
            continue;
        }
        ensure!(window.address() % page != 0 && !is_direct, "{choice}");
        for kind in [CpuMappingKind::Gdrcopy, CpuMappingKind::DmaBuf] {
            let found = reason(&window, kind)?;
            let CpuMappingReason::Bar1Full { needed, free } = found else {
                bail!("{kind}: {found}");
            };
            ensure!((needed, free) == (3 * page, 2 * page), "{kind}: {found}");
        }
        ensure!(
            choice.contains("it needs 192.0 KiB of BAR1, which has 128.0 KiB free"),
            "{choice}"
        );
        ensure!(live()? == [0, 0], "it was not tried");
    }
    ensure!(nvml_is_loaded()?);
    Ok(())
}

fn nvml_is_loaded() -> Result<bool> {
    let path = nvidia_ml_sim::library_path().context("the simulated NVML was not built")?;
    let name = path
        .file_name()
        .context("a file")?
        .to_string_lossy()
        .into_owned();
    Ok(std::fs::read_to_string("/proc/self/maps")?.contains(&name))
}

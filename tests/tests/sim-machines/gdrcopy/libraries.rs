//! Libraries and kernel modules that are older, or not there.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::cpu_mapping::{CpuMappingKind, CpuMappingOptions, CpuMappingReason, Gdr};
use cuda_mem::driver::MemoryKind;
use cuda_mem::mapped::MappedMemory;
use cuda_mem::sys::gdr::gdr_mapping_type_t;
use cuda_mem::{Device, DeviceBuffer, Error, ErrorKind, Resource, Stream};
use cuda_mem_tests::environment::Environment;
use cuda_mem_tests::window::memory;

use super::child::{expected, live, reason};

/// `Gdr::load` fails, says what is missing in the words that are expected, and every window goes on without.
pub(crate) fn missing(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let error = Gdr::load().map(drop).err().context("it opened")?;
    let again = Gdr::load().map(drop).err().context("it opened later")?;
    ensure!(again.to_string() == error.to_string(), "{again}");
    // In pages of its own.
    let mut buffer = memory::<u32>(&stream, CpuMappingKind::Copies, 1 << 20)?;
    let window = CpuMappingOptions::new().open(&mut buffer)?;
    ensure!(
        window.kind() == CpuMappingKind::Copies,
        "{}",
        window.choice()
    );
    ensure!(window.gdr_info()?.is_none() && !window.is_revoked()?);
    let reason = reason(&window, CpuMappingKind::Gdrcopy)?;
    let CpuMappingReason::Failed(failed) = reason else {
        anyhow::bail!("{reason}");
    };
    ensure!(failed.to_string() == error.to_string(), "{failed}");
    println!(
        "{:?} {:?}: {error}",
        error.kind(),
        error.raw_os_error().unwrap_or(-1)
    );
    Ok(())
}

/// Where the memory is that suits a window here: as expected.
pub(crate) fn memory_that_suits(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let place = |options: &CpuMappingOptions| -> Result<MemoryKind> {
        let buffer = options.alloc::<u32>(&stream, 100)?;
        let info = env.driver.pointer_info(buffer.as_raw())?;
        Ok(info.context("it is the driver's")?.kind)
    };
    let found = [
        place(&CpuMappingOptions::new())?,
        place(&CpuMappingOptions::new().prefer([CpuMappingKind::HostMapped]))?,
        place(&CpuMappingOptions::new().refuse([CpuMappingKind::HostMapped]))?,
        place(&CpuMappingOptions::new().refuse([CpuMappingKind::Gdrcopy]))?,
        place(&CpuMappingOptions::new().refuse([CpuMappingKind::DmaBuf]))?,
        place(&CpuMappingOptions::new().only([CpuMappingKind::Copies]))?,
    ];
    let found: Vec<String> = found.iter().map(|kind| format!("{kind:?}")).collect();
    ensure!(found == expected(), "{found:?}");
    Ok(())
}

/// gdrcopy's attributes_sanity, and everything else that the library tells. What is expected: version of the library,
/// of the module, persistent, may be forced to PCIe, through dma-bufs.
pub(crate) fn attributes_sanity(_: &Environment) -> Result<()> {
    let gdr = Gdr::load()?;
    let path = gdrapi_sim::library_path().context("built")?;
    ensure!(gdr.library_path() == path && format!("{gdr:?}").contains("version"));
    ensure!(Gdr::load()?.library_path() == path);
    let version = |found: cuda_mem::Result<(u32, u32)>| match found {
        Ok((major, minor)) => format!("{major}.{minor}"),
        Err(error) => format!("{:?}", error.kind()),
    };
    let found = [
        version(gdr.runtime_version()),
        version(gdr.driver_version()),
        gdr.is_persistent()?.to_string(),
        gdr.can_force_pcie()?.to_string(),
        gdr.uses_dma_buf()?.to_string(),
    ];
    ensure!(found[..] == expected(), "{found:?}");
    for (kind, name) in [
        (gdr_mapping_type_t::GDR_MAPPING_TYPE_NONE, "None"),
        (gdr_mapping_type_t::GDR_MAPPING_TYPE_WC, "Write Combining"),
        (gdr_mapping_type_t::GDR_MAPPING_TYPE_CACHING, "Caching"),
        (gdr_mapping_type_t::GDR_MAPPING_TYPE_DEVICE, "Device"),
    ] {
        match gdr.mapping_name(kind) {
            Ok(found) => ensure!(found == name),
            Err(error) => ensure!(error.kind() == ErrorKind::SymbolMissing, "{error}"),
        }
    }
    match gdr.mapping_name(gdr_mapping_type_t(4)) {
        Ok(name) => anyhow::bail!("there is no such kind: {name}"),
        Err(error) if error.kind() == ErrorKind::SymbolMissing => {}
        Err(error) => ensure!(error.kind() == ErrorKind::InvalidValue, "{error}"),
    }
    // Whatever the machine's own module tells.
    Gdr::kernel_info()?;
    Ok(())
}

/// What `open` of gdrcopy alone answers, with a wish that the library may not know.
pub(crate) fn wishes(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut buffer = memory::<u32>(&stream, CpuMappingKind::Gdrcopy, 1000)?;
    let only = || CpuMappingOptions::new().only([CpuMappingKind::Gdrcopy]);
    for (wish, options) in [
        ("any", only()),
        ("pcie", only().force_pcie(true)),
        (
            "wc",
            only().mapping(cuda_mem::cpu_mapping::MappingKind::WriteCombining),
        ),
        (
            "cached",
            only().mapping(cuda_mem::cpu_mapping::MappingKind::Cached),
        ),
        (
            "device",
            only().mapping(cuda_mem::cpu_mapping::MappingKind::Device),
        ),
    ] {
        match options.open(&mut buffer) {
            Ok(window) => {
                let kind = window.mapping().context("it is mapped")?;
                println!("{wish}: {kind}");
            }
            Err(error) => {
                ensure!(error.kind() == ErrorKind::NoCpuMapping, "{error}");
                println!("{wish}: {error}");
            }
        }
        ensure!(live()? == [0, 0], "{wish}");
    }
    Ok(())
}

/// Opens and closes a window; answers what went wrong, and where.
pub(crate) fn without(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut buffer = memory::<u32>(&stream, CpuMappingKind::Gdrcopy, 1000)?;
    match CpuMappingOptions::new()
        .only([CpuMappingKind::Gdrcopy])
        .open(&mut buffer)
    {
        Err(error) => println!("open: {error}"),
        Ok(mut window) => {
            window.store(1, 1)?;
            let told = |what: &str, error: Error| println!("{what}: {:?}: {error}", error.kind());
            if let Err(error) = window.gdr_info() {
                told("info", error);
            }
            if let Err(error) = window.is_revoked() {
                told("flag", error);
            }
            if let Err(error) = window.close() {
                told("close", error);
            }
        }
    }
    Ok(())
}

/// gdrcopy's basic_cumemalloc, basic_vmmalloc and the memory that it refuses, over what the driver says of it.
pub(crate) fn memory_by_its_origin(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let device = env.device()?;
    let mut plain = memory::<u8>(&stream, CpuMappingKind::Gdrcopy, 100_000)?;
    let mut mapped = mapped(&device, &stream, true)?;
    for buffer in [&mut plain, &mut mapped] {
        let mut window = CpuMappingOptions::new()
            .only([CpuMappingKind::Gdrcopy])
            .open(buffer)?;
        let info = window.gdr_info()?.context("it is gdrcopy's")?;
        ensure!(info.mapped() && info.page_size == 65_536, "{info:?}");
        let (first, last) = (window.address(), window.address() + 100_000);
        ensure!(
            info.va <= first && last <= info.va + info.mapped_size,
            "{info:?}"
        );
        ensure!(!window.is_revoked()? && live()? == [1, 1]);
        window.write(0, &[7; 100_000])?;
        window.close()?;
        ensure!(live()? == [0, 0] && buffer.to_vec()?[99_999] == 7);
    }
    let mut other = self::mapped(&device, &stream, false)?;
    refused(&mut other, "NotGpuDirect")?;
    refused(&mut env.pool()?.alloc(&stream, 100_000)?, "NotGpuDirect")?;
    let managed = cuda_mem::mapped::ManagedBuffer::<u8>::zeroed(&stream, 100_000)?;
    refused(&mut managed.into_buffer(), "ManagedMemory")?;
    let host = Resource::new(cuda_mem::memory::PinnedResource::new(env.driver));
    refused(&mut host.alloc(&stream, 100_000)?, "MemoryOfHost")
}

fn mapped(device: &Device, stream: &Stream, rdma: bool) -> Result<DeviceBuffer<u8>> {
    let memory = MappedMemory::builder(device)
        .gpu_direct_rdma(rdma)
        .build(2 << 20)?;
    let buffer = memory.into_buffer(stream, 100_000);
    Ok(buffer.map_err(|failed| failed.error)?.into_buffer())
}

fn refused(buffer: &mut DeviceBuffer<u8>, expected: &str) -> Result<()> {
    let window = CpuMappingOptions::new().open(buffer)?;
    let reason = reason(&window, CpuMappingKind::Gdrcopy)?;
    ensure!(
        format!("{reason:?}") == expected,
        "{reason:?}, not {expected}"
    );
    Ok(())
}

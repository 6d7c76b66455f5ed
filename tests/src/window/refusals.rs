//! What cannot be had is said, and nothing is lost.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::cpu_mapping::{
    CpuMappingKind, CpuMappingOptions, CpuMappingReason, Gdr, MappingKind,
};
use cuda_mem::driver::Location;
use cuda_mem::interop::CaptureMode;
use cuda_mem::mapped::MappedMemory;
use cuda_mem::memory::{HostFlags, PinnedResource};
use cuda_mem::{Access, ErrorKind, Resource};

use super::{kinds, memory, open};
use crate::environment::Environment;
use crate::foreign;

#[apply(case)]
fn what_cannot_be_had_is_said(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let has = kinds(&stream)?;
    // Large enough to have pages of its own.
    let len = (2 << 20) / 4;
    let mut buffer = memory::<u32>(&stream, CpuMappingKind::Copies, len)?;
    buffer.fill(3)?;
    // Each kind that is not here says why, also in words.
    for kind in [
        CpuMappingKind::DmaBuf,
        CpuMappingKind::Gdrcopy,
        CpuMappingKind::HostMapped,
    ] {
        if has.contains(&kind) && kind != CpuMappingKind::HostMapped {
            continue;
        }
        let refused = CpuMappingOptions::new()
            .only([kind])
            .open(&mut buffer)
            .map(drop);
        let error = refused.expect_err("it is not here");
        ensure!(error.kind() == ErrorKind::NoCpuMapping, "{error}");
        ensure!(
            error.to_string().contains(&format!("not {kind}: ")),
            "{error}"
        );
    }
    if !has.contains(&CpuMappingKind::Gdrcopy) {
        let error = Gdr::load()
            .map(drop)
            .expect_err("or there would be such windows");
        ensure!(error.kind() == ErrorKind::GdrMissing, "{error}");
        // It comes behind dma-bufs.
        let others = CpuMappingOptions::new().refuse([CpuMappingKind::DmaBuf]);
        let window = others.open(&mut buffer)?;
        let reasons = window.choice().left_out();
        let (_, reason) = reasons
            .iter()
            .find(|(kind, _)| *kind == CpuMappingKind::Gdrcopy)
            .context("it was left out")?;
        let CpuMappingReason::Failed(error) = reason else {
            anyhow::bail!("tried and failed, not {reason}");
        };
        ensure!(error.kind() == ErrorKind::GdrMissing);
        // The library, or the device of its kernel module.
        let text = error.to_string();
        ensure!(
            text.contains("libgdrapi") || text.contains("gdrdrv"),
            "{text}"
        );
    }
    let none = CpuMappingOptions::new()
        .refuse(CpuMappingKind::ALL)
        .open(&mut buffer);
    let error = none.map(drop).expect_err("all are refused");
    ensure!(error.kind() == ErrorKind::NoCpuMapping && error.to_string().contains("not wanted"));
    ensure!(buffer.to_vec()? == vec![3; len], "nothing is lost");
    Ok(())
}

#[apply(case)]
fn preferences_are_kept(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let mut host = memory::<u32>(&stream, CpuMappingKind::HostMapped, 100)?;
    ensure!(CpuMappingOptions::new().open(&mut host)?.kind() == CpuMappingKind::HostMapped);
    for (options, expected) in [
        (
            CpuMappingOptions::new().prefer([CpuMappingKind::Copies]),
            CpuMappingKind::Copies,
        ),
        (
            CpuMappingOptions::new().prefer([CpuMappingKind::DmaBuf]),
            CpuMappingKind::HostMapped,
        ),
        (
            CpuMappingOptions::new().refuse([CpuMappingKind::HostMapped]),
            CpuMappingKind::Copies,
        ),
        (
            CpuMappingOptions::new().mapping(MappingKind::Cached),
            CpuMappingKind::HostMapped,
        ),
        (
            CpuMappingOptions::new().mapping(MappingKind::WriteCombining),
            CpuMappingKind::Copies,
        ),
    ] {
        let window = options.open(&mut host)?;
        ensure!(
            window.kind() == expected,
            "{options:?}: {}",
            window.choice()
        );
    }
    let text = CpuMappingOptions::new()
        .open(&mut host)?
        .choice()
        .to_string();
    ensure!(
        text.starts_with("host-mapped; not dma-buf: the memory is the host's"),
        "{text}"
    );
    Ok(())
}

#[apply(case_alone)]
fn a_capture_is_not_disturbed(env: &Environment) -> Result<()> {
    let (stream, other) = (env.stream()?, env.stream()?);
    let mut host = memory::<u32>(&other, CpuMappingKind::HostMapped, 100)?;
    let mut device = memory::<u32>(&other, CpuMappingKind::Copies, 100)?;
    let mut copies = open(&mut device, CpuMappingKind::Copies)?;
    copies.store(0, 1)?;
    for mode in [
        CaptureMode::Global,
        CaptureMode::ThreadLocal,
        CaptureMode::Relaxed,
    ] {
        let (_, seen) = stream.capture(mode, |_| {
            let mut window = CpuMappingOptions::new().open(&mut host)?;
            window.store(5, 55)?;
            copies.store(5, 66)?;
            Ok((window.load(5)?, copies.load(5)?))
        })?;
        ensure!(seen == (55, 66), "{mode:?}");
    }
    // The buffer's own stream: a window would have to wait for it.
    let refused = other.capture(CaptureMode::Relaxed, |_| {
        let refused = CpuMappingOptions::new().open(&mut host).map(drop);
        Ok(refused.expect_err("its stream is captured").kind())
    });
    ensure!(refused?.1 == ErrorKind::Capturing);
    Ok(())
}

#[apply(case)]
fn memory_that_the_host_may_not_touch_is_copied(env: &Environment) -> Result<()> {
    env.need_node()?;
    let stream = env.stream()?;
    for (of_host, expected) in [
        (None, CpuMappingKind::Copies),
        (Some(Access::ReadWrite), CpuMappingKind::HostMapped),
    ] {
        let mut memory = MappedMemory::builder_at(env.driver, Location::HostNuma(0))
            .accessible_from([Location::Device(env.device()?)])
            .build(1)?;
        if let Some(access) = of_host {
            memory.set_access([(Location::Host, access)])?;
        }
        let mut buffer = memory
            .into_buffer::<u32>(&stream, 100)
            .map_err(|failed| failed.error)?;
        let mut window = CpuMappingOptions::new().open(&mut buffer)?;
        ensure!(window.kind() == expected, "{}", window.choice());
        window.store(3, 33)?;
        ensure!(window.load(3)? == 33);
    }
    Ok(())
}

#[apply(case)]
fn combined_memory_is_told_so(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    for (flags, expected) in [
        (HostFlags::PORTABLE, MappingKind::Cached),
        (HostFlags::WRITE_COMBINED, MappingKind::WriteCombining),
    ] {
        let pinned = Resource::new(PinnedResource::with_flags(env.driver, flags));
        let mut buffer = pinned.alloc::<u32>(&stream, 1000)?;
        let mut window = CpuMappingOptions::new().open(&mut buffer)?;
        ensure!(window.mapping() == Some(expected), "{flags:?}: {window:?}");
        window.write(0, &[7; 1000])?;
        window.flush()?;
        let mut seen = [0; 1000];
        window.read(0, &mut seen)?;
        ensure!(seen == [7; 1000] && window.load(999)? == 7);
    }
    Ok(())
}

#[apply(case)]
fn a_wish_for_a_mapping_holds_for_memory_of_the_host(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let kinds = [MappingKind::WriteCombining, MappingKind::Cached];
    for kind in kinds {
        let only = CpuMappingOptions::new().only([CpuMappingKind::HostMapped]);
        let mut buffer = only.clone().mapping(kind).alloc::<u32>(&stream, 100)?;
        ensure!(only.open(&mut buffer)?.mapping() == Some(kind));
        for wish in kinds {
            let wished = only.clone().mapping(wish).open(&mut buffer);
            match wished {
                Ok(mut window) => {
                    ensure!(wish == kind && window.mapping() == Some(kind));
                    window.store(99, 7)?;
                    window.write(0, &[1, 2, 3])?;
                }
                Err(error) => {
                    ensure!(
                        wish != kind && error.kind() == ErrorKind::NoCpuMapping,
                        "{error}"
                    );
                }
            }
        }
        let all = buffer.to_vec()?;
        ensure!(all[..3] == [1, 2, 3] && all[99] == 7, "{kind}");
    }
    Ok(())
}

#[apply(case_alone)]
fn a_capture_of_somebody_else_is_not_disturbed(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (captured, stream) = (env.stream()?, env.stream()?);
    let options = CpuMappingOptions::new().only([CpuMappingKind::HostMapped]);
    let mut buffer = options.alloc::<u32>(&stream, 100)?;
    for mode in 0..3 {
        buffer.fill(7)?;
        foreign::begin(&captured, mode)?;
        let mut window = options.open(&mut buffer)?;
        ensure!(window.load(99)? == 7, "what the stream did is waited for");
        window.store(5, mode)?;
        window.close()?;
        foreign::end_well(&captured)?;
        ensure!(buffer.to_vec()?[5] == mode);
        // The buffer's own stream cannot be waited for.
        foreign::begin(&stream, mode)?;
        let refused = options.open(&mut buffer).map(drop);
        foreign::end_well(&stream)?;
        let error = refused.expect_err("its stream is captured");
        ensure!(error.kind() == ErrorKind::Capturing, "{error}");
    }
    Ok(())
}

//! What the driver was told of managed memory, and says again.

use anyhow::{Result, ensure};
use cuda_mem::driver::Location;
use cuda_mem::mapped::{Advice, ManagedBuffer, RangeInfo};

use super::{LARGE, large, need_concurrent};
use crate::environment::{Environment, host_page};
use crate::forks;

/// Nothing was told, but where it was sent.
fn nothing_but(info: &RangeInfo) -> bool {
    !info.read_mostly && info.preferred_location.is_none() && info.accessed_by.is_empty()
}

#[apply(case)]
fn advice_is_told_and_taken_back(env: &Environment) -> Result<()> {
    let buffer = large(env)?;
    let device = Location::Device(env.device()?);
    ensure!(
        buffer.info()? == RangeInfo::default(),
        "{:?}",
        buffer.info()?
    );
    for place in [device, Location::Host] {
        for advice in [
            Advice::ReadMostly,
            Advice::PreferredLocation(place),
            Advice::AccessedBy(place),
        ] {
            // Twice is as good as once.
            buffer.advise(advice)?;
            buffer.advise(advice)?;
            let info = buffer.info()?;
            ensure!(
                info.read_mostly == (advice == Advice::ReadMostly),
                "{advice:?}: {info:?}"
            );
            let preferred = (advice == Advice::PreferredLocation(place)).then_some(place);
            ensure!(info.preferred_location == preferred, "{advice:?}: {info:?}");
            let users = (advice == Advice::AccessedBy(place)).then_some(place);
            ensure!(
                info.accessed_by == Vec::from_iter(users),
                "{advice:?}: {info:?}"
            );
            ensure!(info.last_prefetch.is_none(), "{info:?}");
            buffer.unadvise(advice)?;
            buffer.unadvise(advice)?;
            ensure!(
                nothing_but(&buffer.info()?),
                "{advice:?}: {:?}",
                buffer.info()?
            );
        }
    }
    // Which place was preferred does not matter when that ends.
    buffer.advise(Advice::PreferredLocation(device))?;
    buffer.unadvise(Advice::PreferredLocation(Location::Host))?;
    ensure!(nothing_but(&buffer.info()?), "{:?}", buffer.info()?);
    Ok(())
}

#[apply(case)]
fn a_part_is_told_of_alone(env: &Environment) -> Result<()> {
    let buffer = large(env)?;
    let device = Location::Device(env.device()?);
    let (first, second) = (buffer.range(..LARGE / 2)?, buffer.range(LARGE / 2..)?);
    for advice in [
        Advice::ReadMostly,
        Advice::PreferredLocation(device),
        Advice::AccessedBy(device),
    ] {
        first.advise(advice)?;
    }
    let info = first.info()?;
    ensure!(
        info.read_mostly && info.preferred_location == Some(device),
        "{info:?}"
    );
    ensure!(info.accessed_by == [device], "{info:?}");
    ensure!(nothing_but(&second.info()?), "{:?}", second.info()?);
    ensure!(nothing_but(&buffer.info()?), "{:?}", buffer.info()?);
    second.advise(Advice::PreferredLocation(Location::Host))?;
    ensure!(second.info()?.preferred_location == Some(Location::Host));
    ensure!(buffer.info()?.preferred_location.is_none(), "there are two");
    buffer.advise(Advice::PreferredLocation(device))?;
    ensure!(buffer.info()?.preferred_location == Some(device));
    Ok(())
}

#[apply(case)]
fn a_page_is_told_of_as_a_whole(env: &Environment) -> Result<()> {
    let buffer = large(env)?;
    // In the middle of the buffer, and two bytes beyond its ends.
    let (begin, end) = (LARGE / 2, LARGE / 2 + host_page());
    buffer
        .range(begin + 5..begin + 6)?
        .advise(Advice::ReadMostly)?;
    ensure!(buffer.range(begin..end)?.info()?.read_mostly);
    ensure!(!buffer.range(begin - 1..end)?.info()?.read_mostly);
    ensure!(!buffer.info()?.read_mostly);
    buffer
        .range(begin + 1..begin + 2)?
        .unadvise(Advice::ReadMostly)?;
    ensure!(!buffer.range(begin..end)?.info()?.read_mostly);
    Ok(())
}

/// The driver by itself takes the first of two pages only (R162).
#[apply(case)]
fn a_range_over_a_border_is_both_pages(env: &Environment) -> Result<()> {
    let buffer = large(env)?;
    let device = Location::Device(env.device()?);
    let border = LARGE / 2;
    let over = buffer.range(border - 1..border + 1)?;
    let (before, behind) = (
        buffer.range(border - 1..border)?,
        buffer.range(border..border + 1)?,
    );
    over.advise(Advice::ReadMostly)?;
    ensure!(before.info()?.read_mostly && behind.info()?.read_mostly);
    before.unadvise(Advice::ReadMostly)?;
    ensure!(!over.info()?.read_mostly, "not of the first page");
    over.advise(Advice::ReadMostly)?;
    behind.unadvise(Advice::ReadMostly)?;
    ensure!(!over.info()?.read_mostly, "not of the second page");
    over.prefetch(device)?;
    ensure!(before.info()?.last_prefetch == Some(device));
    ensure!(behind.info()?.last_prefetch == Some(device));
    Ok(())
}

/// Small buffers begin in the middle of a page, and nothing before them is theirs.
#[apply(case_alone)]
fn small_buffers_are_told_of_to_their_last_byte(env: &Environment) -> Result<()> {
    need_concurrent(env)?;
    let (stream, device) = (env.stream()?, Location::Device(env.device()?));
    for len in [600, 3000, 4096, 5600, 3 * 4096 - 1000] {
        let make = || ManagedBuffer::<u8>::uninit(&stream, len);
        let buffers = (0..9).map(|_| make()).collect::<Result<Vec<_>, _>>()?;
        for buffer in &buffers {
            let user = Advice::AccessedBy(device);
            buffer.advise(user)?;
            buffer.advise(Advice::ReadMostly)?;
            buffer.prefetch(Location::Host)?;
            for part in [0..1, len - 1..len, 0..len] {
                let info = buffer.range(part.clone())?.info()?;
                let told = info.read_mostly && info.accessed_by == [device];
                ensure!(told, "{part:?} of {len} bytes: {info:?}");
                ensure!(info.last_prefetch == Some(Location::Host), "{info:?}");
            }
            let last = buffer.range(len - 1..)?;
            last.unadvise(Advice::ReadMostly)?;
            let (all, end) = (buffer.info()?, last.info()?);
            ensure!(
                !all.read_mostly,
                "not of the last of {len} bytes at {:#x}: {all:?}, {end:?}",
                buffer.as_raw()
            );
            buffer.unadvise(user)?;
            ensure!(last.info()?.accessed_by.is_empty());
            buffer.prefetch(device)?;
        }
    }
    Ok(())
}

/// Alone, because a fork copies only the thread that forks.
#[apply(case_alone)]
fn in_a_fork_nothing_was_counted(env: &Environment) -> Result<()> {
    let buffer = large(env)?;
    buffer.prefetch(Location::Host)?;
    // SAFETY: the child asks what needs no lock and no memory, and ends at once.
    let child = unsafe { forks::fork() }?;
    if child == 0 {
        let none = buffer.migrations() == cuda_mem::mapped::MigrationStats::default()
            && buffer.migrations_to(Location::Host) == cuda_mem::mapped::MigrationStats::default()
            && env.driver.migrations_to(Location::Host)
                == cuda_mem::mapped::MigrationStats::default();
        forks::end_child(none);
    }
    forks::ends_well(child)?;
    ensure!(buffer.migrations().prefetches == 1);
    Ok(())
}

#[apply(case)]
fn the_last_prefetch_is_known(env: &Environment) -> Result<()> {
    let buffer = large(env)?;
    let device = Location::Device(env.device()?);
    ensure!(buffer.info()?.last_prefetch.is_none());
    for place in [device, Location::Host, device] {
        buffer.prefetch(place)?;
        ensure!(
            buffer.info()?.last_prefetch == Some(place),
            "{:?}",
            buffer.info()?
        );
    }
    buffer.range(..LARGE / 2)?.prefetch(Location::Host)?;
    let (first, second) = (buffer.range(..LARGE / 2)?, buffer.range(LARGE / 2..)?);
    ensure!(first.info()?.last_prefetch == Some(Location::Host));
    ensure!(second.info()?.last_prefetch == Some(device));
    ensure!(buffer.info()?.last_prefetch.is_none());
    Ok(())
}

#[apply(case)]
fn several_may_access_it(env: &Environment) -> Result<()> {
    let buffer = large(env)?;
    let device = Location::Device(env.device()?);
    buffer.advise(Advice::AccessedBy(device))?;
    buffer.advise(Advice::AccessedBy(Location::Host))?;
    let info = buffer.info()?;
    ensure!(info.accessed_by == [Location::Host, device], "{info:?}");
    buffer.unadvise(Advice::AccessedBy(device))?;
    ensure!(buffer.info()?.accessed_by == [Location::Host]);
    Ok(())
}

#[apply(case)]
fn journeys_are_counted(env: &Environment) -> Result<()> {
    let buffer = large(env)?;
    let device = Location::Device(env.device()?);
    let before = env.device()?.migrations();
    for place in [device, Location::Host, device] {
        buffer.prefetch(place)?;
    }
    buffer.range(..1000)?.prefetch(Location::Host)?;
    buffer.range(..0)?.prefetch(Location::Host)?;
    ensure!(
        buffer.prefetch(Location::Invisible).is_err(),
        "and it does not count"
    );
    let seen = |migrations: cuda_mem::mapped::MigrationStats| {
        (migrations.prefetches, migrations.prefetched_bytes)
    };
    let large = LARGE as u64;
    ensure!(seen(buffer.migrations()) == (4, 3 * large + 1000));
    ensure!(seen(buffer.migrations_to(device)) == (2, 2 * large));
    ensure!(seen(buffer.migrations_to(Location::Host)) == (2, large + 1000));
    ensure!(seen(buffer.migrations_to(Location::HostNuma(0))) == (0, 0));
    // Other tests may run beside this one and add to what the device saw.
    let now = env.device()?.migrations();
    ensure!(now.prefetches >= before.prefetches + 2);
    ensure!(now.prefetched_bytes >= before.prefetched_bytes + 2 * large);
    Ok(())
}

#[apply(case_of_two)]
fn it_goes_from_device_to_device(env: &Environment) -> Result<()> {
    need_concurrent(env)?;
    let stream = |ordinal| env.driver.device(ordinal)?.primary_context()?.stream();
    let (here, there) = (stream(0)?, stream(1)?);
    let (near, far) = (
        Location::Device(here.device()),
        Location::Device(there.device()),
    );
    let mut buffer = ManagedBuffer::<u32>::zeroed(&here, LARGE / 4)?;
    for place in [near, far] {
        buffer.advise(Advice::AccessedBy(place))?;
    }
    ensure!(
        buffer.info()?.accessed_by == [near, far],
        "{:?}",
        buffer.info()?
    );
    for round in 1..4_u32 {
        buffer.prefetch(near)?;
        buffer.as_mut_slice().fill(round)?;
        buffer.prefetch_on(&there, far)?;
        ensure!(buffer.info()?.last_prefetch == Some(far));
        buffer.as_mut_slice().on(&there)?.fill(round + 10)?;
        let host = buffer.host_mut()?;
        ensure!(host.iter().all(|number| *number == round + 10));
        host[0] = 0;
    }
    ensure!(buffer.migrations_to(near) == buffer.migrations_to(far));
    ensure!(buffer.migrations().prefetches == 6);
    for place in [far, near] {
        buffer.advise(Advice::PreferredLocation(place))?;
        ensure!(buffer.info()?.preferred_location == Some(place));
    }
    Ok(())
}

//! Sharing memory between processes.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use anyhow::{Result, ensure};
use cuda_mem::driver::HandleTypes;
use cuda_mem::interop::{Channel, EventHandle, ImportedPool, SharedBuffer};
use cuda_mem::{DeviceBuffer, ErrorKind, MemoryPool, ReleaseThreshold, Stream};

use super::imports::ensure_same_memory;
use crate::environment::{Environment, Skip};
use crate::hold::hold;
use crate::two::{go, two_processes, wait};

/// Imports the next pool and the next buffer that come.
pub(super) fn receive(
    env: &Environment,
    channel: &Channel,
    stream: &Stream,
) -> Result<(ImportedPool, DeviceBuffer<u32>)> {
    let pool = channel.receive_pool(&env.device()?)?;
    // SAFETY: the other process is this test, which keeps the buffer as long as it is used here.
    let buffer = unsafe { channel.receive_buffer(&pool, stream) }?;
    Ok((pool, buffer))
}

/// Descriptors that are not the driver's own: how many of those it keeps is its affair.
fn open_descriptors() -> Result<usize> {
    let all = std::fs::read_dir("/proc/self/fd")?.flatten();
    let links = all.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    Ok(links.filter(|link| !link.starts_with("/dev")).count())
}

fn kind<T>(outcome: cuda_mem::Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

#[apply(case)]
fn two_processes_read_and_write_one_buffer(env: &Environment) -> Result<()> {
    two_processes(
        env,
        "ipc::two_processes_read_and_write_one_buffer",
        |env, other| {
            let (pool, stream) = (env.shareable_pool()?, env.stream()?);
            other.channel.send_pool(&pool)?;
            let mut buffer = pool.alloc_from(&stream, &[7_u32; 1000])?;
            other.channel.lend(&mut buffer)?.wait()?;
            ensure!(buffer.to_vec()? == [8; 1000], "what the other wrote");
            ensure!(
                pool.stats()?.used.current == 4000,
                "it stays the exporter's"
            );
            Ok(())
        },
        |env, channel| {
            let stream = env.stream()?;
            let (pool, mut buffer) = receive(env, channel, &stream)?;
            ensure!(buffer.len() == 1000 && buffer.device() == Some(env.device()?));
            ensure!(buffer.to_vec()? == [7; 1000], "what the exporter wrote");
            buffer.fill(8)?;
            drop(pool); // the buffer keeps it
            Ok(channel.give_back(buffer)?)
        },
    )
}

#[apply(case)]
fn imported_memory_is_described_and_not_handed_out(env: &Environment) -> Result<()> {
    two_processes(
        env,
        "ipc::imported_memory_is_described_and_not_handed_out",
        |env, other| {
            let (pool, stream) = (env.shareable_pool()?, env.stream()?);
            other.channel.send_pool(&pool)?;
            let mut buffer = pool.alloc_from(&stream, &[7_u32; 1000])?;
            Ok(other.channel.lend(&mut buffer)?.wait()?)
        },
        |env, channel| {
            let stream = env.stream()?;
            let (pool, buffer) = receive(env, channel, &stream)?;
            let info = env.driver.pointer_info(buffer.as_raw())?;
            ensure!(info.is_some_and(|info| info.pool == Some(pool.as_raw())));
            ensure!(kind(buffer.export()) == Some(ErrorKind::InvalidValue));
            let refused = buffer.into_raw().expect_err("it is not ours");
            ensure!(refused.error.kind() == ErrorKind::InvalidValue);
            let buffer = refused.object.expect("it comes back");
            Ok(channel.give_back(buffer)?)
        },
    )
}

#[apply(case)]
fn two_imports_of_one_buffer_share_a_mapping(env: &Environment) -> Result<()> {
    two_processes(
        env,
        "ipc::two_imports_of_one_buffer_share_a_mapping",
        |env, other| {
            let (pool, stream) = (env.shareable_pool()?, env.stream()?);
            let mut buffer = pool.alloc_from(&stream, &[0_u32; 1000])?;
            for _ in 0..2 {
                other.channel.send_pool(&pool)?;
                other.channel.send_buffer(&buffer)?;
            }
            other.wait()?;
            ensure!(buffer.to_vec()? == [5; 1000], "the held fill was not lost");
            buffer.zero()?;
            Ok(())
        },
        |env, channel| {
            let context = env.context()?;
            let (first, second) = (context.stream()?, context.stream()?);
            let (pool, mut one) = receive(env, channel, &first)?;
            let (again, two) = receive(env, channel, &second)?;
            ensure!(pool == again, "one import");
            ensure!(one.as_raw() == two.as_raw(), "one mapping");
            drop(again);
            let held = hold(&first)?;
            one.fill(5)?;
            drop(one); // its stream still has the fill in front of it
            ensure!(two.len() == 1000);
            drop(two); // the last: the mapping ends in this stream, after the other's work
            ensure!(!second.is_done()?, "it waits for the first stream");
            drop(held);
            second.synchronize()?;
            drop(pool);
            go(channel)
        },
    )
}

#[apply(case)]
fn an_import_may_follow_the_end_of_another(env: &Environment) -> Result<()> {
    two_processes(
        env,
        "ipc::an_import_may_follow_the_end_of_another",
        |env, other| {
            let (pool, stream) = (env.shareable_pool()?, env.stream()?);
            let buffer = pool.alloc_from(&stream, &[7_u32; 1000])?;
            other.channel.send_pool(&pool)?;
            other.channel.send_buffer(&buffer)?;
            other.channel.send_buffer(&buffer)?;
            other.wait()?;
            ensure!(buffer.to_vec()? == [9; 1000]);
            other.channel.send_pool(&pool)?;
            other.channel.send_buffer(&buffer)?;
            other.wait()
        },
        |env, channel| {
            let stream = env.stream()?;
            let (pool, one) = receive(env, channel, &stream)?;
            let held = hold(&stream)?;
            drop(one); // and the stream has not got there yet
            // SAFETY: the other process is this test, and keeps the buffer.
            let mut two = unsafe { channel.receive_buffer::<u32>(&pool, &stream) }?;
            two.fill(9)?;
            drop(held);
            ensure!(two.to_vec()? == [9; 1000], "the end of the first took it");
            drop((two, pool));
            stream.synchronize()?;
            go(channel)?;
            let (_pool, three) = receive(env, channel, &stream)?;
            ensure!(
                three.to_vec()? == [9; 1000],
                "the pool can be imported again"
            );
            go(channel)
        },
    )
}

#[apply(case)]
fn an_event_orders_two_processes(env: &Environment) -> Result<()> {
    two_processes(
        env,
        "ipc::an_event_orders_two_processes",
        |env, other| {
            let (pool, context) = (env.shareable_pool()?, env.context()?);
            let (stream, event) = (context.stream()?, context.interprocess_event()?);
            let mut buffer = pool.alloc_zeroed::<u32>(&stream, 1000)?;
            other.channel.send_pool(&pool)?;
            other.channel.send_buffer(&buffer)?;
            other.channel.send_event(&event)?;
            let held = hold(&stream)?;
            buffer.fill(3)?;
            event.record(&stream)?;
            other.go()?;
            other.wait()?; // its stream waits for this one
            drop(held);
            other.wait()?; // it has recorded what comes after its own fill
            stream.wait_event(&event)?;
            ensure!(buffer.to_vec()? == [4; 1000]);
            ensure!(event.is_done()?);
            other.go()
        },
        |env, channel| {
            let stream = env.stream()?;
            let (_pool, mut buffer) = receive(env, channel, &stream)?;
            // SAFETY: the other process is this test, and sends one.
            let event = unsafe { channel.receive_event(&env.context()?) }?;
            wait(channel)?;
            ensure!(!event.is_done()?, "the exporter's stream is held");
            stream.wait_event(&event)?;
            ensure!(!stream.is_done()?);
            go(channel)?;
            ensure!(buffer.to_vec()? == [3; 1000]);
            buffer.fill(4)?;
            event.record(&stream)?;
            go(channel)?;
            wait(channel)
        },
    )
}

#[apply(case)]
fn an_event_is_opened_by_others_only(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let event = context.interprocess_event()?;
    let opened = context.import_event(&event.export()?);
    ensure!(kind(opened) == Some(ErrorKind::InvalidContext));
    let plain = context.event()?;
    ensure!(kind(plain.export()) == Some(ErrorKind::InvalidValue));
    // SAFETY: a driver was measured to refuse these.
    let forged = unsafe { EventHandle::from_raw([0xff; 64]) };
    ensure!(kind(context.import_event(&forged)) == Some(ErrorKind::PeerGone));
    let handle = event.export()?;
    let bytes = handle.to_bytes();
    // SAFETY: what was cut is not read.
    let cut = unsafe { EventHandle::from_bytes(&bytes[1..]) };
    ensure!(kind(cut) == Some(ErrorKind::InvalidValue));
    // SAFETY: they come from `to_bytes` of a live event just now.
    let whole = unsafe { EventHandle::from_bytes(&bytes) }?;
    ensure!(whole == handle);
    let stream = context.stream()?;
    event.record(&stream)?;
    event.synchronize()?;
    Ok(())
}

#[apply(case)]
fn what_was_not_made_to_be_shared_is_refused(env: &Environment) -> Result<()> {
    let (plain, shared, stream) = (env.pool()?, env.shareable_pool()?, env.stream()?);
    ensure!(kind(plain.export_fd()) == Some(ErrorKind::InvalidValue));
    ensure!(kind(shared.export_fabric()) == Some(ErrorKind::InvalidValue));
    let private = plain.alloc::<u8>(&stream, 100)?;
    ensure!(kind(private.export()) == Some(ErrorKind::InvalidValue));
    let early = shared.alloc::<u8>(&stream, 100)?;
    let answer = early.export();
    ensure!(
        kind(answer) == Some(ErrorKind::InvalidValue),
        "before its pool was exported"
    );
    let descriptor = shared.export_fd()?;
    early.export()?;
    let nothing = shared.alloc::<u8>(&stream, 0)?;
    ensure!(kind(nothing.export()) == Some(ErrorKind::InvalidValue));
    drop(descriptor);
    Ok(())
}

#[apply(case)]
fn a_fabric_that_is_not_there_is_refused_before_it_can_crash(env: &Environment) -> Result<()> {
    env.need(12, 3)?;
    let builder = MemoryPool::builder(&env.device()?)
        .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR | HandleTypes::FABRIC);
    let pool = match builder.build() {
        Ok(pool) => pool,
        Err(error) => return Err(Skip(format!("no pools for a fabric: {error}")).into()),
    };
    let first = pool.export_fabric();
    match kind(first) {
        None => return Err(Skip("this machine has a fabric".to_owned()).into()),
        Some(found) => ensure!(found == ErrorKind::NotPermitted, "{found:?}"),
    }
    // The driver was not asked: it would crash at the next allocation.
    let error = pool.export_fd().expect_err("refused");
    ensure!(error.kind() == ErrorKind::NotPermitted && error.code().is_none());
    let stream = env.stream()?;
    ensure!(pool.alloc_from(&stream, &[1_u8; 100])?.to_vec()? == [1; 100]);
    Ok(())
}

#[apply(case_alone)]
fn foreign_descriptors_are_refused_and_kept(env: &Environment) -> Result<()> {
    let device = env.device()?;
    let file: OwnedFd = File::open("/proc/self/exe")?.into();
    let null: OwnedFd = File::open("/dev/null")?.into();
    let (pipe, _writer) = std::io::pipe()?;
    let (socket, _other) = Channel::pair()?;
    // A first round, for what the driver opens once.
    ensure!(ImportedPool::from_fd(&device, &null).is_err());
    let before = open_descriptors()?;
    for (what, descriptor) in [
        ("a file", file.as_fd()),
        ("/dev/null", null.as_fd()),
        ("a pipe", pipe.as_fd()),
        ("a socket", socket.as_fd()),
    ] {
        let found = kind(ImportedPool::from_fd(&device, descriptor));
        ensure!(found == Some(ErrorKind::InvalidValue), "{what}: {found:?}");
    }
    ensure!(
        open_descriptors()? == before,
        "a descriptor was taken or leaked"
    );
    Ok(())
}

#[apply(case)]
fn a_pool_is_imported_where_it_was_exported(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.shareable_pool()?, env.stream()?);
    let descriptor = pool.export_fd()?;
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(descriptor.as_raw_fd(), libc::F_GETFD) };
    ensure!(flags & libc::FD_CLOEXEC != 0, "it is close-on-exec");
    let imported = ImportedPool::from_fd(&env.device()?, &descriptor)?;
    ensure_same_memory(&pool, &imported, &stream)
}

#[apply(case)]
fn a_wrong_description_of_a_buffer_is_refused(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.shareable_pool()?, env.stream()?);
    let imported = ImportedPool::from_fd(&env.device()?, pool.export_fd()?)?;
    let buffer = pool.alloc_from(&stream, &[1_u32; 100])?;
    let shared = buffer.export()?;
    let bytes = shared.to_bytes();
    for cut in [0, 1, 20, 64, bytes.len() - 1] {
        let found = kind(SharedBuffer::from_bytes(&bytes[..cut]));
        ensure!(found == Some(ErrorKind::InvalidValue), "{cut} bytes");
    }
    // SAFETY: the token is true; only the size is not.
    let wrong = unsafe { imported.import::<u16>(&stream, &shared) };
    ensure!(kind(wrong) == Some(ErrorKind::InvalidValue), "element size");
    for len in [0, 99, 101, usize::MAX] {
        // SAFETY: as above.
        let wrong = unsafe { imported.import_token::<u32>(&stream, &shared.token(), len) };
        ensure!(
            kind(wrong) == Some(ErrorKind::InvalidValue),
            "{len} elements"
        );
    }
    // SAFETY: as above, and true now: nothing that went wrong has kept it.
    let view = unsafe { imported.import::<u32>(&stream, &shared) }?;
    ensure!(view.to_vec()? == [1; 100]);
    // A token of another pool, and zeroes: a driver was measured to refuse both.
    let other = env.shareable_pool()?;
    drop(other.export_fd()?);
    let theirs = other.alloc::<u32>(&stream, 100)?.export()?;
    // SAFETY: measured to be refused.
    let misplaced = unsafe { imported.import::<u32>(&stream, &theirs) };
    ensure!(kind(misplaced) == Some(ErrorKind::InvalidValue));
    // SAFETY: measured to be refused.
    let zeroes = unsafe { cuda_mem::interop::PointerToken::from_raw([0; 64]) };
    // SAFETY: as above.
    let forged = unsafe { imported.import_token::<u32>(&stream, &zeroes, 100) };
    ensure!(kind(forged) == Some(ErrorKind::InvalidValue));
    Ok(())
}

#[apply(case_alone)]
fn sharing_leaves_no_descriptor_open(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let round = || -> Result<()> {
        let pool = env.shareable_pool()?;
        let imported = ImportedPool::from_fd(&env.device()?, pool.export_fd()?)?;
        let again = ImportedPool::from_fd(&env.device()?, pool.export_fd()?)?;
        let buffer = pool.alloc_from(&stream, &[1_u32; 100])?;
        let shared = buffer.export()?;
        // SAFETY: one stream orders everything; the buffer lives longer.
        let view = unsafe { imported.import::<u32>(&stream, &shared) }?;
        ensure!(view.to_vec()? == [1; 100]);
        drop((view, buffer, again, imported));
        stream.synchronize()?;
        let (here, there) = Channel::pair()?;
        here.send_pool(&pool)?;
        let message = there.receive()?;
        ensure!(message.descriptors.len() == 1);
        here.send_pool(&pool)?; // and never read
        Ok(())
    };
    // A first round, for what the driver opens once.
    round()?;
    let before = open_descriptors()?;
    for _ in 0..20 {
        round()?;
    }
    let after = open_descriptors()?;
    ensure!(after == before, "{before} before, {after} after");
    Ok(())
}

#[apply(case)]
fn memory_is_given_back_after_it_was_shared(env: &Environment) -> Result<()> {
    let (_calm, device) = (env.shared(), env.device()?);
    let stream = env.stream()?;
    env.shareable_pool()?;
    let pool = MemoryPool::builder(&device)
        .handle_types(HandleTypes::POSIX_FILE_DESCRIPTOR)
        .release_threshold(ReleaseThreshold::Bytes(0))
        .build()?;
    drop(pool.export_fd()?);
    let buffer = pool.alloc::<u8>(&stream, 40 << 20)?;
    buffer.export()?;
    ensure!(pool.stats()?.reserved.current >= 40 << 20);
    drop(buffer);
    stream.synchronize()?;
    ensure!(
        pool.stats()?.reserved.current == 0,
        "at the synchronise (R58)"
    );
    Ok(())
}

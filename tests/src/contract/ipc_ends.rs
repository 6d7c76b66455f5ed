//! Sharing memory with a process that dies, or that is not to be trusted.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::ErrorKind;
use cuda_mem::base::drop_counts;
use cuda_mem::interop::{Channel, ImportedPool, Listener, Peers};

use super::ipc::receive;
use crate::environment::{Environment, Skip};
use crate::forks::ends_well;
use crate::hold::hold;
use crate::two::{go, two_processes};

/// Until this process is killed, or the other end is gone.
fn for_ever(channel: &Channel) -> Result<()> {
    loop {
        channel.receive()?;
    }
}

#[apply(case)]
fn the_exporter_may_die(env: &Environment) -> Result<()> {
    two_processes(
        env,
        "ipc_ends::the_exporter_may_die",
        |env, exporter| {
            let stream = env.stream()?;
            let (pool, mut buffer) = receive(env, &exporter.channel, &stream)?;
            exporter.kill()?;
            ensure!(buffer.to_vec()? == [7; 1000], "what it wrote stays");
            buffer.fill(8)?;
            ensure!(buffer.to_vec()? == [8; 1000]);
            // A child that another test forked may hold its end for a moment, too.
            let end = exporter.channel.receive();
            ensure!(end.is_err_and(|error| error.kind() == ErrorKind::PeerGone));
            let word = exporter.channel.give_back(buffer);
            ensure!(word.is_err_and(|error| error.error.kind() == ErrorKind::PeerGone));
            drop(pool);
            Ok(stream.synchronize()?)
        },
        |env, channel| {
            let (pool, stream) = (env.shareable_pool()?, env.stream()?);
            channel.send_pool(&pool)?;
            let mut buffer = pool.alloc_from(&stream, &[7_u32; 1000])?;
            let lent = channel.lend(&mut buffer)?;
            Ok(lent.wait()?)
        },
    )
}

#[apply(case)]
fn the_exporter_may_die_before_anything_is_imported(env: &Environment) -> Result<()> {
    two_processes(
        env,
        "ipc_ends::the_exporter_may_die_before_anything_is_imported",
        |env, exporter| {
            let (here, there) = Channel::pair()?;
            for _ in ["pool", "buffer"] {
                let message = exporter.channel.receive()?;
                let descriptors = message.descriptors.iter().map(|fd| fd.as_fd());
                there.send(&message.bytes, &descriptors.collect::<Vec<_>>())?;
            }
            exporter.kill()?;
            let stream = env.stream()?;
            let (_pool, buffer) = receive(env, &here, &stream)?;
            ensure!(buffer.to_vec()? == [7; 1000], "the descriptor keeps it");
            let end = exporter.channel.receive();
            ensure!(end.is_err_and(|error| error.kind() == ErrorKind::PeerGone));
            Ok(())
        },
        |env, channel| {
            let (pool, stream) = (env.shareable_pool()?, env.stream()?);
            channel.send_pool(&pool)?;
            let buffer = pool.alloc_from(&stream, &[7_u32; 1000])?;
            channel.send_buffer(&buffer)?;
            for_ever(channel)
        },
    )
}

/// Kills an importer, and looks whether the exporter's pool is as good as before.
fn importer_dies(
    env: &Environment,
    name: &str,
    importer: impl FnOnce(&Environment, &Channel) -> Result<()>,
) -> Result<()> {
    two_processes(
        env,
        name,
        |env, other| {
            let (pool, stream) = (env.shareable_pool()?, env.stream()?);
            other.channel.send_pool(&pool)?;
            let mut buffer = pool.alloc_from(&stream, &[7_u32; 1000])?;
            let lent = other.channel.lend(&mut buffer)?;
            other.wait()?;
            other.kill()?;
            let end = lent.wait();
            ensure!(end.is_err_and(|error| error.kind() == ErrorKind::PeerGone));
            ensure!(buffer.to_vec()?.iter().all(|value| [7, 8].contains(value)));
            buffer.fill(9)?;
            ensure!(buffer.to_vec()? == [9; 1000]);
            drop(buffer);
            stream.synchronize()?;
            let fresh = pool.alloc_from(&stream, &[1_u32; 1000])?;
            ensure!(fresh.to_vec()? == [1; 1000]);
            Ok(())
        },
        importer,
    )
}

#[apply(case)]
fn the_importer_may_die_with_a_pool(env: &Environment) -> Result<()> {
    let name = "ipc_ends::the_importer_may_die_with_a_pool";
    importer_dies(env, name, |env, channel| {
        let _pool = channel.receive_pool(&env.device()?)?;
        go(channel)?;
        for_ever(channel)
    })
}

#[apply(case)]
fn the_importer_may_die_with_a_buffer(env: &Environment) -> Result<()> {
    let name = "ipc_ends::the_importer_may_die_with_a_buffer";
    importer_dies(env, name, |env, channel| {
        let stream = env.stream()?;
        let (_pool, mut buffer) = receive(env, channel, &stream)?;
        buffer.fill(8)?;
        stream.synchronize()?;
        go(channel)?;
        for_ever(channel)
    })
}

#[apply(case)]
fn the_importer_may_die_with_work_submitted(env: &Environment) -> Result<()> {
    let name = "ipc_ends::the_importer_may_die_with_work_submitted";
    importer_dies(env, name, |env, channel| {
        let stream = env.stream()?;
        let (_pool, mut buffer) = receive(env, channel, &stream)?;
        let _held = hold(&stream)?;
        buffer.fill(8)?;
        drop(buffer); // so is its end
        go(channel)?;
        for_ever(channel)
    })
}

#[apply(case)]
fn the_importer_may_die_before_it_imports(env: &Environment) -> Result<()> {
    let name = "ipc_ends::the_importer_may_die_before_it_imports";
    importer_dies(env, name, |_, channel| {
        go(channel)?;
        for_ever(channel)
    })
}

#[apply(case)]
fn dropping_a_lent_buffer_waits_for_its_return(env: &Environment) -> Result<()> {
    two_processes(
        env,
        "ipc_ends::dropping_a_lent_buffer_waits_for_its_return",
        |env, other| {
            let (pool, stream) = (env.shareable_pool()?, env.stream()?);
            other.channel.send_pool(&pool)?;
            let mut buffer = pool.alloc_from(&stream, &[7_u32; 1000])?;
            drop(other.channel.lend(&mut buffer)?);
            ensure!(buffer.to_vec()? == [8; 1000]);
            // Once more, to a process that ends instead.
            drop(other.channel.lend(&mut buffer)?);
            ensure!(buffer.to_vec()? == [8; 1000]);
            Ok(())
        },
        |env, channel| {
            let stream = env.stream()?;
            let (_pool, mut buffer) = receive(env, channel, &stream)?;
            buffer.fill(8)?;
            channel.give_back(buffer)?;
            channel.receive()?; // and that is the end
            Ok(())
        },
    )
}

#[apply(case)]
fn an_event_outlives_the_process_that_recorded_it(env: &Environment) -> Result<()> {
    two_processes(
        env,
        "ipc_ends::an_event_outlives_the_process_that_recorded_it",
        |env, other| {
            let (context, stream) = (env.context()?, env.stream()?);
            // SAFETY: the other process is this test, and sends one.
            let event = unsafe { other.channel.receive_event(&context) }?;
            other.wait()?;
            other.kill()?;
            ensure!(event.is_done()?);
            stream.wait_event(&event)?;
            event.record(&stream)?;
            Ok(event.synchronize()?)
        },
        |env, channel| {
            let (context, stream) = (env.context()?, env.stream()?);
            let event = context.interprocess_event()?;
            channel.send_event(&event)?;
            event.record(&stream)?;
            event.synchronize()?;
            go(channel)?;
            for_ever(channel)
        },
    )
}

#[apply(case_alone)]
fn a_forked_child_leaves_imports_alone(env: &Environment) -> Result<()> {
    let (pool, context) = (env.shareable_pool()?, env.context()?);
    let (stream, event) = (context.stream()?, context.interprocess_event()?);
    let imported = ImportedPool::from_fd(&env.device()?, pool.export_fd()?)?;
    let buffer = pool.alloc_from(&stream, &[1_u32; 100])?;
    let shared = buffer.export()?;
    // SAFETY: one stream orders everything; the buffer lives longer.
    let view = unsafe { imported.import::<u32>(&stream, &shared) }?;
    // SAFETY: the child drops GPU objects, which must do nothing there, and ends with _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = |error: cuda_mem::Error| error.kind() == ErrorKind::Forked;
        let fine = pool.export_fd().is_err_and(refused)
            && buffer.export().is_err_and(refused)
            && event.export().is_err_and(refused);
        drop((view, imported, event));
        let counts = drop_counts();
        // The view and the event; the view's owner is not dropped, and has the pool.
        let fine = fine && counts.failures == 0 && counts.after_fork == 2;
        // SAFETY: ends the child without running the parent's exit handlers a second time.
        unsafe { libc::_exit(i32::from(!fine)) };
    }
    ends_well(child)?;
    ensure!(view.to_vec()? == [1; 100], "the parent's is as it was");
    Ok(())
}

/// A name that no other test and no other run has.
fn name(what: &str) -> String {
    format!("cuda-mem-test-{what}-{}", std::process::id())
}

/// Alone, because a process that another test starts holds every socket for a moment, and so the name.
#[apply(case_alone)]
fn a_name_is_listened_to_by_one_and_free_afterwards(_: &Environment) -> Result<()> {
    let name = name("once");
    let gone = Channel::connect(&name);
    ensure!(gone.is_err_and(|error| error.kind() == ErrorKind::PeerGone));
    let listener = Listener::bind(&name)?;
    let second = Listener::bind(&name);
    ensure!(second.is_err_and(|error| error.kind() == ErrorKind::InUse));
    let (here, there) = (Channel::connect(&name)?, listener.accept()?);
    here.send(b"", &[])?;
    ensure!(
        there.receive()?.bytes.is_empty(),
        "no bytes are a message too"
    );
    drop(listener);
    there.send(b"still", &[])?;
    ensure!(here.receive()?.bytes == b"still");
    Listener::bind(&name)?;
    for wrong in ["", &"x".repeat(108)] {
        let refused = Listener::bind(wrong);
        ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    }
    Ok(())
}

#[apply(case)]
fn a_message_has_bounds(_: &Environment) -> Result<()> {
    let (here, there) = Channel::pair()?;
    let most = vec![7; Channel::MAX_BYTES];
    here.send(&most, &[])?;
    ensure!(there.receive()?.bytes == most);
    let file = std::fs::File::open("/dev/null")?;
    let many = vec![file.as_fd(); Channel::MAX_DESCRIPTORS + 1];
    here.send(b"all", &many[1..])?;
    ensure!(there.receive()?.descriptors.len() == Channel::MAX_DESCRIPTORS);
    for outcome in [
        here.send(&vec![0; Channel::MAX_BYTES + 1], &[]),
        here.send(b"", &many),
    ] {
        ensure!(outcome.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    }
    let other = Channel::from_fd(file.into());
    ensure!(other.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
    Ok(())
}

#[apply(case)]
fn a_channel_that_was_taken_over_is_not_inherited(_: &Environment) -> Result<()> {
    let (_here, there) = Channel::pair()?;
    let inherited = OwnedFd::from(there);
    // SAFETY: no pointers.
    let cleared = unsafe { libc::fcntl(inherited.as_raw_fd(), libc::F_SETFD, 0) };
    ensure!(cleared == 0, "the descriptor is not one to inherit");
    let taken = Channel::from_fd(inherited)?;
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(taken.as_fd().as_raw_fd(), libc::F_GETFD) };
    ensure!(flags == libc::FD_CLOEXEC, "other programs inherit it");
    Ok(())
}

#[apply(case)]
fn what_was_not_expected_is_refused(env: &Environment) -> Result<()> {
    let (here, there) = Channel::pair()?;
    let (device, stream) = (env.device()?, env.stream()?);
    let invalid = |error: cuda_mem::Error| error.kind() == ErrorKind::InvalidValue;
    here.send(b"anything", &[])?;
    ensure!(there.receive_pool(&device).is_err_and(invalid));
    let pool = env.shareable_pool()?;
    here.send_pool(&pool)?;
    // SAFETY: no event is sent, and what is no event is not opened.
    let event = unsafe { there.receive_event(&env.context()?) };
    ensure!(event.is_err_and(invalid));
    // A pool's message, whose descriptor is of something else, or missing.
    here.send_pool(&pool)?;
    let message = there.receive()?;
    let null = std::fs::File::open("/dev/null")?;
    here.send(&message.bytes, &[null.as_fd()])?;
    ensure!(there.receive_pool(&device).is_err_and(invalid));
    here.send(&message.bytes, &[])?;
    ensure!(there.receive_pool(&device).is_err_and(invalid));
    here.send_pool(&pool)?;
    let imported = there.receive_pool(&device)?;
    let buffer = pool.alloc_from(&stream, &[1_u32; 10])?;
    let whole = buffer.export()?.to_bytes();
    here.send(&whole[..whole.len() - 1], &[])?;
    // SAFETY: nothing is imported.
    let cut = unsafe { there.receive_buffer::<u32>(&imported, &stream) };
    ensure!(cut.is_err_and(invalid));
    drop(here);
    let end = there.receive_pool(&device);
    ensure!(end.is_err_and(|error| error.kind() == ErrorKind::PeerGone));
    let end = there.send_pool(&pool);
    ensure!(end.is_err_and(|error| error.kind() == ErrorKind::PeerGone));
    Ok(())
}

/// A process of another user that connects and stays.
fn stranger(name: &str) -> Result<std::process::Child> {
    let mut address = [0_u8; 110];
    // The family, in the machine's order of bytes, a zero byte, and the name.
    address[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
    address[3..3 + name.len()].copy_from_slice(name.as_bytes());
    let len = (3 + name.len()) as libc::socklen_t;
    let mut command = Command::new("sleep");
    command.arg("60").uid(65_534).stdin(Stdio::null());
    let connect = move || {
        // SAFETY: no pointers.
        let socket = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0) };
        // SAFETY: the address is as long as it says.
        let status = unsafe { libc::connect(socket, address.as_ptr().cast(), len) };
        if status == 0 {
            return Ok(());
        }
        Err(std::io::Error::last_os_error())
    };
    // SAFETY: two calls of the system, which are allowed between fork and exec.
    unsafe { command.pre_exec(connect) };
    command.spawn().context("no process of another user")
}

#[apply(case)]
fn a_process_of_another_user_is_turned_away(_: &Environment) -> Result<()> {
    // SAFETY: no pointers.
    if unsafe { libc::geteuid() } != 0 {
        return Err(Skip("only root can start a process of another user".to_owned()).into());
    }
    let name = name("stranger");
    let listener = Listener::bind(&name)?;
    let mut strangers = vec![stranger(&name)?];
    let refused = listener.accept();
    strangers.push(stranger(&name)?);
    let listener = listener.allow(Peers::AnyUser);
    let allowed = listener.accept();
    for mut stranger in strangers {
        stranger.kill()?;
        stranger.wait()?;
    }
    ensure!(refused.is_err_and(|error| error.kind() == ErrorKind::NotPermitted));
    let end = allowed?.receive();
    ensure!(end.is_err_and(|error| error.kind() == ErrorKind::PeerGone));
    Ok(())
}

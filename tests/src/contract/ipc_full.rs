//! Loans over a channel with more unread messages than fit into it.

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};
use cuda_mem::DeviceBuffer;
use cuda_mem::interop::{Channel, ExportedBuffer};

use super::ipc_loans::has_message;
use crate::environment::Environment;

/// A channel of the usual size holds 278 messages as small as these in each direction.
const LENT: usize = 700;

/// Only a hang takes as long.
const LIMIT: Duration = Duration::from_secs(30);

/// Ends all that waits.
fn shut_down(channel: &Channel) {
    // SAFETY: no pointers.
    unsafe { libc::shutdown(channel.as_fd().as_raw_fd(), libc::SHUT_RDWR) };
}

#[apply(case)]
fn buffers_dropped_while_the_lender_does_not_read_end_no_other_loan(
    env: &Environment,
) -> Result<()> {
    let (pool, stream) = (env.shareable_pool()?, env.stream()?);
    let (here, there) = Channel::pair()?;
    here.send_pool(&pool)?;
    let imported = there.receive_pool(&env.device()?)?;
    let buffer = |_| pool.alloc_from(&stream, &[7_u8; 100]);
    let mut buffers = (0..LENT)
        .map(buffer)
        .collect::<cuda_mem::Result<Vec<_>>>()?;
    let (mut lent, mut views) = (Vec::new(), Vec::new());
    for buffer in &mut buffers {
        lent.push(here.lend(buffer)?);
        // SAFETY: one stream orders everything, and the buffers live longer.
        views.push(unsafe { there.receive_buffer::<u8>(&imported, &stream) }?);
    }
    let used = views.split_off(LENT - 100);
    drop(views);
    let still_lent = lent.split_off(LENT - 100);
    std::thread::scope(|scope| -> Result<()> {
        let waits = scope.spawn(|| lent.into_iter().try_for_each(ExportedBuffer::wait));
        let began = Instant::now();
        while !waits.is_finished() {
            // What is dropped is answered when there is space.
            stream.synchronize()?;
            if began.elapsed() > LIMIT {
                shut_down(&here);
            }
        }
        Ok(waits.join().map_err(|_| anyhow!("panicked"))??)
    })?;
    ensure!(!has_message(&here), "the others are in use");
    for view in used {
        there.give_back(view)?;
    }
    for loan in still_lent {
        loan.wait()?;
    }
    Ok(())
}

/// Lends all buffers to another thread, which does with them what `take` does, and then waits for a message. `is_late`: the
/// loans are waited for after that.
fn lends_to(
    env: &Environment,
    is_late: bool,
    take: impl FnOnce(&Channel, &mut dyn FnMut() -> Result<DeviceBuffer<u8>>) -> Result<()> + Send,
) -> Result<()> {
    let (pool, stream) = (env.shareable_pool()?, env.stream()?);
    let (here, there) = Channel::pair()?;
    here.send_pool(&pool)?;
    let imported = there.receive_pool(&env.device()?)?;
    let buffer = |_| pool.alloc_from(&stream, &[7_u8; 100]);
    let mut buffers = (0..LENT)
        .map(buffer)
        .collect::<cuda_mem::Result<Vec<_>>>()?;
    // Nothing below waits for the device.
    stream.synchronize()?;
    let (tell, ended) = mpsc::channel();
    let (tell_taken, taken) = mpsc::channel();
    std::thread::scope(|scope| {
        let (here, there, stream) = (&here, &there, &stream);
        let lends = {
            let tell = tell.clone();
            scope.spawn(move || -> Result<()> {
                let lent = buffers.iter_mut().map(|buffer| here.lend(buffer));
                let lent = lent.collect::<cuda_mem::Result<Vec<_>>>()?;
                if is_late {
                    taken.recv()?;
                }
                for loan in lent {
                    loan.wait()?;
                }
                here.send(b"all are back", &[])?;
                Ok(tell.send(())?)
            })
        };
        let takes = scope.spawn(move || -> Result<()> {
            // SAFETY: one stream orders everything, and the buffers live longer.
            let receive = || unsafe { there.receive_buffer::<u8>(&imported, stream) };
            take(there, &mut || Ok(receive()?))?;
            tell_taken.send(()).ok();
            ensure!(there.receive()?.bytes == b"all are back");
            Ok(tell.send(())?)
        });
        let in_time = (0..2).all(|_| ended.recv_timeout(LIMIT).is_ok());
        if !in_time {
            shut_down(here);
        }
        let ends = [lends, takes].map(|thread| thread.join());
        ensure!(in_time, "an end failed or waits for ever: {ends:?}");
        for end in ends {
            end.ok().context("panicked")??;
        }
        Ok(())
    })
}

#[apply(case)]
fn a_lender_who_lends_more_than_fits_takes_back_meanwhile(env: &Environment) -> Result<()> {
    lends_to(env, false, |there, receive| {
        for _ in 0..LENT {
            there.give_back(receive()?)?;
        }
        Ok(())
    })
}

#[apply(case)]
fn buffers_dropped_before_the_next_message_are_given_back(env: &Environment) -> Result<()> {
    lends_to(env, true, |_, receive| {
        let views = (0..LENT).map(|_| receive());
        drop(views.collect::<Result<Vec<_>>>()?);
        Ok(())
    })
}

/// As the runtimes of asynchronous programs make it.
#[apply(case)]
fn a_socket_that_does_not_wait_gives_back_when_there_is_space(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.shareable_pool()?, env.stream()?);
    let (here, there) = Channel::pair()?;
    here.send_pool(&pool)?;
    let imported = there.receive_pool(&env.device()?)?;
    let mut buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
    // SAFETY: one stream orders everything, and the buffer lives longer.
    let receive = || unsafe { there.receive_buffer::<u8>(&imported, &stream) };
    here.send_buffer(&buffer)?;
    there.give_back(receive()?)?;
    let word = here.receive()?.bytes; // of a buffer that nothing waits for
    let lent = here.lend(&mut buffer)?;
    let received = receive()?;
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(there.as_fd().as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    ensure!(flags == 0, "the socket still waits");
    while there.send(&word, &[]).is_ok() {}
    let (tell, end) = mpsc::channel();
    std::thread::scope(|scope| {
        let gives = scope.spawn(|| tell.send(there.give_back(received)));
        std::thread::sleep(Duration::from_millis(20));
        lent.wait()?;
        let end = end.recv_timeout(LIMIT);
        if end.is_err() {
            shut_down(&here);
        }
        end.context("it is not given back")??;
        gives
            .join()
            .map_err(|_| anyhow!("panicked"))?
            .context("not told")
    })
}

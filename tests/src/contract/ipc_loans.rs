//! Buffers on loan to another process, and how they come back.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::base::drop_counts;
use cuda_mem::interop::{Channel, ImportedPool};
use cuda_mem::{DeviceBuffer, ErrorKind, MemoryPool, Stream};

use crate::environment::Environment;
use crate::foreign::{RELAXED, begin, end_well};
use crate::hold::{Held, hold, hold_for};

/// A pool, a stream, and a channel within this process; its second end has the pool, too.
fn shared(env: &Environment) -> Result<(MemoryPool, Stream, [Channel; 2], ImportedPool)> {
    let (pool, stream) = (env.shareable_pool()?, env.stream()?);
    let (here, there) = Channel::pair()?;
    here.send_pool(&pool)?;
    let imported = there.receive_pool(&env.device()?)?;
    Ok((pool, stream, [here, there], imported))
}

#[apply(case)]
fn word_of_one_buffer_is_not_taken_for_that_of_another(env: &Environment) -> Result<()> {
    let (pool, stream, [here, there], imported) = shared(env)?;
    // SAFETY: one stream orders everything, and the buffers live longer.
    let receive = || unsafe { there.receive_buffer::<u8>(&imported, &stream) };
    let [mut first, mut second, third] = [1_u8, 2, 3].map(|byte| {
        pool.alloc_from(&stream, &[byte; 100])
            .expect("there is memory for hundred bytes")
    });
    // Nobody waits for this one, and its word comes first.
    here.send_buffer(&third)?;
    there.give_back(receive()?)?;
    let is_given = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let one = here.lend(&mut first)?;
        let two = here.lend(&mut second)?;
        let (one_there, two_there) = (receive()?, receive()?);
        let waiting = scope.spawn(|| {
            let answer = one.wait();
            (answer, is_given.load(Ordering::SeqCst))
        });
        there.give_back(two_there)?;
        is_given.store(true, Ordering::SeqCst);
        there.give_back(one_there)?;
        let (answer, in_time) = waiting.join().map_err(|_| anyhow::anyhow!("panicked"))?;
        answer?;
        ensure!(in_time, "word of another buffer ended the wait");
        Ok(two.wait()?)
    })
}

/// Only a hang takes as long.
const LIMIT: Duration = Duration::from_secs(10);

type Ends = mpsc::Receiver<(usize, cuda_mem::Result<()>)>;

/// Lends four buffers over one channel, with a thread that waits for each. `steps` has the other end,
/// the buffers as they were received there, and the ends of the waits. If it fails, that end is closed,
/// so that nothing waits for ever.
fn four_threads_wait(
    env: &Environment,
    steps: impl FnOnce(Channel, Vec<Option<DeviceBuffer<u8>>>, &Ends) -> Result<()>,
) -> Result<()> {
    let (pool, stream, [here, there], imported) = shared(env)?;
    let buffers = [1_u8, 2, 3, 4].map(|byte| pool.alloc_from(&stream, &[byte; 100]));
    let mut buffers = buffers.into_iter().collect::<cuda_mem::Result<Vec<_>>>()?;
    let (tell, ends) = mpsc::channel();
    std::thread::scope(|scope| {
        let mut received = Vec::new();
        for (index, buffer) in buffers.iter_mut().enumerate() {
            let (here, tell) = (&here, tell.clone());
            let lent = here.lend(buffer)?;
            // SAFETY: one stream orders everything, and the buffers live longer.
            received.push(Some(unsafe { there.receive_buffer(&imported, &stream) }?));
            scope.spawn(move || tell.send((index, lent.wait())));
        }
        steps(there, received, &ends)
    })
}

#[apply(case)]
fn several_threads_wait_and_buffers_come_back_in_any_order(env: &Environment) -> Result<()> {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
        four_threads_wait(env, |there, mut received, ends| {
            for index in order {
                let buffer = received[index].take().context("given back twice")?;
                there.give_back(buffer)?;
                let end = ends.recv_timeout(LIMIT);
                let (ended, answer) = end.context("a wait did not end with its buffer")?;
                ensure!(ended == index, "{index} was given back, and {ended} ended");
                answer?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[apply(case)]
fn several_threads_wait_and_the_other_end_is_gone(env: &Environment) -> Result<()> {
    four_threads_wait(env, |there, mut received, ends| {
        let buffer = received[2].take().context("given back twice")?;
        there.give_back(buffer)?;
        let (ended, answer) = ends.recv_timeout(LIMIT).context("no wait ended")?;
        ensure!(ended == 2);
        answer?;
        // As where its process dies.
        // SAFETY: no pointers.
        unsafe { libc::shutdown(there.as_fd().as_raw_fd(), libc::SHUT_RDWR) };
        for _ in 0..3 {
            let (_, answer) = ends.recv_timeout(LIMIT).context("a wait goes on")?;
            ensure!(answer.is_err_and(|error| error.kind() == ErrorKind::PeerGone));
        }
        // The rest is freed before the owner frees it, as the driver wants it.
        drop(received);
        Ok(())
    })
}

/// The buffers keep what their answers need.
#[apply(case)]
fn buffers_outlive_the_channel_that_brought_them(env: &Environment) -> Result<()> {
    type End = fn(Channel) -> Option<OwnedFd>;
    let ends: [(&str, End); 2] = [
        ("dropped", |channel| {
            drop(channel);
            None
        }),
        ("handed out", |channel| Some(channel.into())),
    ];
    for (how, end_channel) in ends {
        four_threads_wait(env, |there, mut received, ends| {
            let _socket = end_channel(there);
            let early = ends.recv_timeout(Duration::from_millis(50));
            ensure!(
                early.is_err(),
                "{how}: a loan has ended while the buffer is in use"
            );
            for index in [1, 0, 3, 2] {
                let buffer = received[index].take().context("dropped twice")?;
                ensure!(buffer.to_vec()? == [index as u8 + 1; 100]);
                drop(buffer);
                let end = ends.recv_timeout(LIMIT);
                let (ended, answer) = end.context("a wait did not end with its buffer")?;
                ensure!(
                    ended == index,
                    "{how}: {index} was dropped, and {ended} ended"
                );
                answer?;
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Nothing waits for a buffer that was only sent.
#[apply(case)]
fn a_channel_whose_buffers_were_sent_is_closed_at_once(env: &Environment) -> Result<()> {
    let (pool, stream, [here, there], imported) = shared(env)?;
    let buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
    here.send_buffer(&buffer)?;
    // SAFETY: one stream orders everything, and the buffer lives longer.
    let view = unsafe { there.receive_buffer::<u8>(&imported, &stream) }?;
    drop(there);
    ensure!(has_message(&here), "the end of the channel");
    let end = here.receive().err().context("a message came")?;
    ensure!(end.kind() == ErrorKind::PeerGone);
    ensure!(view.to_vec()? == [7; 100]);
    Ok(())
}

#[apply(case)]
fn a_buffer_that_is_dropped_is_given_back(env: &Environment) -> Result<()> {
    four_threads_wait(env, |_there, mut received, ends| {
        for index in [2, 0, 3, 1] {
            drop(received[index].take());
            let end = ends.recv_timeout(LIMIT);
            let (ended, answer) = end.context("a wait did not end with its buffer")?;
            ensure!(ended == index, "{index} was dropped, and {ended} ended");
            answer?;
        }
        Ok(())
    })
}

/// Whether there is a message, or the end of the channel.
pub(super) fn has_message(channel: &Channel) -> bool {
    let mut parts = [libc::pollfd {
        fd: channel.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    }];
    // SAFETY: one entry is there, and the descriptor is open.
    unsafe { libc::poll(parts.as_mut_ptr(), 1, 0) == 1 }
}

#[apply(case)]
fn a_buffer_that_is_dropped_is_given_back_when_its_work_is_done(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (pool, stream, [here, there], imported) = shared(env)?;
    let mut buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
    let other = env.stream()?;
    let lent = here.lend(&mut buffer)?;
    // SAFETY: the owner's stream does nothing meanwhile, and the buffer lives longer.
    let view = unsafe { there.receive_buffer::<u8>(&imported, &other) }?;
    let held = hold(&other)?;
    drop(view);
    ensure!(!has_message(&here), "work may still use it");
    drop(held);
    let began = Instant::now();
    while !has_message(&here) {
        other.synchronize()?; // it looks at what waits, but not each time
        ensure!(began.elapsed() < LIMIT, "the lender is not told");
    }
    Ok(lent.wait()?)
}

/// Ends `work` in `busy`, which has later work and so is never idle. The lender must be told all the same.
fn is_told_beside_later_work(
    here: &Channel,
    stream: &Stream,
    busy: &Stream,
    work: Held,
) -> Result<()> {
    let later_work = hold_for(busy, 4 * LIMIT)?;
    ensure!(!has_message(here), "work may still use it");
    drop(work);
    let began = Instant::now();
    while !has_message(here) && began.elapsed() < LIMIT {
        stream.synchronize()?; // it looks at what waits, but not each time
    }
    let is_told = has_message(here);
    drop(later_work);
    busy.synchronize()?;
    ensure!(is_told, "the lender is not told");
    Ok(())
}

/// Another library makes the capture, so nothing is known of it before the driver is asked.
#[apply(case_alone)]
fn a_buffer_that_is_dropped_in_a_capture_is_given_back_after_it(env: &Environment) -> Result<()> {
    let (pool, stream, [here, there], imported) = shared(env)?;
    let mut buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
    let busy = env.stream()?;
    let lent = here.lend(&mut buffer)?;
    // SAFETY: the owner's stream does nothing meanwhile, and the buffer lives longer.
    let view = unsafe { there.receive_buffer::<u8>(&imported, &busy) }?;
    busy.synchronize()?;
    begin(&busy, RELAXED)?;
    drop(view);
    ensure!(!has_message(&here), "it is not freed yet");
    ensure!(drop_counts().waiting == 1, "{:?}", drop_counts());
    end_well(&busy)?;
    // From here on the stream is never idle.
    let work = hold(&busy)?;
    stream.synchronize()?;
    is_told_beside_later_work(&here, &stream, &busy, work)?;
    ensure!(drop_counts().failures == 0, "{:?}", drop_counts());
    Ok(lent.wait()?)
}

/// Its stream is never idle.
#[apply(case)]
fn a_buffer_that_is_dropped_does_not_wait_for_later_work(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (pool, stream, [here, there], imported) = shared(env)?;
    let mut buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
    let busy = env.stream()?;
    let lent = here.lend(&mut buffer)?;
    // SAFETY: the owner's stream does nothing meanwhile, and the buffer lives longer.
    let view = unsafe { there.receive_buffer::<u8>(&imported, &busy) }?;
    let work = hold(&busy)?;
    drop(view);
    is_told_beside_later_work(&here, &stream, &busy, work)?;
    Ok(lent.wait()?)
}

#[apply(case)]
fn a_buffer_that_cannot_be_received_ends_the_wait(env: &Environment) -> Result<()> {
    let (pool, stream, [here, there], imported) = shared(env)?;
    let mut buffer = pool.alloc_from(&stream, &[7_u32; 100])?;
    for _ in 0..2 {
        let lent = here.lend(&mut buffer)?;
        // SAFETY: one stream orders everything, and the buffer lives longer.
        let received = unsafe { there.receive_buffer::<u64>(&imported, &stream) };
        ensure!(received.is_err_and(|error| error.kind() == ErrorKind::InvalidValue));
        let (tell, end) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || tell.send(lent.wait()));
            let end = end.recv_timeout(LIMIT);
            if end.is_err() {
                // The wait ends now.
                // SAFETY: no pointers.
                unsafe { libc::shutdown(there.as_fd().as_raw_fd(), libc::SHUT_RDWR) };
            }
            let error = end.context("the wait goes on")?.err();
            ensure!(error.is_some_and(|error| error.kind() == ErrorKind::PeerFailed));
            Ok(())
        })?;
    }
    Ok(())
}

/// The numbers of two channels are the same, unless they are those of the process.
#[apply(case)]
fn a_buffer_is_given_back_through_its_channel_only(env: &Environment) -> Result<()> {
    let (pool, stream, [here, there], imported) = shared(env)?;
    let (_other_here, other_there) = Channel::pair()?;
    let mut buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
    let lent = here.lend(&mut buffer)?;
    // SAFETY: one stream orders everything, and the buffer lives longer.
    let view = unsafe { there.receive_buffer::<u8>(&imported, &stream) }?;
    let refused = other_there.give_back(view).err();
    let refused = refused.context("a channel took what another brought")?;
    ensure!(refused.error.kind() == ErrorKind::InvalidValue);
    let view = refused.object.context("the view did not come back")?;
    there.give_back(view)?;
    Ok(lent.wait()?)
}

/// As the runtimes of asynchronous programs make it.
#[apply(case)]
fn a_socket_that_does_not_wait_ends_no_loan(env: &Environment) -> Result<()> {
    let (pool, stream, [here, there], imported) = shared(env)?;
    let mut buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
    // SAFETY: no pointers.
    let flags = unsafe { libc::fcntl(here.as_fd().as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    ensure!(flags == 0, "the socket still waits");
    for is_dropped in [false, true] {
        let lent = here.lend(&mut buffer)?;
        // SAFETY: one stream orders everything, and the buffer lives longer.
        let view = unsafe { there.receive_buffer::<u8>(&imported, &stream) }?;
        let is_given = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let answer = if is_dropped {
                    drop(lent);
                    Ok(())
                } else {
                    lent.wait()
                };
                (answer, is_given.load(Ordering::SeqCst))
            });
            std::thread::sleep(Duration::from_millis(20));
            is_given.store(true, Ordering::SeqCst);
            there.give_back(view)?;
            let (answer, in_time) = waits.join().map_err(|_| anyhow::anyhow!("panicked"))?;
            answer?;
            ensure!(in_time, "dropped: {is_dropped}; the loan ended before");
            Ok(())
        })?;
    }
    Ok(())
}

#[apply(case)]
fn a_return_that_cannot_be_sent_ends_the_wait(env: &Environment) -> Result<()> {
    let (pool, stream, [here, there], imported) = shared(env)?;
    let mut buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
    let lent = here.lend(&mut buffer)?;
    // SAFETY: one stream orders everything, and the buffer lives longer.
    let received = unsafe { there.receive_buffer::<u8>(&imported, &stream) }?;
    // SAFETY: no pointers.
    let ended = unsafe { libc::shutdown(there.as_fd().as_raw_fd(), libc::SHUT_WR) };
    ensure!(ended == 0, "the socket still sends");
    let failed = there.give_back(received);
    let (tell, end) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || tell.send(lent.wait()));
        let end = end.recv_timeout(LIMIT);
        // If that failed, the wait ends now.
        drop(there);
        let end = end.context("the wait goes on")?;
        ensure!(end.is_err_and(|error| error.kind() == ErrorKind::PeerGone));
        let failed = failed.err().context("it was sent")?;
        ensure!(failed.error.kind() == ErrorKind::PeerGone && failed.object.is_none());
        Ok(())
    })
}

#[apply(case)]
fn a_buffer_is_given_back_with_its_last_view_only(env: &Environment) -> Result<()> {
    let (pool, stream, [here, there], imported) = shared(env)?;
    let buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
    here.send_buffer(&buffer)?;
    // SAFETY: one stream orders everything, and the buffer lives longer.
    let view = unsafe { there.receive_buffer::<u8>(&imported, &stream) }?;
    // SAFETY: as above.
    let second = unsafe { imported.import::<u8>(&stream, &buffer.export()?) }?;
    let Err(failed) = there.give_back(view) else {
        anyhow::bail!("given back while another view is alive");
    };
    ensure!(failed.error.kind() == ErrorKind::InUse, "{}", failed.error);
    let Err(unknown) = there.give_back(second) else {
        anyhow::bail!("given back what no channel has brought");
    };
    ensure!(unknown.error.kind() == ErrorKind::InvalidValue);
    drop(unknown);
    let Some(view) = failed.object else {
        anyhow::bail!("the view did not come back");
    };
    ensure!(view.to_vec()? == [7; 100]);
    there.give_back(view)?;
    Ok(())
}

#[apply(case)]
fn a_view_that_is_dropped_before_another_gives_nothing_back(env: &Environment) -> Result<()> {
    let (pool, stream, [here, there], imported) = shared(env)?;
    let mut buffer = pool.alloc_from(&stream, &[7_u8; 100])?;
    let description = buffer.export()?;
    let lent = here.lend(&mut buffer)?;
    // SAFETY: one stream orders everything, and the buffer lives longer.
    let view = unsafe { there.receive_buffer::<u8>(&imported, &stream) }?;
    // SAFETY: as above.
    let second = unsafe { imported.import::<u8>(&stream, &description) }?;
    drop(view);
    let error = lent.wait().err().context("given back")?;
    ensure!(error.kind() == ErrorKind::PeerFailed, "{error}");
    ensure!(second.to_vec()? == [7; 100]);
    Ok(())
}

#[apply(case)]
fn memory_of_this_process_is_not_given_back_to_another(env: &Environment) -> Result<()> {
    let (pool, stream) = (env.pool()?, env.stream()?);
    let (_here, there) = Channel::pair()?;
    let owned = pool.alloc_from(&stream, &[7_u8; 100])?;
    // SAFETY: the memory is that of `owned`, which lives longer and frees in the same stream.
    let view = unsafe { DeviceBuffer::<u8>::borrow_raw(&stream, owned.as_raw(), 100, ()) };
    let Err(failed) = there.give_back(view) else {
        anyhow::bail!("given back what no channel has brought");
    };
    ensure!(failed.error.kind() == ErrorKind::InvalidValue);
    let view = failed.object.context("the view did not come back")?;
    ensure!(view.to_vec()? == [7; 100]);
    Ok(())
}

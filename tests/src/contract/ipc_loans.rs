//! Buffers on loan to another process, and how they come back.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use cuda_mem::{Channel, ErrorKind};

use super::ipc::shared_pool;
use crate::lab::Lab;

pub(super) fn word_of_one_buffer_is_not_taken_for_that_of_another(lab: &Lab) -> Result<()> {
    let (pool, stream) = (shared_pool(lab)?, lab.stream()?);
    let (here, there) = Channel::pair()?;
    here.send_pool(&pool)?;
    let imported = there.receive_pool(&lab.device()?)?;
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

pub(super) fn a_buffer_is_given_back_with_its_last_view_only(lab: &Lab) -> Result<()> {
    let (pool, stream) = (shared_pool(lab)?, lab.stream()?);
    let (here, there) = Channel::pair()?;
    here.send_pool(&pool)?;
    let imported = there.receive_pool(&lab.device()?)?;
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

//! Order between the stream of a buffer and others. A host function holds one stream up, so each test sees who waits for
//! whom. No two are held up at once: the host functions of a context run one after the other.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cuda_mem_cudarc_bridge::{Buffer, Error, borrow_stream};
use cudarc::driver::{DevicePtr as _, DevicePtrMut as _};

use crate::common::{Gate, Machine, require_free, require_held_up, simulator};

pub(crate) const TESTS: &[crate::Test] = &[
    ("one_stream_waits_for_nothing", one_stream_waits_for_nothing),
    (
        "another_stream_waits_for_the_buffers",
        another_stream_waits_for_the_buffers,
    ),
    (
        "the_buffers_stream_waits_for_a_writer",
        the_buffers_stream_waits_for_a_writer,
    ),
    (
        "a_writer_waits_for_all_readers",
        a_writer_waits_for_all_readers,
    ),
    (
        "readers_do_not_wait_for_each_other",
        readers_do_not_wait_for_each_other,
    ),
    (
        "a_third_stream_waits_for_a_writer",
        a_third_stream_waits_for_a_writer,
    ),
    (
        "a_free_waits_for_other_streams",
        a_free_waits_for_other_streams,
    ),
    (
        "views_are_ordered_as_their_buffer",
        views_are_ordered_as_their_buffer,
    ),
    (
        "a_stream_that_reads_and_then_writes_is_waited_for",
        a_stream_that_reads_and_then_writes_is_waited_for,
    ),
    (
        "slices_of_both_crates_are_ordered",
        slices_of_both_crates_are_ordered,
    ),
    (
        "a_stream_may_end_before_its_use_is_waited_for",
        a_stream_may_end_before_its_use_is_waited_for,
    ),
    (
        "without_events_the_host_waits",
        without_events_the_host_waits,
    ),
    (
        "without_order_there_is_no_address",
        without_order_there_is_no_address,
    ),
];

fn one_stream_waits_for_nothing() -> Result<()> {
    let machine = Machine::new()?;
    let stream = machine.stream()?;
    let mut x = machine.buffer(&stream, &[1, 2])?;
    let y = machine.buffer(&stream, &[3, 4])?;
    if let Some(simulator) = simulator() {
        let (copied, calls) = simulator.record(|| stream.memcpy_dtod(&y, &mut x));
        copied?;
        let others = calls.iter().filter(|call| call.contains("Event"));
        ensure!(others.count() == 0, "{calls:?}");
    }
    Ok(())
}

fn another_stream_waits_for_the_buffers() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, other) = (machine.stream()?, machine.stream()?);
    let source = machine.buffer(&stream, &[5; 1000])?;
    let mut x = machine.buffer(&stream, &[0; 1000])?;
    let mut y = machine.buffer(&other, &[0; 1000])?;
    let gate = Gate::close(&stream)?;
    stream.memcpy_dtod(&source, &mut x)?;
    other.memcpy_dtod(&x, &mut y)?;
    require_held_up(&other)?;
    gate.open();
    ensure!(other.clone_dtoh(&y)? == [5; 1000]);
    Ok(())
}

fn the_buffers_stream_waits_for_a_writer() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, other) = (machine.stream()?, machine.stream()?);
    let mut x = machine.buffer(&stream, &[9; 1000])?;
    let mut y = machine.buffer(&stream, &[9; 1000])?;
    let gate = Gate::close(&other)?;
    other.memset_zeros(&mut x)?;
    require_free(&stream)?; // it waits at the next use
    stream.memcpy_dtod(&x, &mut y)?;
    require_held_up(&stream)?;
    gate.open();
    ensure!(y.memory()?.to_vec()? == [0; 1000]);

    // The same for uses through cuda-mem.
    let gate = Gate::close(&other)?;
    other.memcpy_dtod(&y, &mut x)?;
    x.memory_mut()?.fill(7)?;
    require_held_up(&stream)?;
    gate.open();
    ensure!(x.into_memory()?.to_vec()? == [7; 1000]);
    Ok(())
}

/// An event for all readers would be that of the last one.
fn a_writer_waits_for_all_readers() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, a, b) = (machine.stream()?, machine.stream()?, machine.stream()?);
    let mut x = machine.buffer(&stream, &[3; 1000])?;
    let (mut on_a, mut on_b) = (
        machine.buffer(&a, &[0; 1000])?,
        machine.buffer(&b, &[0; 1000])?,
    );
    let gate = Gate::close(&a)?;
    a.memcpy_dtod(&x, &mut on_a)?;
    b.memcpy_dtod(&x, &mut on_b)?;
    require_free(&b)?; // the last reader is done
    stream.memset_zeros(&mut x)?;
    require_held_up(&stream)?;
    gate.open();
    ensure!(stream.clone_dtoh(&x)? == [0; 1000]);
    ensure!(a.clone_dtoh(&on_a)? == [3; 1000] && b.clone_dtoh(&on_b)? == [3; 1000]);
    Ok(())
}

fn readers_do_not_wait_for_each_other() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, a, b) = (machine.stream()?, machine.stream()?, machine.stream()?);
    let x = machine.buffer(&stream, &[3; 1000])?;
    let (mut on_a, mut on_b) = (
        machine.buffer(&a, &[0; 1000])?,
        machine.buffer(&b, &[0; 1000])?,
    );
    let gate = Gate::close(&a)?;
    for _ in 0..3 {
        a.memcpy_dtod(&x, &mut on_a)?;
        b.memcpy_dtod(&x, &mut on_b)?;
    }
    require_free(&b)?;
    require_free(&stream)?;
    require_held_up(&a)?;
    gate.open();
    ensure!(a.clone_dtoh(&on_a)? == [3; 1000]);
    Ok(())
}

fn a_third_stream_waits_for_a_writer() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, writer, reader) = (machine.stream()?, machine.stream()?, machine.stream()?);
    let mut x = machine.buffer(&stream, &[9; 1000])?;
    let mut y = machine.buffer(&reader, &[9; 1000])?;
    let gate = Gate::close(&writer)?;
    writer.memset_zeros(&mut x)?;
    reader.memcpy_dtod(&x, &mut y)?;
    require_held_up(&reader)?;
    gate.open();
    ensure!(reader.clone_dtoh(&y)? == [0; 1000]);
    Ok(())
}

fn a_free_waits_for_other_streams() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, other) = (machine.stream()?, machine.stream()?);
    for in_arena in [false, true] {
        let mut x = if in_arena {
            Buffer::new(machine.part(&stream, &[9; 1000])?, &stream)?
        } else {
            machine.buffer(&stream, &[9; 1000])?
        };
        let gate = Gate::close(&other)?;
        other.memset_zeros(&mut x)?;
        let opener = gate.open_later(Duration::from_millis(100));
        let begun = Instant::now();
        drop(x);
        stream.synchronize()?;
        ensure!(
            begun.elapsed() >= Duration::from_millis(50),
            "in an arena: {in_arena}"
        );
        ensure!(opener.join().is_ok());
    }
    ensure!(machine.used()? == 0);
    Ok(())
}

fn views_are_ordered_as_their_buffer() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, a, b) = (machine.stream()?, machine.stream()?, machine.stream()?);
    let mut x = machine.buffer(&stream, &[9; 1000])?;
    let gate = Gate::close(&a)?;
    {
        let (mut low, mut high) = x.split_at_mut(500)?;
        a.memset_zeros(&mut low)?;
        b.memset_zeros(&mut high)?;
        b.memset_zeros(&mut high)?;
    }
    let third = machine.stream()?;
    let mut y = machine.buffer(&third, &[8; 500])?;
    third.memcpy_dtod(&x.slice(250..750)?, &mut y)?;
    require_held_up(&third)?;
    gate.open();
    ensure!(third.clone_dtoh(&y)? == [0; 500]);
    ensure!(x.memory()?.to_vec()? == [0; 1000]);
    Ok(())
}

/// Both uses are in the list, which is not cleared while the view lives.
fn a_stream_that_reads_and_then_writes_is_waited_for() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, other, third) = (machine.stream()?, machine.stream()?, machine.stream()?);
    let mut x = machine.buffer(&stream, &[9; 1000])?;
    let mut read = machine.buffer(&other, &[8; 1000])?;
    let mut y = machine.buffer(&third, &[8; 1000])?;
    let mut view = x.as_view_mut();
    other.memcpy_dtod(&view, &mut read)?;
    let gate = Gate::close(&other)?;
    other.memset_zeros(&mut view)?;
    third.memcpy_dtod(&view, &mut y)?;
    require_held_up(&third)?;
    gate.open();
    ensure!(third.clone_dtoh(&y)? == [0; 1000]);
    ensure!(other.clone_dtoh(&read)? == [9; 1000]);
    Ok(())
}

fn slices_of_both_crates_are_ordered() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, other, third) = (machine.stream()?, machine.stream()?, machine.stream()?);
    let ours = borrow_stream(&other)?;
    let mut x = machine.buffer(&stream, &[9; 1000])?;
    let mut y = machine.buffer(&third, &[9; 1000])?;
    let gate = Gate::close(&other)?;
    // A slice of cuda-mem that is leaked is waited for, too.
    std::mem::forget(x.memory_mut()?.on(&ours)?);
    third.memcpy_dtod(&x, &mut y)?;
    require_held_up(&third)?;
    gate.open();
    ensure!(third.clone_dtoh(&y)? == [9; 1000]);
    drop(x.memory()?.read_on(&ours)?);
    stream.memset_zeros(&mut x)?;
    ensure!(stream.clone_dtoh(&x)? == [0; 1000]);
    Ok(())
}

fn a_stream_may_end_before_its_use_is_waited_for() -> Result<()> {
    let machine = Machine::new()?;
    // Without another stream of cudarc's, its own slices are not ordered after this.
    let stream = machine.context.default_stream();
    let mut x = machine.buffer(&stream, &[9; 1000])?;
    let other = machine.stream()?;
    let gate = Gate::close(&other)?;
    other.memset_zeros(&mut x)?;
    drop(other);
    ensure!(!machine.context.is_managing_stream_synchronization());
    let opener = gate.open_later(Duration::from_millis(50));
    ensure!(stream.clone_dtoh(&x)? == [0; 1000]);
    ensure!(opener.join().is_ok());
    Ok(())
}

fn without_events_the_host_waits() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, other) = (machine.stream()?, machine.stream()?);
    let mut x = machine.buffer(&stream, &[9; 1000])?;
    // SAFETY: this test has no slices of cudarc.
    unsafe { machine.context.disable_event_tracking() };
    let untracked = machine.context.per_thread_stream();
    for there in [&other, &untracked] {
        let opener = Gate::close(there)?.open_later(Duration::from_millis(100));
        let begun = Instant::now();
        there.memset_zeros(&mut x)?;
        ensure!(begun.elapsed() >= Duration::from_millis(50));
        ensure!(opener.join().is_ok());
        // SAFETY: as above. The per-thread stream has no event of its own even so.
        unsafe { machine.context.enable_event_tracking() };
    }
    ensure!(stream.clone_dtoh(&x)? == [0; 1000]);
    Ok(())
}

/// On the simulated driver, which fails on request.
fn without_order_there_is_no_address() -> Result<()> {
    let Some(simulator) = simulator() else {
        return Ok(());
    };
    let refusal = cuda_sim::CUresult::CUDA_ERROR_NOT_PERMITTED;
    let machine = Machine::new()?;
    let (stream, other) = (machine.stream()?, machine.stream()?);
    let mut x = machine.buffer(&stream, &[9; 10])?;
    for function in ["cuEventRecord", "cuStreamWaitEvent"] {
        simulator.fail(function, 1, refusal);
        ensure!(x.device_ptr(&other).0 == 0);
        ensure!(machine.context.check_err().is_err());
        simulator.fail(function, 1, refusal);
        ensure!(x.device_ptr_mut(&other).0 == 0);
        ensure!(machine.context.check_err().is_err());
    }

    // An error comes back where there is a way, and the use is not forgotten.
    other.memset_zeros(&mut x)?;
    simulator.fail("cuStreamWaitEvent", 1, refusal);
    ensure!(matches!(x.memory(), Err(Error::Cudarc(_))));
    simulator.fail("cuStreamWaitEvent", 1, refusal);
    let Err(refused) = x.into_memory() else {
        anyhow::bail!("it was given without order");
    };
    let Some(x) = refused.object else {
        anyhow::bail!("the buffer is lost");
    };

    // The end waits on the host.
    let opener = Gate::close(&other)?.open_later(Duration::from_millis(100));
    let mut y = machine.buffer(&stream, &[9; 10])?;
    other.memset_zeros(&mut y)?;
    simulator.fail("cuStreamWaitEvent", 1, refusal);
    let begun = Instant::now();
    drop(y);
    ensure!(begun.elapsed() >= Duration::from_millis(50));
    ensure!(opener.join().is_ok());
    ensure!(machine.context.check_err().is_err());
    ensure!(x.into_memory()?.to_vec()? == [0; 10]);
    Ok(())
}

//! Calls of cudarc that take buffers.

use anyhow::{Result, ensure};
use cuda_mem_cudarc_bridge::{Buffer, borrow_stream};
use cudarc::cublas::{CudaBlas, Gemv as _, GemvConfig, sys as cublas};
use cudarc::driver::{CudaContext, DevicePtr as _, DeviceSlice as _};

use crate::common::Machine;

pub(crate) const TESTS: &[crate::Test] = &[
    ("copies_take_buffers", copies_take_buffers),
    (
        "copies_take_parts_of_an_arena",
        copies_take_parts_of_an_arena,
    ),
    ("copies_take_views", copies_take_views),
    ("no_bytes_are_no_address", no_bytes_are_no_address),
    ("the_default_stream_works", the_default_stream_works),
    (
        "contents_go_to_another_device",
        contents_go_to_another_device,
    ),
    ("cublas_takes_buffers", cublas_takes_buffers),
];

fn copies_take_buffers() -> Result<()> {
    let machine = Machine::new()?;
    let stream = machine.stream()?;
    let mut x = machine.buffer(&stream, &[0; 4])?;
    ensure!((x.len(), x.num_bytes(), x.is_empty()) == (4, 16, false));

    stream.memcpy_htod(&[1, 2, 3, 4], &mut x)?;
    let theirs = stream.clone_dtod(&x)?;
    stream.memset_zeros(&mut x)?;
    ensure!(stream.clone_dtoh(&x)? == [0; 4]);

    let mut y = machine.buffer(&stream, &[9; 4])?;
    stream.memcpy_dtod(&theirs, &mut x)?; // from a slice of cudarc
    stream.memcpy_dtod(&x, &mut y)?; // between buffers
    let mut host = [0; 4];
    stream.memcpy_dtoh(&y, &mut host)?;
    stream.synchronize()?;
    ensure!(host == [1, 2, 3, 4]);
    ensure!(y.memory()?.to_vec()? == host, "both crates see the same");
    Ok(())
}

fn copies_take_parts_of_an_arena() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, other) = (machine.stream()?, machine.stream()?);
    let mut x = Buffer::new(machine.part(&stream, &[1, 2, 3])?, &stream)?;
    let theirs = other.clone_dtod(&x)?;
    stream.memset_zeros(&mut x)?;
    ensure!(stream.clone_dtoh(&theirs)? == [1, 2, 3]);
    ensure!(other.clone_dtoh(&x)? == [0; 3]);
    Ok(())
}

fn copies_take_views() -> Result<()> {
    let machine = Machine::new()?;
    let stream = machine.stream()?;
    let mut x = machine.buffer(&stream, &[1, 2, 3, 4, 5, 6])?;
    ensure!(stream.clone_dtoh(&x.slice(1..3)?)? == [2, 3]);
    {
        let (mut low, mut high) = x.split_at_mut(2)?;
        stream.memset_zeros(&mut low)?;
        stream.memcpy_dtod(&high.slice(..2)?, &mut low)?;
        stream.memcpy_htod(&[7, 8], &mut high.slice_mut(2..)?)?;
        ensure!(
            stream.clone_dtoh(&low)? == [3, 4],
            "a view for writing is read as well"
        );
        let (mut third, _) = high.split_at_mut(1)?;
        stream.memset_zeros(&mut third)?;
    }
    ensure!(x.memory()?.to_vec()? == [3, 4, 0, 4, 7, 8]);
    let (low, high) = x.as_view().split_at(5)?;
    ensure!(stream.clone_dtoh(&low.slice(4..)?)? == [7]);
    ensure!((high.len(), high.stream() == &stream) == (1, true));
    ensure!(x.slice(3..7).is_err() && x.slice_mut(7..).is_err() && x.split_at_mut(7).is_err());
    stream.memset_zeros(&mut x.as_view_mut())?;
    ensure!(stream.clone_dtoh(&x.as_view())? == [0; 6]);
    Ok(())
}

fn no_bytes_are_no_address() -> Result<()> {
    let machine = Machine::new()?;
    let (stream, other) = (machine.stream()?, machine.stream()?);
    let x = machine.buffer(&stream, &[])?;
    ensure!(x.is_empty());
    ensure!(x.device_ptr(&other).0 == 0);
    machine.context.check_err()?;
    Ok(())
}

fn the_default_stream_works() -> Result<()> {
    let machine = Machine::new()?;
    let stream = machine.context.default_stream();
    let mut x = machine.buffer(&stream, &[1, 2, 3])?;
    let other = machine.stream()?;
    ensure!(other.clone_dtoh(&x)? == [1, 2, 3]);
    other.memset_zeros(&mut x)?;
    ensure!(stream.clone_dtoh(&x)? == [0; 3]);
    Ok(())
}

fn contents_go_to_another_device() -> Result<()> {
    if CudaContext::device_count()? < 2 {
        println!("contents_go_to_another_device: skipped, there is one device");
        return Ok(());
    }
    let machine = Machine::new()?;
    let stream = machine.stream()?;
    let there = CudaContext::new(1)?.new_stream()?;
    let mut x = machine.buffer(&stream, &[0; 3])?;
    let theirs = there.clone_htod(&[1u32, 2, 3])?;
    stream.memcpy_dtod(&theirs, &mut x)?;
    let back = there.clone_dtod(&x)?;
    ensure!(there.clone_dtoh(&back)? == [1, 2, 3]);
    // The host waits for a stream of another context.
    let (address, guard) = x.device_ptr(&there);
    ensure!(address != 0);
    drop(guard);
    there.context().check_err()?;
    machine.context.check_err()?;
    Ok(())
}

fn cublas_takes_buffers() -> Result<()> {
    // SAFETY: opening the library runs its initialisers.
    let present = crate::common::simulator().is_none() && unsafe { cublas::is_culib_present() };
    if !present {
        println!("cublas_takes_buffers: skipped, there is no cuBLAS");
        return Ok(());
    }
    let machine = Machine::new()?;
    let (stream, other) = (machine.stream()?, machine.stream()?);
    let ours = borrow_stream(&stream)?;
    let buffer = |from: &[f32]| {
        Ok::<_, anyhow::Error>(Buffer::new(machine.pool.alloc_from(&ours, from)?, &stream)?)
    };
    let matrix = buffer(&[1.0, 2.0, 3.0, 4.0])?; // by columns
    let (x, mut y) = (buffer(&[10.0, 1.0])?, buffer(&[0.0; 2])?);
    let config = GemvConfig {
        trans: cublas::cublasOperation_t::CUBLAS_OP_N,
        m: 2,
        n: 2,
        alpha: 1.0,
        lda: 2,
        incx: 1,
        beta: 0.0,
        incy: 1,
    };
    let blas = CudaBlas::new(other)?; // not the stream of the buffers
    // SAFETY: the sizes are those of the buffers.
    unsafe { blas.gemv(config, &matrix, &x, &mut y) }?;
    ensure!(y.memory()?.to_vec()? == [13.0, 24.0]);
    Ok(())
}

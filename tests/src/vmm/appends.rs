//! Buffers whose address stays, and to which elements of the host are added.

use anyhow::{Result, ensure};
use bytemuck::{Pod, Zeroable};
use cuda_mem::ErrorKind;
use cuda_mem::driver::Location;
use cuda_mem::interop::CaptureMode;
use cuda_mem::mapped::{GrowableBuffer, MappedMemory};

use super::places;
use crate::environment::Environment;
use crate::hold::hold;

/// 12 bytes, which do not divide a granule: elements lie across its end.
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
#[repr(C)]
struct Point {
    x: u32,
    y: f32,
    z: u32,
}

fn points(from: usize, count: usize) -> Vec<Point> {
    let point = |at: usize| Point {
        x: at as u32,
        y: at as f32,
        z: !(at as u32),
    };
    (from..from + count).map(point).collect()
}

fn empty<T: Pod>(env: &Environment, reserve: u64) -> Result<GrowableBuffer<T>> {
    let memory = MappedMemory::builder(&env.device()?)
        .reserve(reserve)
        .build(1)?;
    Ok(memory.into_buffer::<T>(&env.stream()?, 0)?)
}

#[apply(case)]
fn elements_are_added_at_the_same_address(env: &Environment) -> Result<()> {
    let mut buffer = empty::<Point>(env, 16 << 20)?;
    let (address, mut maps) = (buffer.as_raw(), buffer.migrations().maps);
    let (mut expected, mut capacity) = (Vec::new(), buffer.capacity());
    // A few, to the last one of the granule, across its end, and several granules at once.
    let fill_up = capacity - 1001;
    for count in [1, 1000, fill_up, 1, 2 * capacity + 1, 7] {
        let more = points(expected.len(), count);
        buffer.extend_from_slice(&more)?;
        expected.extend(more);
        ensure!(buffer.as_raw() == address && buffer.len() == expected.len());
        ensure!(buffer.capacity() >= capacity, "memory was given back");
        // One piece each time that there is too little, and none else.
        maps += u64::from(buffer.capacity() > capacity);
        ensure!(
            buffer.migrations().maps == maps,
            "{:?}",
            buffer.migrations()
        );
        capacity = buffer.capacity();
    }
    ensure!(maps > 2, "it did not grow");
    ensure!(buffer.to_vec()? == expected);
    let mut read = vec![Point::zeroed(); expected.len()];
    buffer.copy_to(&mut read)?;
    ensure!(read == expected);
    // What was shown no more is written over, and what is left stays.
    buffer.resize_uninit(10)?;
    buffer.extend_from_slice(&points(500, 2))?;
    let expected = [points(0, 10), points(500, 2)].concat();
    ensure!(buffer.to_vec()? == expected);
    Ok(())
}

#[apply(case)]
fn no_elements_change_nothing(env: &Environment) -> Result<()> {
    let mut buffer = empty::<u64>(env, 4 << 20)?;
    let (capacity, migrations) = (buffer.capacity(), buffer.migrations());
    buffer.extend_from_slice(&[])?;
    ensure!(buffer.is_empty() && buffer.to_vec()?.is_empty());
    buffer.extend_from_slice(&[3])?;
    buffer.extend_from_slice(&[])?;
    ensure!(buffer.to_vec()? == [3]);
    ensure!(buffer.capacity() == capacity && buffer.migrations() == migrations);
    Ok(())
}

#[apply(case)]
fn elements_are_added_wherever_the_memory_is(env: &Environment) -> Result<()> {
    let device = Location::Device(env.device()?);
    for place in places(env)? {
        let builder = MappedMemory::builder_at(env.driver, place);
        let memory = builder
            .accessible_from([device])
            .reserve(16 << 20)
            .build(1)?;
        let mut buffer = memory.into_buffer::<u8>(&env.stream()?, 0)?;
        let mut expected = Vec::new();
        for value in 1..4 {
            let more = vec![value; buffer.capacity() / 2 + 1];
            buffer.extend_from_slice(&more)?;
            expected.extend(more);
        }
        ensure!(buffer.to_vec()? == expected, "{place}");
    }
    Ok(())
}

#[apply(case)]
fn what_cannot_be_added_loses_nothing(env: &Environment) -> Result<()> {
    let mut buffer = empty::<u16>(env, 1)?;
    let (capacity, most) = (buffer.capacity(), buffer.max_len());
    buffer.extend_from_slice(&vec![5; capacity - 1])?;
    let error = buffer
        .extend_from_slice(&vec![6; most - capacity + 2])
        .expect_err("it is not reserved");
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    ensure!(error.to_string().contains("reserve more"), "{error}");
    ensure!(
        buffer.to_vec()? == vec![5; capacity - 1],
        "elements were lost"
    );
    buffer.extend_from_slice(&[7])?;
    ensure!(buffer.len() == capacity && buffer.to_vec()?[capacity - 2..] == [5, 7]);
    // Elements of no size take no memory, but they cannot be more than can be counted.
    let mut nothings = empty::<()>(env, 1)?;
    nothings.extend_from_slice(&[(); usize::MAX])?;
    let error = nothings.extend_from_slice(&[()]).expect_err("too many");
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    ensure!(nothings.len() == usize::MAX);
    Ok(())
}

#[apply(case)]
fn elements_come_behind_what_other_streams_write(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let other = env.stream()?;
    let mut buffer = empty::<u32>(env, 16 << 20)?;
    buffer.extend_from_slice(&[1; 100])?;
    let held = hold(&other)?;
    buffer.as_mut_slice().on(&other)?.fill(2)?;
    let mut added = std::thread::scope(|scope| -> Result<_> {
        let adding = scope.spawn(move || buffer.extend_from_slice(&[3; 100]).map(|()| buffer));
        std::thread::sleep(std::time::Duration::from_millis(20));
        ensure!(
            !adding.is_finished(),
            "it did not wait for the other stream"
        );
        drop(held);
        Ok(adding.join().expect("it does not panic")?)
    })?;
    added.extend_from_slice(&[4])?;
    ensure!(added.to_vec()? == [vec![2; 100], vec![3; 100], vec![4]].concat());
    Ok(())
}

#[apply(case_alone)]
fn a_captured_stream_adds_nothing_and_others_do(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (stream, device) = (env.stream()?, env.device()?);
    for mode in [
        CaptureMode::Global,
        CaptureMode::ThreadLocal,
        CaptureMode::Relaxed,
    ] {
        let memory = MappedMemory::builder(&device).reserve(64 << 20).build(1)?;
        let mut own = memory.into_buffer::<u8>(&stream, 0)?;
        let mut other = empty::<u8>(env, 64 << 20)?;
        own.extend_from_slice(&[1, 2])?;
        let (capacity, migrations) = (own.capacity(), own.migrations());
        let more = vec![3; capacity];
        let (graph, ()) = stream.capture(mode, |capture| {
            let refused = own.extend_from_slice(&more).map_err(|error| error.kind());
            assert_eq!(refused, Err(ErrorKind::Capturing));
            other.extend_from_slice(&more)?;
            capture.alloc::<u32>(10)?.as_mut_slice().fill(0)
        })?;
        drop(graph);
        ensure!(own.to_vec()? == [1, 2] && own.capacity() == capacity);
        ensure!(own.migrations() == migrations, "{mode:?}: memory was added");
        ensure!(other.to_vec()? == more);
        own.extend_from_slice(&more)?;
        ensure!(own.to_vec()?[..3] == [1, 2, 3] && own.len() == capacity + 2);
    }
    Ok(())
}

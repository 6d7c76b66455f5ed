//! Launching kernels.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bytemuck::{Pod, Zeroable};
use cuda_mem::ErrorKind;
use cuda_mem::interop::CaptureMode;
use cuda_mem::kernel::{Image, Launch, Value};
use cuda_mem::sys::CudaVersion;

use super::{PTX, kernel, load};
use crate::environment::Environment;
use crate::foreign;
use crate::hold::hold;

const COUNT: usize = 10_000;

#[apply(case)]
fn a_kernel_does_what_it_says(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let (module, stream, pool) = (load(&context)?, context.stream()?, env.pool()?);
    let numbers: Vec<f32> = (0..COUNT).map(|at| at as f32).collect();
    let left = pool.alloc_from(&stream, &numbers)?;
    let right = pool.alloc_from(&stream, &numbers)?;
    let mut sum = pool.alloc_zeroed::<f32>(&stream, COUNT)?;
    let mut words = pool.alloc_zeroed::<f32>(&stream, COUNT)?;
    let (add, copy) = (module.function("add")?, module.function("copy")?);
    // Also with fewer threads than elements: the kernels take several each.
    for launch in [Launch::over(COUNT, 256), Launch::new([2, 1, 1], [64, 1, 1])] {
        sum.zero()?;
        words.zero()?;
        // SAFETY: as the kernels say.
        unsafe { add.launch(&stream, launch, (&mut sum, &left, &right, COUNT as u64)) }?;
        // SAFETY: as the kernels say.
        unsafe { copy.launch(&stream, launch, (&mut words, &sum, COUNT as u64)) }?;
        let expected: Vec<f32> = numbers.iter().map(|number| 2.0 * number).collect();
        ensure!(words.to_vec()? == expected, "{launch:?}");
    }
    Ok(())
}

/// Eight bytes, as a kernel takes a number.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Count {
    low: u32,
    high: u32,
}

#[apply(case)]
fn a_structure_is_passed_by_value(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let (fill, stream) = (kernel(&context, "fill")?, context.stream()?);
    let mut words = env.pool()?.alloc_zeroed::<u32>(&stream, 100)?;
    let count = Count { low: 60, high: 0 };
    // SAFETY: the last argument is a 64-bit number in two halves.
    unsafe {
        fill.launch(
            &stream,
            Launch::over(60, 32),
            (&mut words, 9u32, Value(count)),
        )
    }?;
    let words = words.to_vec()?;
    ensure!(words[..60].iter().all(|word| *word == 9) && words[60..].iter().all(|word| *word == 0));
    Ok(())
}

#[apply(case)]
fn a_kernel_runs_in_the_order_of_its_stream(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (fill, stream) = (kernel(&context, "fill")?, context.stream()?);
    warm(&fill)?;
    let mut words = env.pool()?.alloc_zeroed::<u32>(&stream, COUNT)?;
    stream.synchronize()?;
    let held = hold(&stream)?;
    // SAFETY: as the kernel says.
    unsafe {
        fill.launch(
            &stream,
            Launch::over(COUNT, 256),
            (&mut words, 3u32, COUNT as u64),
        )
    }?;
    ensure!(!stream.is_done()?, "the launch waited, or did not queue");
    drop(held);
    ensure!(words.to_vec()? == [3; COUNT]);
    Ok(())
}

/// Brings code to the device where that can be asked for: a first launch beside a held stream may wait for it.
fn warm(function: &cuda_mem::kernel::Function) -> Result<()> {
    match function.preload() {
        Err(error) if error.kind() == ErrorKind::NotSupported => Ok(()),
        done => Ok(done?),
    }
}

#[apply(case)]
fn buffers_of_other_streams_are_joined(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (module, pool) = (load(&context)?, env.pool()?);
    let (own, other) = (context.stream()?, context.stream()?);
    let copy = module.function("copy")?;
    warm(&copy)?;
    let mut from = pool.alloc_zeroed::<u32>(&own, COUNT)?;
    let mut to = pool.alloc_zeroed::<u32>(&own, COUNT)?;
    own.synchronize()?;
    let held = hold(&own)?;
    from.fill(7)?;
    // SAFETY: as the kernel says.
    unsafe {
        copy.launch(
            &other,
            Launch::over(COUNT, 256),
            (&mut to, &from, COUNT as u64),
        )
    }?;
    ensure!(!other.is_done()?, "the launch did not wait for the fill");
    // Behind the launch, without a word of ours.
    from.fill(8)?;
    drop(held);
    ensure!(
        to.to_vec()? == [7; COUNT],
        "the kernel came too early or too late"
    );
    ensure!(from.to_vec()? == [8; COUNT]);
    Ok(())
}

#[apply(case)]
fn two_streams_read_one_buffer_at_a_time(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (module, pool) = (load(&context)?, env.pool()?);
    let (own, a, b) = (context.stream()?, context.stream()?, context.stream()?);
    let copy = module.function("copy")?;
    warm(&copy)?;
    let from = pool.alloc_from(&own, &[5u32; 1000])?;
    let (mut first, mut second) = (pool.alloc::<u32>(&a, 1000)?, pool.alloc::<u32>(&b, 1000)?);
    own.synchronize()?;
    let held = hold(&a)?;
    let launch = Launch::over(1000, 256);
    let (on_a, on_b) = (from.read_on(&a)?, from.read_on(&b)?);
    // SAFETY: as the kernel says.
    unsafe { copy.launch(&a, launch, (&mut first, &on_a, 1000u64)) }?;
    // SAFETY: as the kernel says.
    unsafe { copy.launch(&b, launch, (&mut second, &on_b, 1000u64)) }?;
    // `b` does not wait for `a`, which is held.
    b.synchronize()?;
    drop((on_a, on_b));
    ensure!(second.to_vec()? == [5; 1000]);
    drop(held);
    ensure!(first.to_vec()? == [5; 1000]);
    Ok(())
}

#[apply(case)]
fn slices_are_arguments(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (module, pool) = (load(&context)?, env.pool()?);
    let (own, other) = (context.stream()?, context.stream()?);
    let copy = module.function("copy")?;
    warm(&copy)?;
    let launch = Launch::over(1000, 256);
    let mut x = pool.alloc_from(&own, &(0..2000).collect::<Vec<u32>>())?;
    let (mut low, high) = x.split_at_mut(1000)?;
    // SAFETY: as the kernel says.
    unsafe { copy.launch(&own, launch, (&mut low, &high, 1000u64)) }?;
    ensure!(low.to_vec()?[..2] == [1000, 1001]);

    // A launch on another stream waits for the slice's, also for a slice that is bound to a third one.
    let mut target = pool.alloc::<u32>(&other, 1000)?;
    let held = hold(&own)?;
    let high = high.as_slice().read_on(&own)?;
    // SAFETY: as the kernel says.
    unsafe { copy.launch(&other, launch, (&mut target, &high, 1000u64)) }?;
    ensure!(
        !other.is_done()?,
        "the launch ran ahead of the slice's stream"
    );
    drop((high, held));
    ensure!(target.to_vec()? == (1000..2000).collect::<Vec<u32>>());

    // And what is written there comes before what follows in the slice's stream.
    let held = hold(&other)?;
    let mut first = x.slice_mut(..1000)?;
    // SAFETY: as the kernel says.
    unsafe { copy.launch(&other, launch, (&mut first, &target, 1000u64)) }?;
    x.slice_mut(500..)?.fill(7)?;
    ensure!(
        !own.is_done()?,
        "the slice's stream ran ahead of the launch"
    );
    drop(held);
    ensure!(x.to_vec()?[499..501] == [1499, 7]);
    Ok(())
}

#[apply(case)]
fn arguments_that_do_not_fit_are_refused(env: &Environment) -> Result<()> {
    env.need(12, 4)?;
    let context = env.context()?;
    let (fill, stream) = (kernel(&context, "fill")?, context.stream()?);
    ensure!(
        fill.parameters() == Some(&[8, 4, 8][..]),
        "{:?}",
        fill.parameters()
    );
    let mut words = env.pool()?.alloc_zeroed::<u32>(&stream, 10)?;
    let launch = Launch::over(10, 32);
    // SAFETY: refused before the driver hears of it.
    let few = unsafe { fill.launch(&stream, launch, (&mut words, 1u32)) };
    // SAFETY: refused before the driver hears of it.
    let wide = unsafe { fill.launch(&stream, launch, (&mut words, 1u64, 10u64)) };
    for refused in [few, wide] {
        let error = refused.expect_err("it is refused");
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        ensure!(error.to_string().contains("[8, 4, 8]"), "{error}");
    }
    ensure!(words.to_vec()? == [0; 10]);
    Ok(())
}

#[apply(case)]
fn blocks_that_cannot_run_are_explained(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let (fill, stream) = (kernel(&context, "fill")?, context.stream()?);
    let mut words = env.pool()?.alloc_zeroed::<u32>(&stream, 10)?;
    let most = fill.max_threads()?;
    let deep = Launch::new([1, 1, 1], [1, 1, 65]);
    for (launch, why) in [
        (
            Launch::over(10, most + 1),
            format!("{} threads a block are more than {most}", most + 1),
        ),
        (
            Launch::new([1, 1, 1], [0, 1, 1]),
            "a block without threads".to_owned(),
        ),
        (
            deep,
            "65 threads in a block's third dimension are more than 64".to_owned(),
        ),
        (
            Launch::new([u32::MAX, 1, 1], [1, 1, 1]),
            "4294967295 blocks in the grid's first dimension are more than 2147483647".to_owned(),
        ),
        (
            Launch::over(10, 32).shared(1 << 30),
            "1073741824 bytes of shared memory are more than ".to_owned(),
        ),
    ] {
        // SAFETY: the driver refuses it.
        let refused = unsafe { fill.launch(&stream, launch, (&mut words, 1u32, 10u64)) };
        let Err(error) = refused else {
            anyhow::bail!("{launch:?} was launched");
        };
        for part in [&format!("{most} threads"), &why] {
            ensure!(error.to_string().contains(part), "no {part:?} in {error}");
        }
    }
    ensure!(words.to_vec()? == [0; 10]);
    let shared = fill.max_dynamic_shared()?;
    ensure!(shared >= 48 << 10, "{shared} bytes");
    let error = fill
        .set_max_dynamic_shared(1 << 30)
        .expect_err("it is refused");
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    fill.set_max_dynamic_shared(64 << 10)?;
    ensure!(fill.max_dynamic_shared()? == 64 << 10);
    // SAFETY: as the kernel says; it uses no shared memory.
    unsafe {
        let launch = Launch::over(10, 32).shared(64 << 10);
        fill.launch(&stream, launch, (&mut words, 1u32, 10u64))
    }?;
    ensure!(words.to_vec()? == [1; 10]);
    Ok(())
}

/// The simulator knows some kernels by their names and parameters, and no others.
#[apply(case_of_sim)]
fn a_kernel_that_the_simulator_does_not_know_is_refused_with_the_reason(
    env: &Environment,
) -> Result<()> {
    env.control()?;
    // Older drivers have no log of errors.
    env.need(12, 9)?;
    let (context, other) = (
        env.context()?,
        super::PTX.replace(".entry fill", ".entry mine"),
    );
    let mine = context.load(&Image::ptx(&other)?)?.function("mine")?;
    let mut words = env.pool()?.alloc_zeroed::<u32>(&context.stream()?, 10)?;
    let stream = words.stream().clone();
    let launch = Launch::over(10, 32);
    // SAFETY: it is refused.
    let refused = unsafe { mine.launch(&stream, launch, (&mut words, 1u32, 10u64)) };
    let error = refused.expect_err("it cannot be run");
    ensure!(error.kind() == ErrorKind::NotSupported, "{error}");
    let reason = "the simulated driver cannot run the kernel `mine`: it runs only `fill`, `copy`, `add`, \
                  `spin` and `answer`";
    ensure!(error.to_string().contains(reason), "{error}");
    ensure!(
        error
            .driver_log()
            .is_some_and(|log| log.starts_with(reason)),
        "{error}"
    );
    // A refusal for another reason does not repeat the last one.
    let launch = Launch::over(10, 2000);
    // SAFETY: it is refused.
    let refused = unsafe { mine.launch(&stream, launch, (&mut words, 1u32, 10u64)) };
    let error = refused.expect_err("the blocks are too large");
    ensure!(!error.to_string().contains("cannot run"), "{error}");
    ensure!(words.to_vec()? == [0; 10]);
    Ok(())
}

#[apply(case)]
fn a_launch_over_nothing_does_nothing(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let (fill, stream) = (kernel(&context, "fill")?, context.stream()?);
    let mut words = env.pool()?.alloc_zeroed::<u32>(&stream, 10)?;
    // SAFETY: nothing is launched.
    unsafe { fill.launch(&stream, Launch::over(0, 32), (&mut words, 1u32, 10u64)) }?;
    ensure!(words.to_vec()? == [0; 10]);
    Ok(())
}

#[apply(case_of_two)]
fn a_stream_of_another_context_is_refused(env: &Environment) -> Result<()> {
    let (here, there) = (env.context()?, env.driver.device(1)?.primary_context()?);
    let (spin, stream) = (kernel(&here, "spin")?, there.stream()?);
    // SAFETY: refused before the driver hears of it.
    let refused = unsafe { spin.launch(&stream, Launch::over(1, 1), (0u64,)) };
    let error = refused.expect_err("it is refused");
    ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
    Ok(())
}

#[apply(case)]
fn limits_and_occupancy_agree(env: &Environment) -> Result<()> {
    let fill = kernel(&env.context()?, "fill")?;
    let most = fill.max_threads()?;
    ensure!((32..=1024).contains(&most), "{most} threads");
    ensure!(fill.static_shared()? == 0 && fill.registers()? > 0);
    let (threads, blocks) = fill.best_block(0)?;
    ensure!(threads <= most && blocks > 0, "{blocks} of {threads}");
    let best = fill.occupancy(threads, 0)?;
    let small = fill.occupancy(32, 0)?;
    ensure!(
        best.blocks > 0 && best.threads >= small.threads,
        "{best:?}, {small:?}"
    );
    ensure!(best.threads == best.blocks * threads);
    Ok(())
}

#[apply(case)]
fn a_kernel_that_still_runs_keeps_its_code(env: &Environment) -> Result<()> {
    let context = env.context()?;
    let (spin, stream) = (kernel(&context, "spin")?, context.stream()?);
    let start = Instant::now();
    // SAFETY: `spin` takes nanoseconds, and touches nothing.
    unsafe { spin.launch(&stream, Launch::over(1, 1), (20_000_000u64,)) }?;
    // The last function and the module go while it runs.
    drop(spin);
    stream.synchronize()?;
    let took = start.elapsed();
    ensure!(took >= Duration::from_millis(19), "{took:?}");
    Ok(())
}

#[apply(case_alone)]
fn a_captured_stream_takes_no_launch(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let context = env.context()?;
    let (spin, stream) = (kernel(&context, "spin")?, context.stream()?);
    warm(&spin)?;
    let (graph, ()) = stream.capture(CaptureMode::default(), |capture| {
        // SAFETY: refused before the driver hears of it.
        let refused = unsafe { spin.launch(&stream, Launch::over(1, 1), (0u64,)) };
        let kind = refused.map_err(|error| error.kind());
        assert_eq!(kind, Err(ErrorKind::Capturing));
        capture.alloc::<u32>(10)?.as_mut_slice().fill(0)
    })?;
    drop(graph);
    // SAFETY: as the kernel says.
    unsafe { spin.launch(&stream, Launch::over(1, 1), (0u64,)) }?;
    stream.synchronize()?;
    Ok(())
}

#[apply(case_alone)]
fn code_that_goes_does_not_spoil_a_capture(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let context = env.context()?;
    for mode in [
        CaptureMode::Global,
        CaptureMode::ThreadLocal,
        CaptureMode::Relaxed,
    ] {
        let spin = kernel(&context, "spin")?;
        warm(&spin)?;
        let stream = context.stream()?;
        let (graph, ()) = stream.capture(mode, |capture| {
            drop(spin);
            if env.driver.version() >= CudaVersion::new(12, 0) {
                let refused = env.driver.load_library(&Image::ptx("hello")?);
                assert!(refused.is_err(), "it was loaded");
            }
            capture.alloc::<u32>(10)?.as_mut_slice().fill(0)
        })?;
        drop(graph);
    }
    ensure!(cuda_mem::base::drop_counts().failures == 0);
    Ok(())
}

#[apply(case_alone)]
fn code_that_goes_does_not_spoil_a_capture_of_other_code(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (context, stream) = (env.context()?, env.stream()?);
    let has_libraries = env.driver.version() >= CudaVersion::new(12, 0);
    for mode in 0..3 {
        let module = load(&context)?;
        let library = match has_libraries {
            true => Some(env.driver.load_library(&Image::ptx(PTX)?)?),
            false => None,
        };
        foreign::begin(&stream, mode)?;
        drop((module, library));
        foreign::end_well(&stream)?;
    }
    ensure!(cuda_mem::base::drop_counts().failures == 0);
    if let Ok(control) = env.control() {
        ensure!(control.live().modules == 0, "code is left");
    }
    Ok(())
}

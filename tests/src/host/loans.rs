//! Host memory on loan to a stream: copies and kernels.

use anyhow::{Context as _, Result, ensure};
use cuda_mem::kernel::Launch;
use cuda_mem::mapped::{HostMemory, InFlightBuffer, RegisterFlags};
use cuda_mem::memory::HostFlags;
use cuda_mem::{ErrorKind, Stream};

use super::{SIZES, pattern};
use crate::environment::Environment;
use crate::foreign::{begin, end_well};
use crate::hold::hold;
use crate::modules::load;

const COUNT: usize = 10_000;

/// Every kind of memory that can be lent, filled by `with`.
macro_rules! each_kind {
    ($context:expr, $content:expr, |$memory:ident| $body:block) => {{
        let (context, content) = (&$context, &$content[..]);
        {
            let $memory = context.pinned_from(content)?;
            $body
        }
        {
            let flags = HostFlags::PORTABLE | HostFlags::WRITE_COMBINED;
            let mut $memory = context.pinned_with(content.len(), flags)?;
            $memory.copy_from_slice(content);
            $body
        }
        {
            let content = content.to_vec().into_boxed_slice();
            let $memory = context.register_boxed(content, RegisterFlags::default())?;
            $body
        }
    }};
}

#[apply(case)]
fn copies_of_all_sizes_arrive_in_both_directions(env: &Environment) -> Result<()> {
    let (context, stream, pool) = (env.context()?, env.stream()?, env.pool()?);
    for len in SIZES {
        let bytes = pattern(len, 3);
        each_kind!(context, bytes, |memory| {
            let mut buffer = pool.alloc::<u8>(&stream, len)?;
            let mut loan = memory.lend(&stream)?;
            loan.copy_to(&mut buffer)?;
            ensure!(buffer.to_vec()? == bytes, "{len} bytes to {loan:?}");
            let other = pattern(len, 5);
            buffer.copy_from(&other)?;
            loan.copy_from(&buffer)?;
            ensure!(*loan.take_back()? == other[..], "{len} bytes");
        });
    }
    Ok(())
}

/// Adds, fills and copies in place, seen from the host after each.
fn compute<H>(env: &Environment, stream: &Stream, memory: H) -> Result<()>
where
    H: HostMemory + std::ops::Deref<Target = [f32]> + Lend,
{
    let module = load(&env.context()?)?;
    let (add, copy, fill) = (
        module.function("add")?,
        module.function("copy")?,
        module.function("fill")?,
    );
    let launch = Launch::over(COUNT, 256);
    let numbers = memory.to_vec();
    let pool = env.pool()?;
    let ours = pool.alloc_from(stream, &numbers)?;
    let mut sum = pool.alloc_zeroed::<f32>(stream, COUNT)?;
    let mut loan = memory.lend_to(stream)?;
    // SAFETY: as the kernels say.
    unsafe { add.launch(stream, launch, (&mut sum, &loan, &ours, COUNT as u64)) }?;
    // SAFETY: as the kernels say.
    unsafe { copy.launch(stream, launch, (&mut loan, &sum, COUNT as u64)) }?;
    let memory = loan.take_back()?;
    let twice: Vec<f32> = numbers.iter().map(|number| 2.0 * number).collect();
    ensure!(*memory == twice[..], "the sum was not written to the host");
    let mut loan = memory.lend_to(stream)?;
    let half = (COUNT / 2) as u64;
    // SAFETY: as the kernel says.
    unsafe { fill.launch(stream, launch, (&mut loan, 4.0f32.to_bits(), half)) }?;
    ensure!(loan.as_raw() != 0 && loan.len() == COUNT && loan.stream() == stream);
    let memory = loan.take_back()?;
    let (filled, rest) = memory.split_at(COUNT / 2);
    ensure!(filled.iter().all(|number| *number == 4.0), "not filled");
    ensure!(*rest == twice[COUNT / 2..], "filled too much");
    Ok(())
}

/// Both kinds are lent in the same way.
trait Lend: HostMemory {
    fn lend_to(self, stream: &Stream) -> Result<InFlightBuffer<Self>>
    where
        Self: Sized;
}

impl Lend for cuda_mem::mapped::PinnedBuffer<f32> {
    fn lend_to(self, stream: &Stream) -> Result<InFlightBuffer<Self>> {
        Ok(self.lend(stream)?)
    }
}

impl Lend for cuda_mem::mapped::Registered<'static, f32> {
    fn lend_to(self, stream: &Stream) -> Result<InFlightBuffer<Self>> {
        Ok(self.lend(stream)?)
    }
}

#[apply(case)]
fn kernels_use_the_memory_by_its_device_address(env: &Environment) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    let numbers: Vec<f32> = (0..COUNT).map(|at| at as f32).collect();
    each_kind!(context, numbers, |memory| {
        compute(env, &stream, memory)?;
    });
    Ok(())
}

#[apply(case)]
fn a_copy_does_not_wait(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (context, stream, pool) = (env.context()?, env.stream()?, env.pool()?);
    let bytes = pattern(1 << 20, 1);
    each_kind!(context, bytes, |memory| {
        let mut buffer = pool.alloc_zeroed::<u8>(&stream, bytes.len())?;
        stream.synchronize()?;
        let mut loan = memory.lend(&stream)?;
        let held = hold(&stream)?;
        loan.copy_to(&mut buffer)?;
        buffer.fill(9)?;
        loan.copy_from(&buffer)?;
        ensure!(!loan.is_done()?, "the copies waited, or did not queue");
        drop(held);
        let memory = loan.take_back()?;
        ensure!(memory.iter().all(|byte| *byte == 9));
    });
    Ok(())
}

#[apply(case)]
fn buffers_of_other_streams_are_joined(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let (context, pool) = (env.context()?, env.pool()?);
    let (own, other) = (context.stream()?, context.stream()?);
    let mut buffer = pool.alloc_zeroed::<u32>(&own, COUNT)?;
    own.synchronize()?;
    let mut loan = context.pinned::<u32>(COUNT)?.lend(&other)?;
    let held = hold(&own)?;
    buffer.fill(7)?;
    loan.copy_from(&buffer)?;
    ensure!(!other.is_done()?, "the copy did not wait for the fill");
    // Behind the copy, without a word of ours.
    buffer.fill(8)?;
    drop(held);
    let memory = loan.take_back()?;
    ensure!(*memory == [7; COUNT], "the copy came too early or too late");
    ensure!(buffer.to_vec()? == [8; COUNT]);
    let loan = memory.lend(&other)?;
    loan.copy_to(&mut buffer)?;
    ensure!(buffer.to_vec()? == [7; COUNT]);
    Ok(())
}

#[apply(case)]
fn a_loan_that_ends_waits(env: &Environment) -> Result<()> {
    let (context, stream) = (env.context()?, env.stream()?);
    let spin = load(&context)?.function("spin")?;
    let buffer = env.pool()?.alloc_from(&stream, &[1u8; 1000])?;
    let mut loan = context.pinned::<u8>(1000)?.lend(&stream)?;
    // SAFETY: it touches no memory.
    unsafe { spin.launch(&stream, Launch::over(1, 1), (20_000_000u64,)) }?;
    loan.copy_from(&buffer)?;
    drop(loan);
    ensure!(stream.is_done()?, "the memory ended under a copy");
    Ok(())
}

#[apply(case)]
fn what_does_not_fit_is_refused(env: &Environment) -> Result<()> {
    let (context, pool) = (env.context()?, env.pool()?);
    let stream = context.stream()?;
    let mut loan = context.pinned::<u32>(10)?.lend(&stream)?;
    let mut buffer = pool.alloc_zeroed::<u32>(&stream, 11)?;
    for refused in [loan.copy_from(&buffer), loan.copy_to(&mut buffer)] {
        let error = refused.expect_err("10 are not 11");
        ensure!(error.kind() == ErrorKind::InvalidValue, "{error}");
        ensure!(error.to_string().contains("10"), "{error}");
    }
    ensure!(*loan.take_back()? == [0; 10]);
    Ok(())
}

#[apply(case)]
fn memory_goes_from_one_stream_to_another(env: &Environment) -> Result<()> {
    let (context, pool) = (env.context()?, env.pool()?);
    let mut memory = context.pinned_from(&[5u16; 3000])?;
    for round in 0..3 {
        let stream = context.stream()?;
        let mut buffer = pool.alloc::<u16>(&stream, 3000)?;
        let loan = memory.lend(&stream)?;
        loan.copy_to(&mut buffer)?;
        let also = buffer.to_vec()?;
        memory = loan.take_back().context("it comes back")?;
        ensure!(*memory == also[..] && also == [5 + round; 3000]);
        memory.iter_mut().for_each(|number| *number += 1);
    }
    Ok(())
}

#[apply(case)]
fn parts_of_it_are_copied(env: &Environment) -> Result<()> {
    let (context, pool) = (env.context()?, env.pool()?);
    let (stream, other) = (context.stream()?, context.stream()?);
    let mut staging = context.pinned::<u32>(100)?;
    staging.iter_mut().zip(0..).for_each(|(it, at)| *it = at);
    let mut staging = staging.lend(&stream)?;
    let mut buffer = pool.alloc_zeroed::<u32>(&other, 10)?;
    buffer
        .slice_mut(5..)?
        .copy_from_device(&staging.as_slice().slice(20..25)?)?;
    ensure!(buffer.to_vec()? == [0, 0, 0, 0, 0, 20, 21, 22, 23, 24]);
    let mut all = staging.as_mut_slice()?;
    all.slice_mut(90..)?.copy_from_device(&buffer)?;
    all.slice_mut(..10)?.fill(9)?;
    let staging = staging.take_back()?;
    ensure!(staging[..11] == [9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 10]);
    ensure!(staging[89..97] == [89, 0, 0, 0, 0, 0, 20, 21]);
    Ok(())
}

#[apply(case)]
fn a_leaked_slice_of_it_is_waited_for(env: &Environment) -> Result<()> {
    let _calm = env.shared();
    let context = env.context()?;
    let (stream, other) = (context.stream()?, context.stream()?);
    let mut staging = context.pinned::<u32>(100)?.lend(&stream)?;
    let held = hold(&other)?;
    let mut there = staging.as_mut_slice()?.on(&other)?;
    there.fill(7)?;
    std::mem::forget(there);
    ensure!(stream.is_done()?, "nothing has waited yet");
    ensure!(!staging.is_done()?, "the other stream still uses it");
    let back = std::thread::spawn(move || staging.take_back());
    std::thread::sleep(std::time::Duration::from_millis(20));
    ensure!(
        !back.is_finished(),
        "it came back while a stream wrote to it"
    );
    drop(held);
    let back = back.join().map_err(|_| anyhow::anyhow!("it panicked"))?;
    ensure!(*back? == [7; 100]);
    Ok(())
}

/// The driver would record what is done with it, and the graph would use the memory when the host has it again.
#[apply(case_alone)]
fn captures_of_other_code_record_no_use_of_it(env: &Environment) -> Result<()> {
    env.need(11, 4)?;
    let (context, pool) = (env.context()?, env.pool()?);
    let (stream, idle) = (context.stream()?, context.stream()?);
    let mut buffer = pool.alloc_from(&stream, &[1u32; 1000])?;
    let mut staging = context.pinned_from(&[2u32; 1000])?.lend(&stream)?;
    for mode in 0..3 {
        begin(&stream, mode)?;
        let answers = [
            staging.copy_from(&buffer),
            staging.copy_to(&mut buffer),
            staging.as_mut_slice()?.fill(3),
            staging.as_mut_slice()?.copy_from_device(&buffer),
            buffer.copy_from_device(&staging),
        ];
        end_well(&stream).with_context(|| format!("mode {mode}"))?;
        let kinds = answers.map(|answer| answer.map_err(|error| error.kind()));
        ensure!(kinds == [Err(ErrorKind::Capturing); 5], "{mode}: {kinds:?}");
    }
    // A capture elsewhere is none of its business.
    begin(&idle, 2)?;
    staging.copy_to(&mut buffer)?;
    end_well(&idle)?;
    ensure!(buffer.to_vec()? == [2; 1000]);
    ensure!(*staging.take_back()? == [2; 1000]);
    Ok(())
}

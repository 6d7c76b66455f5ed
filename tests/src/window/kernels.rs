//! A kernel that runs sees what is stored, and its answers are seen.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cuda_mem::cpu_mapping::CpuMappingKind;
use cuda_mem::kernel::Launch;

use super::{kinds, memory, open};
use crate::environment::Environment;
use crate::modules::kernel;

const ROUNDS: u32 = 200;
/// How long the kernel waits for each word: long enough for any machine, and no test hangs for ever.
const PATIENCE: Duration = Duration::from_secs(20);

/// Both words in one buffer, a line of the processor apart.
const REPLY: usize = 16;

fn ask(env: &Environment, kind: CpuMappingKind) -> Result<()> {
    let context = env.context()?;
    let (answer, stream) = (kernel(&context, "answer")?, context.stream()?);
    let mut buffer = memory::<u32>(&stream, kind, 32)?;
    buffer.zero()?;
    let mut window = open(&mut buffer, kind)?;
    let (bell, reply) = (window.address(), window.address() + REPLY as u64 * 4);
    let patience = PATIENCE.as_nanos() as u64;
    // SAFETY: both are words of a buffer that stays until the stream was waited for, and the kernel takes them so.
    unsafe {
        answer.launch(
            &stream,
            Launch::over(1, 1),
            (bell, reply, u64::from(ROUNDS), patience),
        )
    }?;
    for round in 1..=ROUNDS {
        window.store(0, round)?;
        let start = Instant::now();
        while window.load(REPLY)? != round {
            ensure!(start.elapsed() < PATIENCE, "{kind}: no answer to {round}");
            std::thread::yield_now();
        }
    }
    stream.synchronize()?;
    ensure!(window.load(REPLY)? == ROUNDS);
    Ok(())
}

#[apply(case_alone)]
fn a_running_kernel_answers_stores(env: &Environment) -> Result<()> {
    let stream = env.stream()?;
    let direct = kinds(&stream)?.into_iter();
    for kind in direct.filter(|kind| kind.is_direct()) {
        ask(env, kind)?;
    }
    Ok(())
}

#[apply(case_alone)]
fn a_running_kernel_answers_copies(env: &Environment) -> Result<()> {
    ask(env, CpuMappingKind::Copies)
}

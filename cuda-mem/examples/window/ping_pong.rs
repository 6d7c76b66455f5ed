//! A word to a running kernel and its reply.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use cuda_mem::cpu_mapping::CpuMappingKind;
use cuda_mem::kernel::{Image, Launch};
use cuda_mem_console::{figures, nanoseconds};
use serde_json::{Value, json};

use crate::bench::Bench;
use crate::figures::quantile;
use crate::report::Outcome;

const KERNELS: &str = include_str!("../../../tests/data/kernels.ptx");

/// How long the host and the kernel wait for each other's word before they give up, so that both always end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Rounds before those that count, because the kernel must start.
const WARM_UP: u32 = 50;

/// The reply's offset in words: on a different processor and device line than the question.
const REPLY: usize = 64;

/// A word that the kernel ignores.
const OTHER: usize = 128;

const WORDS: usize = OTHER + 1;

pub(crate) fn run(bench: &Bench) -> Result<Outcome> {
    let mut table = figures(1, ["window", "rounds", "min", "median", "p99"]);
    let mut rows: Vec<Value> = Vec::new();
    let rounds = bench.rounds;
    for kind in bench.had() {
        let mut all = play(bench, kind, rounds).with_context(|| kind.to_string())?;
        let [min, median, p99] = [0.0, 0.5, 0.99].map(|part| quantile(&mut all, part));
        let [shown_min, shown_median, shown_p99] = [min, median, p99].map(nanoseconds);
        let (name, rounds) = (kind.to_string(), all.len().to_string());
        table.add_row([name, rounds, shown_min, shown_median, shown_p99]);
        rows.push(json!({
            "window": kind.to_string(),
            "rounds": all.len(),
            "min_ns": min,
            "median_ns": median,
            "p99_ns": p99,
        }));
    }
    Ok(Outcome {
        method: format!(
            "a kernel of one thread looks at a word of 4 bytes and answers with another one. The host stores the next word \
             through the window and loads until the answer is there: one round, timed less {:.0} ns for the clock. {rounds} \
             rounds after {WARM_UP} that do not count; both sides give up after {PATIENCE:?}. With `copies` each store and \
             load is a copy by the driver, in a stream of its own",
            bench.plan.clock_ns,
        ),
        fields: vec![
            ("patience_s", PATIENCE.as_secs().into()),
            ("rows", rows.into()),
        ],
        tables: vec![("round trips".to_owned(), table)],
    })
}

/// Nanoseconds per round.
fn play(bench: &Bench, kind: CpuMappingKind, rounds: u32) -> Result<Vec<f64>> {
    let answer = bench
        .context
        .load(&Image::ptx(KERNELS)?)?
        .function("answer")?;
    let stream = bench.context.stream()?;
    let mut buffer = bench.memory::<u32>(kind, WORDS)?;
    buffer.zero()?;
    let mut window = bench.window(&mut buffer, WORDS, kind)?;
    // Creates now what the mapping needs for copies, because creating it later might wait for the kernel.
    window.store(OTHER, 1)?;
    ensure!(window.load(OTHER)? == 1, "a word did not come back");
    let (bell, reply) = (window.address(), window.address() + 4 * REPLY as u64);
    let patience = PATIENCE.as_nanos() as u64;
    let last = WARM_UP + rounds;
    // SAFETY: `answer` takes the addresses of two words, a number of rounds and nanoseconds. The words are in a buffer
    // that is freed only after the stream was waited for, or by a call that waits for the device.
    unsafe {
        answer.launch(
            &stream,
            Launch::over(1, 1),
            (bell, reply, u64::from(last), patience),
        )
    }?;
    let mut all = Vec::new();
    for round in 1..=last {
        let ((), taken) = bench.plan.timed(|| {
            window.store(0, round)?;
            let start = Instant::now();
            let mut looks = 0_u32;
            while window.load(REPLY)? != round {
                looks = looks.wrapping_add(1);
                // The clock is not read in every iteration. On the simulated driver, threads play the device.
                if looks.is_multiple_of(1024) {
                    ensure!(
                        start.elapsed() < PATIENCE,
                        "no answer to word {round} for {PATIENCE:?}"
                    );
                }
                match bench.backend.simulated {
                    true => std::thread::yield_now(),
                    false => std::hint::spin_loop(),
                }
            }
            Ok(())
        })?;
        if round > WARM_UP {
            all.push(taken);
        }
    }
    stream.synchronize()?;
    Ok(all)
}

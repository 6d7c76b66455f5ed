//! What the environment says of random tests: how many run, which, and how they are told of.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::watchdog;

/// How many random programs run.
pub(crate) const PROGRAMS: &str = "CUDA_MEM_TEST_PROGRAMS";
/// Instead: for how many seconds they run.
const SECONDS: &str = "CUDA_MEM_TEST_SECONDS";
/// The number of threads of long programs. If it is set, every program is a long one.
const THREADS: &str = "CUDA_MEM_TEST_THREADS";
/// If it is set, each step is printed before it runs, to see where a driver crashes or hangs.
const LOUD: &str = "CUDA_MEM_TEST_LOUD";
/// The number of the first program: the same number gives the same ones.
pub(crate) const SEED: &str = "CUDA_MEM_TEST_SEED";

/// The number that the environment has under this name.
pub(crate) fn number(variable: &str) -> Result<Option<u64>> {
    std::env::var(variable)
        .ok()
        .map(|text| {
            text.parse()
                .with_context(|| format!("{variable} is {text:?}; it must be a number"))
        })
        .transpose()
}

/// On how many threads long programs run, if all are to be long.
pub(crate) fn threads() -> Result<Option<u64>> {
    number(THREADS)
}

/// As it stands before a command, after other settings.
pub(crate) fn said_threads() -> String {
    std::env::var(THREADS).map_or(String::new(), |threads| format!(" {THREADS}={threads}"))
}

pub(crate) fn is_loud() -> bool {
    // Asked at each step.
    static IS_LOUD: OnceLock<bool> = OnceLock::new();
    *IS_LOUD.get_or_init(|| std::env::var_os(LOUD).is_some())
}

/// Programs that ran.
pub(crate) struct Ran {
    pub(crate) programs: u64,
    pub(crate) seconds: f64,
}

/// Runs as many programs as the environment says, or `default`, each by its number.
pub(crate) fn each(default: u64, mut run: impl FnMut(u64) -> Result<()>) -> Result<Ran> {
    let first = number(SEED)?.unwrap_or(1);
    let seconds = number(SECONDS)?.map(Duration::from_secs);
    let count = match seconds {
        Some(_) => u64::MAX - first,
        None => number(PROGRAMS)?.unwrap_or(default),
    };
    let loud = is_loud();
    let start = Instant::now();
    let mut programs = 0;
    for seed in first..first + count {
        if seconds.is_some_and(|seconds| start.elapsed() >= seconds) {
            break;
        }
        watchdog::next_part();
        if loud {
            println!("program {seed}, {:.3} s", start.elapsed().as_secs_f64());
        }
        run(seed)?;
        programs += 1;
        if programs % 5000 == 0 {
            println!(
                "{programs} programs, {:.0} s",
                start.elapsed().as_secs_f64()
            );
        }
    }
    Ok(Ran {
        programs,
        seconds: start.elapsed().as_secs_f64(),
    })
}

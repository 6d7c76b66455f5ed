//! Ranks in processes, and ranks that do not come.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cuda_mem_tests::environment::{Backend, Environment};

use super::{printed, refused, run};

/// Ends by itself well before this.
const SOON: Duration = Duration::from_secs(30);

/// The simulated NCCL serves the ranks of one process, and the examples say so.
fn in_processes(env: &Environment, example: &str, quick: &[&str], done: &str) -> Result<()> {
    let quick = [quick, &["--ranks", "2", "--processes"]].concat();
    if env.backend == Backend::Gpu {
        let out = printed(env, example, &quick)?;
        ensure!(out.contains(done), "{done:?} is not in: {out}");
        return Ok(());
    }
    let ended = run(env, example, &quick)?;
    refused(&ended, 2, &["--processes", "of one process"])
}

#[apply(case)]
fn an_all_reduce_of_processes_succeeds_or_says_why_not(env: &Environment) -> Result<()> {
    let quick = ["--from", "8", "--to", "8", "--rounds", "1"];
    in_processes(env, "allreduce", &quick, "ncclMemAlloc")
}

#[apply(case)]
fn a_broadcast_of_processes_succeeds_or_says_why_not(env: &Environment) -> Result<()> {
    let quick = ["--layers", "1", "--width", "64"];
    in_processes(env, "broadcast_weights", &quick, "equal on all ranks")
}

#[apply(case)]
fn a_rank_that_does_not_come_is_counted(env: &Environment) -> Result<()> {
    let start = Instant::now();
    let alone = ["--rank", "0", "--ranks", "2", "--at", "127.0.0.1:0"];
    let ended = run(
        env,
        "allreduce",
        &[&alone[..], &["--timeout", "1"]].concat(),
    )?;
    refused(&ended, 1, &["1 of 2 ranks", "after 1s"])?;
    ensure!(start.elapsed() < SOON, "{:?}", start.elapsed());
    Ok(())
}

#[apply(case)]
fn ranks_that_cannot_be_are_named(env: &Environment) -> Result<()> {
    let at = ["--at", "127.0.0.1:0"];
    for (arguments, words) in [
        (
            &["--ranks", "2", "--rank", "2"][..],
            ["--rank 2", "2 ranks"],
        ),
        (&["--ranks", "0"], ["--ranks 0", "at least one"]),
        (&["--rank", "1"], ["--ranks", "required"]),
        (
            &["--processes", "--rank", "0", "--ranks", "2"],
            ["--processes", "cannot be used"],
        ),
    ] {
        for example in ["allreduce", "broadcast_weights"] {
            refused(&run(env, example, &[arguments, &at].concat())?, 2, &words)?;
        }
    }
    Ok(())
}

//! What the tools say to bad arguments.

use anyhow::{Result, ensure};
use cuda_mem_tests::environment::Environment;

use super::{quick, text};

#[apply(case)]
fn bad_arguments_are_named(env: &Environment) -> Result<()> {
    let cases: [(&[&str], &str); 7] = [
        (&["latency", "--device", "77"], "--device 77"),
        (
            &["latency", "--kind", "magic"],
            "host-mapped, dma-buf, gdrcopy, copies",
        ),
        (&["latency", "--size", "0"], "--size"),
        (&["bandwidth", "--size", "many"], "--size"),
        (&["calls", "--size", "1"], "--size"),
        (&["ping-pong", "--count", "0"], "--count"),
        (&["teapot"], "teapot"),
    ];
    for (arguments, word) in cases {
        let output = quick(env, arguments)?;
        let errors = text(&output.stderr);
        ensure!(output.status.code() == Some(2), "{arguments:?}: {errors}");
        ensure!(errors.contains(word), "{word} is not in: {errors}");
        ensure!(output.stdout.is_empty(), "{}", text(&output.stdout));
    }
    Ok(())
}

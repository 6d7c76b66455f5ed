//! Adaptors, and what it says to bad arguments.

use anyhow::{Result, ensure};
use cuda_mem_tests::environment::Environment;

use super::{ROWS, json, log, refused, replay};

#[apply(case)]
fn adaptors_are_put_on_from_the_inside(env: &Environment) -> Result<()> {
    let log = log(ROWS)?;
    let file = log.folder.path().join("made.csv");
    let logging = format!("logging={}", file.display());
    let stack = [
        "--adaptor",
        "limit=2M",
        "--adaptor",
        "statistics",
        "--adaptor",
        "tracking",
        "--adaptor",
        "aligned=4K",
        "--adaptor",
        "prefetch",
        "--adaptor",
        "recovery",
        "--adaptor",
        &logging,
    ];
    let objects = json(env, &log.path, &stack)?;
    ensure!(objects[0]["adaptors"][0] == "limit=2097152", "{objects:?}");
    ensure!(objects[0]["adaptors"][3] == "aligned=4096", "{objects:?}");
    // What it wrote can be replayed: twice the log, and the frees of what it leaves alive.
    let again = json(env, &file, &["--resource", "direct"])?;
    ensure!(again[0]["peak_asked"] == 1_005_070, "{again:?}");
    Ok(())
}

#[apply(case)]
fn bad_arguments_are_named(env: &Environment) -> Result<()> {
    let path = log(ROWS)?;
    let path = path.path.display().to_string();
    for (arguments, words) in [
        (
            ["--resource", "teapot"],
            &["teapot", "pool", "direct", "pinned"][..],
        ),
        (
            ["--adaptor", "teapot"],
            &["teapot", "limit=SIZE", "recovery"],
        ),
        (["--adaptor", "limit"], &["limit needs"]),
        (["--adaptor", "limit=much"], &["much", "number of bytes"]),
        (["--adaptor", "aligned=3"], &["power of two"]),
        (["--adaptor", "tracking=1"], &["no value"]),
        (["--passes", "0"], &["--passes"]),
        (["--device", "77"], &["--device 77"]),
    ] {
        let output = replay(env, &[path.as_str(), arguments[0], arguments[1]])?;
        refused(&output, 2, words)?;
        ensure!(output.stdout.is_empty(), "nothing was begun");
    }
    refused(
        &replay(env, &["--compare", "--resource", "pool"])?,
        2,
        &["--compare"],
    )
}

#[apply(case)]
fn running_out_is_told_with_the_operation(env: &Environment) -> Result<()> {
    let path = log(ROWS)?;
    let path = path.path.display().to_string();
    let output = replay(env, &[&path, "--adaptor", "limit=1000000"])?;
    refused(&output, 1, &["pool", "operation 2 of the log"])
}

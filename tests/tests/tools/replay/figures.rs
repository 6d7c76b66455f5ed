//! What it prints of resources, passes and threads.

use anyhow::{Context as _, Result, ensure};
use cuda_mem_tests::environment::{Backend, Environment};

use super::{ROWS, has, json, log, replay, text};

#[apply(case)]
fn each_resource_and_pass_is_an_object_with_all_fields(env: &Environment) -> Result<()> {
    let log = log(ROWS)?;
    let two = [
        "--resource",
        "pool",
        "--resource",
        "direct",
        "--passes",
        "3",
    ];
    let objects = json(env, &log.path, &two)?;
    let passes: Vec<_> = objects
        .iter()
        .map(|object| (object["resource"].as_str(), object["pass"].as_u64()))
        .collect();
    let of = |name| (0..3).map(move |pass| (Some(name), Some(pass)));
    ensure!(
        passes == of("pool").chain(of("direct")).collect::<Vec<_>>(),
        "{passes:?}"
    );
    for object in &objects {
        ensure!(
            object["operations"] == 5 && object["peak_asked"] == 1_005_070,
            "{object}"
        );
        for number in ["p99_ns", "median_ns", "worst_ns"] {
            ensure!(object[number].is_u64(), "{number}: {object}");
        }
        ensure!(
            object["ns_per_op"].as_f64().is_some_and(|ns| ns > 0.0),
            "{object}"
        );
        let peak = |name: &str| object[name].as_u64().context("no peak");
        ensure!(peak("peak_used")? >= 1_005_070, "{object}");
        ensure!(peak("peak_reserved")? >= peak("peak_used")?, "{object}");
        let gpu = env.backend == Backend::Gpu;
        ensure!(
            object["backend"] == if gpu { "gpu" } else { "simulated" },
            "{object}"
        );
        // The allocation of no bytes asks nobody.
        let calls = object["driver_calls"].as_u64().context("no calls")?;
        let is_pool = object["resource"] == "pool";
        ensure!(if is_pool { calls == 4 } else { calls >= 4 }, "{object}");
        ensure!(object["peaks_known"] == is_pool, "{object}");
    }
    Ok(())
}

#[apply(case)]
fn tables_say_how_it_was_measured(env: &Environment) -> Result<()> {
    let path = log(ROWS)?;
    let path = path.path.display().to_string();
    let output = replay(
        env,
        &[&path, "--resource", "direct", "--adaptor", "statistics"],
    )?;
    ensure!(output.status.success(), "{}", text(&output.stderr));
    let words = [
        "driver: ",
        "5 operations, 1 stream, 1 thread,",
        "1 request failed",
        "no lock and no other thread",
        "innermost first: statistics",
        "the clock costs",
        "/ asked",
        "* computed from the operations",
    ];
    has(&text(&output.stdout), &words)
}

/// Three threads take turns on two streams, and free each other's memory.
#[apply(case)]
fn streams_and_threads_keep_the_order_of_the_log(env: &Environment) -> Result<()> {
    let mut rows = String::new();
    for index in 0..60_u64 {
        let (thread, stream, address) = (index % 3, index % 2, 0x100 * (index + 1));
        rows += &format!("t{thread},0,allocate,{address:#x},1000,{stream}\n");
        if index >= 4 {
            let (thread, address) = ((index + 1) % 3, 0x100 * (index - 3));
            let stream = if index % 10 == 0 { 1 } else { index % 2 };
            rows += &format!("t{thread},0,free,{address:#x},1000,{stream}\n");
        }
    }
    let log = log(&rows)?;
    let objects = json(env, &log.path, &["--adaptor", "tracking"])?;
    ensure!(objects.len() == 2, "{objects:?}");
    for object in &objects {
        ensure!(
            object["operations"] == 116 && object["threads"] == 3,
            "{object}"
        );
        ensure!(
            object["streams"] == 2 && object["peak_asked"] == 5000,
            "{object}"
        );
        // A free on another stream takes an event as well.
        ensure!(object["driver_calls"].as_u64() > Some(116), "{object}");
    }
    let path = log.path.display().to_string();
    let output = replay(env, &[&path])?;
    let words = ["3 threads, each", "hands over", "5 frees on another stream"];
    has(&text(&output.stdout), &words)
}

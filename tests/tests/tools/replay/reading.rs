//! What it reads: packed or not, good or bad.

use std::io::Write as _;

use anyhow::{Result, ensure};
use cuda_mem_tests::environment::Environment;
use flate2::{Compression, write::GzEncoder};
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use serde_json::Value;

use super::{HEADER, ROWS, json, log, log_of, objects, refused, replay};

/// What does not depend on the clock.
fn figures(objects: &[Value]) -> Vec<Vec<&Value>> {
    const FIELDS: [&str; 7] = [
        "resource",
        "pass",
        "operations",
        "peak_asked",
        "peak_used",
        "peak_reserved",
        "driver_calls",
    ];
    objects
        .iter()
        .map(|object| FIELDS.iter().map(|field| &object[*field]).collect())
        .collect()
}

#[apply(case)]
fn packing_makes_no_difference_whatever_the_name(env: &Environment) -> Result<()> {
    let plain = format!("{HEADER}{ROWS}");
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(plain.as_bytes())?;
    let zstd = compress_to_vec(plain.as_bytes(), CompressionLevel::Fastest);
    let unpacked = json(env, &log(ROWS)?.path, &[])?;
    ensure!(unpacked.len() == 2, "two passes: {unpacked:?}");
    for packed in [gzip.finish()?, zstd] {
        let objects = json(env, &log_of(&packed)?.path, &[])?;
        ensure!(
            figures(&objects) == figures(&unpacked),
            "{objects:?} {unpacked:?}"
        );
    }
    Ok(())
}

#[apply(case)]
fn a_bad_line_is_named_before_anything_is_done(env: &Environment) -> Result<()> {
    for (row, word) in [
        ("0,0.7,free,0x99,1,0\n", "not allocated"),
        ("0,0.7,allocate,0x20,1,0\n", "second time"),
        ("0,0.7,resize,0x40,1,0\n", "action"),
        ("0,0.7,allocate,0x40,many,0\n", "size"),
        ("0,0.7,allocate,0x40\n", "fields"),
    ] {
        let log = log(&format!("{ROWS}{row}"))?;
        let (path, svg) = (
            log.path.display().to_string(),
            log.folder.path().join("svg"),
        );
        let picture = svg.display().to_string();
        let output = replay(env, &[&path, "--svg", &picture])?;
        refused(&output, 2, &[&path, "line 8", word])?;
        ensure!(
            output.stdout.is_empty() && !svg.exists(),
            "something was begun"
        );
    }
    let cut = compress_to_vec(ROWS.as_bytes(), CompressionLevel::Fastest);
    let broken = log_of(&cut[..cut.len() / 2])?;
    let path = broken.path.display().to_string();
    refused(&replay(env, &[&path])?, 2, &[&path, "cannot be read"])?;
    refused(&replay(env, &["/nowhere/log"])?, 2, &["/nowhere/log"])?;
    let empty = log("")?;
    let path = empty.path.display().to_string();
    refused(&replay(env, &[&path])?, 2, &[&path, "no operations"])
}

#[apply(case)]
fn without_a_log_it_is_the_recorded_run(env: &Environment) -> Result<()> {
    let output = replay(env, &["--json", "--first", "300", "--passes", "1"])?;
    let objects = objects(&output)?;
    ensure!(
        objects.len() == 1 && objects[0]["operations"] == 300,
        "{objects:?}"
    );
    Ok(())
}

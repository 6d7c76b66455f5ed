//! Weights that all ranks receive.

use anyhow::{Context as _, Result, ensure};
use cuda_mem_tests::environment::Environment;
use serde_json::Value;

use super::super::NO_FILE;
use super::{object, printed, refused, rows, run};

const NAME: &str = "broadcast_weights";
const QUICK: [&str; 6] = ["--ranks", "2", "--layers", "2", "--width", "64"];

/// Tensors and bytes are these on both ranks, and the arena holds them.
fn has_received(report: &Value, tensors: u64, bytes: u64) -> Result<()> {
    let rows = rows(report)?;
    ensure!(report["ranks"] == 2 && rows.len() == 2, "{report}");
    for (rank, row) in rows.iter().enumerate() {
        ensure!(row["rank"] == rank && row["tensors"] == tensors, "{row}");
        ensure!(row["bytes"] == bytes, "{row}");
        let number = |key: &str| {
            let number = row[key].as_u64();
            number.with_context(|| format!("no {key}: {row}"))
        };
        ensure!(number("elapsed_ns")? > 0, "{row}");
        ensure!(
            number("reserved_bytes")? == bytes + number("overhead_bytes")?,
            "{row}"
        );
    }
    Ok(())
}

#[apply(case)]
fn all_ranks_receive_equal_weights(env: &Environment) -> Result<()> {
    let table = printed(env, NAME, &QUICK)?;
    for word in ["2 ranks, ", "2 layers of width 64", "equal on all ranks"] {
        ensure!(table.contains(word), "{word:?} is not in: {table}");
    }
    let report = object(env, NAME, &[&QUICK[..], &["--json"]].concat())?;
    let square = 64 * 64;
    let elements = 8 * square + 2 * (12 * square + 2 * 64) + 64;
    has_received(&report, 2 + 2 * 6, 2 * elements)?;
    let checksum = report["checksum"].as_str().context("no checksum")?;
    ensure!(table.contains(checksum), "{checksum} is not in: {table}");
    Ok(())
}

#[apply(case)]
fn the_bytes_of_a_file_are_weights_too(env: &Environment) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("weights.bin");
    let file = path.to_string_lossy();
    let arguments = ["--ranks", "2", "--json", "--file", &*file];
    let mut checksums = Vec::new();
    for last in [7, 7, 8] {
        let mut bytes = vec![5; 100_001];
        bytes[100_000] = last;
        std::fs::write(&path, &bytes)?;
        let report = object(env, NAME, &arguments)?;
        has_received(&report, 1, 100_001)?;
        checksums.push(report["checksum"].to_string());
    }
    ensure!(
        checksums[0] == checksums[1] && checksums[1] != checksums[2],
        "{checksums:?}"
    );
    Ok(())
}

#[apply(case)]
fn a_file_without_weights_is_named(env: &Environment) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("weights.bin");
    let file = path.to_string_lossy();
    let missing = run(env, NAME, &["--file", &file])?;
    refused(&missing, 2, &[&file, NO_FILE])?;
    std::fs::write(&path, "")?;
    let empty = run(env, NAME, &["--file", &file])?;
    refused(&empty, 2, &[&file, "empty"])
}

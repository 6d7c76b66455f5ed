//! All-reduce, measured by kind of memory and size.

use anyhow::{Result, ensure};
use cuda_mem_tests::environment::Environment;

use super::{object, printed, rows};

const KINDS: [&str; 5] = [
    "pool",
    "arena",
    "arena, registered",
    "arena, window",
    "ncclMemAlloc",
];
const QUICK: [&str; 8] = [
    "--ranks", "2", "--from", "8", "--to", "512", "--rounds", "1",
];

fn quick<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&QUICK, more].concat()
}

#[apply(case)]
fn the_table_and_the_picture_have_all_kinds_of_memory(env: &Environment) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("picture.svg");
    let path = file.to_string_lossy();
    let table = printed(env, "allreduce", &quick(&["--svg", &path]))?;
    let picture = std::fs::read_to_string(&file)?;
    ensure!(picture.contains("<svg"), "{picture}");
    ensure!(table.starts_with("2 ranks, "), "{table}");
    for kind in KINDS {
        let first_columns = table.lines().map(|line| line.trim().split("  ").next());
        let found = first_columns.filter(|column| *column == Some(kind)).count();
        ensure!(found == 3, "{found} rows of {kind}: {table}");
        ensure!(picture.contains(kind), "{kind} is not in: {picture}");
    }
    Ok(())
}

#[apply(case)]
fn the_json_has_every_size_of_every_kind(env: &Environment) -> Result<()> {
    let report = object(env, "allreduce", &quick(&["--json"]))?;
    ensure!(report["ranks"] == 2, "{report}");
    let mut found = Vec::new();
    for row in rows(&report)? {
        for key in ["started_ns", "replayed_ns", "gigabytes_per_second"] {
            let is_positive = row[key].as_f64().is_some_and(|figure| figure > 0.0);
            ensure!(is_positive, "no {key}: {row}");
        }
        found.push((row["memory"].as_str(), row["bytes"].as_u64()));
    }
    let expected: Vec<_> = KINDS
        .iter()
        .flat_map(|kind| [8, 64, 512].map(|bytes| (Some(*kind), Some(bytes))))
        .collect();
    ensure!(found == expected, "{report}");
    Ok(())
}

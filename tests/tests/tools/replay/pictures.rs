//! The picture of the bytes over time.

use anyhow::{Context as _, Result, ensure};
use cuda_mem_tests::environment::Environment;
use serde_json::Value;

use super::{ROWS, has, json, log, refused, replay};

#[apply(case)]
fn a_picture_is_well_formed_and_shows_each_resource(env: &Environment) -> Result<()> {
    let log = log(ROWS)?;
    let file = log.folder.path().join("picture.svg");
    let picture = file.display().to_string();
    let two = [
        "--resource",
        "pool",
        "--resource",
        "direct",
        "--svg",
        &picture,
    ];
    ensure!(json(env, &log.path, &two)?.len() == 4);
    let svg = std::fs::read_to_string(&file)?;
    well_formed(&svg)?;
    let words = [
        "<svg",
        "\npool\n",
        "do not count what they reserve: direct.",
        "reserved",
        "asked for",
        "operations",
    ];
    has(&svg, &words)?;
    let nowhere = ["--json", "--svg", "/nowhere/picture.svg"];
    let path = log.path.display().to_string();
    let output = replay(env, &[&[path.as_str()], &nowhere[..]].concat())?;
    refused(&output, 3, &["/nowhere/picture.svg"])
}

#[apply(case)]
fn curves_are_kept_and_levels_are_drawn(env: &Environment) -> Result<()> {
    let log = log(ROWS)?;
    let [picture, data] = ["picture.svg", "curves.json"].map(|name| log.folder.path().join(name));
    let [svg, curves] = [&picture, &data].map(|file| file.display().to_string());
    let both = [
        "--adaptor",
        "statistics",
        "--svg",
        &svg,
        "--curves",
        &curves,
    ];
    json(
        env,
        &log.path,
        &[&both[..], &["--level", "other peak=3MiB"]].concat(),
    )?;
    has(
        &std::fs::read_to_string(&picture)?,
        &["other peak 3.00 MiB"],
    )?;
    let curves: Value = serde_json::from_str(&std::fs::read_to_string(&data)?)?;
    ensure!(
        curves["trace"] == "log" && curves["operations"] == 5,
        "{curves}"
    );
    let asked = serde_json::json!([[1, 1_000_000], [2, 1_005_000], [3, 1_005_070], [4, 5070]]);
    ensure!(curves["asked"] == asked, "{curves}");
    let pool = &curves["resources"][0];
    ensure!(pool["name"] == "pool + statistics", "{curves}");
    let steps = pool["reserved"].as_array().context("no curve")?;
    let last = steps.last().and_then(|step| step[1].as_u64());
    ensure!(last.is_some_and(|bytes| bytes >= 1_005_070), "{curves}");

    let path = log.path.display().to_string();
    let output = replay(env, &[&path, "--svg", &svg, "--level", "peak=much"])?;
    refused(&output, 2, &["--level", "peak=much"])?;
    let output = replay(env, &[&path, "--level", "peak=1GiB"])?;
    refused(&output, 2, &["--svg"])
}

/// Every tag is closed, in order, and no text holds what would be one.
fn well_formed(xml: &str) -> Result<()> {
    let mut open = Vec::new();
    let mut rest = xml;
    while let Some((before, after)) = rest.split_once('<') {
        ensure!(!before.contains('>'), "{before}");
        let (tag, after) = after.split_once('>').context("a tag without an end")?;
        ensure!(
            !tag.contains('<') && tag.matches('"').count() % 2 == 0,
            "{tag}"
        );
        let name = |tag: &str| tag.split_whitespace().next().map(str::to_owned);
        if let Some(closed) = tag.strip_prefix('/') {
            ensure!(open.pop() == Some(name(closed)), "{tag}");
        } else if !tag.ends_with('/') && !tag.starts_with(['?', '!']) {
            open.push(name(tag));
        }
        rest = after;
    }
    ensure!(open.is_empty() && xml.contains('<'), "left open: {open:?}");
    Ok(())
}

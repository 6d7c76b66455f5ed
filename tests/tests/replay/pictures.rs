//! The picture of the bytes over time.

use anyhow::{Context as _, Result, ensure};
use cuda_mem_tests::lab::Lab;

use crate::{ROWS, has, json, log, refused, replay};

pub(crate) fn a_picture_is_well_formed_and_shows_each_resource(lab: &Lab) -> Result<()> {
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
    ensure!(json(lab, &log.path, &two)?.len() == 4);
    let svg = std::fs::read_to_string(&file)?;
    well_formed(&svg)?;
    let words = [
        "<svg",
        "pool, pass 0",
        "direct (used and reserved computed",
        "reserved",
        "asked",
        "operation",
    ];
    has(&svg, &words)?;
    let nowhere = ["--json", "--svg", "/nowhere/picture.svg"];
    let path = log.path.display().to_string();
    let output = replay(lab, &[&[path.as_str()], &nowhere[..]].concat())?;
    refused(&output, 3, &["/nowhere/picture.svg"])
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

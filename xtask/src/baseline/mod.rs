//! `cargo xtask baseline`: ratios of the benchmarks' figures on the simulated driver, and whether a change moved one.
//!
//! A ratio of two figures of one round says more than either: the machine's speed is in both. It still differs between
//! kinds of processors, so the committed ones name theirs.

mod ratio;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::workspace;
use ratio::RATIOS;

/// Arguments of `baseline`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Compare with the committed ratios instead of writing them.
    #[arg(long)]
    check: bool,
    /// How often everything is measured.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
}

const FILE: &str = "docs/baseline.json";

/// What a median may differ beyond the rounds that were seen. On a machine of two processors with other work a run of the
/// same code differs by less.
const BEYOND: f64 = 0.10;

/// The benchmarks with their options, and `CUDA_MEM_BENCH_ONLY`: a part of the names of the rows that are needed.
const BENCHMARKS: [(&str, &[&str], &str); 4] = [
    ("arena", &["--json", "--pairs"], "arena"),
    ("arena", &["--json", "--traces"], "training, arena"),
    ("arena", &["--json", "--traces"], "streams, a, arena"),
    ("resources", &["--json", "--quick"], ""),
];

#[derive(Debug, Serialize, Deserialize)]
struct Baseline {
    /// The command that made it.
    generated: String,
    method: String,
    cpu: String,
    cores: usize,
    ratios: BTreeMap<String, Seen>,
}

/// One ratio, over all rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Seen {
    low: f64,
    median: f64,
    high: f64,
}

impl Seen {
    fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        Some(Self {
            low: *values.first()?,
            median: *values.get(values.len() / 2)?,
            high: *values.last()?,
        })
    }

    /// Whether the median is where no round of the baseline was, by more than noise.
    fn has_moved_from(self, baseline: Self) -> bool {
        self.median > baseline.high * (1.0 + BEYOND) || self.median < baseline.low * (1.0 - BEYOND)
    }
}

pub(crate) fn run(args: &Args) -> Result<()> {
    ensure!(args.rounds > 0, "--rounds 0 measures nothing");
    let now = measure(args.rounds)?;
    for (name, seen) in &now.ratios {
        println!(
            "{:7.3}  {:7.3} … {:<7.3}  {name}",
            seen.median, seen.low, seen.high
        );
    }
    let path = workspace::root().join(FILE);
    if !args.check {
        let text = serde_json::to_string_pretty(&now)?;
        workspace::write(&path, &format!("{text}\n"))?;
        println!("wrote {FILE}");
        return Ok(());
    }
    let baseline: Baseline = serde_json::from_str(&workspace::read(&path)?)
        .with_context(|| format!("{FILE} is none of this command's"))?;
    if (&baseline.cpu, baseline.cores) != (&now.cpu, now.cores) {
        println!(
            "note: the baseline is of {} with {} cores",
            baseline.cpu, baseline.cores
        );
    }
    let moved = moved(&baseline.ratios, &now.ratios);
    if moved.is_empty() {
        println!("check: no ratio has moved");
        return Ok(());
    }
    bail!(
        "{}\nif that is meant, run `cargo xtask baseline` and commit {FILE}, with the reason",
        moved.join("\n")
    )
}

fn moved(baseline: &BTreeMap<String, Seen>, now: &BTreeMap<String, Seen>) -> Vec<String> {
    let mut moved = Vec::new();
    for (name, seen) in now {
        match baseline.get(name) {
            Some(before) if seen.has_moved_from(*before) => moved.push(format!(
                "{name}: {:.3}, was {:.3} ({:.3} … {:.3})",
                seen.median, before.median, before.low, before.high
            )),
            Some(_) => {}
            None => moved.push(format!("{name}: is not in {FILE}")),
        }
    }
    let gone = baseline.keys().filter(|name| !now.contains_key(*name));
    moved.extend(gone.map(|name| format!("{name}: is measured no more")));
    moved
}

fn measure(rounds: usize) -> Result<Baseline> {
    let mut values: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let (mut cpu, mut cores) = (String::new(), 0);
    for round in 0..rounds {
        println!("round {} of {rounds}", round + 1);
        let reports = BENCHMARKS.map(|(name, options, only)| report(name, options, only));
        let reports = reports.into_iter().collect::<Result<Vec<_>>>()?;
        let about = &reports[0];
        ensure!(
            about["backend"]
                .as_str()
                .is_some_and(|name| name.starts_with("sim")),
            "not on the simulated driver: {}",
            about["backend"]
        );
        cpu = about["cpu"].as_str().unwrap_or("unknown").to_owned();
        cores = about["cores"].as_u64().unwrap_or(0) as usize;
        for ratio in &RATIOS {
            values
                .entry(ratio.name)
                .or_default()
                .push(ratio.of(&reports)?);
        }
    }
    let ratios = values.into_iter().map(|(name, values)| {
        let seen = Seen::of(values).with_context(|| format!("{name}: no value"))?;
        Ok((name.to_owned(), seen))
    });
    Ok(Baseline {
        generated: "cargo xtask baseline".to_owned(),
        method: format!(
            "medians of {rounds} rounds on the simulated driver, each of benches arena and resources"
        ),
        cpu,
        cores,
        ratios: ratios.collect::<Result<_>>()?,
    })
}

/// What a benchmark says on the simulated driver, whether there is a GPU or not.
fn report(name: &str, options: &[&str], only: &str) -> Result<Value> {
    let mut cargo = workspace::cargo();
    cargo
        .args([
            "bench",
            "--quiet",
            "--package",
            "cuda-mem",
            "--bench",
            name,
            "--",
        ])
        .args(options)
        .env("CUDA_MEM_BENCH_ONLY", only);
    let text = workspace::output(&mut cargo)?;
    let line = text.lines().find(|line| line.starts_with('{'));
    let line = line.with_context(|| format!("bench {name} printed no JSON"))?;
    Ok(serde_json::from_str(line)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(low: f64, median: f64, high: f64) -> Seen {
        Seen { low, median, high }
    }

    fn named(pairs: &[(&str, Seen)]) -> BTreeMap<String, Seen> {
        pairs
            .iter()
            .map(|(name, seen)| ((*name).to_owned(), *seen))
            .collect()
    }

    #[test]
    fn a_ratio_moves_when_it_leaves_what_was_seen_by_more_than_noise() {
        let before = seen(0.9, 1.0, 1.1);
        assert!(!seen(0.8, 1.2, 1.3).has_moved_from(before));
        assert!(seen(0.8, 1.22, 1.3).has_moved_from(before));
        assert!(seen(0.7, 0.8, 0.9).has_moved_from(before));
    }

    #[test]
    fn what_moved_came_or_went_is_named() {
        let before = named(&[("a", seen(1.0, 1.0, 1.0)), ("b", seen(1.0, 1.0, 1.0))]);
        let now = named(&[("a", seen(2.0, 2.0, 2.0)), ("c", seen(1.0, 1.0, 1.0))]);
        let words = moved(&before, &now);
        assert_eq!(words.len(), 3, "{words:?}");
        assert!(words[0].starts_with("a: 2.000, was 1.000"));
        assert!(words[1].starts_with("c: is not in") && words[2].starts_with("b: "));
        assert!(moved(&before, &before).is_empty());
    }

    #[test]
    fn the_median_is_one_of_the_values() {
        assert_eq!(Seen::of(vec![3.0, 1.0, 2.0]), Some(seen(1.0, 2.0, 3.0)));
        assert_eq!(Seen::of(Vec::new()), None);
    }
}

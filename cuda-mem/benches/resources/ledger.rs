//! Cost of the ledger per allocation and free, at each level.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Result, ensure};
use cuda_mem::ledger::{Ledger, LedgerLevel};
use cuda_mem::{Driver, MemoryPool, Resource, Stream};
use serde_json::{Value, json};

use crate::adaptors::Nothing;
use crate::common::middle;

pub(crate) const METHOD: &str = "nanoseconds for one allocate + drop of a buffer of 1 KiB: medians of 1001 rounds \
     of 1000 pairs after 50 rounds of warm-up, one thread; the levels take turns; over an upstream that hands \
     out made-up addresses, and from a pool; the cost is what the level adds to the pair with the ledger off, \
     as the median of the rounds' own differences. There is no build without the ledger to compare off with, so \
     the two questions that off asks in a pair are measured by themselves, as the row of the check: two calls of \
     Ledger::level, which reads the same number and does a little more with it, less an empty loop";

const ROUNDS: usize = 1001;
const WARM_UP: usize = 50;
const PAIRS: usize = 1000;

const LEVELS: [LedgerLevel; 3] = [LedgerLevel::Off, LedgerLevel::Bytes, LedgerLevel::Origins];

pub(crate) struct Row {
    level: LedgerLevel,
    source: &'static str,
    pair_ns: f64,
    /// `None` for the baseline of the others.
    cost_ns: Option<f64>,
}

pub(crate) fn measure(driver: Driver, stream: &Stream) -> Result<Vec<Row>> {
    let before = Ledger::level();
    let nothing = Resource::new(Nothing::new(stream));
    let pool = MemoryPool::builder(&driver.device(0)?).build()?;
    let mut rows = vec![check()];
    rows.extend(self::rows("nothing", || {
        drop(black_box(nothing.alloc::<u8>(stream, 1024)?));
        Ok(())
    })?);
    rows.extend(self::rows("pool", || {
        drop(black_box(pool.alloc::<u8>(stream, 1024)?));
        Ok(())
    })?);
    Ledger::enable(before);
    Ok(rows)
}

/// The cost of the checks in a pair when the ledger is off.
fn check() -> Row {
    const TIMES: usize = PAIRS * 100;
    Ledger::enable(LedgerLevel::Off);
    let ns_of = |pair: &dyn Fn(usize)| {
        let start = Instant::now();
        pair(TIMES);
        start.elapsed().as_nanos() as f64 / TIMES as f64
    };
    let rounds = (0..ROUNDS).map(|_| {
        let empty = ns_of(&|times| {
            for nth in 0..times {
                black_box(nth);
            }
        });
        let checked = ns_of(&|times| {
            for nth in 0..times {
                black_box(nth);
                for _ in 0..2 {
                    if black_box(Ledger::level()) != LedgerLevel::Off {
                        unreachable!("it is off");
                    }
                }
            }
        });
        checked - empty
    });
    let pair_ns = middle(rounds.collect());
    Row {
        level: LedgerLevel::Off,
        source: "check",
        pair_ns,
        cost_ns: Some(pair_ns),
    }
}

fn rows(source: &'static str, mut pair: impl FnMut() -> Result<()>) -> Result<Vec<Row>> {
    let (mut pairs, mut costs) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for turn in 0..WARM_UP + ROUNDS {
        let mut off = 0.0;
        for (nth, level) in LEVELS.into_iter().enumerate() {
            Ledger::enable(level);
            // A new ledger first creates its tables.
            for _ in 0..PAIRS / 10 {
                pair()?;
            }
            let start = Instant::now();
            for _ in 0..PAIRS {
                pair()?;
            }
            let ns = start.elapsed().as_nanos() as f64 / PAIRS as f64;
            ensure!(
                Ledger::report().is_empty(),
                "pairs left\n{}",
                Ledger::report()
            );
            if level == LedgerLevel::Off {
                off = ns;
            }
            if turn >= WARM_UP {
                pairs[nth].push(ns);
                costs[nth].push(ns - off);
            }
        }
    }
    let rows = LEVELS.into_iter().zip(pairs).zip(costs);
    Ok(rows
        .map(|((level, pairs), costs)| Row {
            level,
            source,
            pair_ns: middle(pairs),
            cost_ns: (level != LedgerLevel::Off).then(|| middle(costs)),
        })
        .collect())
}

pub(crate) fn json(rows: &[Row]) -> Value {
    rows.iter()
        .map(|row| {
            json!({
                "level": row.level.to_string(),
                "source": row.source,
                "pair_ns": row.pair_ns,
                "cost_ns": row.cost_ns,
            })
        })
        .collect()
}

pub(crate) fn show(rows: &[Row]) {
    println!("\nledger: {METHOD}\n");
    println!(
        "{:<24} {:>12} {:>16} {:>16}",
        "level", "from", "pair", "cost"
    );
    for row in rows {
        let cost = row.cost_ns.map(|ns| format!("{ns:.1} ns"));
        println!(
            "ledger {:<17} {:>12} {:>13.1} ns {:>16}",
            row.level,
            row.source,
            row.pair_ns,
            cost.as_deref().unwrap_or("-")
        );
    }
}

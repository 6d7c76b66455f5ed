//! The ratios, and where their figures are.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// A figure: the first row of a part of a report whose keys have these values, and the key of the figure.
struct Figure {
    part: &'static str,
    row: &'static [(&'static str, &'static str)],
    key: &'static str,
}

/// Two figures of one round.
pub(super) struct Ratio {
    pub(super) name: &'static str,
    above: Figure,
    below: Figure,
}

const fn adaptor(row: &'static [(&'static str, &'static str)]) -> Figure {
    Figure {
        part: "adaptors",
        row,
        key: "cost_ns",
    }
}

/// What everything else is measured with: two atomic additions.
const ATOMICS: Figure = adaptor(&[("adaptor", "(two atomic additions)")]);

const ARENA_PAIR: Figure = Figure {
    part: "pairs",
    row: &[("subject", "arena"), ("how", "resource"), ("bytes", "4096")],
    key: "pair_ns",
};

const POOL_PAIR: Figure = Figure {
    part: "pairs",
    row: &[("resource", "pool"), ("bytes", "256")],
    key: "pair_ns",
};

const fn log(row: &'static [(&'static str, &'static str)], key: &'static str) -> Figure {
    Figure {
        part: "traces",
        row,
        key,
    }
}

const GPT2: &[(&str, &str)] = &[("subject", "arena"), ("workload", "GPT-2 training")];

pub(super) const RATIOS: [Ratio; 12] = [
    Ratio {
        name: "arena: a pair of 4 KiB, over two atomic additions",
        above: ARENA_PAIR,
        below: ATOMICS,
    },
    Ratio {
        name: "arena: a buffer of 4 KiB, over a pair",
        above: Figure {
            part: "pairs",
            row: &[("subject", "arena"), ("how", "buffer"), ("bytes", "4096")],
            key: "pair_ns",
        },
        below: ARENA_PAIR,
    },
    Ratio {
        name: "arena: an operation of the training log, warm, over a pair",
        above: log(GPT2, "warm_ns"),
        below: ARENA_PAIR,
    },
    Ratio {
        name: "arena: reserved over asked, training log",
        above: log(GPT2, "peak_reserved"),
        below: log(GPT2, "peak_asked"),
    },
    Ratio {
        name: "arena: an operation of a server with 8 streams, warm, over a pair",
        above: log(
            &[("subject", "arena"), ("workload", "server, 8 streams, a")],
            "warm_ns",
        ),
        below: ARENA_PAIR,
    },
    Ratio {
        name: "arena: an operation of a server with 32 streams, warm, over a pair",
        above: log(
            &[("subject", "arena"), ("workload", "server, 32 streams, a")],
            "warm_ns",
        ),
        below: ARENA_PAIR,
    },
    Ratio {
        name: "adaptors: a limit, over two atomic additions",
        above: adaptor(&[("adaptor", "limit")]),
        below: ATOMICS,
    },
    Ratio {
        name: "adaptors: tracking, over two atomic additions",
        above: adaptor(&[("adaptor", "tracking")]),
        below: ATOMICS,
    },
    Ratio {
        name: "adaptors: statistics, over two atomic additions",
        above: adaptor(&[("adaptor", "statistics")]),
        below: ATOMICS,
    },
    Ratio {
        name: "ledger: bytes, over two atomic additions",
        above: Figure {
            part: "ledger",
            row: &[("level", "bytes"), ("source", "nothing")],
            key: "cost_ns",
        },
        below: ATOMICS,
    },
    Ratio {
        name: "simulator: a pair of a pool, over two atomic additions",
        above: POOL_PAIR,
        below: ATOMICS,
    },
    Ratio {
        name: "simulator: a pair of plain memory, over one of a pool",
        above: Figure {
            part: "pairs",
            row: &[("resource", "direct"), ("bytes", "256")],
            key: "pair_ns",
        },
        below: POOL_PAIR,
    },
];

impl Ratio {
    pub(super) fn of(&self, reports: &[Value]) -> Result<f64> {
        let [above, below] = [&self.above, &self.below].map(|figure| figure.of(reports));
        let (above, below) = (
            above.with_context(|| self.name)?,
            below.with_context(|| self.name)?,
        );
        ensure!(
            above > 0.0 && below > 0.0,
            "{}: {above} over {below}",
            self.name
        );
        Ok(above / below)
    }
}

impl Figure {
    fn of(&self, reports: &[Value]) -> Result<f64> {
        let rows = reports
            .iter()
            .filter_map(|report| report[self.part]["rows"].as_array());
        let is_it = |row: &&Value| {
            self.row
                .iter()
                .all(|(key, value)| text(&row[*key]) == *value)
        };
        let row = rows.flatten().find(is_it);
        let row = row.with_context(|| format!("no row {:?} in {}", self.row, self.part))?;
        let figure = row[self.key].as_f64();
        figure.with_context(|| format!("no {} in {row}", self.key))
    }
}

fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_figure_is_found_by_its_row() -> Result<()> {
        let reports = [
            json!({ "adaptors": { "rows": [] } }),
            json!({ "pairs": { "rows": [
                { "subject": "arena", "how": "buffer", "bytes": 4096, "pair_ns": 9.0 },
                { "subject": "arena", "how": "resource", "bytes": 4096, "pair_ns": 3.0 },
            ] } }),
        ];
        assert!((ARENA_PAIR.of(&reports)? - 3.0).abs() < 1e-9);
        assert!(ATOMICS.of(&reports).is_err());
        let ratio = RATIOS[1].of(&reports)?;
        assert!((ratio - 3.0).abs() < 1e-9);
        assert!(RATIOS[0].of(&reports).is_err());
        Ok(())
    }
}

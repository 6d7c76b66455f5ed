//! Bytes per second by size.

use anyhow::Result;
use cuda_mem_console::{bytes as scaled, figures};
use serde_json::{Value, json};

use crate::bench::Bench;
use crate::report::Outcome;
use crate::size_from;
use crate::transfer::{self, Way};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Size of a transfer, such as 64K or 1GiB; may be given several times [default: six sizes from 4 KiB to
    /// 64 MiB]
    #[arg(long = "size", value_name = "SIZE", value_parser = |text: &str| size_from(1, text))]
    sizes: Vec<u64>,
}

/// The third is the default of gdrcopy's own tool.
const SIZES: [u64; 6] = [4 << 10, 64 << 10, 128 << 10, 1 << 20, 16 << 20, 64 << 20];

pub(crate) fn run(bench: &Bench, args: &Args) -> Result<Outcome> {
    let sizes = match &args.sizes[..] {
        [] if bench.quick => &SIZES[..2],
        [] => &SIZES,
        given => given,
    };
    let ways = Way::all(bench);
    let names = ways.iter().map(|way| way.name());
    let mut table = figures(1, std::iter::once("size".to_owned()).chain(names));
    let mut rows: Vec<Value> = Vec::new();
    for size in sizes {
        let bytes = usize::try_from(*size)?;
        let mut cells = vec![scaled(bytes as u64)];
        for way in &ways {
            let ns = transfer::with(bench, *way, bytes, |transfer| {
                let write = bench.plan.batches(|| transfer.write())?;
                Ok([write, bench.plan.batches(|| transfer.read())?])
            })?;
            // Bytes per nanosecond equal gigabytes per second.
            let [write, read] = ns.map(|ns| bytes as f64 / ns);
            cells.push(format!("{write:.2} / {read:.2}"));
            rows.push(json!({
                "way": way.name(),
                "bytes": bytes,
                "write_gb_s": write,
                "read_gb_s": read,
            }));
        }
        table.add_row(cells);
    }
    Ok(Outcome {
        method: format!(
            "{}. The same bytes again and again, medians over the means of batches of about 100 µs, or of single transfers \
             that take longer; {}. A GB is 10^9 bytes",
            transfer::METHOD,
            bench.plan.words(),
        ),
        fields: vec![("rows", rows.into())],
        tables: vec![("GB/s: writes / reads".to_owned(), table)],
    })
}

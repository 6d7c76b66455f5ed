//! Time of one write or read by size, and where mappings and copies cross over.

use std::cell::RefCell;

use anyhow::Result;
use comfy_table::Table;
use cuda_mem_console::{bytes as scaled, figures, nanoseconds, table};
use serde_json::{Value, json};

use crate::bench::Bench;
use crate::cold;
use crate::figures::{Crossover, Pair, crossover, quantile};
use crate::report::Outcome;
use crate::size_from;
use crate::transfer::{self, Transfer, Way};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The largest size; the others are the powers of two below
    #[arg(long, default_value = "16M", value_name = "SIZE", value_parser = |text: &str| size_from(1, text))]
    size: u64,
}

const CACHES: [&str; 2] = ["warm", "cold"];
const DIRECTIONS: [&str; 2] = ["write", "read"];

/// The times of one way for one size: for each of [`CACHES`], nanoseconds for each of [`DIRECTIONS`].
struct Row {
    way: Way,
    bytes: usize,
    ns: [[f64; 2]; 2],
}

pub(crate) fn run(bench: &Bench, args: &Args) -> Result<Outcome> {
    let sizes = sizes(usize::try_from(args.size)?, bench.quick);
    let ways = Way::all(bench);
    let mut rows = Vec::new();
    for bytes in &sizes {
        for way in &ways {
            let ns = transfer::with(bench, *way, *bytes, |transfer| measure(bench, transfer))?;
            let (way, bytes) = (*way, *bytes);
            rows.push(Row { way, bytes, ns });
        }
    }
    let mut tables = Vec::new();
    for (cache, state) in CACHES.iter().enumerate() {
        let title = format!("{state} cache: writes / reads");
        tables.push((title, by_size(&sizes, &ways, &rows, cache)));
    }
    let largest = sizes.last().copied().unwrap_or(0);
    let meetings = meetings(&ways, &rows);
    let title = "the copy is faster from about".to_owned();
    tables.push((title, of_meetings(&meetings, largest)));
    let plan = &bench.plan;
    Ok(Outcome {
        method: format!(
            "{}. Warm: the same bytes again and again, medians over the means of batches of about 100 µs, or of single \
             transfers that take longer; {}. Cold: before each transfer the host's bytes, and those of host-mapped \
             windows, leave the host's caches ({}), untimed; medians of single transfers less {:.0} ns for the clock. \
             A copy counts as faster from where it is so at two sizes in a row",
            transfer::METHOD,
            plan.words(),
            cold::HOW,
            plan.clock_ns,
        ),
        fields: vec![
            ("rows", rows.iter().flat_map(Row::json).collect()),
            ("largest_bytes", largest.into()),
            ("crossovers", meetings.iter().map(Meeting::json).collect()),
        ],
        tables,
    })
}

/// All powers of two, or a few of them.
fn sizes(largest: usize, quick: bool) -> Vec<usize> {
    let step = if quick { 6 } else { 1 };
    let mut sizes: Vec<usize> = (0..usize::BITS - 1)
        .step_by(step)
        .map(|power| 1 << power)
        .take_while(|size| *size < largest && (!quick || *size <= 4096))
        .collect();
    if !quick || sizes.is_empty() {
        sizes.push(largest);
    }
    sizes
}

fn measure(bench: &Bench, transfer: &mut dyn Transfer) -> Result<[[f64; 2]; 2]> {
    let plan = &bench.plan;
    let warm_write = plan.batches(|| transfer.write())?;
    let warm_read = plan.batches(|| transfer.read())?;
    let transfer = RefCell::new(transfer);
    let cold = |once: fn(&mut dyn Transfer) -> Result<()>| {
        let work = || once(*transfer.borrow_mut());
        let mut all = plan.singles(work, || transfer.borrow_mut().chill())?;
        anyhow::Ok(quantile(&mut all, 0.5))
    };
    let cold_write = cold(|transfer| transfer.write())?;
    let cold_read = cold(|transfer| transfer.read())?;
    Ok([[warm_write, warm_read], [cold_write, cold_read]])
}

impl Row {
    fn json(&self) -> [Value; 2] {
        [0, 1].map(|cache| {
            let [write, read] = self.ns[cache];
            json!({
                "way": self.way.name(),
                "bytes": self.bytes,
                "cache": CACHES[cache],
                "write_ns": write,
                "read_ns": read,
            })
        })
    }
}

fn by_size(sizes: &[usize], ways: &[Way], rows: &[Row], cache: usize) -> Table {
    let names = ways.iter().map(|way| way.name());
    let mut table = figures(1, std::iter::once("size".to_owned()).chain(names));
    for bytes in sizes {
        let same = rows.iter().filter(|row| row.bytes == *bytes);
        let cells = same.map(|row| row.ns[cache].map(nanoseconds).join(" / "));
        table.add_row(std::iter::once(scaled(*bytes as u64)).chain(cells));
    }
    table
}

/// The crossover of a mapping and a copy, for each of [`DIRECTIONS`].
struct Meeting {
    window: String,
    copy: String,
    cache: usize,
    at: [Crossover; 2],
}

/// Each direct mapping, compared with each copy and with the fastest of them.
fn meetings(ways: &[Way], rows: &[Row]) -> Vec<Meeting> {
    let (windows, copies): (Vec<Way>, Vec<Way>) = ways.iter().partition(|way| way.is_direct());
    let each = copies.iter().map(|copy| (copy.name(), vec![*copy]));
    let fastest = ("the fastest".to_owned(), copies.clone());
    let rivals: Vec<_> = std::iter::once(fastest).chain(each).collect();
    let mut all = Vec::new();
    for window in windows {
        for (name, copies) in &rivals {
            for cache in 0..CACHES.len() {
                let at = [0, 1].map(|direction| {
                    let best = |bytes| {
                        let same = rows.iter().filter(|row| row.bytes == bytes);
                        let same = same.filter(|row| copies.contains(&row.way));
                        let times = same.map(|row| row.ns[cache][direction]);
                        times.fold(f64::INFINITY, f64::min)
                    };
                    let own = rows.iter().filter(|row| row.way == window);
                    let pairs = own.map(|row| Pair {
                        bytes: row.bytes,
                        window: row.ns[cache][direction],
                        copy: best(row.bytes),
                    });
                    crossover(&pairs.collect::<Vec<_>>())
                });
                all.push(Meeting {
                    window: window.name(),
                    copy: name.clone(),
                    cache,
                    at,
                });
            }
        }
    }
    all
}

impl Meeting {
    fn json(&self) -> Value {
        let found = self.at.map(|at| match at {
            Crossover::AtOnce => ("at once", Some(0)),
            Crossover::At(bytes) => ("at", Some(bytes)),
            Crossover::Never => ("never", None),
        });
        let mut value = json!({
            "window": self.window,
            "copy": self.copy,
            "cache": CACHES[self.cache],
        });
        for (direction, (verdict, bytes)) in DIRECTIONS.iter().zip(found) {
            value[format!("{direction}_bytes")] = bytes.into();
            value[format!("{direction}_verdict")] = verdict.into();
        }
        value
    }
}

fn of_meetings(meetings: &[Meeting], largest: usize) -> Table {
    let header = ["window", "copy", "cache", "writes", "reads"];
    let mut table = table(header);
    for meeting in meetings {
        let [writes, reads] = meeting.at.map(|at| match at {
            Crossover::AtOnce => "the smallest size on".to_owned(),
            Crossover::At(bytes) => scaled(bytes as u64),
            Crossover::Never => {
                format!("never within {}", scaled(largest as u64))
            }
        });
        let (window, copy) = (meeting.window.clone(), meeting.copy.clone());
        let cache = CACHES[meeting.cache].to_owned();
        table.add_row([window, copy, cache, writes, reads]);
    }
    table
}

//! Results as a table, as JSON and as a picture.

use cuda_mem_chart::{Axis, Chart, Series, Unit};
use cuda_mem_console::{bytes, figures, nanoseconds};
use serde_json::{Value, json};

use super::common::Heading;
use super::measure::{Plan, Row};

pub(crate) fn method(plan: &Plan, is_blocking: bool) -> String {
    let blocking = if is_blocking { "" } else { "non-" };
    format!(
        "float32 sums, contents checked; medians of {} rounds of rank 0; a {blocking}blocking communicator",
        plan.rounds
    )
}

/// Bytes of a rank's memory in a second; what NCCL's tests call the algorithm's bandwidth.
fn gigabytes_per_second(row: &Row) -> f64 {
    row.bytes as f64 / row.replayed_ns
}

pub(crate) fn table(heading: &Heading, rows: &[Row]) -> String {
    let mut table = figures(1, ["memory", "size", "started", "replayed", "GB/s", "path"]);
    for row in rows {
        table.add_row([
            row.kind.name().to_owned(),
            bytes(row.bytes),
            nanoseconds(row.started_ns),
            nanoseconds(row.replayed_ns),
            format!("{:.2}", gigabytes_per_second(row)),
            if row.in_window { "window" } else { "" }.to_owned(),
        ]);
    }
    format!("{heading}\n{table}")
}

pub(crate) fn json(heading: &Heading, rows: &[Row]) -> Value {
    let rows = rows.iter().map(|row| {
        json!({
            "memory": row.kind.name(), "bytes": row.bytes, "window": row.in_window,
            "started_ns": row.started_ns, "replayed_ns": row.replayed_ns,
            "gigabytes_per_second": gigabytes_per_second(row),
        })
    });
    let mut object = heading.json();
    object.insert("rows".to_owned(), rows.collect());
    object.into()
}

pub(crate) fn chart(rows: &[Row]) -> Chart {
    let mut chart = Chart::new(
        "All-reduce, replayed from a graph",
        Axis::logarithmic("memory of a rank", Unit::Bytes),
        Axis::linear("bandwidth", Unit::GigabytesPerSecond),
    );
    let mut kinds: Vec<_> = rows.iter().map(|row| row.kind).collect();
    kinds.dedup();
    for kind in kinds {
        let of_kind = rows.iter().filter(|row| row.kind == kind);
        let points = of_kind.map(|row| (row.bytes as f64, gigabytes_per_second(row)));
        chart
            .lines
            .push(Series::straight(kind.name(), points.collect()));
    }
    chart
}
